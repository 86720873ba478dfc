"""Spaces for OpenEnv envs, which have none: inferred from the JSON schemas of their models and one reset. No I/O here.

======================================== ==========================================================================
a field of the schema                    its space
======================================== ==========================================================================
a list of values (enum, Literal)         ``Discrete``: the values are numbered in the schema's order
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
optional (may be null), other unions,    a `SpaceError` that names the field and says how to choose
ragged lists, lists whose shape isn't
known, free-form objects
======================================== ==========================================================================

The space of several fields is a ``Dict``; a single field is the bare space. Floats are float64 because nothing is
rounded that way, and so are lists whose items the schema doesn't describe. What has no space can be taken as it is, by
choosing `openenv_gym.spaces.Json` for it, or for the observation or action as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import gymnasium as gym
from gymnasium import spaces

from openenv_gym.errors import SpaceError
from openenv_gym.field_spaces import MISSING, FieldReader, Path, Schema, is_constant, resolved
from openenv_gym.spaces import Json

__all__ = ["NOT_VALUES", "Choices", "Fields", "infer", "is_tool_call", "number_of"]

NOT_VALUES: Final = frozenset({"done", "reward", "metadata", "terminated", "truncated"})
"""Fields of OpenEnv's observations and actions that aren't part of their value."""


@dataclass(frozen=True)
class Fields:
    """How the fields of an observation or action make up a value of a space.

    Attributes:
        space: the space.
        only: the field that is the whole value; None where the space is a Dict of the fields, or `Json`.
        labels: what the numbers of a Discrete stand for, by the path of their field.
    """

    space: gym.Space[Any]
    only: str | None
    labels: Mapping[Path, tuple[Any, ...]] = field(default_factory=dict)

    @classmethod
    def given(cls, space: gym.Space[Any], schema: Schema, part: str, key: str | None = None) -> Fields:
        """The fields for a space that the caller chose.

        A Discrete in the place of a list of values that aren't integers, or of a boolean, numbers them. A Json without
        a key is the whole of the observation or action.

        Args:
            space: the space.
            schema: the JSON schema of the observation or the action.
            part: ``observation`` or ``action``, for the message.
            key: the only field to use; None for all that the space names.

        Raises:
            SpaceError: if the space isn't a Dict, and there are several fields that it could stand for.
        """
        schema = resolved(schema, schema)
        properties = {name: resolved(field, schema) for name, field in schema.get("properties", {}).items()}
        if key is None and isinstance(space, Json):
            return cls(space, None)
        if key is None and isinstance(space, spaces.Dict):
            return cls(space, None, _labels({name: space.spaces.get(name) for name in properties}, properties))
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
        elif properties and key not in properties:
            raise SpaceError(f"the {part} has no field {key!r}, only {names}")
        return cls(space, key, _labels({key: space}, properties))

    def labelled(self, value: Any) -> dict[str, Any]:
        """An action's fields as they travel, from the JSON of a value of the space."""
        fields: dict[str, Any] = {self.only: value} if self.only is not None else value
        if not self.labels:
            return fields
        for path, known in self.labels.items():
            fields = _replaced(fields, path, lambda number, known=known: known[number])
        return fields

    def numbered(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """An observation's fields with numbers in the place of what they stand for.

        Raises:
            SpaceError: for something that isn't among the known values, naming the field.
        """
        numbered = dict(fields)
        for path, known in self.labels.items():
            numbered = _replaced(numbered, path, lambda label, known=known, path=path: number_of(label, known, path))
        return numbered


@dataclass(frozen=True)
class Choices:
    """What the user said about the spaces of an OpenEnv environment; the rest is inferred.

    Attributes:
        obs_key: the only observation field to use.
        action_key: the only action field to use.
        observation_space: the observation space.
        action_space: the action space.
        mask_key: an observation field that says which actions are allowed, and isn't part of the value.
    """

    obs_key: str | None = None
    action_key: str | None = None
    observation_space: gym.Space[Any] | None = None
    action_space: gym.Space[Any] | None = None
    mask_key: str | None = None

    def observation(self, schema: Schema, sample: Mapping[str, Any] | None, action: Schema | None = None) -> Fields:
        """How observations make up values of a space.

        Args:
            schema: their JSON schema.
            sample: the fields of a real one.
            action: the JSON schema of the actions that lead to them.

        Raises:
            SpaceError: if they don't.
        """
        if self.observation_space is not None:
            return Fields.given(self.observation_space, schema, "observation", self.obs_key)
        if self.obs_key is None and is_tool_call(action or {}):
            return Fields(Json(), None)
        if self.mask_key is not None:
            fields = {name: field for name, field in schema.get("properties", {}).items() if name != self.mask_key}
            schema = {**schema, "properties": fields}
        return infer(schema, "observation", key=self.obs_key, sample=sample)

    def action(self, schema: Schema) -> Fields:
        """How values of a space make up actions. Raises `SpaceError`."""
        if self.action_space is not None:
            return Fields.given(self.action_space, schema, "action", self.action_key)
        if self.action_key is None and is_tool_call(schema):
            return Fields(Json(), None)
        return infer(schema, "action", key=self.action_key)


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


def number_of(label: Any, known: tuple[Any, ...], path: Path) -> int:
    """The number that stands for a value.

    Raises:
        SpaceError: if none does.
    """
    try:
        return known.index(label)
    except ValueError:
        raise SpaceError(f"{label!r} isn't one of {list(known)}", path=".".join(path)) from None


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
    schema = resolved(schema, schema)  # a model that contains itself is a reference
    properties: dict[str, Schema] = {
        name: resolved(field, schema)
        for name, field in schema.get("properties", {}).items()
        if name == key or (key is None and name not in NOT_VALUES)
    }
    if key is not None and key not in properties:
        names = [name for name in schema.get("properties", {}) if name not in NOT_VALUES]
        raise SpaceError(f"the {part} has no field {key!r}, only {names}")
    if key is None:
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


def _advice(part: str) -> str:
    key, space, function = {
        "observation": ("obs_key=", "observation_space=", "decode_observation="),
        "action": ("action_key=", "action_space=", "encode_action="),
    }[part]
    whole = "openenv_gym.spaces.Json() takes it as it is"
    return f"choose a field with {key}, or pass {space}, with {function} if need be; {whole}"
