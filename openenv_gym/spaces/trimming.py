"""Leave out the parts of a space that need not travel, and let Boxes travel with other dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Tuple

from openenv_gym.errors import SpaceError
from openenv_gym.spaces.descriptions import ordered_dict
from openenv_gym.spaces.fields import DTYPES, limits, shown
from openenv_gym.spaces.parts import Path, Space, leaves, path_name, sub_spaces

__all__ = ["trim"]


def trim(
    space: Space,
    *,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
    dtype: str | Mapping[str, str] | None = None,
) -> Space:
    """The space that remains when only some keys of (nested) Dicts travel, and Boxes travel with other dtypes.

    Paths are dotted (``"robot.camera"``), and a branch stands for all below it. The order of keys is kept, as is every
    part that doesn't change; with nothing to do, the result is the very same object.

    Args:
        space: any space; one with Dicts if ``include`` or ``exclude`` name something.
        include: paths of what stays, or a single one; None for all.
        exclude: paths of what then goes, or a single one.
        dtype: one dtype for every Box among the leaves, or path → dtype. The longest path that covers a Box counts;
            ``""`` is the path of a space that is itself a Box. Bounds are cast along.

    Raises:
        SpaceError: for a path that names nothing, with the paths that exist; if nothing would remain; and for a dtype
            that is unknown or can't hold a bound, such as an infinite one as an integer.
    """
    if include is not None or exclude is not None:
        space = _keep(space, None if include is None else _paths(include), _paths(exclude or ()))
    if dtype is not None:
        space = _recast(space, dtype if isinstance(dtype, Mapping) else dict.fromkeys(_box_names(space), dtype))
    return space


def _paths(given: Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _keep(space: Space, include: tuple[str, ...] | None, exclude: tuple[str, ...]) -> Space:
    names = list(_key_names(space, ()))
    for path in (*(include or ()), *exclude):
        if path not in names:
            raise _names_nothing(path, names)

    def stays(leaf: Space, name: str) -> Space | None:
        wanted = include is None or any(_covers(path, name) for path in include)
        return leaf if wanted and not any(_covers(path, name) for path in exclude) else None

    kept = _with_leaves(space, (), stays)
    if kept is None:
        raise SpaceError("include and exclude leave nothing of the space")
    return kept


def _recast(space: Space, dtypes: Mapping[str, str]) -> Space:
    names = _box_names(space)
    for path in dtypes:
        if not any(_covers(path, name) for name in names):
            raise _names_nothing(path, names)

    def cast(leaf: Space, name: str) -> Space:
        path = max((path for path in dtypes if _covers(path, name)), key=len, default=None)
        return leaf if path is None or type(leaf) is not Box else _cast(leaf, dtypes[path], name)

    recast = _with_leaves(space, (), cast)
    assert recast is not None
    return recast


def _with_leaves(space: Space, path: Path, new: Callable[[Space, str], Space | None]) -> Space | None:
    """The space with other leaves; one that is None takes its key along, and so does a Dict that this empties."""
    parts = sub_spaces(space) if type(space) in (Dict, Tuple) else []
    if not parts:
        return new(space, path_name(path))
    renewed = [(name, _with_leaves(part, (*path, name), new)) for name, part in parts]
    if all(part is old for (_, part), (_, old) in zip(renewed, parts, strict=True)):
        return space
    kept = [(name, part) for name, part in renewed if part is not None]
    if not kept:
        return None
    if type(space) is Tuple:
        return Tuple(part for _, part in kept)
    return ordered_dict(kept, sort_keys=getattr(space, "sort_keys", True))


def _cast(box: Box[Any], name: object, path: str) -> Space:
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise SpaceError(f"unknown dtype {shown(name)}; known are {', '.join(DTYPES)}", path=path)
    if dtype == box.dtype:
        return box
    smallest, largest = limits(dtype)
    for bound in (box.low, box.high):
        finite = bound[np.isfinite(bound)]
        if dtype.kind != "f" and finite.size < bound.size:
            raise SpaceError(f"an infinite bound can't become {dtype.name}", path=path)
        for extreme in (finite.min().item(), finite.max().item()) if finite.size else ():
            if not smallest <= extreme <= largest:  # Python compares int with float exactly
                raise SpaceError(f"the bound {extreme} doesn't fit {dtype.name}", path=path)
    return Box(box.low.astype(dtype), box.high.astype(dtype), dtype=dtype.type)


def _key_names(space: Space, path: Path) -> Iterator[str]:
    """Every path of keys, of branches too."""
    for name, part in sub_spaces(space) if type(space) is Dict else ():
        yield path_name((*path, name))
        yield from _key_names(part, (*path, name))


def _box_names(space: Space) -> list[str]:
    return [path_name(leaf.path) for leaf in leaves(space) if type(leaf.space) is Box]


def _covers(path: str, name: str) -> bool:
    return name == path or name.startswith(f"{path}.")


def _names_nothing(path: object, names: list[str]) -> SpaceError:
    known = f"the paths are {', '.join(map(repr, names))}" if names else "the space has no such parts"
    return SpaceError(f"{shown(path)} names nothing here; {known}")
