"""Envs move to other servers, each when it is reset, while the learner goes on."""

import contextlib

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from helpers_faults import ServerProcess, wait_until
from helpers_launcher import Listed
from helpers_server import running
from helpers_tally import Tally

from openenv_gym import RemoteVecEnv, resharding
from openenv_gym.launcher import ServerAddress
from openenv_gym.server import create_app

MODES = [mode.value for mode in AutoresetMode]
LONGEST = 7
ROWS = 8


@pytest.fixture(autouse=True)
def short_looks(monkeypatch):
    monkeypatch.setattr(resharding, "WATCH_S", 0.02)


@pytest.fixture(scope="module")
def servers():
    """Three servers: their URLs, and how many envs each has now."""
    with contextlib.ExitStack() as stack:
        apps = [create_app(lambda: Tally(longest=LONGEST, ends=0.2), max_envs=ROWS) for _ in range(3)]
        urls = [stack.enter_context(running(app)) for app in apps]
        yield urls, lambda: [app.state.registry.capacity.active for app in apps]


def is_bound(envs, count):
    """Whether this many rows have an env that waits for them elsewhere."""
    return sum(len(link.bound) for link in envs.rollout.pool.links) == count


class Checked:
    """Steps a vector env of `Tally`s, and checks that no row's episode is ever mixed up with another."""

    def __init__(self, envs, mode):
        self.envs, self.mode = envs, mode
        self.last = envs.reset(seed=1)[0]
        self.over = np.zeros(ROWS, np.bool_)

    def step(self):
        actions = np.arange(ROWS) % 4
        observations, _, terminated, truncated, infos = self.envs.step(actions)
        over = terminated | truncated
        begun = over if self.mode == "SameStep" else self.over
        assert (observations[begun, 1] == 0).all()
        assert (observations[~begun, 1] == self.last[~begun, 1] + 1).all()
        assert (observations[~begun, 0] == self.last[~begun, 0]).all()
        assert (observations[~begun, 2] == actions[~begun]).all()
        if self.mode == "SameStep" and over.any():
            assert all(infos["final_obs"][row][1] == self.last[row, 1] + 1 for row in np.flatnonzero(over))
        self.last, self.over = observations, over
        if self.mode == "Disabled" and over.any():
            self.last = self.envs.reset(options={"reset_mask": over})[0]
            self.over = np.zeros(ROWS, np.bool_)
        assert not infos.get("connection_lost", np.zeros(ROWS)).any()
        return observations


@pytest.mark.parametrize("mode", MODES)
def test_growing_and_shrinking(servers, mode):
    """Shares become even, no episode is cut short, and envs that nobody needs are closed."""
    urls, active = servers
    launcher = Listed(a=urls[0])
    with RemoteVecEnv(launcher, ROWS, autoreset_mode=mode) as envs:
        run = Checked(envs, mode)
        run.step()
        launcher.listed.update(b=ServerAddress(urls[1]))
        wait_until(lambda: is_bound(envs, 4), "envs on the new server")
        assert active() == [8, 4, 0]
        for _ in range(4 * LONGEST):
            run.step()
        assert is_bound(envs, 0)
        assert envs.rollout.pool.links[0].homes == list("aaaabbbb")
        launcher.listed.update(c=ServerAddress(urls[2]), a=ServerAddress(urls[0], draining=True))
        wait_until(lambda: is_bound(envs, 4), "envs on the third server")
        for _ in range(4 * LONGEST):
            run.step()
        assert envs.rollout.pool.links[0].homes == list("ccccbbbb")
        wait_until(lambda: active() == [0, 4, 4], "the first session's end")
        launcher.listed.update(a=ServerAddress(urls[0]))
        del launcher.listed["c"]
        wait_until(lambda: is_bound(envs, 4), "envs on the first server again")
        envs.reset(seed=3)
        assert sorted(envs.rollout.pool.links[0].homes) == list("aaaabbbb")
        assert envs.get_attr("longest") == (LONGEST,) * ROWS
    wait_until(lambda: active() == [0, 0, 0], "the end of all sessions")


def test_rows_that_stay_are_byte_equal(servers):
    urls, _ = servers
    launcher = Listed(a=urls[0])
    local = SyncVectorEnv([lambda: Tally(longest=LONGEST, ends=0.2)] * ROWS)
    with RemoteVecEnv(launcher, ROWS) as envs:
        envs.reset(seed=1)
        local.reset(seed=1)
        launcher.listed.update(b=ServerAddress(urls[1]))
        wait_until(lambda: is_bound(envs, 4), "envs on the new server")
        for step in range(3 * LONGEST):
            ours, theirs = envs.step(np.full(ROWS, step % 4)), local.step(np.full(ROWS, step % 4))
            for mine, expected in zip(ours[:4], theirs[:4], strict=True):
                assert mine[:4].tobytes() == expected[:4].tobytes()
        ours, theirs = envs.reset(seed=9)[0], local.reset(seed=9)[0]
        assert ours[:, 4].tobytes() == theirs[:, 4].tobytes()  # a seed's episode is the same wherever the env is


@pytest.mark.filterwarnings("ignore:.*the session on .* is gone:UserWarning")
@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_dies_takes_only_its_rows_along(mode):
    """Also where the rows of one link are on several servers."""
    with ServerProcess("helpers_tally:Endless") as dies, ServerProcess("helpers_tally:Endless") as stays:
        launcher = Listed(a=stays.url)
        with RemoteVecEnv(launcher, 4, autoreset_mode=mode) as envs:
            envs.reset(seed=1)
            launcher.listed.update(b=ServerAddress(dies.url))
            wait_until(lambda: is_bound(envs, 2), "envs on the new server")
            envs.reset(seed=2)
            last = envs.step([1] * 4)[0]
            dies.kill()
            del launcher.listed["b"]
            observations, _, _, truncated, infos = envs.step([2] * 4)
            assert truncated.tolist() == [False, False, True, True]
            assert infos["connection_lost"].tolist() == [False, False, True, True]
            assert observations[:2, 1].tolist() == [2, 2]
            if mode == "SameStep":
                assert np.stack(infos["final_obs"][2:]).tobytes() == last[2:].tobytes()
                assert observations[2:, 1].tolist() == [0, 0]
                last = observations
            else:
                assert observations[2:].tobytes() == last[2:].tobytes()
            if mode == "Disabled":
                envs.reset(options={"reset_mask": truncated})
            observations, _, _, truncated, infos = envs.step([3] * 4)
            assert observations[:, 1].tolist() == [3, 3, *([0, 0] if mode == "NextStep" else [1, 1])]
            assert not truncated.any()
            assert "connection_lost" not in infos
