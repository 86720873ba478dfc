"""What a user says about the spaces of an OpenEnv environment; the rest is inferred. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from openenv_gym.action_masks import ActionMask
from openenv_gym.field_spaces import Schema, resolved
from openenv_gym.inference import Fields, check_names, infer, is_tool_call, without
from openenv_gym.spaces import Json

__all__ = ["Choices"]


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
            schema = resolved(schema, schema)
            schema = {**schema, "properties": without(schema.get("properties", {}), self.mask_key)}
            sample = None if sample is None else without(sample, self.mask_key)
        return infer(schema, "observation", key=self.obs_key, sample=sample)

    def action(self, schema: Schema) -> Fields:
        """How values of a space make up actions. Raises `SpaceError`."""
        if self.action_space is not None:
            return Fields.given(self.action_space, schema, "action", self.action_key)
        if self.action_key is None and is_tool_call(schema):
            return Fields(Json(), None)
        return infer(schema, "action", key=self.action_key)

    def mask(self, schema: Schema, action: Fields) -> ActionMask | None:
        """What reads which actions are allowed; None where nobody asked for that.

        Args:
            schema: the JSON schema of the observations.
            action: how values of the action space make up actions.

        Raises:
            SpaceError: if the field isn't there, or the action space isn't Discrete.
        """
        if self.mask_key is None:
            return None
        properties = resolved(schema, schema).get("properties", {})
        if properties:
            check_names((self.mask_key,), properties, "observation")
        return ActionMask(self.mask_key, action.space, action.labels.get((action.only or "",), ()))
