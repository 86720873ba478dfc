"""A space as plain data, and plain data as a space.

A description is what JSON and MessagePack know: ``{"type": "Box", "dtype": "float32", ...}``, nested as spaces nest. It
keeps what ``==`` on spaces forgets and learners depend on: the order of keys and characters (``flatten`` follows it),
which bounds of an integer Box are open (``sample`` follows them), and every bound to the last bit.

A description may come from a stranger. Every field is checked before anything is allocated for it, and a budget
bounds the whole, so `build` returns a space or raises `SpaceError`, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import singledispatch
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple
from numpy.typing import NDArray

from openenv_gym.errors import SpaceError
from openenv_gym.spaces.fields import (
    DTYPES,
    MAX_ELEMENTS,
    Budget,
    Reader,
    check_depth,
    checked_key,
    checked_text,
    limits,
    shown,
)
from openenv_gym.spaces.json_space import Json
from openenv_gym.spaces.parts import Path, Space, path_name, sub_spaces

__all__ = ["build", "describe", "ordered_dict"]


# ------------------------------------------------------------------------------------------------ describe


def describe(space: Space) -> dict[str, Any]:
    """Describe a space as plain data: dict, list, str, int, float, bool and None, without infinities and nan.

    ``build(describe(space))`` equals the space, and samples and flattens alike. Bounds that are all equal become one
    number, infinite ones ``"inf"`` and ``"-inf"``. The state of the random generators stays behind.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, Tuple, OneOf, Sequence or Graph
            (gymnasium/spaces/), or `Json`, nested up to `MAX_DEPTH` deep.

    Raises:
        SpaceError: for any other class, also one derived from those; for a dtype that isn't in `DTYPES`; and for a Dict
            whose keys aren't str. The error's path says where.
    """
    return _describe(space, ())


def _describe(space: Space, path: Path) -> dict[str, Any]:
    check_depth(path)
    exactly = type(space) if type(space) in _fields.registry else object
    return {"type": type(space).__name__, **_fields.dispatch(exactly)(space, path)}


@singledispatch
def _fields(space: Space, path: Path) -> dict[str, Any]:
    """What describes a space besides its type; called only for exactly the registered classes."""
    raise SpaceError(
        f"{type(space).__name__} can't be described, only gymnasium's own {', '.join(list(_BUILDERS)[:-1])} and Json; "
        "exclude this part, or replace it with one of those",
        path=path_name(path),
    )


@_fields.register(Box)
def _describe_box(space: Box[Any], path: Path) -> dict[str, Any]:
    return {
        "dtype": _dtype_name(space, path),
        "shape": list(space.shape),
        "low": _compact(space.low, space.bounded_below, "-inf"),
        "high": _compact(space.high, space.bounded_above, "inf"),
    }


@_fields.register(Discrete)
def _describe_discrete(space: Discrete[Any], path: Path) -> dict[str, Any]:
    return {"dtype": _dtype_name(space, path), "n": int(space.n), "start": int(space.start)}


@_fields.register(MultiDiscrete)
def _describe_multi_discrete(space: MultiDiscrete[Any], path: Path) -> dict[str, Any]:
    return {
        "dtype": _dtype_name(space, path),
        "shape": list(space.shape),
        "nvec": _compact(space.nvec),
        "start": _compact(space.start),
    }


@_fields.register(MultiBinary)
def _describe_multi_binary(space: MultiBinary, path: Path) -> dict[str, Any]:  # noqa: ARG001 - as all of them
    return {"n": space.n if isinstance(space.n, int) else list(space.n)}


@_fields.register(Text)
def _describe_text(space: Text, path: Path) -> dict[str, Any]:
    charset = checked_text("".join(space.character_list), path)
    return {"min_length": space.min_length, "max_length": space.max_length, "charset": charset}


@_fields.register(Dict)
def _describe_dict(space: Dict[Any], path: Path) -> dict[str, Any]:
    pairs = [[checked_key(name, path), _describe(part, (*path, name))] for name, part in sub_spaces(space)]
    return {"spaces": pairs, "sort_keys": getattr(space, "sort_keys", True)}  # the flag came with gymnasium 1.4


@_fields.register(Tuple)
@_fields.register(OneOf)
def _describe_tuple(space: Tuple[Any] | OneOf[Any], path: Path) -> dict[str, Any]:
    return {"spaces": [_describe(part, (*path, index)) for index, part in sub_spaces(space)]}


@_fields.register(Sequence)
def _describe_sequence(space: Sequence, path: Path) -> dict[str, Any]:
    return {"feature_space": _describe(space.feature_space, (*path, "feature_space")), "stack": bool(space.stack)}


@_fields.register(Graph)
def _describe_graph(space: Graph, path: Path) -> dict[str, Any]:
    parts = {str(name): _describe(part, (*path, name)) for name, part in sub_spaces(space)}
    return {"edge_space": None, **parts}


@_fields.register(Json)
def _describe_json(space: Json, path: Path) -> dict[str, Any]:  # noqa: ARG001 - as all of them
    return {}


def _dtype_name(space: Space, path: Path) -> str:
    dtype = np.dtype(space.dtype)
    if DTYPES.get(dtype.name) != dtype:
        raise SpaceError(f"dtype {dtype.str} can't be described, only {', '.join(DTYPES)}", path=path_name(path))
    return dtype.name


def _compact(values: NDArray[Any], bounded: Any = True, infinity: str = "") -> Any:
    """One number if all are equal, else a flat list; ``infinity`` where the space isn't bounded."""
    flat, finite = values.ravel(), np.broadcast_to(bounded, values.shape).ravel()
    uniform = flat.size > 0 and bool((flat == flat[0]).all() and (finite == finite[0]).all())
    kept = slice(1) if uniform else slice(None)
    plain = [
        infinity if not known else str(value) if value in (math.inf, -math.inf) else value
        for value, known in zip(flat[kept].tolist(), finite[kept].tolist(), strict=True)
    ]
    return plain[0] if uniform else plain


# --------------------------------------------------------------------------------------------------- build


def build(description: Mapping[str, Any]) -> Space:
    """Build the space that `describe` described: the same classes, dtypes, bounds and order.

    Args:
        description: data from a peer, trusted in nothing.

    Raises:
        SpaceError: for anything else than a description: unknown types, missing or unexpected fields, unknown dtypes,
            numbers that a dtype doesn't hold, and spaces beyond the limits in `openenv_gym.spaces.fields`. The
            error's path says where.
    """
    return _build(Reader(description, (), Budget()))


def _build(r: Reader) -> Space:
    check_depth(r.path)
    if not isinstance(r.data, Mapping):
        raise r.error(f"a space is described by a dict, not by {shown(r.data)}")
    kind = r.data.get("type")
    if not isinstance(kind, str) or kind not in _BUILDERS:
        raise r.error(f"unknown type {shown(kind)}; known are {', '.join(_BUILDERS)}")
    fields, builder = _BUILDERS[kind]
    r.names(kind, fields)
    try:
        return builder(r)
    except SpaceError:
        raise
    except (AssertionError, TypeError, ValueError) as error:  # older ones refuse more, such as a Graph of Tuples
        raise r.error(f"gymnasium {gym.__version__} refuses this {kind}: {error}") from error


def _build_box(r: Reader) -> Space:
    dtype, shape = r.dtype("dtype", "biuf"), r.shape("shape")
    low, high = (r.numbers(field, shape, dtype, _infinities(dtype)) for field in ("low", "high"))
    if (low > high).any():
        raise r.error("low must not be above high")
    space = Box(low, high, dtype=dtype.type)
    # The constructor can't be told which integer bounds are open without rounding the others to float.
    space.bounded_below, space.bounded_above = r.bounded("low", shape, "-inf"), r.bounded("high", shape, "inf")
    return space


def _infinities(dtype: np.dtype[Any]) -> dict[str, float]:
    """What the words for infinity mean; signed integers put their limits there (gymnasium/spaces/box.py)."""
    if dtype.kind == "f":
        return {"-inf": -math.inf, "inf": math.inf}
    return dict(zip(("-inf", "inf"), limits(dtype), strict=True)) if dtype.kind == "i" else {}


def _build_discrete(r: Reader) -> Space:
    dtype = r.dtype("dtype", "iu")
    smallest, largest = limits(dtype)
    start = r.integer("start", smallest, largest)
    n = r.integer("n", 1, min(largest, largest - start + 1))
    if dtype == np.int64:
        return Discrete(n, start=start)  # dtype= came after gymnasium 1.1
    return Discrete(n, start=start, dtype=dtype)


def _build_multi_discrete(r: Reader) -> Space:
    dtype, shape = r.dtype("dtype", "iu"), r.shape("shape")
    nvec, start = (r.numbers(field, shape, dtype, {}) for field in ("nvec", "start"))
    if (nvec < 1).any() or (np.add(start, nvec - 1) < start).any():  # a sum that is too large wraps around
        raise r.error(f"nvec must be positive, and start + nvec - 1 must fit {dtype.name}")
    return MultiDiscrete(nvec, dtype=dtype.type, start=start)


def _build_multi_binary(r: Reader) -> Space:
    if isinstance(r.data["n"], (list, tuple)):
        return MultiBinary(r.shape("n", least=1))
    n = r.integer("n", 1, MAX_ELEMENTS)
    r.spend(n)
    return MultiBinary(n)


def _build_text(r: Reader) -> Space:
    longest = r.integer("max_length", 0, 2**31 - 1)
    shortest = r.integer("min_length", 0, longest)
    return Text(longest, min_length=shortest, charset=r.charset("charset"))


def _build_dict(r: Reader) -> Space:
    parts: dict[str, Space] = {}
    for pair in r.items("spaces"):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise r.error(f"spaces must hold pairs of a key and a space, not {shown(pair)}")
        key = checked_key(pair[0], r.path)
        if key in parts:
            raise r.error(f"the key {shown(key)} is there twice")
        parts[key] = _build(r.inner(pair[1], key))
    return ordered_dict(parts.items(), sort_keys=r.flag("sort_keys"))


def _build_tuple(r: Reader) -> Space:
    return Tuple([_build(r.inner(part, index)) for index, part in enumerate(r.items("spaces"))])


def _build_one_of(r: Reader) -> Space:
    return OneOf([_build(r.inner(part, index)) for index, part in enumerate(r.items("spaces", least=1))])


def _build_sequence(r: Reader) -> Space:
    stack = r.flag("stack")
    return Sequence(_build(r.inner(r.data["feature_space"], "feature_space", copies=1 + stack)), stack=stack)


def _build_graph(r: Reader) -> Space:
    node = _build(r.inner(r.data["node_space"], "node_space", copies=2))
    edge = None if r.data["edge_space"] is None else _build(r.inner(r.data["edge_space"], "edge_space", copies=2))
    return Graph(node, edge)


_BUILDERS: Final[dict[str, tuple[tuple[str, ...], Callable[[Reader], Space]]]] = {
    "Box": (("dtype", "shape", "low", "high"), _build_box),
    "Discrete": (("dtype", "n", "start"), _build_discrete),
    "MultiDiscrete": (("dtype", "shape", "nvec", "start"), _build_multi_discrete),
    "MultiBinary": (("n",), _build_multi_binary),
    "Text": (("min_length", "max_length", "charset"), _build_text),
    "Dict": (("spaces", "sort_keys"), _build_dict),
    "Tuple": (("spaces",), _build_tuple),
    "OneOf": (("spaces",), _build_one_of),
    "Sequence": (("feature_space", "stack"), _build_sequence),
    "Graph": (("node_space", "edge_space"), _build_graph),
    "Json": ((), lambda _: Json()),
}


def ordered_dict(parts: Iterable[tuple[Any, Space]], *, sort_keys: bool) -> Dict[Any]:
    """A Dict in the given order.

    Args:
        parts: keys and spaces.
        sort_keys: the flag to keep. It decides only for ``batch_space``, since a list isn't sorted anyway
            (gymnasium/spaces/dict.py).
    """
    space = Dict(list(parts))
    if hasattr(space, "sort_keys"):  # since gymnasium 1.4
        space.sort_keys = sort_keys
    return space
