"""Values of a space in OpenEnv's JSON dialect: to JSON and back.

========================= =============================================================
space                     JSON
========================= =============================================================
Box, MultiDiscrete,       nested lists of numbers, one level for each axis;
MultiBinary               a bare number if the shape is ``()``
Discrete                  an integer
Text                      a string
Dict                      an object with the space's keys
Tuple                     a list, one item for each part
Sequence                  a list of values, stacked or not
Graph                     ``{"nodes": [...], "edges": [...], "edge_links": [[0, 1], ...]}``
OneOf                     ``[index, value]``
Json                      whatever it is
========================= =============================================================

JSON knows no nan and no infinity: both leave as null, as OpenEnv's servers send them, and null arrives as nan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import singledispatch
from typing import Any, TypeAlias

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple
from gymnasium.spaces.graph import GraphInstance
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from openenv_gym.codec import PackError
from openenv_gym.errors import SpaceError
from openenv_gym.jsonable import jsonable
from openenv_gym.spaces.fields import limits, shown
from openenv_gym.spaces.json_space import Json
from openenv_gym.spaces.parts import Space, leaf_dtype, leaf_shape, path_name

__all__ = ["from_json", "to_json"]

_Array: TypeAlias = "Box[Any] | Discrete[Any] | MultiDiscrete[Any] | MultiBinary"


# ------------------------------------------------------------------------------------------------ to JSON


@singledispatch
def to_json(space: Space, value: Any, *, path: str = "") -> Any:
    """A value of the space as data for strict JSON; the form is in the table above.

    Args:
        space: one of gymnasium's own classes, or of a class derived from them.
        value: numpy arrays and scalars, or lists and Python's numbers, of the space's shapes. That it is within the
            bounds isn't checked.
        path: what to call the value in an error.

    Raises:
        SpaceError: if the value's structure isn't the space's, or a number doesn't fit an integer dtype.
    """
    raise SpaceError(f"{shown(value)}, a value of {type(space).__name__}, has no JSON form", path=path)


@to_json.register(Box)
@to_json.register(Discrete)
@to_json.register(MultiDiscrete)
@to_json.register(MultiBinary)
def _array_to_json(space: _Array, value: Any, *, path: str = "") -> Any:
    dtype = leaf_dtype(space)
    array = _read(value, leaf_shape(space), dtype, path)
    if dtype.kind != "f":
        return _cast(array, dtype, path).tolist()
    finite = np.isfinite(array)
    if not finite.all():
        array = array.astype(object)
        array[~finite] = None
    return array.tolist()  # floats keep their own precision


@to_json.register(Text)
def _text_to_json(space: Text, value: Any, *, path: str = "") -> Any:  # noqa: ARG001 - as all of them
    if not isinstance(value, str):
        raise SpaceError(f"{shown(value)} is no text", path=path)
    return str(value)


@to_json.register(Dict)
def _dict_to_json(space: Dict[Any], value: Any, *, path: str = "") -> Any:
    members = _members(value, list(space.spaces), path)
    return {key: to_json(space.spaces[key], member, path=_at(path, key)) for key, member in members}


@to_json.register(Tuple)
def _tuple_to_json(space: Tuple[Any], value: Any, *, path: str = "") -> Any:
    pairs = zip(space.spaces, _items(value, path, len(space.spaces)), strict=True)
    return [to_json(part, item, path=_at(path, i)) for i, (part, item) in enumerate(pairs)]


@to_json.register(Sequence)
def _sequence_to_json(space: Sequence, value: Any, *, path: str = "") -> Any:
    if space.stack:
        return _stack_to_json(space.feature_space, value, path)
    return [to_json(space.feature_space, item, path=_at(path, i)) for i, item in enumerate(_items(value, path))]


@to_json.register(Graph)
def _graph_to_json(space: Graph, value: Any, *, path: str = "") -> Any:
    nodes, edges, links = _items(value, path, 3)
    listed = _stack_to_json(space.node_space, nodes, _at(path, "nodes"))
    if edges is None:
        return {"nodes": listed, "edges": None, "edge_links": None}
    edges = _stack_to_json(_edge_space(space, path), edges, _at(path, "edges"))
    return {"nodes": listed, "edges": edges, "edge_links": _links(links, len(edges), path).tolist()}


@to_json.register(OneOf)
def _one_of_to_json(space: OneOf[Any], value: Any, *, path: str = "") -> Any:
    index, part, chosen = _chosen(space, value, path)
    return [int(index), to_json(part, chosen, path=_at(path, 1))]


@to_json.register(Json)
def _json_to_json(space: Json, value: Any, *, path: str = "") -> Any:  # noqa: ARG001 - as all of them
    try:
        return jsonable(value)
    except PackError as error:
        raise SpaceError(str(error), path=path) from None


def _stack_to_json(space: Space, value: Any, path: str) -> list[Any]:
    """A batch, as gymnasium stacks it, item by item."""
    return [to_json(space, item, path=_at(path, i)) for i, item in enumerate(iterate(batch_space(space, 1), value))]


# ---------------------------------------------------------------------------------------------- from JSON


@singledispatch
def from_json(space: Space, data: Any, *, path: str = "") -> Any:
    """A value of the space from JSON data, in the types, dtypes and shapes that Gymnasium's envs return.

    Arrays are new and have exactly the space's dtype and shape, Discrete has numpy scalars, Tuple and Sequence have
    tuples, and a Dict's keys come in the order of the space. Numbers are cast only if that loses nothing, except that
    floats are rounded to the space's precision. That the value is within the bounds isn't checked.

    Args:
        space: one of gymnasium's own classes, or of a class derived from them.
        data: what a JSON decoder returned.
        path: what to call the value in an error.

    Raises:
        SpaceError: if the data's structure isn't the space's, or a number doesn't fit the dtype: 300 or 1.5 as uint8,
            1e39 as float32, null as an integer. The error names the path, the value and the dtype.
    """
    raise SpaceError(f"{shown(data)} can't become a value of {type(space).__name__}, which has no JSON form", path=path)


@from_json.register(Box)
@from_json.register(MultiDiscrete)
@from_json.register(MultiBinary)
def _array_from_json(space: _Array, data: Any, *, path: str = "") -> NDArray[Any]:
    dtype = leaf_dtype(space)
    return _cast(_read(data, leaf_shape(space), dtype, path), dtype, path)


@from_json.register(Discrete)
def _discrete_from_json(space: Discrete[Any], data: Any, *, path: str = "") -> Any:
    return _array_from_json(space, data, path=path)[()]


@from_json.register(Text)
def _text_from_json(space: Text, data: Any, *, path: str = "") -> str:
    return str(to_json(space, data, path=path))


@from_json.register(Dict)
def _dict_from_json(space: Dict[Any], data: Any, *, path: str = "") -> dict[str, Any]:
    members = _members(data, list(space.spaces), path)
    return {key: from_json(space.spaces[key], member, path=_at(path, key)) for key, member in members}


@from_json.register(Tuple)
def _tuple_from_json(space: Tuple[Any], data: Any, *, path: str = "") -> tuple[Any, ...]:
    pairs = zip(space.spaces, _items(data, path, len(space.spaces)), strict=True)
    return tuple(from_json(part, item, path=_at(path, i)) for i, (part, item) in enumerate(pairs))


@from_json.register(Sequence)
def _sequence_from_json(space: Sequence, data: Any, *, path: str = "") -> Any:
    if space.stack:
        return _stack_from_json(space.feature_space, data, path)
    return tuple(from_json(space.feature_space, item, path=_at(path, i)) for i, item in enumerate(_items(data, path)))


@from_json.register(Graph)
def _graph_from_json(space: Graph, data: Any, *, path: str = "") -> GraphInstance:
    (_, nodes), (_, edges), (_, links) = _members(data, ["nodes", "edges", "edge_links"], path)
    stacked = _stack_from_json(space.node_space, nodes, _at(path, "nodes"))
    if edges is None:
        return GraphInstance(stacked, None, None)
    links = _links(links, len(_items(edges, _at(path, "edges"))), path)
    return GraphInstance(stacked, _stack_from_json(_edge_space(space, path), edges, _at(path, "edges")), links)


@from_json.register(OneOf)
def _one_of_from_json(space: OneOf[Any], data: Any, *, path: str = "") -> tuple[Any, Any]:
    index, part, chosen = _chosen(space, data, path)
    return index, from_json(part, chosen, path=_at(path, 1))


@from_json.register(Json)
def _json_from_json(space: Json, data: Any, *, path: str = "") -> Any:  # noqa: ARG001 - as all of them
    return data


def _stack_from_json(space: Space, data: Any, path: str) -> Any:
    """A batch from its items, as ``Sequence.sample`` stacks them (gymnasium/spaces/sequence.py)."""
    items = [from_json(space, item, path=_at(path, i)) for i, item in enumerate(_items(data, path))]
    empty: Any = create_empty_array(space, len(items))
    return concatenate(space, items, empty) if items else empty


# --------------------------------------------------------------------------------------------- both ways


def _at(path: str, *names: str | int) -> str:
    return path_name((path, *names) if path else names)


def _members(value: Any, keys: list[str], path: str) -> list[tuple[str, Any]]:
    """The members of an object with exactly these keys, in this order."""
    if not isinstance(value, Mapping):
        raise SpaceError(f"{shown(value)} is no dict with the keys {shown(keys)}", path=path)
    for key in keys:
        if key not in value:
            raise SpaceError(f"the key {key!r} is missing", path=path)
    for key in value:
        if key not in keys:
            raise SpaceError(f"the key {shown(key)} isn't one of {shown(keys)}", path=path)
    return [(key, value[key]) for key in keys]


def _items(value: Any, path: str, size: int | None = None) -> list[Any]:
    if not isinstance(value, (list, tuple)) or size not in (None, len(value)):
        raise SpaceError(f"{shown(value)} is no list" + ("" if size is None else f" of {size} items"), path=path)
    return list(value)


def _chosen(space: OneOf[Any], value: Any, path: str) -> tuple[Any, Space, Any]:
    """The index as np.int64, the space that it names, and the value of that."""
    index, chosen = _items(value, path, 2)
    index = _cast(_read(index, (), _INT64, _at(path, 0)), _INT64, _at(path, 0))[()]
    if not 0 <= index < len(space.spaces):
        raise SpaceError(f"{index} is no index of {len(space.spaces)} spaces", path=_at(path, 0))
    return index, space.spaces[index], chosen


def _edge_space(space: Graph, path: str) -> Space:
    if space.edge_space is None:
        raise SpaceError("this Graph has no edge space", path=_at(path, "edges"))
    return space.edge_space


def _links(links: Any, size: int, path: str) -> NDArray[Any]:
    path = _at(path, "edge_links")
    return _cast(_read(links, (size, 2), _INT32, path), _INT32, path)  # the dtype of Graph.sample


def _read(data: Any, shape: tuple[int, ...], dtype: np.dtype[Any], path: str) -> NDArray[Any]:
    """The numbers of nested lists in numpy's own choice of dtype; None becomes nan, if the dtype has it."""
    try:
        raw = np.array(data)
    except OverflowError:  # an integer beyond the floats beside it
        raw = np.array(data, object)
    except ValueError as error:
        raise SpaceError(f"a ragged list is no array of shape {shape}", path=path) from error
    if raw.dtype.kind not in ("biuf" if dtype.kind == "f" else "biu"):
        raw = _read_one_by_one(np.array(data, object), dtype, path)
    if raw.shape != shape and not raw.size == math.prod(shape) == 0:  # [] may have any shape without elements
        raise SpaceError(f"the shape is {raw.shape}, not {shape}", path=path)
    return raw.reshape(shape)


def _read_one_by_one(data: NDArray[Any], dtype: np.dtype[Any], path: str) -> NDArray[Any]:
    """The same for what numpy doesn't take for numbers of this kind, such as None, or 2**63 beside a small integer."""
    numbers = []
    for index, value in np.ndenumerate(data):
        number = _read_one(value.item() if isinstance(value, np.generic) else value, dtype)
        if number is None:
            raise _misfit(value, dtype, _at(path, *index))
        numbers.append(number)
    return np.array(numbers, float if dtype.kind == "f" else dtype).reshape(data.shape)


def _read_one(value: object, dtype: np.dtype[Any]) -> float | None:
    """The number that a value stands for, or None if the dtype doesn't hold it."""
    if dtype.kind == "f" and (value is None or isinstance(value, float)):
        return math.nan if value is None else value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:  # a larger one may be a rounded integer
        value = int(value)
    smallest, largest = limits(dtype)
    return value if isinstance(value, int) and smallest <= value <= largest else None


def _cast(raw: NDArray[Any], dtype: np.dtype[Any], path: str) -> NDArray[Any]:
    """An array of the dtype with the same numbers; floats may be rounded, but not to infinity."""
    if raw.dtype is dtype:  # numpy has equal ones that differ, as `L` and `Q`
        return raw
    with np.errstate(over="ignore"):
        array = raw.astype(dtype)
    if dtype.kind == "f" and np.isfinite(array).all():
        return array
    wrong = np.isfinite(raw) & np.isinf(array) if dtype.kind == "f" else array != raw
    if wrong.any():
        index = np.argwhere(wrong)[0]
        raise _misfit(raw[tuple(index)].item(), dtype, _at(path, *index))
    return array


def _misfit(value: object, dtype: np.dtype[Any], path: str) -> SpaceError:
    return SpaceError(f"{shown(value)} doesn't fit {dtype.name}", path=path)


_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
