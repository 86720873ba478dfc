"""One leaf's values for several envs: arrays, or lists of values that the codec sends one by one.

The codec knows tuples but not what a space makes of them, so graphs travel as plain tuples and are restored here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium as gym
from gymnasium import spaces
from numpy.typing import NDArray

from openenv_gym.codec import unpack
from openenv_gym.errors import RemoteProtocolError
from openenv_gym.messages import Array, Values

__all__ = ["MISFITS", "LeafValues", "array_of", "restored", "restorer", "taken"]

LeafValues: TypeAlias = "NDArray[Any] | list[Any]"
"""One leaf's values for all envs, before they are packed."""

MISFITS = (TypeError, ValueError, LookupError, AttributeError)
"""What a restorer raises for a value of another structure."""


def taken(items: list[Any], rows: slice | list[int]) -> list[Any]:
    """Some rows of a list."""
    return items[rows] if isinstance(rows, slice) else [items[row] for row in rows]


def array_of(array: Array) -> NDArray[Any]:
    """A received array as a view of its frame.

    Raises:
        RemoteProtocolError: if its bytes don't fit its dtype and shape.
    """
    try:
        return array.numpy()
    except ValueError as error:
        raise RemoteProtocolError(str(error)) from None


def restored(values: Values, restore: Callable[[Any], Any]) -> list[Any]:
    """Received values as their space has them.

    Args:
        values: what came.
        restore: the space's `restorer`.

    Raises:
        RemoteProtocolError: for a value of another structure.
    """
    items = [unpack(item) for item in values.items]
    try:
        return [restore(item) for item in items]
    except MISFITS as error:
        raise RemoteProtocolError(f"a value of another structure than its space: {error}") from None


def _unchanged(value: Any) -> Any:
    return value


def restorer(space: gym.Space[Any]) -> Callable[[Any], Any]:
    """What turns plain tuples back into ``GraphInstance`` inside a value of this space; `_unchanged` without graphs."""
    if isinstance(space, spaces.Graph):
        return _as_graph
    if isinstance(space, spaces.Sequence) and not space.stack:
        feature = restorer(space.feature_space)
        return _unchanged if feature is _unchanged else lambda value: tuple(feature(v) for v in value)
    if not isinstance(space, (spaces.OneOf, spaces.Tuple, spaces.Dict)):
        return _unchanged
    inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    parts = {key: restorer(child) for key, child in inner}
    if all(part is _unchanged for part in parts.values()):
        return _unchanged
    if isinstance(space, spaces.OneOf):
        return lambda value: (value[0], parts[int(value[0])](value[1]))
    if isinstance(space, spaces.Dict):
        return lambda value: {key: parts[key](v) for key, v in value.items()}
    return lambda value: tuple(restore(v) for restore, v in zip(parts.values(), value, strict=True))


def _as_graph(value: Any) -> spaces.GraphInstance:
    if not isinstance(value, tuple):
        raise TypeError(f"{type(value).__name__} instead of a graph")
    return spaces.GraphInstance(*value)
