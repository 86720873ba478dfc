"""How an env's values look in OpenEnv's JSON, as the server reads and writes them: one `JsonForm` for each kind of env.

OpenEnv's observations and actions are objects with named fields. A Dict space gives its keys as the fields; any other
space is one field, named ``observation`` or ``action``. All conversion happens where `JsonEncoding` is called, which is
on the envs' threads, down to the bytes: the event loop only puts pieces together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import msgspec
import numpy as np
from gymnasium import spaces

from openenv_gym.batching import cast_exactly
from openenv_gym.errors import RemoteProtocolError, SpaceError
from openenv_gym.json_values import from_json, to_json
from openenv_gym.jsonable import base64_text, jsonable
from openenv_gym.messages import Batch, Values
from openenv_gym.server.space_schemas import json_schema
from openenv_gym.spaces import leaf_dtype, leaf_shape, leaves, path_name, trim

__all__ = ["ActionRefused", "GymnasiumForm", "JsonEncoding", "JsonForm", "Trimming"]

_CHECKED = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text)
_encode = msgspec.json.encode


class ActionRefused(Exception):
    """Raised for an action that the env can't be given.

    Attributes:
        errors: what is wrong, as pydantic lists it: dicts with ``type``, ``loc``, ``msg`` and ``input``.
    """

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__(errors)
        self.errors = errors

    def __str__(self) -> str:
        return "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in self.errors)


class JsonForm(Protocol):
    """Translates between one kind of env and JSON. It keeps no reference to what it is given.

    Attributes:
        exact: whether replies hold what OpenEnv's own servers send and nothing else, and an observation the whole
            result; False for envs of Gymnasium, which OpenEnv's servers don't host.
    """

    exact: bool

    def action(self, data: dict[str, Any], /) -> Any:
        """What the env's ``step`` takes. Raises `ActionRefused`."""

    def observation(self, value: Any, /) -> dict[str, Any]:
        """An observation's fields. Raises `SpaceError` or `PackError` for what can't be sent."""

    def info(self, info: dict[str, Any], /) -> dict[str, Any]:
        """An info as ``metadata``. Raises `PackError`."""

    def schemas(self) -> dict[str, dict[str, Any]]:
        """The JSON schemas of an ``action``, an ``observation`` and the ``state``."""

    def encoding(self) -> JsonEncoding:
        """The encoding that writes values in this form."""


@dataclass(frozen=True)
class Trimming:
    """What a client wants to be sent, so that the rest is never touched.

    Attributes:
        include: dotted paths of the observation keys to send; None for all.
        exclude: dotted paths of the observation keys to leave out.
        obs_dtype: a dtype to round Box observations to, or dtypes by path.
        info_keys: info keys to send; None for all.
    """

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None
    obs_dtype: str | dict[str, str] | None = None
    info_keys: tuple[str, ...] | None = None


class GymnasiumForm:
    """The form of a Gymnasium env.

    Args:
        observation_space: the env's observation space.
        action_space: the env's action space.
        trimming: what to send.

    Raises:
        SpaceError: if the trimming names what isn't there.
    """

    exact = False

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], trimming: Trimming | None = None
    ) -> None:
        trimming = trimming or Trimming()
        self._observation_space = trim(
            observation_space, include=trimming.include, exclude=trimming.exclude, dtype=trimming.obs_dtype
        )
        self._action_space = action_space
        self._rounds = trimming.obs_dtype is not None
        self._info_keys = None if trimming.info_keys is None else frozenset(trimming.info_keys)
        self._checked = [leaf for leaf in leaves(action_space) if isinstance(leaf.space, _CHECKED)]

    def action(self, data: dict[str, Any]) -> Any:
        """See `JsonForm.action`.

        Boxes may be left, as in a local vector env; an integer or a text that its space doesn't have is refused.
        OpenEnv's typed actions carry a field ``metadata``, which no Gymnasium env has a use for.
        """
        space = self._action_space
        fields = space.spaces if isinstance(space, spaces.Dict) else {"action": space}
        if "metadata" in data and "metadata" not in fields:
            data = {key: value for key, value in data.items() if key != "metadata"}
        errors = [_error("missing", [key], "Field required", data) for key in fields if key not in data]
        errors += [
            _error("extra_forbidden", [key], "Extra inputs are not permitted", value)
            for key, value in data.items()
            if key not in fields
        ]
        if errors:
            raise ActionRefused(errors)
        try:
            if isinstance(space, spaces.Dict):
                action = from_json(space, data)
            else:
                action = from_json(space, data["action"], path="action")
        except SpaceError as error:
            raise ActionRefused([_space_error(error, data)]) from None
        self._check(action, data)
        return action

    def observation(self, value: Any) -> dict[str, Any]:
        """See `JsonForm.observation`."""
        space = self._observation_space
        kept = _kept(space, value, (), self._rounds)
        if isinstance(space, spaces.Dict):
            fields: dict[str, Any] = to_json(space, kept)
            return fields
        return {"observation": to_json(space, kept, path="observation")}

    def info(self, info: dict[str, Any]) -> dict[str, Any]:
        """See `JsonForm.info`."""
        keys = self._info_keys
        metadata: dict[str, Any] = jsonable(
            info if keys is None else {key: value for key, value in info.items() if key in keys}, "info"
        )
        return metadata

    def schemas(self) -> dict[str, dict[str, Any]]:
        """See `JsonForm.schemas`."""
        return {
            "action": _fields_schema(self._action_space, "action", "Action"),
            "observation": _fields_schema(self._observation_space, "observation", "Observation"),
            "state": _STATE_SCHEMA,
        }

    def encoding(self) -> JsonEncoding:
        """See `JsonForm.encoding`."""
        return JsonEncoding(self)

    def _check(self, action: Any, data: dict[str, Any]) -> None:
        errors = []
        for leaf in self._checked:
            value = action
            for key in leaf.path:
                value = value[key]
            if not leaf.space.contains(value):
                loc = list(leaf.path) if isinstance(self._action_space, spaces.Dict) else ["action", *leaf.path]
                errors.append(_error("value_error", loc, f"{value} is not in {leaf.space}", data))
        if errors:
            raise ActionRefused(errors)


class JsonEncoding:
    """The OpenEnv dialect's encoding (see `openenv_gym.server.encoding.Encoding`): what it gives is encoded JSON.

    Args:
        form: how values look.
    """

    def __init__(self, form: JsonForm) -> None:
        self.form = form

    def writer(self, count: int, *, final: bool = False) -> _JsonWriter:
        """See `Encoding.writer`."""
        return _JsonWriter(self.form, count)

    def info(self, info: dict[str, Any], observation: Any) -> dict[str, Any]:
        """See `Encoding.info`."""
        if not info:
            return {}
        return {key: msgspec.Raw(_encode(value)) for key, value in self.form.info(info).items()}

    def value(self, value: Any) -> Any:
        """See `Encoding.value`: a rendered frame or a list of frames as dtype, shape and base64, or a rendered text."""
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            array = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
            data = base64_text(array.data if array.size else b"")
            return msgspec.Raw(_encode({"dtype": value.dtype.name, "shape": value.shape, "base64": data}))
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return msgspec.Raw(_encode(jsonable(value, "render")))

    def actions(self, batch: Batch, count: int) -> Sequence[Any]:
        """See `Encoding.actions`: the actions were read already, and stand in the batch as they are."""
        if len(batch) != 1 or not isinstance(batch[0], Values) or len(batch[0].items) != count:
            raise RemoteProtocolError(f"not {count} action(s)")
        return batch[0].items


class _JsonWriter:
    """Holds encoded observations; several threads may write at the same time, each its own positions."""

    def __init__(self, form: JsonForm, count: int) -> None:
        self._form = form
        self._items: list[Any] = [None] * count

    def write(self, position: int, value: Any) -> None:
        """See `Writer.write`."""
        self._items[position] = msgspec.Raw(_encode(self._form.observation(value)))

    def batch(self, positions: int | list[int]) -> Batch:
        """See `Writer.batch`: one `Values`, with what was written."""
        numbers = range(positions) if isinstance(positions, int) else positions
        return [Values([self._items[number] for number in numbers])]


_STATE_SCHEMA: dict[str, Any] = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"], "description": "The current episode; null before the first reset."},
        "step_count": {"type": "integer", "minimum": 0, "description": "Steps since the last reset."},
    },
    "required": ["episode_id", "step_count"],
}


def _fields_schema(space: gym.Space[Any], name: str, title: str) -> dict[str, Any]:
    if isinstance(space, spaces.Dict):
        schema = json_schema(space)
    else:
        properties = {name: json_schema(space)}
        schema = {"type": "object", "properties": properties, "required": [name], "additionalProperties": False}
    if name == "action":
        schema["properties"].setdefault("metadata", {"type": "object", "description": "Accepted, and not used."})
    return {"title": title, **schema}


def _kept(space: gym.Space[Any], value: Any, path: tuple[str | int, ...], rounds: bool) -> Any:
    """The part of a value that the space has, rounded to its dtypes if asked for; other keys are never touched."""
    if type(space) is spaces.Dict:
        return {key: _kept(part, _item(value, key, path), (*path, key), rounds) for key, part in space.spaces.items()}
    if type(space) is spaces.Tuple:
        parts = enumerate(space.spaces)
        return tuple(_kept(part, _item(value, i, path), (*path, i), rounds) for i, part in parts)
    if rounds and type(space) is spaces.Box:
        return cast_exactly(value, leaf_dtype(space), leaf_shape(space), path_name(path))
    return value


def _item(value: Any, key: str | int, path: tuple[str | int, ...]) -> Any:
    try:
        return value[key]
    except (KeyError, IndexError, TypeError) as error:
        raise SpaceError(f"the value has no {key!r} ({type(error).__name__})", path=path_name(path)) from None


def _space_error(error: SpaceError, data: dict[str, Any]) -> dict[str, Any]:
    loc = [int(name) if name.isdecimal() else name for name in error.path.split(".")] if error.path else []
    return _error("value_error", loc, error.message, data)


def _error(kind: str, loc: list[Any], message: str, given: Any) -> dict[str, Any]:
    return {"type": kind, "loc": loc, "msg": message, "input": given}
