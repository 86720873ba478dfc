"""Envs for the benchmarks, importable by a server's process."""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np

__all__ = ["blocking", "busy", "heavy_tailed", "image", "keyed", "pool", "tiny"]


class _Fixed(gym.Env):
    """An env that costs next to nothing but its observation."""

    def __init__(self, space: gym.Space) -> None:
        self.observation_space = space
        self.action_space = gym.spaces.Discrete(2)
        self.value = space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.value, {}

    def step(self, action):
        return self.value, 1.0, False, False, {}


def tiny() -> gym.Env:
    """An observation of four floats."""
    return _Fixed(gym.spaces.Box(-1, 1, (4,), np.float32))


def image() -> gym.Env:
    """An observation of (84, 84, 4) bytes."""
    return _Fixed(gym.spaces.Box(0, 255, (84, 84, 4), np.uint8))


def keyed(megabyte: bool = True) -> gym.Env:
    """Four floats, and with ``megabyte`` a second key of 1 MB."""
    parts = {"state": gym.spaces.Box(-1, 1, (4,), np.float32)}
    if megabyte:
        parts["camera"] = gym.spaces.Box(0, 255, (1 << 20,), np.uint8)
    return _Fixed(gym.spaces.Dict(parts))


class Blocking(_Fixed):
    """Waits 10 ms in each step, without using the processor."""

    def step(self, action):
        time.sleep(0.01)
        return super().step(action)


def blocking() -> gym.Env:
    """An env that waits."""
    return Blocking(gym.spaces.Box(-1, 1, (4,), np.float32))


class Busy(_Fixed):
    """Computes in pure Python for 1 ms of processor time in each step."""

    def step(self, action):
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        return super().step(action)


def busy() -> gym.Env:
    """An env that computes."""
    return Busy(gym.spaces.Box(-1, 1, (4,), np.float32))


class HeavyTailed(_Fixed):
    """Waits 5 ms in a step, and 100 ms in one of twenty."""

    def step(self, action):
        time.sleep(0.1 if self.np_random.random() < 0.05 else 0.005)
        return super().step(action)


def heavy_tailed() -> gym.Env:
    """An env whose steps now and then take long."""
    return HeavyTailed(gym.spaces.Box(-1, 1, (4,), np.float32))


def pool(num_envs: int) -> gym.vector.VectorEnv:
    """EnvPool's CartPole, which is a vector env of Gymnasium's as it is."""
    import envpool

    return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs)
