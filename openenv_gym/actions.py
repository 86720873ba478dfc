"""A vector env's actions: checked and taken apart where they are given, and put together for each env where it runs.

The rules are Gymnasium's (gymnasium/vector/utils/space_utils.py, ``iterate``): each env gets its action as the type
that it would get from a ``SyncVectorEnv``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from openenv_gym.codec import pack
from openenv_gym.errors import ActionError, RemoteProtocolError
from openenv_gym.leaf_values import LeafValues, array_of, restored, restorer, taken
from openenv_gym.messages import Array, Batch, Values
from openenv_gym.spaces import Leaf, leaf_dtype, leaf_shape, leaves, path_name

__all__ = ["ActionReader", "check_actions", "gather_actions", "to_batch"]


def gather_actions(space: gym.Space[Any], actions: Any) -> Any:
    """Single actions, such as Stable-Baselines3 gives, in the structure of a batch.

    Args:
        space: one env's action space.
        actions: one action for each env.

    Returns:
        dicts and tuples of sequences, where the space is a Dict or a Tuple.

    Raises:
        ActionError: for an action without one of the space's parts.
    """
    if isinstance(space, spaces.Dict):
        return {key: gather_actions(child, _parts(actions, key)) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(gather_actions(child, _parts(actions, i)) for i, child in enumerate(space.spaces))
    return actions


def _parts(actions: Any, key: Any) -> list[Any]:
    try:
        return [action[key] for action in actions]
    except (KeyError, IndexError, TypeError):
        raise ActionError(f"an action has no {key!r}") from None


def check_actions(space: gym.Space[Any], actions: Any, num_envs: int) -> list[LeafValues]:
    """Take a vector env's actions apart into leaves, and refuse what can't be right before anything is sent.

    Accepts what ``gymnasium.vector.utils.iterate`` accepts: arrays, lists and tuples, dicts and tuples of them.

    Args:
        space: one env's action space.
        actions: actions for ``num_envs`` envs.
        num_envs: their number.

    Returns:
        the leaves, each with ``num_envs`` entries; arrays keep their dtype, for an env must get what it would get
        locally.

    Raises:
        ActionError: for a wrong number or shape, or NaN. It is a ``ValueError``.
        TypeError: for something that can't be iterated over, or has another structure than the space.
    """
    return [_check_leaf(leaf, _pick_action(actions, leaf.path, num_envs), num_envs) for leaf in leaves(space)]


def _pick_action(actions: Any, path: tuple[str | int, ...], num_envs: int) -> Any:
    for key in path:
        if not isinstance(actions, dict if isinstance(key, str) else (tuple, list)):
            values = f"array of {num_envs}, …"
            form = f"a Dict space are one dict of arrays: {{{key!r}: {values}}}"
            if not isinstance(key, str):
                form = f"a Tuple space are one tuple of arrays: ({values})"
            raise TypeError(
                f"Unable to iterate over the following elements: {actions!r} (no {key!r} in it); the actions of {form}"
            )
        try:
            actions = actions[key]  # type: ignore[index]  # a str for a dict, an int for a sequence
        except (KeyError, IndexError):
            raise ActionError(f"the actions have no {path_name(path)!r}") from None
    return actions


def _check_leaf(leaf: Leaf, values: Any, num_envs: int) -> LeafValues:
    where = f" for {path_name(leaf.path)!r}" if leaf.path else ""
    if not isinstance(values, (np.ndarray, list, tuple)):
        if hasattr(values, "__array__"):
            values = np.asarray(values)
        elif isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
            values = list(values)
        else:
            raise _no_sequence(values, num_envs)
    if isinstance(values, np.ndarray) and values.ndim == 0:
        raise _no_sequence(values, num_envs)
    if len(values) != num_envs:
        raise ActionError(f"{len(values)} actions{where} for {num_envs} envs")
    if not isinstance(values, np.ndarray):
        for row, value in enumerate(values):
            _check_one(leaf, value, row, where)
        return list(values)
    if leaf.is_array and values.dtype != object and values.shape[1:] != leaf_shape(leaf.space):
        raise ActionError(f"actions{where} of shape {values.shape}, not {(num_envs, *leaf_shape(leaf.space))}")
    if _holds_nan(values):
        raise ActionError(f"the action{where} of env {int(np.argwhere(np.isnan(values))[0][0])} holds NaN")
    return list(values) if values.dtype.kind not in "biufc" else values


def _no_sequence(values: Any, num_envs: int) -> TypeError:
    """Gymnasium's error, with what is missing."""
    return TypeError(
        f"Unable to iterate over the following elements: {values!r}; pass one action for each of the {num_envs} env(s)"
    )


def _check_one(leaf: Leaf, value: Any, row: int, where: str) -> None:
    """One env's action in a list: what is an array, or stands for one, must have the right shape and no NaN."""
    if leaf.is_array and isinstance(value, (list, tuple)):
        try:
            value = np.asarray(value)
        except ValueError:
            raise ActionError(f"the action{where} of env {row} is ragged") from None
    if isinstance(value, np.ndarray) and leaf.is_array and value.shape != leaf_shape(leaf.space):
        raise ActionError(f"the action{where} of env {row} has shape {value.shape}, not {leaf_shape(leaf.space)}")
    if isinstance(value, (float, np.floating, np.ndarray)) and _holds_nan(np.asarray(value)):
        raise ActionError(f"the action{where} of env {row} holds NaN")


def _holds_nan(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f" and bool(np.isnan(array).any())


def to_batch(columns: Sequence[LeafValues], rows: slice | list[int]) -> Batch:
    """Pack a copy of some rows of each leaf of actions: they are the caller's, and are encoded on another thread."""
    return [
        Array.of(column[rows].copy())
        if isinstance(column, np.ndarray)
        else Values([pack(value, "action") for value in taken(column, rows)])
        for column in columns
    ]


class ActionReader:
    """Gives each env its own action, as the type that it would get from a local vector env.

    Args:
        space: one env's action space.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self._leaves = found = leaves(space)
        self._restore = [restorer(leaf.space) for leaf in found]
        self._is_flat = [leaf.path for leaf in found] == [()]
        # `iterate` gives dicts in the key order of the batched space, which need not be that of the space.
        self._build = _builder(batch_space(space, 1), (), {leaf.path: number for number, leaf in enumerate(found)})

    def read_batched(self, batch: Batch, count: int) -> Any:
        """The actions of ``count`` envs as a vector env takes them: arrays, or dicts and tuples of them.

        Raises:
            RemoteProtocolError: if the batch doesn't fit.
        """
        columns = self._columns(batch, count)
        return self._build(
            [
                np.asarray(column, leaf_dtype(leaf.space)) if leaf.is_array else column
                for leaf, column in zip(self._leaves, columns, strict=True)
            ]
        )

    def read(self, batch: Batch, count: int) -> list[Any]:
        """The actions of ``count`` envs.

        Returns:
            numpy scalars for rows of ``(count,)`` arrays, views of a fresh array for larger rows, or what was packed.

        Raises:
            RemoteProtocolError: if the batch doesn't fit.
        """
        return self._rows([list(column) for column in self._columns(batch, count)], count)

    def read_plain(self, batch: Batch, count: int) -> list[Any]:
        """The same, with Python's numbers and lists in the place of numpy's.

        Raises:
            RemoteProtocolError: if the batch doesn't fit.
        """
        columns = self._columns(batch, count)
        return self._rows([c.tolist() if isinstance(c, np.ndarray) else c for c in columns], count)

    def _rows(self, columns: list[list[Any]], count: int) -> list[Any]:
        if self._is_flat:
            return columns[0]
        rows = zip(*columns, strict=True) if columns else [()] * count  # an empty Dict has no leaves
        return [self._build(row) for row in rows]

    def _columns(self, batch: Batch, count: int) -> list[LeafValues]:
        if len(batch) != len(self._restore):
            raise RemoteProtocolError(f"{len(batch)} leaves of actions where the space has {len(self._restore)}")
        columns: list[LeafValues] = [
            array_of(c).copy() if isinstance(c, Array) else restored(c, restore)
            for restore, c in zip(self._restore, batch, strict=True)
        ]
        if any((c.shape[:1] != (count,)) if isinstance(c, np.ndarray) else (len(c) != count) for c in columns):
            raise RemoteProtocolError(f"the actions aren't for {count} envs")
        return columns


def _builder(
    batched: gym.Space[Any], path: tuple[str | int, ...], numbers: dict[tuple[str | int, ...], int]
) -> Callable[[Any], Any]:
    """What makes one env's action from its leaves; ``numbers`` says where in them each path is."""
    if path in numbers:
        return itemgetter(numbers[path])
    if isinstance(batched, spaces.Dict):
        parts = {key: _builder(child, (*path, key), numbers) for key, child in batched.spaces.items()}
        return lambda row: {key: build(row) for key, build in parts.items()}
    assert isinstance(batched, spaces.Tuple)
    items = [_builder(child, (*path, i), numbers) for i, child in enumerate(batched.spaces)]
    return lambda row: tuple(build(row) for build in items)
