"""The parts of a space: their names and order, their shapes and dtypes, and whether two spaces are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple

from openenv_gym.errors import SpaceError

__all__ = [
    "Leaf",
    "Path",
    "Space",
    "alike",
    "fits",
    "leaf_dtype",
    "leaf_shape",
    "leaves",
    "path_name",
    "same",
    "sub_spaces",
]

Space: TypeAlias = gym.Space[Any]
Path: TypeAlias = tuple[str | int, ...]

_ARRAYS: Final = (Box, Discrete, MultiDiscrete, MultiBinary)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of a space that has no named parts itself.

    Attributes:
        path: the Dict keys and Tuple indices that lead to it; ``()`` if it is the whole space.
        space: the part itself.
        is_array: whether all its values have one shape and dtype, see `leaf_shape` and `leaf_dtype`.
    """

    path: Path
    space: Space
    is_array: bool


def leaves(space: Space) -> list[Leaf]:
    """Walk depth-first through Dict, in the order of its keys, and Tuple; every other space is a leaf.

    Args:
        space: any space.

    Returns:
        The leaves. ``is_array`` is true for Box, Discrete, MultiDiscrete and MultiBinary, and false for Text, Sequence,
        Graph, OneOf and classes that aren't gymnasium's own. An empty Dict or Tuple has no leaves.
    """
    return list(_walk(space, ()))


def _walk(space: Space, path: Path) -> Iterator[Leaf]:
    if type(space) not in (Dict, Tuple):
        yield Leaf(path, space, type(space) in _ARRAYS)
        return
    for name, part in sub_spaces(space):
        yield from _walk(part, (*path, name))


def sub_spaces(space: Space) -> list[tuple[str | int, Space]]:
    """The spaces directly inside a space, with the keys, indices or attributes that name them.

    Args:
        space: any space; one of another class than gymnasium's Dict, Tuple, OneOf, Sequence and Graph has none.
    """
    kind = type(space)
    if isinstance(space, Dict) and kind is Dict:
        return list(space.spaces.items())
    if isinstance(space, (Tuple, OneOf)) and kind in (Tuple, OneOf):
        return list(enumerate(space.spaces))
    if isinstance(space, Sequence) and kind is Sequence:
        return [("feature_space", space.feature_space)]
    if isinstance(space, Graph) and kind is Graph:
        parts = [("node_space", space.node_space), ("edge_space", space.edge_space)]
        return [(name, part) for name, part in parts if part is not None]
    return []


def path_name(path: Iterable[str | int]) -> str:
    """A path in words: ``("robot", 0, "cam")`` is ``"robot.0.cam"``, and ``()`` is ``""``."""
    return ".".join(map(str, path))


def leaf_shape(space: Space) -> tuple[int, ...]:
    """The shape of every value of an array leaf; ``()`` for Discrete (gymnasium/spaces/discrete.py).

    Raises:
        SpaceError: if the space is no array leaf.
    """
    if type(space) not in _ARRAYS or space.shape is None:
        raise SpaceError(f"values of {type(space).__name__} have no fixed shape and dtype")
    return space.shape


def leaf_dtype(space: Space) -> np.dtype[Any]:
    """The dtype of every value of an array leaf: int8 for MultiBinary, and int64 for Discrete unless it says otherwise.

    Raises:
        SpaceError: if the space is no array leaf.
    """
    leaf_shape(space)
    return np.dtype(space.dtype)


def same(a: Space, b: Space) -> bool:
    """Whether two spaces are equal in all that a learner can notice.

    ``Dict.__eq__`` ignores the order of keys and ``Text.__eq__`` that of characters, though ``flatten`` follows both
    (gymnasium/spaces/utils.py), and before gymnasium 1.4 ``MultiDiscrete.__eq__`` ignores the dtype. The bounds of a
    Box are compared as gymnasium does, by ``numpy.allclose``: two machines may round differently.
    """
    if type(a) is not type(b) or a != b or a.dtype != b.dtype:
        return False
    if isinstance(a, Text) and isinstance(b, Text):
        return a.character_list == b.character_list
    ours, theirs = sub_spaces(a), sub_spaces(b)
    return [name for name, _ in ours] == [name for name, _ in theirs] and all(
        same(our, their) for (_, our), (_, their) in zip(ours, theirs, strict=True)
    )


def fits(wanted: Space, own: Space) -> bool:
    """Whether values of a space travel as values of another one, unchanged.

    Keys of a Dict may be missing and stand in another order, and bounds may differ, a Discrete's too. All else, such as
    shapes and dtypes, is the `same`.
    """
    if type(wanted) is not type(own):
        return False
    if type(wanted) in (Dict, Tuple):
        parts, whole = dict(sub_spaces(wanted)), dict(sub_spaces(own))
        enough = type(wanted) is Dict or len(parts) == len(whole)
        return enough and all(key in whole and fits(part, whole[key]) for key, part in parts.items())
    if type(wanted) in (Box, Discrete):
        return wanted.shape == own.shape and wanted.dtype == own.dtype
    return same(wanted, own)


def alike(a: Space, b: Space) -> bool:
    """Whether values of either space travel as values of the other one: only the bounds of the two may differ."""
    return fits(a, b) and fits(b, a)
