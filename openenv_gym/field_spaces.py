"""One field of an OpenEnv model: its JSON schema, and its value in a real observation, as a space. No I/O here.

The rules stand in `openenv_gym.inference`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from openenv_gym.errors import SpaceError

__all__ = ["MISSING", "FieldReader", "Path", "Schema", "guessed", "is_constant", "resolved"]

Schema: TypeAlias = Mapping[str, Any]
Path: TypeAlias = tuple[str, ...]

_MOST_CHOICES: Final = 1024
_LONGEST_TEXT: Final = 4096
_CHARACTERS: Final = "".join(map(chr, range(32, 127))) + "\n\t"
_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 2
"""Bounds of an integer that has none; with the largest int64 as a bound, gymnasium's ``Box.sample`` overflows."""
MISSING: Final = object()
"""Stands for a value that wasn't seen."""


def resolved(schema: Schema, root: Schema) -> Schema:
    """A schema in the place of a reference to it; what stands beside the reference, such as a default, is kept."""
    for _ in range(32):
        (only,) = schema.get("allOf", ()) if len(schema.get("allOf", ())) == 1 else (schema,)
        reference = only.get("$ref", schema.get("$ref"))
        if reference is None:
            return schema
        target = root.get("$defs", {}).get(str(reference).removeprefix("#/$defs/"), {})
        schema = {**target, **{key: value for key, value in schema.items() if key not in ("$ref", "allOf")}}
    raise SpaceError("the schema refers to itself")


def is_constant(schema: Schema) -> bool:
    """Whether a schema allows one value only."""
    return "const" in schema or len(schema.get("enum", (0, 0))) == 1


def guessed(value: object) -> Schema:
    """The schema of a field of which only a value is known; empty where that says too little."""
    kinds = {bool: "boolean", int: "number", float: "number", str: "string"}
    return {"type": kinds[type(value)]} if type(value) in kinds else {}


class FieldReader:
    """Reads the schemas of fields.

    Attributes:
        labels: as in `openenv_gym.inference.Fields`.
    """

    def __init__(self, root: Schema, sampled: bool) -> None:
        self._root = root
        self._sampled = sampled
        self.labels: dict[Path, tuple[Any, ...]] = {}

    def space(self, schema: Schema, path: Path, sample: Any) -> gym.Space[Any]:
        """The space of one field."""
        if len(path) > 16:
            raise SpaceError("objects nest too deep", path=".".join(path))
        schema = self._without_union(resolved(schema, self._root), path)
        if "enum" in schema or "const" in schema:
            return self._choices(tuple(schema.get("enum", (schema.get("const"),))), path)
        kind = schema.get("type")
        if kind == "boolean":
            return self._choices((False, True), path)
        if kind == "integer":
            return _integer(schema)
        if kind == "number":
            return _box(schema, (), np.dtype(np.float64))
        if kind == "string":
            longest = int(schema.get("maxLength", _LONGEST_TEXT))
            return spaces.Text(longest, min_length=int(schema.get("minLength", 0)), charset=_CHARACTERS)
        if kind == "object" and schema.get("properties"):
            return self._object(schema, path, sample)
        if kind == "array" or isinstance(sample, (list, tuple, np.ndarray)):
            return self._list(schema, path, sample)
        what = "an object without named fields" if kind == "object" else "a field of any type"
        raise SpaceError(f"{what} has no space", path=".".join(path))

    def _without_union(self, schema: Schema, path: Path) -> Schema:
        """The only alternative; integers and numbers are numbers together."""
        options = [resolved(option, self._root) for option in schema.get("anyOf", schema.get("oneOf", ()))]
        if not options:
            return schema
        kinds = [option.get("type") for option in options]
        if "null" in kinds:
            raise SpaceError("an optional field, which may be null, has no space", path=".".join(path))
        if set(kinds) <= {"integer", "number"}:
            return {"type": "number"}
        if len(options) == 1:
            return options[0]
        raise SpaceError(f"a union of {len(options)} types has no space", path=".".join(path))

    def _choices(self, values: tuple[Any, ...], path: Path) -> gym.Space[Any]:
        if None in values:
            raise SpaceError("an optional field, which may be null, has no space", path=".".join(path))
        self.labels[path] = values
        return spaces.Discrete(len(values))

    def _object(self, schema: Schema, path: Path, sample: Any) -> gym.Space[Any]:
        members = {}
        for name, member in schema["properties"].items():
            inner = sample.get(name, MISSING) if isinstance(sample, Mapping) else MISSING
            members[name] = self.space(member, (*path, name), inner)
        return spaces.Dict(members)

    def _list(self, schema: Schema, path: Path, sample: Any) -> gym.Space[Any]:
        shape, item = self._shape(schema)
        if sample is not MISSING:
            array = _array(sample, path)
            if array.size == 0:
                raise SpaceError("the list was empty after a reset, so its shape isn't known", path=".".join(path))
            shape = array.shape
            whole = array.dtype.kind in "iu" and item.get("type") == "integer"
            item = {**item, "type": "boolean" if array.dtype.kind == "b" else "integer" if whole else "number"}
        if shape is None:
            where = "in the schema, nor in the reset" if self._sampled else "in the schema"
            raise SpaceError(f"the list's length isn't {where}", path=".".join(path))
        if item.get("type") == "boolean":
            return spaces.MultiBinary(list(shape))
        if item.get("type") not in ("integer", "number"):
            raise SpaceError(f"a list of {item.get('type', 'any type')} has no space", path=".".join(path))
        return _box(item, shape, np.dtype(np.int64 if item["type"] == "integer" else np.float64))

    def _shape(self, schema: Schema) -> tuple[tuple[int, ...] | None, Schema]:
        """The shape that a schema says, and the schema of the numbers."""
        schema = resolved(schema, self._root)
        if schema.get("type") != "array":
            return (), schema
        items = schema.get("prefixItems")
        if items is not None:
            return self._tuple([self._shape(item) for item in items])
        inner, item = self._shape(schema.get("items", {}))
        least, most = schema.get("minItems"), schema.get("maxItems")
        known = inner is not None and least is not None and least == most
        return ((int(least), *inner) if known and least and inner is not None else None), item

    def _tuple(self, items: list[tuple[tuple[int, ...] | None, Schema]]) -> tuple[tuple[int, ...] | None, Schema]:
        shapes, kinds = {shape for shape, _ in items}, {item.get("type") for _, item in items}
        if len(shapes) != 1 or not (kinds <= {"integer", "number"} or len(kinds) == 1):
            return None, {}
        (inner,) = shapes
        same = all(item == items[0][1] for _, item in items)
        item = items[0][1] if same else {"type": "number" if "number" in kinds else next(iter(kinds))}
        return (None if inner is None else (len(items), *inner)), item


def _array(sample: Any, path: Path) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(sample)
    except ValueError:
        raise SpaceError("a ragged list has no space", path=".".join(path)) from None
    if array.dtype.kind not in "biuf" and array.size:
        raise SpaceError("a list of something else than numbers has no space", path=".".join(path))
    return array


def _integer(schema: Schema) -> gym.Space[Any]:
    low, high = _bounds(schema, 1)
    if low is not None and high is not None and 0 < high - low + 1 <= _MOST_CHOICES:
        return spaces.Discrete(int(high - low + 1), start=int(low))
    return _box(schema, (), np.dtype(np.int64))


def _bounds(schema: Schema, unit: int) -> tuple[float | None, float | None]:
    """The lowest and highest value; of an exclusive bound of integers, the next one."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if schema.get("exclusiveMinimum") is not None:
        low = schema["exclusiveMinimum"] + unit
    if schema.get("exclusiveMaximum") is not None:
        high = schema["exclusiveMaximum"] - unit
    return low, high


def _box(schema: Schema, shape: tuple[int, ...], dtype: np.dtype[Any]) -> gym.Space[Any]:
    whole = dtype.kind == "i"
    low, high = _bounds(schema, 1 if whole else 0)
    if whole:
        lowest = _LOWEST if low is None else max(math.ceil(low), _LOWEST)
        highest = _HIGHEST if high is None else min(math.floor(high), _HIGHEST)
        return spaces.Box(np.full(shape, lowest, dtype), np.full(shape, highest, dtype), shape, np.int64)
    return spaces.Box(-math.inf if low is None else low, math.inf if high is None else high, shape, np.float64)
