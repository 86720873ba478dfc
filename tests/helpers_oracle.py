"""Envs that follow a script, to be compared between a local and a remote vector env.

A script is plain data, so that Hypothesis can generate it and a remote server can be given it.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

SCALARS: dict[str, Any] = {
    "float": 1.5,
    "int": 3,
    "bool": True,
    "float32": np.float32(0.25),
    "int8": np.int8(-7),
    "zero_d": np.array(0.75),
}
"""Rewards of every numeric type."""

INFOS: dict[str, Any] = {
    "none": {},
    "int": {"k": 3},
    "float": {"x": 2.5},
    "string": {"word": "naïve"},
    "none_value": {"nothing": None},
    "array": {"mask": np.array([1, 0, 1], np.int8)},
    "nested": {"outer": {"inner": 1, "deeper": {"x": 2.0}}, "empty": {}},
    "tuple": {"pair": (1, "a"), "list": [1, 2]},
    "numpy": {"f": np.float32(1.25), "i": np.int16(4), "b": np.bool_(True)},
    "bool": {"flag": False},
}
"""Infos of every kind; one key has one type throughout, as Gymnasium's own merging demands."""


@dataclass(frozen=True)
class Script:
    """What one env does.

    Attributes:
        space: the observation space.
        lengths: the episodes' lengths in turn.
        endings: how they end in turn: "terminated", "truncated" or "both".
        infos: names of `INFOS` for the steps in turn; resets take from it too.
        reward: a name of `SCALARS`.
        reuse: whether the env hands out the same observation and info objects again and again.
        salt: makes envs differ.
    """

    space: gym.Space
    lengths: tuple[int, ...] = (3,)
    endings: tuple[str, ...] = ("terminated",)
    infos: tuple[str, ...] = ("none",)
    reward: str = "float"
    reuse: bool = False
    salt: int = 0


class ScriptedEnv(gym.Env):
    """Follows a `Script`; its observations depend on the seed, the actions so far and the options.

    Which script of several it follows the first seed says: connections open, and so envs are built, in any order.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}

    def __init__(
        self, scripts: list[Script], action_space: gym.Space | None = None, render_mode: str | None = None
    ) -> None:
        self.scripts = scripts
        self.script = scripts[0]
        # Sampling changes a space, and envs run on several threads.
        self.observation_space = deepcopy(self.script.space)
        self.action_space = gym.spaces.Discrete(5) if action_space is None else action_space
        self.render_mode = render_mode
        self.episode = self.calls = self.t = 0
        self.heard: list[Any] = []
        self.buffer = np.zeros(4, np.float32)
        self.info: dict[str, Any] = {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.episode == 0 and seed is not None:
            self.script = self.scripts[seed % len(self.scripts)]
        self.t = 0
        self.episode += 1
        self.heard.append(("reset", seed, options))
        return self._observe(0 if options is None else len(options)), self._next_info()

    def step(self, action):
        self.t += 1
        self.heard.append(("step", type(action).__name__, str(action)))
        script, turn = self.script, self.episode - 1
        over = self.t >= script.lengths[turn % len(script.lengths)]
        ending = script.endings[turn % len(script.endings)]
        reward = SCALARS[script.reward]
        observation = self._observe(len(str(action)))
        return observation, reward, over and ending != "truncated", over and ending != "terminated", self._next_info()

    def _observe(self, number):
        # Spaces sample from a generator of their own: seeded from the env's, so that the env's seed decides.
        space = self.observation_space
        space.seed(int(self.np_random.integers(2**31)) + number + self.script.salt)
        value = space.sample()
        if self.script.reuse and isinstance(space, gym.spaces.Box):
            if self.buffer.shape != value.shape or self.buffer.dtype != value.dtype:
                self.buffer = np.empty_like(value)
            self.buffer[...] = value
            return self.buffer
        return value

    def _next_info(self):
        name = self.script.infos[self.calls % len(self.script.infos)]
        self.calls += 1
        if not self.script.reuse:
            return dict(INFOS[name])
        self.info.clear()
        self.info.update(INFOS[name])
        return self.info

    def render(self):
        return np.full((2, 3, 3), self.t % 255, np.uint8)


@dataclass
class Fleet:
    """Makes envs, and keeps them; the first of all are each server's look at one of them."""

    scripts: list[Script]
    action_space: gym.Space | None = None
    made: list[ScriptedEnv] = field(default_factory=list)
    servers: int = 1

    def __call__(self, render_mode=None):
        self.made.append(ScriptedEnv(self.scripts, self.action_space, render_mode))
        return self.made[-1]

    def heard(self):
        """What each env that was used heard, in the order of their first seeds."""
        return sorted((env.heard for env in self.made[self.servers :] if env.heard), key=lambda heard: heard[0][1])
