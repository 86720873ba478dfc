"""Autoresets pass the options of the last reset by hand, if they are sticky, and never a seed."""

import contextlib

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from helpers_faults import FaultProxy, ServerProcess
from helpers_launcher import Listed
from helpers_server import running
from helpers_vector import Noting
from helpers_wait import wait_until

from openenv_gym import RemoteVecEnv, resharding
from openenv_gym.errors import RemoteEnvError
from openenv_gym.launcher import ServerAddress
from openenv_gym.server import create_app

NONE = -1
DIALECTS = [{"connections": 1}, {"connections": 2}, {"dialect": "openenv"}]


class Levels(gym.Env):
    """Observes the level and the seed that it was reset with, and a random number; episodes take two steps."""

    observation_space, action_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        level = NONE if options is None else options.pop("level", NONE)  # envs do change what they are given
        self.seen = np.array([level, NONE if seed is None else seed, self.np_random.random()])
        return self.seen, {}

    def step(self, action):
        self.t += 1
        return self.seen, 1.0, self.t == 2, False, {}


@pytest.fixture(scope="module")
def url():
    with running(create_app(Levels)) as url:
        yield url


def begin_episodes(env, count):
    """Step through as many episodes, and give what was observed first in each: `(count, rows, 3)`."""
    firsts = []
    while len(firsts) < count:
        observations, _, terminated, _, _ = env.step([0] * env.num_envs)
        if terminated.all():
            if env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP:
                observations, *_ = env.step([0] * env.num_envs)
            firsts.append(observations)
    return np.array(firsts)


@pytest.mark.parametrize("options", DIALECTS, ids=str)
@pytest.mark.parametrize("sticky", [True, False])
def test_three_autoresets(url, options, sticky):
    given = {"level": 2}
    with RemoteVecEnv(url, 2, sticky_options=sticky, **options) as env:
        first, _ = env.reset(seed=1, options=given)
        assert first[:, :2].tolist() == [[2, 1], [2, 2]]
        later = begin_episodes(env, 3)
    assert later[:, :, :2].tolist() == [[[2 if sticky else NONE, NONE]] * 2] * 3
    assert len({*first[:, 2], *later[:, :, 2].ravel()}) == 8  # each episode begins otherwise
    assert given == {"level": 2}


@pytest.mark.parametrize("sticky", [True, False])
def test_under_the_same_step_mode(url, sticky):
    with RemoteVecEnv(url, 2, autoreset_mode="SameStep", sticky_options=sticky) as env:
        env.reset(seed=1, options={"level": 2})
        assert begin_episodes(env, 3)[:, :, :2].tolist() == [[[2 if sticky else NONE, NONE]] * 2] * 3


@pytest.mark.parametrize("options", DIALECTS, ids=str)
def test_the_next_reset_by_hand_replaces_them_in_its_rows(url, options):
    with RemoteVecEnv(url, 3, sticky_options=True, **options) as env:
        env.reset(options={"level": 2})
        env.reset(options={"level": 5, "reset_mask": np.array([False, True, False])})
        assert begin_episodes(env, 2)[:, :, 0].tolist() == [[2, 5, 2]] * 2
        env.reset(options={"reset_mask": np.array([False, False, True])})
        assert begin_episodes(env, 2)[:, :, 0].tolist() == [[2, 5, NONE]] * 2
        env.reset()
        assert begin_episodes(env, 1)[:, :, 0].tolist() == [[NONE] * 3]


def test_with_send_and_recv(url):
    with RemoteVecEnv(url, 2, sticky_options=True) as env:
        env.reset(options={"level": 3})
        for _ in range(6):
            env.send([0, 0])
            observations, *_ = env.recv()
            assert observations[:, 0].tolist() == [3, 3]


def test_with_stable_baselines(url):
    sb3 = pytest.importorskip("openenv_gym.sb3")
    env = sb3.SB3VecEnv(RemoteVecEnv(url, 2, sticky_options=True))
    with contextlib.closing(env):
        env.set_options([{"level": 1}, {"level": 4}])
        env.reset()
        for _ in range(5):
            observations, *_ = env.step(np.zeros(2, np.int64))
            assert observations[:, 0].tolist() == [1, 4]


@pytest.mark.filterwarnings("ignore:.*session on .* is gone:UserWarning")
@pytest.mark.parametrize("options", [{"connections": 2}, {"dialect": "openenv"}], ids=str)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_the_episode_after_a_lost_session_gets_them_too(options, mode):
    with ServerProcess("test_sticky_options:Levels") as process:
        with RemoteVecEnv(process.url, 2, autoreset_mode=mode, sticky_options=True, **options) as env:
            env.reset(seed=1, options={"level": 2})
            env.reset(seed=1, options={"level": 6, "reset_mask": np.array([False, True])})
            process.restart()
            observations, _, _, truncated, _ = env.step([0, 0])
            assert truncated.all()
            if mode == "NextStep":
                observations, *_ = env.step([0, 0])
            assert observations[:, :2].tolist() == [[2, NONE], [6, NONE]]
            assert begin_episodes(env, 2)[:, :, 0].tolist() == [[2, 6]] * 2


@pytest.mark.filterwarnings("ignore:.*session on .* is gone:UserWarning")
def test_the_episode_after_a_lost_session_gets_them_with_send_too():
    with ServerProcess("test_sticky_options:Levels") as process:
        with RemoteVecEnv(process.url, 2, connections=1, sticky_options=True) as env:
            env.reset(options={"level": 2})
            env.send([0, 0])
            env.recv()
            process.restart()
            levels = []
            for _ in range(3):  # the loss, the reset, a step
                env.send([0, 0])
                levels.append(env.recv()[0][:, 0].tolist())
            assert levels == [[2, 2]] * 3


def test_rows_that_move_take_them_along(monkeypatch, url):
    monkeypatch.setattr(resharding, "WATCH_S", 0.02)
    launcher = Listed(a=url)
    with running(create_app(Levels)) as second:
        with RemoteVecEnv(launcher, 4, sticky_options=True) as env:
            env.reset(options={"level": 2})
            env.reset(options={"level": 8, "reset_mask": np.array([False, False, True, True])})
            launcher.listed.update(b=ServerAddress(second))
            (link,) = env.rollout.pool.links
            wait_until(lambda: len(link.legs.bound) == 2, "envs on the second server")
            assert begin_episodes(env, 1)[:, :, 0].tolist() == [[2, 2, 8, 8]]
            assert len(link.legs.all) == 2
            assert begin_episodes(env, 2)[:, :, 0].tolist() == [[2, 2, 8, 8]] * 2


def test_a_cut_connection_changes_nothing(url):
    with FaultProxy(url) as proxy, RemoteVecEnv(proxy.url, 2, sticky_options=True) as env:
        env.reset(options={"level": 2})
        env.step([0, 0])
        proxy.cut()
        assert begin_episodes(env, 2)[:, :, 0].tolist() == [[2, 2]] * 2


def test_a_vector_env_that_resets_itself_refuses_them():
    options = {"autoreset_mode": "SameStep", "sticky_options": True}
    with running(create_app(Noting)) as url, RemoteVecEnv(url, 3, **options) as env:
        with pytest.raises(RemoteEnvError, match="resets its envs by itself, without options: they can't be sticky"):
            env.reset(options={"level": 2})
        env.reset()
