"""Envs move to other servers, each when it is reset, while the learner goes on."""

import contextlib
import re
import threading

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from helpers_faults import ServerProcess
from helpers_launcher import Listed
from helpers_server import running
from helpers_tally import Endless, Tally
from helpers_wait import wait_until

from openenv_gym import RemoteVecEnv, resharding
from openenv_gym.errors import RemoteEnvError, ReplyTimeout, SessionLost
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
    return sum(len(link.legs.bound) for link in envs.rollout.pool.links) == count


class Moody(Endless):
    """Raises at action 1, and at action 2 it takes until it may go on."""

    go_on = threading.Event()

    def step(self, action):
        if action == 1:
            raise ValueError("no")
        if action == 2:
            self.go_on.wait(60)
        return super().step(action)


class Checked:
    """Steps a vector env of `Tally`s, and checks that no row's episode is ever mixed up with another.

    With `ready` it sends some rows at a time and takes those that are ready, so that there are always some in flight.
    """

    def __init__(self, envs, mode, *, ready=False):
        self.envs, self.mode, self.ready = envs, mode, ready
        self.actions, self.flying = np.arange(ROWS) % 4, np.zeros(ROWS, np.bool_)
        self.last = envs.reset(seed=1)[0]
        self.over, self.taken = np.zeros(ROWS, np.bool_), np.zeros(ROWS, np.int64)

    def step(self):
        if self.ready:
            self.receive()
            return
        observations, _, terminated, truncated, infos = self.envs.step(self.actions)
        self.check(np.arange(ROWS), observations, terminated | truncated, infos)

    def all_go_on(self):
        """Step until each row has begun a new episode, however slow its server is."""
        enough = self.taken + 4 * LONGEST
        while (self.taken < enough).any():
            self.step()

    def receive(self):
        rows = np.flatnonzero(~self.flying)
        self.envs.send(self.actions[rows], rows)
        self.flying[rows] = True
        observations, _, terminated, truncated, infos = self.envs.recv(min_ready=ROWS // 2)
        rows = infos["env_id"]
        self.flying[rows] = False
        self.check(rows, observations, terminated | truncated, infos)

    def land(self):
        """Take what is in flight."""
        if self.flying.any():
            observations, _, terminated, truncated, infos = self.envs.recv()
            self.flying[:] = False
            self.check(infos["env_id"], observations, terminated | truncated, infos)

    def check(self, rows, observations, over, infos):
        begun = over if self.mode == "SameStep" else self.over[rows]
        last = self.last[rows]
        assert (observations[begun, 1] == 0).all()
        assert (observations[~begun, 1] == last[~begun, 1] + 1).all()
        assert (observations[~begun, 0] == last[~begun, 0]).all()
        assert (observations[~begun, 2] == self.actions[rows][~begun]).all()
        if self.mode == "SameStep" and over.any():
            assert all(infos["final_obs"][at][1] == last[at, 1] + 1 for at in np.flatnonzero(over))
        self.last[rows], self.over[rows] = observations, over
        self.taken[rows] += 1
        if self.mode == "Disabled" and over.any():
            mask = np.zeros(ROWS, np.bool_)
            mask[rows] = over
            self.last[mask] = self.envs.reset(options={"reset_mask": mask})[0][mask]
            self.over[mask] = False
        assert not infos.get("connection_lost", np.zeros(ROWS)).any()


@pytest.mark.parametrize("ready", [False, True], ids=["step", "send and recv"])
@pytest.mark.parametrize("mode", MODES)
def test_growing_and_shrinking(servers, mode, ready):
    """Shares become even, no episode is cut short, and envs that nobody needs are closed."""
    urls, active = servers
    launcher = Listed(a=urls[0])
    with RemoteVecEnv(launcher, ROWS, autoreset_mode=mode) as envs:
        run = Checked(envs, mode, ready=ready)
        run.step()
        launcher.listed.update(b=ServerAddress(urls[1]))
        wait_until(lambda: is_bound(envs, 4), "envs on the new server")
        assert active() == [8, 4, 0]
        run.all_go_on()
        assert is_bound(envs, 0)
        assert envs.rollout.pool.links[0].legs.homes == list("aaaabbbb")
        launcher.listed.update(c=ServerAddress(urls[2]), a=ServerAddress(urls[0], draining=True))
        wait_until(lambda: is_bound(envs, 4), "envs on the third server")
        run.all_go_on()
        assert envs.rollout.pool.links[0].legs.homes == list("ccccbbbb")
        wait_until(lambda: active() == [0, 4, 4], "the first session's end")
        launcher.listed.update(a=ServerAddress(urls[0]))
        del launcher.listed["c"]
        wait_until(lambda: is_bound(envs, 4), "envs on the first server again")
        run.land()
        envs.reset(seed=3)
        assert sorted(envs.rollout.pool.links[0].legs.homes) == list("aaaabbbb")
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


@contextlib.contextmanager
def on_two_servers(dies, stays, **options):
    """Four envs, the last two of them on a server that a test kills."""
    launcher = Listed(a=stays.url)
    with RemoteVecEnv(launcher, 4, **options) as envs:
        envs.reset(seed=1)
        launcher.listed.update(b=ServerAddress(dies.url))
        wait_until(lambda: is_bound(envs, 2), "envs on the new server")
        envs.reset(seed=2)
        yield launcher, envs


def received(envs, **options):
    """What `recv` gives: each row's step in its episode, and the rows that were lost."""
    observations, _, _, truncated, infos = envs.recv(**options)
    lost = infos.get("connection_lost", np.zeros(len(truncated), np.bool_))
    assert truncated.tolist() == lost.tolist()
    rows = infos["env_id"]
    return dict(zip(rows.tolist(), observations[:, 1].tolist(), strict=True)), rows[lost].tolist()


@pytest.mark.filterwarnings("ignore:.*the session on .* is gone:UserWarning")
@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_dies_takes_only_its_rows_along_with_send_and_recv(mode):
    """Rows in flight there are lost at once, and the others there when they are sent."""
    with ServerProcess("helpers_tally:Endless") as dies, ServerProcess("helpers_tally:Endless") as stays:
        with on_two_servers(dies, stays, autoreset_mode=mode) as (launcher, envs):
            envs.send([1] * 4)
            assert received(envs) == ({0: 1, 1: 1, 2: 1, 3: 1}, [])
            dies.kill()
            del launcher.listed["b"]
            envs.send([1, 1], [0, 2])
            last = 0 if mode == "SameStep" else 1
            assert received(envs) == ({0: 2, 2: last}, [2])
            envs.send([1, 1], [1, 3])
            assert received(envs) == ({1: 2, 3: last}, [3])
            if mode == "Disabled":
                envs.reset(options={"reset_mask": np.array([False, False, True, True])})
            envs.send([1] * 4)
            begun = 0 if mode == "NextStep" else 1
            assert received(envs) == ({0: 3, 1: 3, 2: begun, 3: begun}, [])
            assert envs.step([1] * 4)[0][:, 1].tolist() == [4, 4, begun + 1, begun + 1]


@pytest.mark.parametrize("noticed", [True, False])
def test_of_a_server_that_died_the_user_is_told_once(noticed):
    with ServerProcess("helpers_tally:Endless") as dies, ServerProcess("helpers_tally:Endless") as stays:
        with on_two_servers(dies, stays) as (launcher, envs), pytest.warns(UserWarning, match="gone") as told:
            dies.kill()
            del launcher.listed["b"]
            if noticed:
                wait_until(lambda: envs.stats().sessions_lost == 1, "the session's end")
            assert envs.step([1] * 4)[3].tolist() == [False, False, True, True]
            envs.step([1] * 4)
        # How long the server seems to be away depends on the machine.
        (text,) = [text for warning in told if "can't be used now" not in (text := str(warning.message))]
        assert re.search(r"is gone \(unknown session, after .*: 2 row\(s\) are truncated", text)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_mask_on_a_lost_session_costs_the_others_their_episode_once(noticed):
    with ServerProcess("helpers_tally:Endless") as server, RemoteVecEnv(Listed(a=server.url), 3) as envs:
        envs.reset(seed=1)
        envs.step([1] * 3)
        server.kill()
        if noticed:
            server.start()
            wait_until(lambda: envs.stats().sessions_lost == 1, "the session's end")
        envs.reset_async(options={"reset_mask": np.array([True, False, False])})
        if not noticed:
            server.start()
        envs.reset_wait()
        with pytest.warns(UserWarning, match=r"is gone .*: 2 row\(s\) are truncated"):
            observations, _, _, truncated, infos = envs.step([1] * 3)
        assert truncated.tolist() == infos["connection_lost"].tolist() == [False, True, True]
        assert observations[:, 1].tolist() == [1, 1, 1]
        assert envs.step([1] * 3)[0][:, 1].tolist() == [2, 0, 0]
        envs.reset(options={"reset_mask": np.array([False, True, False])})
        observations, _, _, truncated, _ = envs.step([1] * 3)
        assert (observations[:, 1].tolist(), truncated.any()) == ([3, 1, 1], False)


@pytest.mark.filterwarnings("ignore:.*the session on .* is gone:UserWarning")
def test_rows_that_were_idle_when_their_server_died_are_lost_with_step_too():
    with ServerProcess("helpers_tally:Endless") as dies, ServerProcess("helpers_tally:Endless") as stays:
        with on_two_servers(dies, stays) as (launcher, envs):
            dies.kill()
            del launcher.listed["b"]
            envs.send([1], [2])
            assert received(envs) == ({2: 0}, [2])
            observations, _, _, truncated, infos = envs.step([1] * 4)
            assert observations[:, 1].tolist() == [1, 1, 0, 0]
            assert truncated.tolist() == infos["connection_lost"].tolist() == [False, False, False, True]
            assert envs.step([1] * 4)[0][:, 1].tolist() == [2, 2, 1, 0]


def test_a_loss_can_be_raised():
    with ServerProcess("helpers_tally:Endless") as dies, ServerProcess("helpers_tally:Endless") as stays:
        with on_two_servers(dies, stays, on_lost="raise") as (launcher, envs):
            dies.kill()
            del launcher.listed["b"]
            envs.send([1] * 4)
            with pytest.raises(SessionLost):
                while True:
                    envs.recv(min_ready=1)
            with pytest.raises(ResetNeeded):
                envs.step([1] * 4)
            envs.reset(seed=3)
            envs.send([1] * 4)
            assert received(envs) == ({0: 1, 1: 1, 2: 1, 3: 1}, [])


def test_what_envs_raise_and_what_is_late_on_several_servers():
    apps = [create_app(Moody, max_envs=4, max_workers=4) for _ in range(2)]  # so that none waits for another's thread
    with running(apps[0]) as first, running(apps[1]) as second:
        launcher = Listed(a=first)
        with RemoteVecEnv(launcher, 4) as envs:
            envs.reset(seed=1)
            launcher.listed.update(b=ServerAddress(second))
            wait_until(lambda: is_bound(envs, 2), "envs on the new server")
            envs.reset(seed=1)
            envs.send([0, 0, 1, 0])
            with pytest.raises(RemoteEnvError, match="env 2") as raised:
                envs.recv()
            assert raised.value.env_index == 2
            assert received(envs) == ({0: 1, 1: 1, 3: 1}, [])
            envs.send([2, 0, 0], [0, 1, 3])
            assert received(envs, min_ready=2) == ({1: 2, 3: 2}, [])
            with pytest.raises(ReplyTimeout):
                envs.recv(timeout=0.1)
            Moody.go_on.set()
            with pytest.raises(ResetNeeded):
                envs.send([0], [0])
            envs.reset(options={"reset_mask": np.array([True, False, True, False])})
            envs.send([0] * 4)
            assert received(envs) == ({0: 1, 1: 3, 2: 1, 3: 3}, [])
