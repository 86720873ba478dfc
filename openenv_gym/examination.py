"""How an env behaves, found out by playing it: seeds, determinism, ends of episodes, sizes, and the time of a step."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from openenv_gym.vector_env import RemoteVecEnv

__all__ = ["Finding", "Level", "examine", "look_at_spaces"]

Level: TypeAlias = Literal["ok", "warning", "error"]

_STEPS: Final = 30
_LONG: Final = 600
_LARGE: Final = 64 * 1024
"""Bytes of an observation's part that are worth a word."""

_SLOW_S: Final = 0.05


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: what was looked at.
        level: ``ok``, ``warning`` or ``error``.
        text: what was found.
        fix: what to do about it; ``""`` if there is nothing to do.
    """

    check: str
    level: Level
    text: str
    fix: str = ""


@dataclass(frozen=True)
class _Rollout:
    """What a seed and some actions led to.

    Attributes:
        first: the first observation.
        rest: the transitions after it.
        terminated: whether the episode terminated.
        truncated: whether it was truncated.
        seconds: how long each step took.
    """

    first: Any
    rest: list[Any]
    terminated: bool
    truncated: bool
    seconds: list[float]


def examine(envs: RemoteVecEnv, *, openenv: bool, limit_s: float) -> Iterator[Finding]:
    """Play an env a little.

    Args:
        envs: one env.
        openenv: whether the server speaks OpenEnv's dialect only.
        limit_s: each of at most four short episodes ends after this time.

    Raises:
        OpenEnvGymError: what a reset or a step raises.
    """
    envs.action_space.seed(0)
    actions = [_calm(envs.action_space, envs.action_space.sample()) for _ in range(_LONG)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rollouts = [_play(envs, seed, actions[:_STEPS], limit_s) for seed in (7, 7, 8)]
        long = _play(envs, 7, actions, limit_s)
    yield _size(rollouts[0].first, openenv)
    yield from _seeds(rollouts, [str(warning.message) for warning in caught])
    yield _ends(long, openenv)
    yield _speed(long)


def look_at_spaces(envs: RemoteVecEnv, *, openenv: bool) -> Finding:
    """What the spaces of an env are, and whether they say what can be sampled from them."""
    how = "inferred from the server's schema and a reset" if openenv else "as the server says them"
    text = f"observation {_named(envs.single_observation_space)}, action {_named(envs.single_action_space)}; {how}"
    text = " ".join(text.split())
    if not _has_no_end(envs.single_action_space):
        return Finding("spaces", "ok", text)
    fix = "pass action_space= with the values that the env takes" if openenv else "give the env's action space bounds"
    return Finding("spaces", "warning", f"{text}. The action space has no bounds, so its samples mean nothing", fix)


def _named(space: gym.Space[Any]) -> str:
    """A space as it writes itself, but without the characters of a Text, which may be many."""
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{key!r}: {_named(part)}' for key, part in space.items())})"
    if isinstance(space, spaces.Tuple):
        return f"Tuple({', '.join(map(_named, space))})"
    return f"Text({space.min_length}, {space.max_length})" if isinstance(space, spaces.Text) else str(space)


def _has_no_end(space: gym.Space[Any]) -> bool:
    if isinstance(space, spaces.Dict):
        return any(map(_has_no_end, space.values()))
    if isinstance(space, spaces.Tuple):
        return any(map(_has_no_end, space))
    return isinstance(space, spaces.Box) and bool(np.any(space.high.astype(float) - space.low.astype(float) > 2.0**32))


def _calm(space: gym.Space[Any], action: Any) -> Any:
    """An action with zero, or what is nearest to it, in the place of a sample from a Box without bounds."""
    if isinstance(space, spaces.Dict):
        return {key: _calm(part, action[key]) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_calm(part, value) for part, value in zip(space, action, strict=True))
    return np.clip(np.zeros_like(action), space.low, space.high) if _has_no_end(space) else action  # type: ignore[attr-defined]


def _play(envs: RemoteVecEnv, seed: int, actions: Sequence[Any], limit_s: float) -> _Rollout:
    first, _ = envs.reset(seed=seed)
    end = time.monotonic() + limit_s
    rest: list[Any] = []
    seconds: list[float] = []
    terminated = truncated = False
    for action in actions:
        began = time.perf_counter()
        observation, reward, terminations, truncations, _ = envs.step(action)
        seconds.append(time.perf_counter() - began)
        rest.append((observation, reward, terminations, truncations))
        terminated, truncated = bool(terminations[0]), bool(truncations[0])
        if terminated or truncated or time.monotonic() > end:
            break
    return _Rollout(first, rest, terminated, truncated, seconds)


def _seeds(rollouts: Sequence[_Rollout], said: Sequence[str]) -> Iterator[Finding]:
    one, again, other = rollouts
    if not _same(one.first, again.first) or any("seed" in text for text in said):
        told = next((f": {text}" for text in said if "seed" in text), "")
        yield Finding(
            "seed",
            "error",
            f"the same seed began two different episodes, so the env ignores its seed{told}",
            "let the env's reset take seed= and draw all that is random from self.np_random (super().reset(seed=seed))",
        )
        return
    if _same(one.first, other.first) and _same(one.rest, other.rest):
        yield Finding("seed", "ok", "two seeds gave the same episode: nothing in the env is random, or it has no seeds")
    else:
        yield Finding("seed", "ok", "the same seed began the same episode, and another seed another one")
    steps = min(len(one.rest), len(again.rest))
    if _same(one.rest[:steps], again.rest[:steps]):
        yield Finding("deterministic", "ok", f"a seed and {steps} actions led to the same transitions twice")
        return
    at = next(i for i in range(steps) if not _same(one.rest[i], again.rest[i]))
    yield Finding(
        "deterministic",
        "warning",
        f"the same seed and actions led elsewhere in step {at + 1}",
        "draw all that is random from self.np_random, and let no clock and no other thread into the dynamics; if it "
        "must be so, runs can't be repeated",
    )


def _same(one: Any, other: Any) -> bool:
    return bool(data_equivalence(one, other))


def _ends(played: _Rollout, openenv: bool) -> Finding:
    steps = len(played.rest)
    if played.truncated:
        return Finding("ends", "ok", f"an episode of random actions was truncated after {steps} steps")
    if played.terminated and openenv:
        return Finding(
            "ends",
            "ok",
            f"an episode of random actions was over after {steps} steps; why, this server doesn't say, only `done`",
            'if that was a time limit, let the env say metadata["truncated"] = True in its last observation, or pass a '
            "max_episode_steps= below it",
        )
    if played.terminated:
        return Finding("ends", "ok", f"an episode of random actions terminated after {steps} steps")
    return Finding(
        "ends",
        "warning",
        f"no episode of random actions ended within {steps} steps",
        "if the env has no limit of its own, pass max_episode_steps=",
    )


def _size(observation: Any, openenv: bool) -> Finding:
    sizes = dict(_parts("", observation))
    total = sum(sizes.values())
    large = [(size, name) for name, size in sizes.items() if size > max(_LARGE, total // 4)]
    text = f"an observation has {total:,} bytes"
    if not large:
        return Finding("observation size", "ok", text)
    named = ", ".join(f"{name or 'it all'}: {size:,}" for size, name in sorted(large, reverse=True))
    names = [name for _, name in sorted(large, reverse=True) if name]
    trim = f"exclude={tuple(names)!r} leaves out what the learner doesn't need; " if names else ""
    fix = f"{trim}obs_dtype= makes smaller numbers, such as 'uint8' or 'float16'"
    if openenv:
        fix += "; this server sends everything all the same, and only one of openenv-gym saves the traffic too"
    return Finding("observation size", "warning", f"{text}, most of them in few keys ({named})", fix)


def _parts(name: str, value: Any) -> Iterator[tuple[str, int]]:
    """The dotted name and the size in bytes of each part of one env's observation."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _parts(f"{name}.{key}" if name else str(key), part)
    elif isinstance(value, (tuple, list)):
        for i, part in enumerate(value):
            yield from _parts(f"{name}.{i}" if name and len(value) > 1 else name, part)
    elif isinstance(value, str):
        yield name, len(value.encode())
    else:
        yield name, np.asarray(value).nbytes


def _speed(played: _Rollout) -> Finding:
    median = statistics.median(played.seconds)
    text = f"a step of one env takes {1000 * median:.2f} ms (median of {len(played.seconds)})"
    if median < _SLOW_S:
        return Finding("step time", "ok", text)
    fix = "step many envs at a time, for their waits overlap; or send(…) and recv(…) those that are ready"
    return Finding("step time", "warning", text, fix)
