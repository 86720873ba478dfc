"""Small envs with one habit each. What a function here makes can be served by name: ``helpers_envs:make_count``."""

import itertools
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from helpers_wait import LIMIT_S


class Called(NamedTuple):
    """A call of an env: its name, its arguments, and the thread that made it."""

    name: str
    arguments: tuple
    thread: int


class Count(gym.Env):
    """Counts its steps, and terminates at `length`. It notes all calls.

    Args:
        length: the episodes' length.
        habits: what an action other than 0 does: ``habits[action](env)``; unless that is None, it is what step returns.
        on: what other calls do: ``on["reset"](env)``, and the same for "init", "render" and "close".
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}
    observation_space = Box(-1, 1000, (1,), np.float64)
    action_space = Discrete(10)

    def __init__(self, length=3, *, habits=None, on=None, render_mode=None):
        self.length = length
        self.habits = habits or {}
        self.on = on or {}
        self.render_mode = render_mode
        self.t = 0
        self.calls = []
        self.level = 1
        self.note("init")

    def note(self, name, *arguments):
        self.calls.append(Called(name, arguments, threading.get_ident()))
        if name in self.on:
            self.on[name](self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.note("reset", seed, options)
        return np.array([0.0]), {"r": 1}

    def step(self, action):
        self.t += 1
        self.note("step", action)
        if action in self.habits:
            result = self.habits[action](self)
            if result is not None:
                return result
        return np.array([float(self.t)]), 1.0, self.t >= self.length, False, {"i": self.t}

    def render(self):
        self.note("render")
        return np.full((2, 3, 3), self.t, np.uint8)

    def close(self):
        self.note("close")

    def add(self, a, b=0):
        self.note("add", a, b)
        return a + b

    def count(self, name):
        """How often it was called so."""
        return sum(call.name == name for call in self.calls)

    @property
    def threads(self):
        """The threads that called it."""
        return {call.thread for call in self.calls}


class Reusing(gym.Env):
    """Gives out one and the same observation and info again and again."""

    observation_space = Dict({"a": Box(-100, 100, (2,), np.float32), "b": Discrete(100)})
    action_space = Discrete(10)

    def __init__(self, length=2):
        self.length = length
        self.t = 0
        self.array = np.zeros(2, np.float32)
        self.observation = {"a": self.array, "b": np.int64(0)}
        self.info = {"array": np.zeros(2), "nested": {"t": 0}}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._look(-1)

    def step(self, action):
        self.t += 1
        observation, info = self._look(self.t)
        return observation, 1, self.t >= self.length, self.t >= self.length, info

    def _look(self, value):
        self.array[:] = value
        self.observation["b"] = np.int64(self.t)
        self.info["array"][:] = value
        self.info["nested"]["t"] = value
        return self.observation, self.info


class Varied(Count):
    """Goes through rewards, endings and infos in turn.

    Args:
        lengths: the episodes' lengths.
        rewards: the rewards.
        endings: (terminated, truncated) at the ends.
        infos: the infos of steps and resets.
    """

    def __init__(self, *, lengths=(2, 1), rewards=(1.0,), endings=((True, False),), infos=({},)):
        super().__init__()
        self.lengths, self.rewards = itertools.cycle(lengths), itertools.cycle(rewards)
        self.endings, self.infos = itertools.cycle(endings), itertools.cycle(infos)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = next(self.lengths)
        return self.np_random.random(1), next(self.infos)

    def step(self, action):
        self.t += 1
        flags = next(self.endings) if self.t == self.length else (False, False)
        return self.np_random.random(1) + action, next(self.rewards), *flags, next(self.infos)


class Guarded(dict):
    """A dict that refuses to give out what wasn't wanted."""

    def __getitem__(self, key):
        if key == "camera":
            raise AssertionError("a trimmed key was touched")
        return super().__getitem__(key)

    __iter__ = keys = values = items = get = copy = None


class Trimmed(gym.Env):
    """Its observations raise when its camera is looked at."""

    observation_space = Dict(
        {"arm": Dict({"a": Box(-9, 9, (2,)), "b": Discrete(5)}), "camera": Box(0, 255, (2,), np.uint8)}
    )
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        return Guarded(arm={"a": np.zeros(2, np.float32), "b": 1}, camera=None), {}

    def step(self, action):
        return Guarded(arm={"a": np.ones(2, np.float32), "b": 2}, camera=None), 0.0, True, False, {}


class Gate:
    """What an env waits at until the test opens it.

    Attributes:
        reached: set once an env waits.
        passed: set once one went through.
    """

    def __init__(self):
        self.reached = threading.Event()
        self.passed = threading.Event()
        self._open = threading.Event()

    def open(self):
        self._open.set()

    def __call__(self, env=None):
        self.reached.set()
        assert self._open.wait(LIMIT_S), "nobody opened the gate"
        self.passed.set()


class Meeting:
    """What `count` envs wait at until all are there; it takes over `LIMIT_S` unless they run at the same time."""

    def __init__(self, count):
        self._barrier = threading.Barrier(count)

    def __call__(self, env=None):
        self._barrier.wait(LIMIT_S)


class Sleeper(Count):
    """Waits in each step, as for a network."""

    def __init__(self, seconds=0.02, length=1000):
        super().__init__(length)
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class Busy(Count):
    """Computes in each step."""

    def __init__(self, seconds=0.002, length=1000):
        super().__init__(length)
        self.seconds = seconds

    def step(self, action):
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return super().step(action)


@dataclass
class Factory:
    """Makes envs, and keeps them.

    Args:
        make: what makes one.
        kwargs: its keyword arguments.

    Attributes:
        all: the envs, the one that a server only looks at included.
        failing: call numbers, counted from 0, at which it raises instead.
    """

    make: Any = Count
    kwargs: dict = field(default_factory=dict)
    failing: tuple = ()
    all: list = field(default_factory=list)
    calls: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def __call__(self):
        with self._lock:
            number, self.calls = self.calls, self.calls + 1
        if number in self.failing:
            raise OSError("no licence")
        env = self.make(**self.kwargs)
        self.all.append(env)
        return env

    @property
    def envs(self):
        """The envs besides the one that a server only looks at."""
        return self.all[1:]


def raiser(error):
    """A habit, or a factory: raises."""

    def habit(env=None):
        raise error

    return habit


# --------------------------------------------------------------------------------------------- to be served by name


def make_count(length=3):
    """A `Count`."""
    return Count(length)


def make_sleeper(seconds=0.02):
    """A `Sleeper`."""
    return Sleeper(seconds)


def make_nothing():
    """Raises."""
    raise OSError("no licence")


def exits():
    """Ends the process, or tries to."""
    raise SystemExit(3)


class Logged(Count):
    """Appends a line for each start, step and close to the file in the environment variable ``LOGGED``.

    Action 1 takes an hour.
    """

    def __init__(self):
        super().__init__(1000, habits={1: lambda env: time.sleep(3600)})

    def note(self, name, *arguments):
        with Path(os.environ["LOGGED"]).open("a") as file:
            file.write(f"{name}\n")
        super().note(name, *arguments)


def make_logged():
    """A `Logged`."""
    return Logged()


def make_clinging():
    """An env that leaves a thread behind that doesn't end."""
    threading.Thread(target=time.sleep, args=(3600,), daemon=False).start()
    return Count()


def make_printing():
    """An env that prints, in two ways."""
    print("hello from print", flush=True)
    os.write(1, b"hello from below\n")
    return Count()
