"""Looks at one env before the server starts: its spaces, and whether its steps compute or wait."""

from __future__ import annotations

import inspect
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import gymnasium as gym

from openenv_gym.server.adapters import EnvSource, GymnasiumEnv
from openenv_gym.spaces import describe

__all__ = ["Probe", "probe"]

_STEPS: Final = 16
_SECONDS: Final = 0.2
_T = TypeVar("_T")


@dataclass(frozen=True)
class Probe:
    """What one env showed.

    Attributes:
        observation_space: its observation space.
        action_space: its action space.
        metadata: its metadata.
        waits: whether most of a step's time passes without the processor (sleep, I/O, another process).
        description: the first paragraph of its class's docstring; ``""`` if there is none.
        version: its version among the registered ones, such as ``1`` of ``CartPole-v1``.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    metadata: dict[str, Any]
    waits: bool
    description: str = ""
    version: str | None = None


def probe(source: EnvSource, *, calibrate: bool) -> Probe:
    """Build an env, look at it, and close it, all on a thread of its own.

    Args:
        source: where the env comes from.
        calibrate: also reset it and step it a few times with sampled actions, to learn whether it waits.

    Raises:
        FactoryError: if it can't be built.
        SpaceError: if a space can't be described, naming the part.
    """

    def look() -> Probe:
        env = source.make()
        try:
            describe(env.observation_space)
            describe(env.action_space)
            waits = calibrate and _waits(env)
            description, version = _description(env.env), _version(env.env)
            return Probe(env.observation_space, env.action_space, env.metadata, waits, description, version)
        finally:
            env.close()

    return _on_a_thread(look)


def _description(env: gym.Env[Any, Any]) -> str:
    """Gymnasium's own envs begin their docstrings with a heading, which says nothing."""
    paragraphs = (inspect.getdoc(type(env.unwrapped)) or "").split("\n\n")
    texts = (" ".join(line for line in p.splitlines() if not line.startswith("#")).strip() for p in paragraphs)
    return next((text for text in texts if text), "")


def _version(env: gym.Env[Any, Any]) -> str | None:
    return None if env.spec is None or env.spec.version is None else str(env.spec.version)


def _waits(env: GymnasiumEnv) -> bool:
    """Compare each step's wall time with its thread's processor time; the median ignores a noisy machine."""
    idle: list[float] = []
    walls: list[float] = []
    end = time.monotonic() + _SECONDS
    try:
        env.reset(seed=0)
        while len(walls) < _STEPS and time.monotonic() < end:
            action = env.action_space.sample()
            wall, cpu = time.perf_counter(), time.thread_time()
            _, _, terminated, truncated, _ = env.step(action)
            walls.append(time.perf_counter() - wall)
            idle.append(walls[-1] - (time.thread_time() - cpu))
            if terminated or truncated:
                env.reset()
    except Exception:  # it can't be tried out this way; a thread for each env is right for any env, if not the fastest
        return True
    return statistics.median(idle) > max(0.5 * statistics.median(walls), 0.0002)


def _on_a_thread(function: Callable[[], _T]) -> _T:
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="env-probe", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
