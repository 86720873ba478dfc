"""Envs with something special, and clients without a network, for the tests of the OpenEnv dialect."""

import asyncio
import json
import threading
from collections.abc import Mapping

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from openenv_gym.server.adapters import EnvSource
from openenv_gym.server.json_sessions import JsonSessions
from openenv_gym.server.openenv_dialect import converse
from openenv_gym.server.registry import Registry
from openenv_gym.server.settings import ServerSettings


class Count(gym.Env):
    """Counts its steps. It terminates at `length`; an action other than 0 does what the test says."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}
    observation_space = Box(0, 100, (1,), np.float64)
    action_space = Discrete(3)

    def __init__(self, length=3, render_mode=None, info=None, reward=1.0, special=None, first=0.0):
        self.length = length
        self.render_mode = render_mode
        self.info = info or {}
        self.reward = reward
        self.special = special
        self.first = first
        self.count = 0
        self.calls = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.calls.append(("reset", seed, options))
        self.count = 0
        return np.array([self.first]), dict(self.info)

    def step(self, action):
        self.calls.append(("step", action))
        self.count += 1
        if action != 0:
            self.special(self)
        return np.array([float(self.count)]), self.reward, self.count >= self.length, False, dict(self.info)

    def render(self):
        self.calls.append(("render",))
        return np.full((2, 3, 3), self.count, np.uint8)

    def close(self):
        self.calls.append(("close",))


class Guarded(Mapping):
    """An observation that notes which keys are touched, and by which thread."""

    def __init__(self, values, touched):
        self._values, self._touched = values, touched

    def __getitem__(self, key):
        self._touched.append((key, threading.current_thread().name))
        return self._values[key]

    def __iter__(self):
        return iter(self._values)

    def __len__(self):
        return len(self._values)


class Robot(gym.Env):
    """Dict observations and actions; its observations are `Guarded`."""

    observation_space = Dict(
        {"arm": Dict({"a": Box(-1, 1, (2,)), "b": Discrete(5)}), "camera": Box(0, 255, (2,), np.uint8)}
    )
    action_space = Dict({"turn": Box(-1, 1, (2,)), "grip": Discrete(2)})

    def __init__(self):
        self.touched = []
        self.actions = []

    def _observation(self):
        arm = {"a": np.array([0.1, -0.5], np.float32), "b": np.int64(4)}
        camera = np.array([7, 255], np.uint8)
        return Guarded({"arm": Guarded(arm, self.touched), "camera": camera, "beside": object()}, self.touched)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation(), {"lives": 3, "map": np.eye(2), "secret": object()}

    def step(self, action):
        self.actions.append(action)
        return self._observation(), 0.5, False, True, {"lives": 2, "map": np.eye(2), "secret": object()}


def made(env_class, *args, **kwargs):
    """A factory for an env, and the list of those that it made."""
    envs = []

    def factory():
        envs.append(env_class(*args, **kwargs))
        return envs[-1]

    return factory, envs


class Client:
    """The far end of a connection: what it sends is given beforehand, what it receives is kept.

    After its last message the connection is lost.
    """

    def __init__(self, *messages):
        self.replies = []
        self.closed = None
        self._messages = iter(messages)

    async def receive(self):
        for message in self._messages:
            return message if isinstance(message, str | bytes) else json.dumps(message)
        raise ConnectionError("the client is gone")

    async def send(self, frame):
        self.replies.append(strict(frame))

    async def close(self, code, reason):
        self.closed = self.closed or (code, reason)


def strict(text):
    """Parse JSON that holds no NaN and no Infinity."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def make_registry(env, **options):
    """The sessions of a server."""
    settings = ServerSettings(**options)
    return Registry(EnvSource(env, settings.env_kwargs, name=settings.env_name), settings)


def talk(env, *messages, query=None, **options):
    """Send messages to a server without a network; return the client with the replies."""

    async def main():
        registry = make_registry(env, **options)
        client = Client(*messages)
        try:
            await converse(JsonSessions(registry), client, client.receive, query or {})
        except ConnectionError:
            assert client.closed is None
        finally:
            assert (registry.capacity.active, registry.sessions) == (0, {})
            await registry.stop()
        return client

    return asyncio.run(main())


def replies(env, *messages, **kwargs):
    """The replies to messages."""
    return talk(env, *messages, **kwargs).replies


def reset(**data):
    """A reset message."""
    return {"type": "reset", "data": data}


def step(action=0):
    """A step message for an env whose action space isn't a Dict."""
    return {"type": "step", "data": {"action": action}}


def batch_step(*actions):
    """A batch_step message for an env whose action space isn't a Dict."""
    return {"type": "batch_step", "data": {"actions": [{"action": action} for action in actions]}}


STATE = {"type": "state"}
CLOSE = {"type": "close"}
