"""Large messages: what passes by default, what is told about what doesn't, and how many bytes travel."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete
from helpers_server import running

from openenv_gym import RemoteVecEnv
from openenv_gym.errors import MessageTooLarge, RemoteEnvError
from openenv_gym.server import create_app

MIB = 2**20


class Big(gym.Env):
    """Its observations are random bytes; an action says how many of them are left out.

    Args:
        shape: their shape.
    """

    action_space = Discrete(2)

    def __init__(self, shape=(2 * MIB,)):
        self.observation_space = Box(0, 255, shape, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        return self._observe(), 1.0, False, False, {"long": "x" * MIB} if action else {}

    def _observe(self):
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)


def big(shape):
    return lambda: Big(shape)


@pytest.mark.parametrize("dialect, size", [(None, 2 * MIB), (None, 20 * MIB), ("openenv", 2 * MIB)])
def test_what_passes_by_default(dialect, size):
    local = Big((size,))
    with running(create_app(big((size,)))) as url, RemoteVecEnv(url, 1, dialect=dialect) as env:
        assert env.reset(seed=1)[0].tobytes() == local.reset(seed=1)[0].tobytes()
        assert env.step([0])[0].tobytes() == local.step(0)[0].tobytes()


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_reply_over_a_limit_names_the_setting_and_asks_for_a_reset(side):
    limit = {"max_message_size_mb": 0.5}
    app = create_app(big((1000,)), **(limit if side == "server" else {}))
    with running(app) as url, RemoteVecEnv(url, 2, **(limit if side == "client" else {})) as env:
        env.reset(seed=1)
        with pytest.raises(MessageTooLarge, match="limit of 524,288 bytes; raise max_message_size_mb on both sides"):
            env.step([1, 0])
        with pytest.raises(ResetNeeded):
            env.step([0, 0])
        env.reset(seed=1)
        assert env.step([0, 0])[1].tolist() == [1, 1]


def test_the_same_in_openenvs_dialect():
    with (
        running(create_app(big((1000,)), max_message_size_mb=0.5)) as url,
        RemoteVecEnv(url, 2, dialect="openenv") as env,
    ):
        env.reset(seed=1)
        with pytest.raises(RemoteEnvError, match=r"env 0 .*the reply is too large"):
            env.step([1, 0])
        env.reset(seed=1)
        assert env.step([0, 0])[1].tolist() == [1, 1]


def test_an_image_travels_as_its_bytes():
    with running(create_app(big((84, 84, 4)))) as url, RemoteVecEnv(url, 1) as env:
        env.reset(seed=1)
        traffic = env.rollout.pool.links[0].traffic
        before = traffic.bytes_down
        env.step([0])
        assert 84 * 84 * 4 <= traffic.bytes_down - before < 84 * 84 * 4 + 100
