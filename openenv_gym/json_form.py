"""How an env's values look in OpenEnv's JSON, as the client reads and writes them. No I/O here.

OpenEnv's observations and actions are objects with named fields. A Dict space takes its fields by name; any other space
is one field, whose name is in the server's ``/schema``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from openenv_gym.action_masks import ACTION_MASK, ActionMask
from openenv_gym.errors import SpaceError
from openenv_gym.inference import Fields, in_shape
from openenv_gym.json_values import from_json, to_json
from openenv_gym.messages import Hello
from openenv_gym.spaces import Json, trim

__all__ = ["JsonForm", "Transition"]


@dataclass(frozen=True)
class Transition:
    """One reply to a reset or a step.

    Attributes:
        observation: a value of the observation space, except that dtypes may be those before trimming, and that a
            user's own function may have left in what was trimmed away; `openenv_gym.batching.BatchWriter` takes both.
        reward: the reward; where the server sent none 0.0, but nan of a Gymnasium env, which always has one.
        terminated: the episode ended.
        truncated: the episode was cut off.
        info: the reply's metadata.
        seed_ignored: the server says that it had no use for the seed.
        frame: the frame that came with it, as JSON data; None where there is none.
    """

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any] = field(default_factory=dict)
    seed_ignored: bool = False
    frame: Any = None

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
        observation: how the observation's fields make up a value of its space.
        action: how a value of the action space makes up the fields of an action.
        gymnasium: whether the server hosts a Gymnasium env, as ours do, whose ``reset`` takes options as one dict; an
            OpenEnv env's takes them as keyword arguments.
        encode_action: makes an action's fields from a value of the action space, in the place of `action`.
        decode_observation: makes a value of the observation space from the fields, in the place of `observation`.
        mask: what reads the info ``action_mask``; None for no such info.
        recast_space: the observation space with the dtypes that the user wants; None where they stay.
        info_keys: keys of the metadata to keep; None for all. An action mask that was asked for always stays.
        render_mode: the mode in which each reply shall bring a frame, as servers of ours can; None for no frames.
    """

    observation: Fields
    action: Fields
    gymnasium: bool = False
    encode_action: Callable[[Any], dict[str, Any]] | None = None
    decode_observation: Callable[[dict[str, Any]], Any] | None = None
    mask: ActionMask | None = None
    recast_space: gym.Space[Any] | None = None
    info_keys: frozenset[str] | None = None
    render_mode: str | None = None

    @classmethod
    def for_schema(
        cls,
        schema: dict[str, Any],
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        gymnasium: bool = False,
    ) -> JsonForm:
        """The form for given spaces on a server with this ``/schema``.

        Raises:
            SpaceError: if a space isn't a Dict and the schema has several fields it could stand for.
        """
        return cls(
            Fields.given(observation_space, schema.get("observation", {}), "observation"),
            Fields.given(action_space, schema.get("action", {}), "action"),
            gymnasium,
        )

    def trimmed(self, hello: Hello) -> JsonForm:
        """The form that leaves out here what a server of the batch dialect wouldn't send for this `Hello`.

        Raises:
            SpaceError: if it names what isn't there, or a dtype that doesn't fit.
        """
        kept = trim(self.observation.space, include=hello.include, exclude=hello.exclude)
        return dataclasses.replace(
            self,
            observation=dataclasses.replace(self.observation, space=kept),
            recast_space=trim(kept, dtype=hello.obs_dtype),
            info_keys=None if hello.info_keys is None else frozenset(hello.info_keys),
        )

    @property
    def observation_space(self) -> gym.Space[Any]:
        """One env's observation space, after trimming."""
        return self.observation.space if self.recast_space is None else self.recast_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """One env's action space."""
        return self.action.space

    @property
    def observation_field(self) -> str | None:
        """The field that holds the observation; None where the space is a Dict of the fields."""
        return self.observation.only

    @property
    def action_field(self) -> str | None:
        """The field that holds the action; None where the space is a Dict of the fields."""
        return self.action.only

    def action_data(self, action: Any) -> dict[str, Any]:
        """The data of a ``step``.

        Raises:
            SpaceError: if the action isn't a value of the space.
        """
        if self.encode_action is not None:
            return self.encode_action(action)
        return self.action.labelled(to_json(self.action_space, self.action.indexed(action)))

    def reset_data(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """The data of a ``reset``."""
        data: dict[str, Any] = {} if seed is None else {"seed": seed}
        if options is not None:
            data |= {"options": options} if self.gymnasium else options
        if self.render_mode is not None:
            data |= {"render": True, "render_mode": self.render_mode}
        return data

    def transition(self, data: dict[str, Any]) -> Transition:
        """Read the data of an ``observation`` reply.

        ``terminated`` and ``truncated`` are extensions that a stock server doesn't send; some envs put ``truncated``
        into the metadata or the observation. ``done`` alone is a termination.

        Raises:
            SpaceError: if the observation doesn't fit the space, naming the field.
        """
        fields = data.get("observation")
        if not isinstance(fields, dict):
            raise SpaceError("the reply has no observation object")
        metadata = data.get("metadata") or fields.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise SpaceError(f"{type(metadata).__name__} instead of an object", path="metadata")
        done = bool(data.get("done"))
        own = fields.get("truncated") is True and done
        truncated = bool(
            _first(data.get("truncated"), metadata.get("truncated"), metadata.get("TimeLimit.truncated"), own)
        )
        if self.info_keys is not None:
            metadata = {key: value for key, value in metadata.items() if key in self.info_keys}
        if self.mask is not None:
            metadata = {**metadata, ACTION_MASK: self.mask.read(fields)}
        return Transition(
            self.value_of(fields),
            _reward(_first(data.get("reward"), math.nan if self.gymnasium else 0.0)),
            bool(_first(data.get("terminated"), done and not truncated)),
            truncated,
            metadata,
            bool(data.get("seed_ignored")),
            data.get("render"),
        )

    def value_of(self, fields: dict[str, Any]) -> Any:
        """The value that an observation's fields make up.

        Raises:
            SpaceError: if they don't fit the space, naming the field.
        """
        if self.decode_observation is not None:
            return self.decode_observation(fields)
        only, space = self.observation.only, self.observation.space
        if only is not None:
            if only not in fields:
                raise SpaceError(f"the observation has no field {only!r}, only {sorted(fields)}")
            data = self.observation.numbered({only: _kept(space, fields[only])})[only]
            return from_json(space, in_shape(space, data), path=only)
        if isinstance(space, Json):
            return fields
        assert isinstance(space, spaces.Dict)
        return from_json(space, in_shape(space, self.observation.numbered(_kept(space, fields))))


def _kept(space: gym.Space[Any], data: Any) -> Any:
    """The part of the data that the space has keys for; `from_json` says what is missing."""
    if not isinstance(space, spaces.Dict) or not isinstance(data, dict):  # trimming leaves tuples whole
        return data
    return {key: _kept(part, data[key]) for key, part in space.spaces.items() if key in data}


def _first(*values: Any) -> Any:
    """The first that isn't None: a null in JSON says no more than a missing field."""
    return next(value for value in values if value is not None)


def _reward(data: Any) -> float:
    try:
        return float(data)
    except (TypeError, ValueError):
        raise SpaceError(f"{data!r} isn't a number", path="reward") from None
