"""Which envs draw: pygame isn't thread-safe, and envs run on many threads, so one env of a process draws at a time.

Two that draw at once get wrong pixels, or take the process down: SDL's primitives work in static buffers.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

import gymnasium as gym

__all__ = ["drawing", "draws", "may_draw"]

_PATIENCE_S: Final = 60.0


class _Turn(contextlib.AbstractContextManager[None]):
    """One env's turn to draw, which no env waits for without end: another one may hang while it has its turn."""

    def __init__(self) -> None:
        self._taken = threading.Lock()

    def __enter__(self) -> None:
        if not self._taken.acquire(timeout=_PATIENCE_S):
            raise TimeoutError(f"another env of this process has been drawing for {_PATIENCE_S:g} seconds")

    def __exit__(self, *exc_info: object) -> None:
        self._taken.release()


drawing: Final = _Turn()
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
