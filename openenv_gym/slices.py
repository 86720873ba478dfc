"""Batches taken apart and put together by position, for rows whose envs are on several servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from openenv_gym.codec import pack
from openenv_gym.infos import CONNECTION_LOST
from openenv_gym.messages import Array, Batch, EnvFailure, FinalRows, Observed, Stepped, Values

__all__ = ["Gathering", "joined", "overlaid", "picked", "some_observations", "some_steps"]


def picked(batch: Batch, positions: Sequence[int]) -> Batch:
    """The values at some positions of a batch, in their order."""
    return [
        Array.of(leaf.numpy()[list(positions)])
        if isinstance(leaf, Array)
        else Values([leaf.items[position] for position in positions])
        for leaf in batch
    ]


def overlaid(size: int, layers: Sequence[tuple[Sequence[int], Batch]]) -> Batch:
    """A batch of a size, from the values for some positions each; later layers count, and no position is left out."""
    return [_overlaid(size, [(positions, batch[i]) for positions, batch in layers]) for i in range(len(layers[0][1]))]


def _overlaid(size: int, layers: Sequence[tuple[Sequence[int], Array | Values]]) -> Array | Values:
    first = layers[0][1]
    if isinstance(first, Values):
        items: list[object] = [None] * size
        for positions, leaf in layers:
            for position, item in zip(positions, cast(Values, leaf).items, strict=True):
                items[position] = item
        return Values(items)
    template = first.numpy()
    whole = np.zeros((size, *template.shape[1:]), template.dtype)
    for positions, leaf in layers:
        whole[list(positions)] = cast(Array, leaf).numpy()
    return Array.of(whole)


def joined(replies: Sequence[Stepped], sizes: Sequence[int]) -> Stepped | None:
    """The observations and outcomes of single envs that follow each other as one reply, without infos and failures.

    Args:
        replies: at least one.
        sizes: the number of envs that each is for.

    Returns:
        None if they differ in form, as those that don't fit their space may.
    """
    if any(reply.vector_infos is not None for reply in replies):
        return None
    try:
        return Stepped(
            0,
            [_joined(leaf, sizes) for leaf in zip(*(reply.observations for reply in replies), strict=True)],
            _joined_arrays([reply.rewards for reply in replies], sizes),
            _joined_arrays([reply.terminated for reply in replies], sizes),
            _joined_arrays([reply.truncated for reply in replies], sizes),
            {},
            None,
            [],
        )
    except ValueError:
        return None


def _joined(parts: Sequence[Array | Values], sizes: Sequence[int]) -> Array | Values:
    arrays = [part for part in parts if isinstance(part, Array)]
    if arrays:
        return _joined_arrays(arrays, sizes)
    lists = [part.items for part in parts if isinstance(part, Values)]
    if [len(items) for items in lists] != list(sizes):
        raise ValueError("values of another number")
    return Values([item for items in lists for item in items])


def _joined_arrays(parts: Sequence[Array], sizes: Sequence[int]) -> Array:
    dtype, row = parts[0].dtype, parts[0].shape[1:]
    bytes_of_row = parts[0].data.nbytes // sizes[0]
    for part, size in zip(parts, sizes, strict=True):
        if part.dtype != dtype or part.shape != (size, *row) or part.data.nbytes != size * bytes_of_row:
            raise ValueError("arrays of other forms")
    return Array(dtype, (sum(sizes), *row), memoryview(b"".join(part.data for part in parts)))


def some_observations(reply: Observed, rows: Sequence[int]) -> Observed:
    """A reset's reply for some of its rows, in their order, without failures."""
    observations = picked(reply.observations, rows)
    return Observed(0, observations, _moved(reply.infos, rows), [], reply.unseeded)


def some_steps(reply: Stepped, rows: Sequence[int]) -> Stepped:
    """A step's reply for some of its rows, in their order, without failures."""
    if len(rows) == len(reply.terminated.numpy()):  # nearly always, and rows are in order then
        return reply
    final = None
    if reply.final is not None:
        ended = {position: number for number, position in enumerate(reply.final.positions)}
        positions = [at for at, row in enumerate(rows) if row in ended]
        numbers = [ended[rows[at]] for at in positions]
        infos = [reply.final.infos[number] for number in numbers]
        final = FinalRows(positions, picked(reply.final.observations, numbers), infos)
    return Stepped(
        0,
        picked(reply.observations, rows),
        _column(reply.rewards, rows),
        _column(reply.terminated, rows),
        _column(reply.truncated, rows),
        _moved(reply.infos, rows),
        final,
        [],
    )


def _column(column: Array, rows: Sequence[int]) -> Array:
    return Array.of(column.numpy()[list(rows)])


def _moved(infos: dict[int, dict[Any, Any]], rows: Sequence[int]) -> dict[int, dict[Any, Any]]:
    return {at: infos[row] for at, row in enumerate(rows) if row in infos}


class Gathering:
    """The replies to parts of one request, by the positions that they are for, to be given as one reply.

    Args:
        size: the envs of the whole.

    Attributes:
        ended: the envs that were reset in this step, with their last observation and info.
    """

    def __init__(self, size: int) -> None:
        self.ended: dict[int, tuple[Batch, dict[Any, Any]]] = {}
        self._size = size
        self._layers: list[tuple[Sequence[int], Batch]] = []
        self._infos: dict[int, dict[Any, Any]] = {}
        self._failures: list[EnvFailure] = []
        self._unseeded = False
        self._rewards = np.zeros(size, np.float64)
        self._terminated = np.zeros(size, np.bool_)
        self._truncated = np.zeros(size, np.bool_)

    def observed(self, positions: Sequence[int], reply: Observed, failures: list[EnvFailure]) -> None:
        """Take a reset's reply: of envs that had a step before it in this request, only the step's end counts on."""
        self._layers.append((positions, reply.observations))
        for at, position in enumerate(positions):
            lost = {k: v for k, v in self._infos.pop(position, {}).items() if k == CONNECTION_LOST}
            info = {**reply.infos.get(at, {}), **lost}
            if info:
                self._infos[position] = info
        self._failures += failures
        self._unseeded |= reply.unseeded

    def stepped(self, positions: Sequence[int], reply: Stepped, failures: list[EnvFailure]) -> None:
        """Take a step's reply."""
        rows = list(positions)
        self._layers.append((rows, reply.observations))
        self._rewards[rows] = reply.rewards.numpy()
        self._terminated[rows] = reply.terminated.numpy()
        self._truncated[rows] = reply.truncated.numpy()
        self._infos.update({rows[at]: info for at, info in reply.infos.items()})
        self._failures += failures
        if reply.final is not None:
            for number, (at, info) in enumerate(zip(reply.final.positions, reply.final.infos, strict=True)):
                self.ended[rows[at]] = picked(reply.final.observations, [number]), info

    def lost(self, positions: Sequence[int], last: Batch) -> None:
        """Take note of envs whose session is gone, with their last observations: their episodes are truncated."""
        self._layers.append((positions, last))
        self._truncated[list(positions)] = True
        self._infos.update(dict.fromkeys(positions, _LOST))

    def end(self, positions: Sequence[int]) -> None:
        """Make what is known of lost envs the end of their episodes, for they are reset in this step."""
        for position in positions:
            rows, last = next((rows, batch) for rows, batch in reversed(self._layers) if position in rows)
            self.ended[position] = picked(last, [list(rows).index(position)]), _LOST

    def whole_observed(self) -> Observed:
        """A reset's reply."""
        observations = overlaid(self._size, self._layers)
        return Observed(0, observations, self._infos, self._failures, self._unseeded)

    def whole_stepped(self) -> Stepped:
        """A step's reply."""
        final = None
        if self.ended:
            order = sorted(self.ended)
            layers = [([number], self.ended[position][0]) for number, position in enumerate(order)]
            final = FinalRows(order, overlaid(len(order), layers), [self.ended[position][1] for position in order])
        return Stepped(
            0,
            overlaid(self._size, self._layers),
            Array.of(self._rewards),
            Array.of(self._terminated),
            Array.of(self._truncated),
            self._infos,
            final,
            self._failures,
        )


_LOST = pack({CONNECTION_LOST: True}, "info")
