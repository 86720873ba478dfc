"""What a dialect must bring so that slots can speak it, and the batch dialect's own. No threads and no I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium as gym

from openenv_gym.actions import ActionReader
from openenv_gym.batching import BatchWriter
from openenv_gym.codec import pack
from openenv_gym.messages import Batch

__all__ = ["BatchEncoding", "Encoding", "Writer"]


class Writer(Protocol):
    """Takes observations, on the envs' threads."""

    def write(self, position: int, value: Any, /) -> None:
        """Take one env's observation, keeping no reference to it."""

    def batch(self, positions: int | list[int], /) -> Batch:
        """The observations of the first so many positions, or of the listed ones."""


class Encoding(Protocol):
    """How a dialect writes observations and infos, and reads actions."""

    def writer(self, count: int, /, *, final: bool = False) -> Writer:
        """A writer for ``count`` envs; ``final`` for episodes' last observations, which stay as the env made them."""

    def info(self, info: dict[str, Any], observation: Any, /) -> dict[str, Any]:
        """The info that came with an observation as it travels, keeping no reference. Raises `PackError`."""

    def value(self, value: Any, /) -> Any:
        """What a `Call`, `Get`, `Set` or `Render` gave, as it travels. Raises `PackError` for what can't."""

    def actions(self, batch: Batch, count: int, /) -> Sequence[Any]:
        """The actions of a `Step` of ``count`` envs. Raises `RemoteProtocolError` where they don't fit."""


class BatchEncoding:
    """The batch dialect's encoding: arrays, and packed infos.

    Args:
        observation_space: the observation space that the client sees.
        action_space: the action space.
        info_keys: info keys to send; None for all.
        typed: keep the types of Discrete observations, which those of ``final`` writers always do.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        info_keys: frozenset[str] | None = None,
        *,
        typed: bool = False,
    ) -> None:
        self._observation_space = observation_space
        self._info_keys = info_keys
        self._typed = typed
        self.actions = ActionReader(action_space).read

    def writer(self, count: int, *, final: bool = False) -> BatchWriter:
        """See `Encoding.writer`."""
        return BatchWriter(self._observation_space, count, typed=final or self._typed)

    def info(self, info: dict[str, Any], observation: Any) -> dict[str, Any]:
        """See `Encoding.info`."""
        return self._packed(info) if info else {}

    def _packed(self, info: dict[str, Any]) -> dict[str, Any]:
        wanted = info if self._info_keys is None else {k: v for k, v in info.items() if self._wants(k)}
        packed: dict[str, Any] = pack(wanted, "info")
        return packed

    def _wants(self, key: str) -> bool:
        return self._info_keys is None or key in self._info_keys

    def value(self, value: Any) -> Any:
        """See `Encoding.value`."""
        return pack(value, "result")
