"""What a learner's rows gave, and what is still waited for: plain data between the rollout and what stands on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from openenv_gym.batching import Part
from openenv_gym.codec import unpack
from openenv_gym.errors import RemoteEnvError, RemoteProtocolError, batch_error
from openenv_gym.infos import join_infos, merge_infos
from openenv_gym.messages import Batch, Reply, Request, Stepped
from openenv_gym.slices import joined

__all__ = ["Ending", "Pending", "Resets", "Steps", "raise_all", "unexpected"]

_MANY: Final = 8
"""Replies, from which on it is quicker to join them than to read each: a join copies the observations once more."""


@dataclass
class Ending:
    """How an episode ended whose env was reset in the same step.

    Attributes:
        row: the env.
        observation: the episode's last observation.
        info: its last info.
    """

    row: int
    observation: Any
    info: dict[str, Any]


@dataclass
class Resets:
    """What a reset gave.

    Attributes:
        parts: rows and their observations.
        infos: row and info of each env that has one.
        vector_infos: rows, and the infos of the vector env that has them.
    """

    parts: list[Part] = field(default_factory=list)
    infos: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    vector_infos: list[tuple[Sequence[int], dict[Any, Any]]] = field(default_factory=list)

    def merged_infos(self, num_envs: int) -> dict[Any, Any]:
        """The infos as one vector info."""
        return {**merge_infos(self.infos, num_envs), **join_infos(self.vector_infos, num_envs)}


@dataclass
class Steps(Resets):
    """What a step gave; the arrays have one entry for each row and belong to the caller.

    Attributes:
        rewards: float64; of a single vector env in its own dtype.
        terminated: bool.
        truncated: bool.
        endings: the episodes that ended in a same-step autoreset.
    """

    rewards: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    terminated: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    truncated: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    endings: list[Ending] = field(default_factory=list)

    @classmethod
    def of(cls, num_envs: int) -> Steps:
        """A result to be filled."""
        return cls(rewards=np.zeros(num_envs), terminated=np.zeros(num_envs, bool), truncated=np.zeros(num_envs, bool))

    def take(self, stepped: Sequence[tuple[Sequence[int], Stepped]], read: Callable[[Batch, int], list[Any]]) -> None:
        """Take what some rows gave.

        Args:
            stepped: rows and the reply for them; if they are all rows, in order.
            read: makes the single observations of a batch of so many envs.

        Raises:
            RemoteProtocolError: for a reply that doesn't fit its rows.
        """
        whole = self._whole(stepped)
        for rows, reply in stepped if whole is None else [whole]:
            self._take_outcome(rows, reply)
        for rows, reply in stepped:
            self._take_infos(rows, reply, read)

    def _whole(self, stepped: Sequence[tuple[Sequence[int], Stepped]]) -> tuple[range, Stepped] | None:
        """Many replies for all rows as one; None if they are few or not for all, or differ in form."""
        if len(stepped) < _MANY:
            return None
        sizes = [len(rows) for rows, _ in stepped]
        every = range(len(self.rewards))
        reply = joined([reply for _, reply in stepped], sizes) if sum(sizes) == len(every) else None
        return None if reply is None else (every, reply)

    def _take_outcome(self, rows: Sequence[int], reply: Stepped) -> None:
        part = slice(rows.start, rows.stop) if isinstance(rows, range) else list(rows)
        self.parts.append((part, reply.observations))
        try:
            rewards = reply.rewards.numpy()
            if reply.vector_infos is not None and rewards.shape == self.rewards.shape:
                self.rewards = rewards.copy()
            self.rewards[part] = rewards
            self.terminated[part] = reply.terminated.numpy()
            self.truncated[part] = reply.truncated.numpy()
        except ValueError as error:
            raise RemoteProtocolError(f"a step's reply is malformed: {error}") from None

    def _take_infos(self, rows: Sequence[int], reply: Stepped, read: Callable[[Batch, int], list[Any]]) -> None:
        self.infos += [(rows[position], unpack(info)) for position, info in reply.infos.items()]
        if reply.vector_infos is not None:
            self.vector_infos.append((rows, unpack(reply.vector_infos)))
        if reply.final is not None:
            final = reply.final
            observations = read(final.observations, len(final.positions))
            self.endings += [
                Ending(rows[position], observation, unpack(info))
                for position, observation, info in zip(final.positions, observations, final.infos, strict=True)
            ]


@dataclass
class Pending:
    """What was sent and not yet waited for.

    Attributes:
        phase: ``reset``, ``step`` or another request's name.
        requests: link index and request.
        call: what the pool waits for.
        autoreset: the mode of a step.
        rows: the rows that were asked, in the order of the answer.
        begun: which rows had an episode.
    """

    phase: str
    requests: list[tuple[int, Request]]
    call: Any
    autoreset: AutoresetMode | None = None
    rows: list[int] = field(default_factory=list)
    begun: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))


def unexpected(reply: Reply | Exception) -> Exception:
    """The error that a request's outcome is, where it isn't a reply of the right kind."""
    return reply if isinstance(reply, Exception) else RemoteProtocolError(f"unexpected {type(reply).__name__}")


def raise_all(errors: list[Exception]) -> None:
    """Raise an error, or one that stands for several envs', if there is any."""
    if not errors:
        return
    by_row: dict[int, Exception] = {
        e.env_index: e for e in errors if isinstance(e, RemoteEnvError) and e.env_index is not None
    }
    if len(errors) == 1 or len(by_row) != len(errors):
        raise next((e for e in errors if e not in by_row.values()), errors[0])
    raise batch_error(by_row)
