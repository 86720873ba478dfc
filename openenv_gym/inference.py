"""Spaces for OpenEnv envs, which have none: inferred from the JSON schemas of their models and one reset. No I/O here.

======================================== ==========================================================================
a field of the schema                    its space
======================================== ==========================================================================
a list of values (enum, Literal)         ``Discrete``: the values are numbered in the schema's order; an action may
                                         also give a word itself
boolean                                  ``Discrete(2)``: false is 0, true is 1
integer with both bounds                 ``Discrete`` with ``start``, for up to 1024 values; else ``Box`` of int64
integer                                  ``Box`` of int64, with the bounds that there are
number                                   ``Box`` of float64, with the bounds that there are, else -inf to inf
nested lists of numbers                  ``Box`` with their shape: an observation's is that of the reset, an action's is
                                         in the schema (``minItems`` equal to ``maxItems``, or a tuple)
nested lists of booleans                 ``MultiBinary`` with their shape
string                                   ``Text``, up to the schema's length, else 4096
object with named fields                 ``Dict``
constant                                 none: it is left out, and an action's model fills it in
a call of a tool (OpenEnv's              the action as a whole is `Json`, and so is the observation, whose result may be
``CallToolAction``)                      anything
``done``, ``reward``, ``metadata``,      none: they aren't part of an observation's or an action's value
``terminated``, ``truncated``
sent by a reset, and not in the schema   none, unless it is chosen: then what its value shows
(computed, or with an alias)
optional (may be null), other unions,    a `SpaceError` that names the field and says how to choose
ragged lists, lists whose shape isn't
known, free-form objects
======================================== ==========================================================================

The space of several fields is a ``Dict``; a single field is the bare space. Floats are float64 because nothing is
rounded that way, and so are lists whose items the schema doesn't describe. What has no space can be taken as it is, by
choosing `openenv_gym.spaces.Json` for it, or for the observation or action as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from openenv_gym.errors import SpaceError
from openenv_gym.field_spaces import MISSING, FieldReader, Path, Schema, guessed, is_constant, resolved
from openenv_gym.spaces import Json
from openenv_gym.spaces.fields import shown

__all__ = ["NOT_VALUES", "Fields", "check_names", "in_shape", "infer", "is_tool_call", "number_of", "without"]

NOT_VALUES: Final = frozenset({"done", "reward", "metadata", "terminated", "truncated"})
"""Fields of OpenEnv's observations and actions that aren't part of their value."""


@dataclass(frozen=True)
class Fields:
    """How the fields of an observation or action make up a value of a space.

    Attributes:
        space: the space.
        only: the field that is the whole value; None where the space is a Dict of the fields, or `Json`.
        labels: what the numbers of a Discrete stand for, by the path of their field.
        lone: paths of the fields that hold one number where the space is a Box of shape ``(1,)``.
    """

    space: gym.Space[Any]
    only: str | None
    labels: Mapping[Path, tuple[Any, ...]] = field(default_factory=dict)
    lone: frozenset[Path] = frozenset()

    @classmethod
    def given(cls, space: gym.Space[Any], schema: Schema, part: str, key: str | None = None) -> Fields:
        """The fields for a space that the caller chose.

        A Discrete in the place of a list of values that aren't integers, or of a boolean, numbers them. A Box of shape
        ``(1,)`` may stand for a number, since many learners have no arrays without axes. A Json without a key is the
        whole of the observation or action.

        Args:
            space: the space.
            schema: the JSON schema of the observation or the action.
            part: ``observation`` or ``action``, for the message.
            key: the only field to use; None for all that the space names.

        Raises:
            SpaceError: if the space isn't a Dict, and there are several fields that it could stand for; or if it is a
                Dict with a key that isn't one of the fields.
        """
        schema = resolved(schema, schema)
        properties = {name: resolved(field, schema) for name, field in schema.get("properties", {}).items()}
        if key is None and isinstance(space, Json):
            return cls(space, None)
        if key is None and isinstance(space, spaces.Dict):
            if schema.get("additionalProperties") is False:  # as OpenEnv's own base classes say
                check_names(space.spaces, properties, part)
            chosen = {name: space.spaces.get(name) for name in properties}
            return cls(space, None, _labels(chosen, properties), _lone(chosen, properties))
        names = [name for name in properties if name not in NOT_VALUES]
        if key is None:
            varying = [name for name in names if not is_constant(properties[name])]
            if len(varying) != 1:
                raise SpaceError(
                    f"{part}_space is {type(space).__name__}, but the server's {part} has the fields {names}; choose "
                    f"one with {'obs' if part == 'observation' else part}_key=, or pass a Dict space with the fields "
                    "to use"
                )
            (key,) = varying
        elif properties:
            check_names((key,), properties, part)
        return cls(space, key, _labels({key: space}, properties), _lone({key: space}, properties))

    def labelled(self, value: Any) -> dict[str, Any]:
        """An action's fields as they travel, from the JSON of a value of the space.

        Raises:
            SpaceError: for a number that stands for nothing, naming the field and the choices.
        """
        fields: dict[str, Any] = {self.only: value} if self.only is not None else value
        for path in self.lone:
            fields = _replaced(fields, path, _only_item)
        for path, known in self.labels.items():
            fields = _replaced(fields, path, lambda chosen, known=known, path=path: known[_index(chosen, known, path)])
        return fields

    def indexed(self, value: Any) -> Any:
        """An action with indices in the place of words that they stand for.

        Raises:
            SpaceError: for a choice that there isn't, naming the field and the choices.
        """
        fields: Any = {self.only: value} if self.only is not None else value
        for path, known in self.labels.items():
            fields = _replaced(fields, path, partial(_index, known=known, path=path))
        return fields if self.only is None else fields[self.only]

    def numbered(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """An observation's fields with numbers in the place of what they stand for.

        Raises:
            SpaceError: for something that isn't among the known values, naming the field.
        """
        numbered = dict(fields)
        for path, known in self.labels.items():
            numbered = _replaced(numbered, path, lambda label, known=known, path=path: number_of(label, known, path))
        return numbered


def is_tool_call(schema: Schema) -> bool:
    """Whether actions of this schema call tools: OpenEnv's ``CallToolAction``, by its fields."""
    properties = schema.get("properties", {})
    return properties.get("type", {}).get("const") == "call_tool" and "tool_name" in properties


def _labels(chosen: Mapping[str, gym.Space[Any] | None], properties: Mapping[str, Schema]) -> dict[Path, Any]:
    labels: dict[Path, tuple[Any, ...]] = {}
    for name, space in chosen.items():
        schema = properties.get(name, {})
        known = (False, True) if schema.get("type") == "boolean" else tuple(schema.get("enum", ()))
        if isinstance(space, spaces.Discrete) and known and not all(type(value) is int for value in known):
            labels[(name,)] = known
    return labels


def check_names(chosen: Iterable[str], properties: Mapping[str, Schema], part: str) -> None:
    """Refuse names that aren't among the fields of an ``observation`` or an ``action``, with a `SpaceError`."""
    unknown = [key for key in chosen if key not in properties]
    if unknown:
        names = [name for name in properties if name not in NOT_VALUES]
        raise SpaceError(f"the {part} has no field {unknown[0]!r}, only {names}")


def _lone(chosen: Mapping[str, gym.Space[Any] | None], properties: Mapping[str, Schema]) -> frozenset[Path]:
    return frozenset(
        (name,) for name, space in chosen.items() if _is_single(space) and _is_number(properties.get(name, {}))
    )


def _is_single(space: gym.Space[Any] | None) -> bool:
    return isinstance(space, spaces.Box) and space.shape == (1,)


def _is_number(schema: Schema) -> bool:
    kinds = {option.get("type") for option in schema.get("anyOf", (schema,))}
    return bool(kinds & {"integer", "number"}) and "array" not in kinds


def _only_item(items: Any) -> Any:
    (item,) = items
    return item


def number_of(label: Any, known: tuple[Any, ...], path: Path) -> int:
    """The number that stands for a value.

    Raises:
        SpaceError: if none does.
    """
    try:
        return known.index(label)
    except ValueError:
        raise SpaceError(f"{label!r} isn't one of {list(known)}", path=".".join(path)) from None


def _index(chosen: Any, known: tuple[Any, ...], path: Path) -> int:
    """The index of a choice, which is given by that index or, if it is a word, by itself.

    Raises:
        SpaceError: if it isn't there; a negative index doesn't count from the end.
    """
    index = known.index(chosen) if isinstance(chosen, str) and chosen in known else chosen
    if index in range(len(known)):
        return int(index)
    choices = ", ".join(f"{number} {label!r}" for number, label in enumerate(known[:8]))
    more = ", …" if len(known) > 8 else ""
    raise SpaceError(f"{shown(chosen)} is not one of {choices}{more}", path=".".join(path))


def in_shape(space: gym.Space[Any], data: Any) -> Any:
    """Data in the shape of their Box: of an image that came as one long list, or of one number for shape ``(1,)``.

    Other data are left as they are, for whoever reads them says what is wrong.
    """
    if isinstance(space, spaces.Dict) and isinstance(data, dict):
        return {
            key: in_shape(space.spaces[key], value) if key in space.spaces else value for key, value in data.items()
        }
    if _is_single(space):
        return [data] if data is None or isinstance(data, (int, float, np.number)) else data
    flat = isinstance(space, spaces.Box) and len(space.shape) > 1 and isinstance(data, list)
    if not flat or isinstance(data[0] if data else None, list):
        return data
    try:
        return np.array(data).reshape(space.shape or ())
    except ValueError:
        return data  # not so many, or no numbers


def _replaced(fields: dict[str, Any], path: Path, change: Any) -> dict[str, Any]:
    """A copy in which the value at a path is changed, if there is one."""
    name, *rest = path
    if name not in fields:
        return fields
    inner = _replaced(fields[name], tuple(rest), change) if rest else change(fields[name])
    return {**fields, name: inner}


def infer(schema: Schema, part: str, *, key: str | None = None, sample: Mapping[str, Any] | None = None) -> Fields:
    """Infer a space.

    Args:
        schema: the JSON schema of the observation or the action, as pydantic makes it.
        part: ``observation`` or ``action``, for the message.
        key: the only field to use; None for all.
        sample: the fields of a real observation.

    Raises:
        SpaceError: naming the field that no space can be inferred for, and what to pass.
    """
    if not schema:  # an OpenEnv server fails to make it of a field such as numpy's
        raise SpaceError(f"the server doesn't say which fields its {part}s have; {_advice(part)}")
    schema = resolved(schema, schema)  # a model that contains itself is a reference
    described = schema.get("properties", {})
    sent = described if sample is None else _sent(described, sample, key)
    properties: dict[str, Schema] = {
        name: resolved(field, schema)
        for name, field in sent.items()
        if name == key or (key is None and name not in NOT_VALUES)
    }
    if key is not None:
        check_names((key,), sent, part)
    else:
        properties = {name: field for name, field in properties.items() if not is_constant(field)}
    reader = FieldReader(schema, sample is not None)
    try:
        found = {
            name: reader.space(field, (name,), (sample or {}).get(name, MISSING)) for name, field in properties.items()
        }
    except SpaceError as error:
        raise SpaceError(f"{error.message}; {_advice(part)}", path=error.path) from None
    if not found:
        raise SpaceError(f"the {part} has no fields that a space could be inferred for; {_advice(part)}")
    if len(found) == 1:
        ((only, space),) = found.items()
        return Fields(space, only, reader.labels)
    return Fields(spaces.Dict(found), None, reader.labels)


def _sent(described: Mapping[str, Schema], sample: Mapping[str, Any], key: str | None) -> Mapping[str, Schema]:
    """The fields that a reset sends: a model may leave out some, send some by other names, and compute some.

    Raises:
        SpaceError: if there are some that the schema doesn't have in the place of others, and none was chosen.
    """
    missing = [name for name in described if name not in sample and name not in NOT_VALUES]
    more = {name: guessed(value) for name, value in sample.items() if name not in described and name not in NOT_VALUES}
    if missing and more and key is None:
        told = f"a reset doesn't send it, but {list(more)}, which the schema doesn't have"
        raise SpaceError(f"{told}; {_advice('observation')}", path=missing[0])
    kept = without(described, *missing)
    return kept if key is None else {**kept, **more}


def without(fields: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The other fields."""
    return {name: value for name, value in fields.items() if name not in keys}


def _advice(part: str) -> str:
    key, space, function = {
        "observation": ("obs_key=", "observation_space=", "decode_observation="),
        "action": ("action_key=", "action_space=", "encode_action="),
    }[part]
    whole = "openenv_gym.spaces.Json() takes it as it is"
    return f"choose a field with {key}, or pass {space}, with {function} if need be; {whole}"
