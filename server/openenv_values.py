"""An OpenEnv environment's observations and actions as values of spaces, and as JSON. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

import gymnasium as gym
import msgspec
import numpy as np
from gymnasium import spaces
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from openenv_gym.errors import SpaceError
from openenv_gym.inference import Fields, in_shape, number_of
from openenv_gym.spaces import Json, leaves

__all__ = ["ENDS", "Pending", "as_json", "plain", "raw", "rewritten", "view"]

ENDS: Final = frozenset({"reward", "done"})
"""Fields of an observation that aren't sent as part of it."""

_Path: TypeAlias = tuple[str | int, ...]
_Changes: TypeAlias = Mapping[_Path, Callable[[Any], Any]]


class Pending:
    """An action in the batch dialect that isn't the env's yet: it is made on the env's thread, where it may fail."""

    __slots__ = ("make", "value")

    def __init__(self, make: Callable[[Any], Any], value: Any) -> None:
        self.make = make
        self.value = value


# ------------------------------------------------------------------------------------------------ observations


def view(fields: Fields, rewritten: frozenset[str] = frozenset()) -> Callable[[Any], Any]:
    """What reads an observation as a value of the space, touching no field before it is asked for.

    Args:
        fields: how observations make up values of the space.
        rewritten: the fields to take as their model writes them; see `rewritten`.
    """
    if isinstance(fields.space, Json) and fields.only is None:
        return lambda observation: as_json(observation.model_dump(exclude=ENDS))
    changes, dumped = _changes(fields), rewritten | _free(fields)
    if fields.only is None:
        return lambda observation: _View(observation, changes, (), dumped)
    only = fields.only
    if changes or isinstance(fields.space, spaces.Dict) or only in dumped:
        return lambda observation: _View(observation, changes, (), dumped)[only]

    def read(observation: Any) -> Any:
        try:
            return getattr(observation, only)
        except AttributeError:
            return _member(observation, only)  # of a dict, or an error that names it

    return read


def rewritten(model: type[BaseModel]) -> frozenset[str]:
    """The fields of a model that a function of its own writes, or a function of a model inside it does."""
    schema: Any = model.__pydantic_core_schema__
    known = {each["ref"]: each for each in schema.get("definitions", ())}
    while schema["type"] != "model-fields":
        if _is_written(schema):
            return frozenset(model.model_fields)
        schema = known[schema["schema_ref"]] if "schema_ref" in schema else schema["schema"]
    return frozenset(name for name, field in schema["fields"].items() if _writes(field, known, set()))


def _writes(schema: Any, known: Mapping[str, Any], seen: set[str]) -> bool:
    if isinstance(schema, (list, tuple)):
        return any(_writes(each, known, seen) for each in schema)
    if not isinstance(schema, dict):
        return False
    reference = str(schema.get("schema_ref"))
    if reference in known and reference not in seen:
        seen.add(reference)
        return _writes(known[reference], known, seen)
    return _is_written(schema) or any(_writes(each, known, seen) for key, each in schema.items() if key != "metadata")


def _is_written(schema: Mapping[str, Any]) -> bool:
    return schema.get("serialization", {}).get("type") in {"function-plain", "function-wrap"}


def _free(fields: Fields) -> frozenset[str]:
    """The fields with anything in them, of which only what their model declares is sent."""
    inside = () if fields.only is None else (fields.only,)
    return frozenset(str((*inside, *leaf.path)[0]) for leaf in leaves(fields.space) if isinstance(leaf.space, Json))


def _changes(fields: Fields) -> dict[_Path, Callable[[Any], Any]]:
    """What becomes of values at some paths: numbers for what they stand for, JSON data, images and lone numbers."""
    inside = () if fields.only is None else (fields.only,)
    changes: dict[_Path, Callable[[Any], Any]] = {}
    for leaf in leaves(fields.space):
        change = _change(leaf.space)
        if change is not None:
            changes[(*inside, *leaf.path)] = change
    return changes | {path: partial(_numbered, known, path) for path, known in fields.labels.items()}


def _change(space: gym.Space[Any]) -> Callable[[Any], Any] | None:
    if isinstance(space, Json):
        return as_json
    if isinstance(space, spaces.Text):
        return lambda value: value if type(value) is str else as_json(value)
    if isinstance(space, spaces.Box) and (len(space.shape) > 1 or space.shape == (1,)):
        return partial(in_shape, space)
    return None


def _numbered(known: tuple[Any, ...], path: tuple[str, ...], value: Any) -> int:
    return number_of(value.value if isinstance(value, Enum) else value, known, path)


def _member(value: Any, name: str) -> Any:
    try:
        return value[name] if isinstance(value, Mapping) else getattr(value, name)
    except (KeyError, AttributeError):
        raise SpaceError(f"the observation has no field {name!r}", path=name) from None


@dataclass(slots=True)
class _View:
    """A pydantic model or a dict as a mapping of the values in it, some of them dumped, some changed."""

    value: Any
    changes: _Changes
    path: _Path
    dumped: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Any:
        holder = self.value.model_dump(include={name}) if name in self.dumped else self.value
        member, path = _member(holder, name), (*self.path, name)
        change = self.changes.get(path)
        if change is not None:
            return change(member)
        return _View(member, self.changes, path) if isinstance(member, (Mapping, BaseModel)) else member


def raw(value: Any) -> msgspec.Raw:
    """A value's JSON text, as OpenEnv's servers write it, but with numpy's values as lists and numbers.

    Raises:
        PydanticSerializationError: for what has no JSON form.
    """
    try:
        return msgspec.Raw(to_json(value, by_alias=False, inf_nan_mode="null"))
    except PydanticSerializationError as error:
        try:
            return msgspec.Raw(to_json(value, by_alias=False, inf_nan_mode="null", fallback=_listed))
        except PydanticSerializationError:
            raise error from None


def _listed(value: Any) -> Any:
    """What pydantic can't serialize: numpy's values, and nothing else."""
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufUO":
        return value.tolist()
    raise TypeError(f"no value of {type(value)}")


def as_json(value: Any) -> Any:
    """A value as data of JSON. Raises PydanticSerializationError for what has no form there."""
    return msgspec.json.decode(raw(value))


# ----------------------------------------------------------------------------------------------------- actions


def plain(value: Any) -> Any:
    """An action of the space as plain data."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value
