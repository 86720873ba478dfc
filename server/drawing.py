"""Which envs draw: pygame isn't thread-safe, and envs run on many threads, so one env of a process draws at a time.

Two that draw at once get wrong pixels, or take the process down: SDL's primitives work in static buffers.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, MutableMapping
from typing import Any, Final

import gymnasium as gym

__all__ = ["draw_unseen", "drawing", "draws", "has_surfaces", "may_draw"]

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


def draw_unseen(environment: MutableMapping[str, str]) -> None:
    """Let pygame look for no screen where there is none, which it would complain about with every env that renders.

    Args:
        environment: this process's environment variables. A driver that the user chose is kept.
    """
    if sys.platform.startswith("linux") and not environment.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
        environment.setdefault("SDL_VIDEODRIVER", "dummy")


def has_surfaces() -> bool:
    """Whether there may be anything to draw on: pygame brings it, and is imported by the envs that use it."""
    return "pygame" in sys.modules


def may_draw(env: gym.Env[Any, Any]) -> bool:
    """Whether an env that was never reset may draw in its first reset.

    Others must not wait for their turn: a first reset may be a simulator's start, which takes long.
    """
    return draws(env) or (has_surfaces() and any(_names_pygame(type(layer)) for layer in _layers(env)))


def _names_pygame(kind: type) -> bool:
    """Whether the code of a class names pygame, or a loaded module of its package has it, which may draw for it.

    Gymnasium's own modules draw for nobody but themselves: its envs and wrappers name pygame where they use it.
    """
    methods = (getattr(member, "__code__", None) for base in kind.__mro__ for member in vars(base).values())
    if any(code is not None and "pygame" in (*code.co_names, *code.co_varnames) for code in methods):
        return True
    package = kind.__module__.partition(".")[0]
    if package == "gymnasium":
        return False
    modules = [module for name, module in sys.modules.copy().items() if name.partition(".")[0] == package]
    return any("pygame" in getattr(module, "__dict__", ()) for module in modules)


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
