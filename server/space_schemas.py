"""The JSON schema of a space's values, as `openenv_gym.json_values.to_json` gives them.

A nan or an infinity leaves as null, which no schema mentions, since no bounded space has such values.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, TypeAlias

from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple
from numpy.typing import NDArray

from openenv_gym.errors import SpaceError
from openenv_gym.spaces import Json
from openenv_gym.spaces.parts import Space

__all__ = ["json_schema"]

Schema: TypeAlias = dict[str, Any]


@singledispatch
def json_schema(space: Space) -> Schema:
    """The schema (draft 2020-12) of a space's values.

    Bounds are stated where they are finite and the same for all elements.

    Args:
        space: one of gymnasium's own classes, or of a class derived from them.

    Raises:
        SpaceError: for another class.
    """
    raise SpaceError(f"values of {type(space).__name__} have no JSON form")


@json_schema.register(Box)
def _box_schema(space: Box[Any]) -> Schema:
    low, high = _uniform(space.low, space.is_bounded("below")), _uniform(space.high, space.is_bounded("above"))
    if space.dtype.kind == "b":
        return _nested({"type": "boolean"}, space.shape)
    return _nested(_number("number" if space.dtype.kind == "f" else "integer", low, high), space.shape)


@json_schema.register(Discrete)
def _discrete_schema(space: Discrete[Any]) -> Schema:
    return _number("integer", int(space.start), int(space.start) + int(space.n) - 1)


@json_schema.register(MultiDiscrete)
def _multi_discrete_schema(space: MultiDiscrete[Any]) -> Schema:
    low, high = _uniform(space.start), _uniform(space.start + (space.nvec - 1))
    return _nested(_number("integer", low, high), space.shape)


@json_schema.register(MultiBinary)
def _multi_binary_schema(space: MultiBinary) -> Schema:
    return _nested(_number("integer", 0, 1), space.shape)


@json_schema.register(Text)
def _text_schema(space: Text) -> Schema:
    return {"type": "string", "minLength": space.min_length, "maxLength": space.max_length}


@json_schema.register(Dict)
def _dict_schema(space: Dict[Any]) -> Schema:
    return _object({key: json_schema(part) for key, part in space.spaces.items()})


@json_schema.register(Tuple)
def _tuple_schema(space: Tuple[Any]) -> Schema:
    return _listed([json_schema(part) for part in space.spaces])


@json_schema.register(Sequence)
def _sequence_schema(space: Sequence) -> Schema:
    return {"type": "array", "items": json_schema(space.feature_space)}


@json_schema.register(Graph)
def _graph_schema(space: Graph) -> Schema:
    edges: Schema = {"type": "null"}
    links: Schema = {"type": "null"}
    if space.edge_space is not None:
        edges = {"type": ["array", "null"], "items": json_schema(space.edge_space)}
        links = {"type": ["array", "null"], "items": _nested({"type": "integer", "minimum": 0}, (2,))}
    nodes = {"type": "array", "items": json_schema(space.node_space)}
    return _object({"nodes": nodes, "edges": edges, "edge_links": links})


@json_schema.register(OneOf)
def _one_of_schema(space: OneOf[Any]) -> Schema:
    return {"oneOf": [_listed([{"const": index}, json_schema(part)]) for index, part in enumerate(space.spaces)]}


@json_schema.register(Json)
def _json_schema(space: Json) -> Schema:  # noqa: ARG001 - as all of them
    return {}


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _nested(schema: Schema, shape: tuple[int, ...]) -> Schema:
    for size in reversed(shape):
        schema = {"type": "array", "items": schema, "minItems": size, "maxItems": size}
    return schema


def _listed(schemas: list[Schema]) -> Schema:
    first = {"prefixItems": schemas} if schemas else {}  # must not be empty
    return {"type": "array", **first, "minItems": len(schemas), "maxItems": len(schemas)}


def _number(kind: str, low: float | None, high: float | None) -> Schema:
    bounds = {"minimum": low, "maximum": high}
    return {"type": kind, **{word: bound for word, bound in bounds.items() if bound is not None}}


def _uniform(bound: NDArray[Any], bounded: bool = True) -> Any:
    known = bounded and bound.size > 0 and bool((bound == bound.flat[0]).all())
    return bound.flat[0].item() if known else None
