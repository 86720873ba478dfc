"""How an env's values look in OpenEnv's JSON, as the client reads and writes them. No I/O here.

OpenEnv's observations and actions are objects with named fields. A Dict space takes its fields by name; any other space is
one field, whose name is in the server's ``/schema``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from openenv_gym.errors import SpaceError
from openenv_gym.json_values import from_json, to_json

__all__ = ["JsonForm", "Transition", "field_names"]

_NOT_VALUES = frozenset({"done", "reward", "metadata"})
"""Fields of every OpenEnv observation or action that aren't part of its value."""


@dataclass(frozen=True)
class Transition:
    """One reply to a reset or a step.

    Attributes:
        observation: a value of the observation space.
        reward: the reward; 0.0 where the server sent none.
        terminated: the episode ended.
        truncated: the episode was cut off.
        info: the reply's metadata.
        seed_ignored: the server says that it had no use for the seed.
    """

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any] = field(default_factory=dict)
    seed_ignored: bool = False

    def cut_off(self) -> Transition:
        """The same at a time limit."""
        return dataclasses.replace(self, truncated=True)

    def followed_by(self, first: Transition) -> Transition:
        """The same with the observation and info of the next episode's start."""
        return dataclasses.replace(self, observation=first.observation, info=first.info)


@dataclass(frozen=True)
class JsonForm:
    """How one server's values look.

    Attributes:
        observation_space: one env's observation space.
        action_space: one env's action space.
        observation_field: the field that holds the observation; None where the space is a Dict of the fields.
        action_field: the field that holds the action; None where the space is a Dict of the fields.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    observation_field: str | None
    action_field: str | None

    @classmethod
    def for_schema(
        cls, schema: dict[str, Any], observation_space: gym.Space[Any], action_space: gym.Space[Any]
    ) -> JsonForm:
        """The form for given spaces on a server with this ``/schema``.

        Raises:
            SpaceError: if a space isn't a Dict and the schema has several fields it could stand for.
        """
        return cls(
            observation_space,
            action_space,
            _only_field(schema, "observation", observation_space),
            _only_field(schema, "action", action_space),
        )

    def action_data(self, action: Any) -> dict[str, Any]:
        """The data of a ``step``.

        Raises:
            SpaceError: if the action isn't a value of the space.
        """
        data = to_json(self.action_space, action)
        if self.action_field is not None:
            return {self.action_field: data}
        fields: dict[str, Any] = data
        return fields

    def reset_data(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """The data of a ``reset``: options are keyword arguments of an OpenEnv env's ``reset``."""
        return {**({} if seed is None else {"seed": seed}), **(options or {})}

    def transition(self, data: dict[str, Any]) -> Transition:
        """Read the data of an ``observation`` reply.

        ``terminated`` and ``truncated`` are extensions that a stock server doesn't send; some envs put ``truncated``
        into the metadata. ``done`` alone is a termination.

        Raises:
            SpaceError: if the observation doesn't fit the space, naming the field.
        """
        fields = data.get("observation")
        if not isinstance(fields, dict):
            raise SpaceError("the reply has no observation object")
        metadata = data.get("metadata") or fields.get("metadata") or {}
        done = bool(data.get("done"))
        truncated = bool(data.get("truncated", metadata.get("truncated", metadata.get("TimeLimit.truncated", False))))
        return Transition(
            self._observation(fields),
            float(data.get("reward") or 0.0),
            bool(data.get("terminated", done and not truncated)),
            truncated,
            metadata,
            bool(data.get("seed_ignored")),
        )

    def _observation(self, fields: dict[str, Any]) -> Any:
        if self.observation_field is not None:
            if self.observation_field not in fields:
                raise SpaceError(f"the observation has no field {self.observation_field!r}, only {sorted(fields)}")
            return from_json(self.observation_space, fields[self.observation_field], path=self.observation_field)
        assert isinstance(self.observation_space, spaces.Dict)
        return from_json(self.observation_space, {k: fields[k] for k in self.observation_space.spaces if k in fields})


def field_names(schema: dict[str, Any], part: str) -> list[str]:
    """The fields of ``observation`` or ``action`` in a server's ``/schema`` that make up its value."""
    properties = schema.get(part, {}).get("properties", {})
    return [name for name in properties if name not in _NOT_VALUES]


def _only_field(schema: dict[str, Any], part: str, space: gym.Space[Any]) -> str | None:
    if isinstance(space, spaces.Dict):
        return None
    names = field_names(schema, part)
    if len(names) != 1:
        raise SpaceError(
            f"{part}_space is {type(space).__name__}, but the server's {part} has the fields {names}; "
            "pass a Dict space with the fields to use"
        )
    return names[0]
