"""Which envs draw: pygame isn't thread-safe, and envs run on many threads, so one env of a process draws at a time.

Two that draw at once get wrong pixels, or take the process down: SDL's primitives work in static buffers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

import gymnasium as gym

__all__ = ["drawing", "draws", "may_draw"]

drawing: Final = threading.Lock()
"""Held by the env that draws."""


def may_draw(env: gym.Env[Any, Any]) -> bool:
    """Whether an env that was never reset may draw in its first reset."""
    return "pygame" in sys.modules or draws(env)


def draws(env: gym.Env[Any, Any]) -> bool:
    """Whether an env draws in its steps: as ``CarRacing-v3`` it has something to draw on, or its observations do it."""
    # There is no Surface before pygame is imported, nor while it is.
    surface = getattr(sys.modules.get("pygame"), "Surface", ())
    return any(
        isinstance(layer, gym.wrappers.AddRenderObservation)
        or any(isinstance(value, surface) for value in vars(layer).values())
        for layer in _layers(env)
    )


def _layers(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    yield env
    while isinstance(env, gym.Wrapper):
        env = env.env
        yield env
