"""Measures a server's vector steps, and local vector envs side by side with them in alternating rounds."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from openenv_gym.errors import SpaceError
from openenv_gym.spaces import same
from openenv_gym.stats import Stats
from openenv_gym.vector_env import RemoteVecEnv

__all__ = ["Bench", "Local", "local_envs", "measure"]

_ROUNDS: Final = 5
_ACTIONS: Final = 16
"""So many random actions are made beforehand and taken in turn, because making them would be measured too."""


@dataclass(frozen=True)
class Local:
    """A local vector env, measured in the same run.

    Attributes:
        name: its class.
        steps_per_s: its env steps a second.
        ratio: the server's env steps a second divided by its own; the median over the rounds.
    """

    name: str
    steps_per_s: float
    ratio: float


@dataclass(frozen=True)
class Bench:
    """What was measured.

    Attributes:
        url: the server's endpoint.
        env: the environment's name, if the server says it.
        num_envs: the number of envs.
        connections: the number of connections.
        steps: measured vector steps.
        steps_per_s: the server's env steps a second, with collecting switched on.
        bytes_up_per_step: bytes sent for one vector step.
        bytes_down_per_step: bytes received for one vector step.
        stats: where the time went.
        local: the local vector envs.
    """

    url: str
    env: str
    num_envs: int
    connections: int
    steps: int
    steps_per_s: float
    bytes_up_per_step: float
    bytes_down_per_step: float
    stats: Stats
    local: tuple[Local, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for ``json.dumps``."""
        return asdict(self)


@contextlib.contextmanager
def local_envs(make: Callable[[], gym.Env[Any, Any]], num_envs: int) -> Iterator[list[VectorEnv[Any, Any, Any]]]:
    """Gymnasium's own vector envs over what `make` gives; subprocesses are forked here, so open sockets later."""
    makers = [make] * num_envs
    with contextlib.ExitStack() as stack:
        envs: list[VectorEnv[Any, Any, Any]] = []
        for kind in (SyncVectorEnv, AsyncVectorEnv):
            envs.append(kind(makers))
            stack.callback(envs[-1].close)
        yield envs


def measure(remote: RemoteVecEnv, steps: int, others: Sequence[VectorEnv[Any, Any, Any]] = ()) -> Bench:
    """Step vector envs with random actions, in alternating rounds.

    Args:
        remote: what to measure; it is reset.
        steps: vector steps to measure, of each.
        others: vector envs to compare it with, of the same number of envs.

    Raises:
        SpaceError: if one has another action space.
        OpenEnvGymError: as ``reset`` and ``step`` of the remote env do.
    """
    for other in others:
        if not same(other.single_action_space, remote.single_action_space):
            name, theirs = type(other).__name__, other.single_action_space
            raise SpaceError(f"{name} has the action space {theirs}, the server {remote.single_action_space}")
    envs = [remote, *others]
    remote.action_space.seed(0)
    actions = [remote.action_space.sample() for _ in range(_ACTIONS)]
    for env in envs:
        env.reset(seed=0)
        _seconds(env.step, actions, -(-steps // 10))  # the first steps, which aren't counted, are slower
    before = remote.stats(collect=True)
    rounds = [steps // _ROUNDS + (i < steps % _ROUNDS) for i in range(min(_ROUNDS, steps))]
    took = [[_seconds(env.step, actions, count) for env in envs] for count in rounds]
    after = remote.stats(collect=False)
    links = remote.rollout.pool.links
    total = [sum(column) for column in zip(*took, strict=True)]
    return Bench(
        url=links[0].url,
        env=links[0].env_name,
        num_envs=remote.num_envs,
        connections=len(links),
        steps=steps,
        steps_per_s=steps * remote.num_envs / total[0],
        bytes_up_per_step=(after.bytes_up - before.bytes_up) / steps,
        bytes_down_per_step=(after.bytes_down - before.bytes_down) / steps,
        stats=after,
        local=tuple(
            Local(
                type(other).__name__,
                steps * remote.num_envs / total[i],
                statistics.median(seconds[i] / seconds[0] for seconds in took),
            )
            for i, other in enumerate(others, 1)
        ),
    )


def _seconds(step: Callable[[Any], object], actions: Sequence[Any], count: int) -> float:
    start = time.perf_counter()
    for i in range(count):
        step(actions[i % len(actions)])
    return time.perf_counter() - start
