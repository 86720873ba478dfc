"""Envs that keep count, so that a step that was lost, repeated or taken in an env that wasn't reset shows."""

import os
import random
import signal
import sys
import threading
import time

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Tally(gym.Env):
    """Its observation is ``[episode, t, action, steps ever, random number]``; episodes end by chance.

    Stepped without an episode it raises, with or without Gymnasium's wrappers around it.

    Args:
        width: the observation's size; what is over five is filled with random numbers.
        longest: episodes are truncated at this length.
        ends: the chance that a step terminates.
    """

    metadata = {"render_modes": ["rgb_array"]}
    action_space = Discrete(4)
    render_mode = None

    def __init__(self, width=5, longest=20, ends=0.05):
        self.observation_space = Box(-np.inf, np.inf, (width,), np.float64)
        self.longest, self.ends = longest, ends
        self.episode = self.t = self.executed = 0
        self.begun = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t, self.begun = self.episode + 1, 0, True
        return self._observe(-1), {"episode": self.episode}

    def step(self, action):
        if not self.begun:
            raise RuntimeError("stepped without an episode")
        self.t, self.executed = self.t + 1, self.executed + 1
        terminated, truncated = bool(self.np_random.random() < self.ends), self.t >= self.longest
        self.begun = not (terminated or truncated)
        info = {"executed": self.executed, "double": 2 * self.t} if self.t % 2 else {"executed": self.executed}
        return self._observe(action), self.t / 3 + float(action), terminated, truncated, info

    def _observe(self, action):
        head = [self.episode, self.t, action, self.executed]
        noise = self.np_random.random(self.observation_space.shape[0] - len(head))
        return np.concatenate([np.array(head, np.float64), noise])


class Endless(Tally):
    """A `Tally` whose episodes don't end by chance, for tests in which nothing else may end one."""

    def __init__(self):
        super().__init__(longest=1_000_000, ends=0.0)


class Placed(Endless):
    """An `Endless` whose infos say which process it is in; seeded with 13 it ends that process in its next step."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        self.deadly = seed == 13
        return observation, {"pid": os.getpid()}

    def step(self, action):
        if self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def make_in_one_process_only():
    if "server.process" in " ".join(sys.orig_argv):
        sys.exit("the licence is in use")
    return Tally()


class Sleeper(gym.Env):
    """Takes as many seconds for a step as its action says, and for a reset ``options["s"]``.

    Its observation is ``[mark, t]``: the last reset's ``options["mark"]``, and the steps since.
    """

    observation_space = Box(-1, np.inf, (2,), np.float64)
    action_space = Box(0, 100, (), np.float64)
    metadata = {"render_modes": []}
    render_mode = None

    def __init__(self, built_within_s=0.0):
        time.sleep(built_within_s)
        self.mark, self.t = -1.0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        time.sleep((options or {}).get("s", 0.0))
        self.mark, self.t = float((options or {}).get("mark", -1)), 0
        return np.array([self.mark, self.t]), {}

    def step(self, action):
        time.sleep(float(action))
        self.t += 1
        return np.array([self.mark, self.t]), 1.0, False, False, {}


class Gated(Tally):
    """A `Tally` whose steps wait until the test lets them go on; for servers in the test's process."""

    def __init__(self, gate: threading.Event, entered: threading.Semaphore, **kwargs):
        super().__init__(**kwargs)
        self.gate, self.entered = gate, entered

    def step(self, action):
        self.entered.release()
        assert self.gate.wait(60)
        return super().step(action)


class Dawdler(Tally):
    """A `Tally` that takes a random time for each step, up to `seconds`; which one has no effect on what it gives."""

    def __init__(self, seconds=0.004, **kwargs):
        super().__init__(**kwargs)
        self.seconds = seconds

    def step(self, action):
        time.sleep(random.random() * self.seconds)
        return super().step(action)


class Fallible(Tally):
    """A `Tally` that raises by chance, in a step or a reset, and now and then takes too long."""

    def reset(self, *, seed=None, options=None):
        first = super().reset(seed=seed)
        if self.np_random.random() < 0.01:
            raise OSError("a reset failed")
        return first

    def step(self, action):
        chance = self.np_random.random()
        if chance < 0.0003:
            raise ValueError("a step failed")
        if chance > 0.9999:
            time.sleep(1.5)
        return super().step(action)
