"""An OpenEnv environment's observations and actions as values of spaces, and as JSON. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from gymnasium import spaces
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from openenv_gym.errors import SpaceError
from openenv_gym.inference import Fields, number_of
from openenv_gym.spaces import Json, leaves

__all__ = ["ENDS", "Pending", "plain", "raw", "view"]

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


def view(fields: Fields) -> Callable[[Any], Any]:
    """What reads an observation as a value of the space, touching no field before it is asked for."""
    if isinstance(fields.space, Json) and fields.only is None:
        return lambda observation: _as_json(observation.model_dump(exclude=ENDS))
    changes = _changes(fields)
    if fields.only is None:
        return lambda observation: _View(observation, changes, ())
    only = fields.only
    if changes or isinstance(fields.space, spaces.Dict):
        return lambda observation: _View(observation, changes, ())[only]

    def read(observation: Any) -> Any:
        try:
            return getattr(observation, only)
        except AttributeError:
            return _member(observation, only)  # of a dict, or an error that names it

    return read


def _changes(fields: Fields) -> dict[_Path, Callable[[Any], Any]]:
    """What becomes of the values at some paths: numbers for what they stand for, and JSON data."""
    inside = () if fields.only is None else (fields.only,)
    changes: dict[_Path, Callable[[Any], Any]] = {
        (*inside, *leaf.path): _as_json for leaf in leaves(fields.space) if isinstance(leaf.space, Json)
    }
    return changes | {path: partial(_numbered, known, path) for path, known in fields.labels.items()}


def _numbered(known: tuple[Any, ...], path: tuple[str, ...], value: Any) -> int:
    return number_of(value.value if isinstance(value, Enum) else value, known, path)


def _member(value: Any, name: str) -> Any:
    try:
        return value[name] if isinstance(value, Mapping) else getattr(value, name)
    except (KeyError, AttributeError):
        raise SpaceError(f"the observation has no field {name!r}", path=name) from None


@dataclass(slots=True)
class _View:
    """A pydantic model or a dict as a mapping of the values in it, some of them changed."""

    value: Any
    changes: _Changes
    path: _Path

    def __getitem__(self, name: str) -> Any:
        member, path = _member(self.value, name), (*self.path, name)
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
        return msgspec.Raw(to_json(value, inf_nan_mode="null"))
    except PydanticSerializationError as error:
        try:
            return msgspec.Raw(to_json(value, inf_nan_mode="null", fallback=_listed))
        except PydanticSerializationError:
            raise error from None


def _listed(value: Any) -> Any:
    """What pydantic can't serialize: numpy's values, and nothing else."""
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufUO":
        return value.tolist()
    raise TypeError(f"no value of {type(value)}")


def _as_json(value: Any) -> Any:
    return msgspec.json.decode(raw(value))


# ----------------------------------------------------------------------------------------------------- actions


def plain(value: Any) -> Any:
    """An action of the space as plain data."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value
