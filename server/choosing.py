"""What a client of the batch dialect chose about the spaces, beside what its server knows. No threads and no I/O here.

An OpenEnv environment has fields and no spaces, so any choice is heeded that `openenv_gym.inference` can make sense of.
Of a Gymnasium env a client may leave out keys of Dicts, order them otherwise, and give other bounds: what travels is
the same.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from openenv_gym.action_masks import ActionMask
from openenv_gym.choices import Choices
from openenv_gym.errors import SpaceError
from openenv_gym.inference import Fields
from openenv_gym.messages import Hello
from openenv_gym.server.adapters import EnvSource
from openenv_gym.server.openenv_env import schema_of
from openenv_gym.server.probe import Probe
from openenv_gym.spaces import build, fits, leaf_dtype, leaf_shape, leaves, trim

__all__ = ["Chosen", "choose"]


@dataclass(frozen=True)
class Chosen:
    """How a client sees one env.

    Attributes:
        observation_space: the observation space, trimmed.
        action_space: the action space.
        fields: how the observations and actions of an OpenEnv environment make up their values; None for other envs.
        mask: what reads which actions are allowed from its observations; None if nobody asked for that.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    fields: tuple[Fields, Fields] | None = None
    mask: ActionMask | None = None


def choose(source: EnvSource, probe: Probe, hello: Hello, limit: int) -> Chosen:
    """What holds for a client.

    Args:
        source: where the server's envs come from.
        probe: what one of them showed.
        hello: the client's wishes.
        limit: the most bytes that the observations of all its envs may take.

    Raises:
        SpaceError: if the wishes can't be met, or an OpenEnv environment has no spaces without them.
    """
    wished = Choices(
        hello.obs_key,
        hello.action_key,
        None if hello.observation_space is None else build(hello.observation_space),
        None if hello.action_space is None else build(hello.action_space),
        hello.mask_key,
    )
    if wished == Choices():
        if probe.problem is not None:
            raise SpaceError(_spaceless(source.name, probe.problem))
        chosen = Chosen(probe.observation_space, probe.action_space, source.fields)
    elif source.known_models is None:
        chosen = _narrowed(probe, wished)
    else:
        models = source.known_models
        observation, action = models.fields(_merged(wished, source.choices), probe.sample)
        mask = wished.mask(schema_of(models.observation), action)
        chosen = Chosen(observation.space, action.space, (observation, action), mask)
        size = hello.num_envs * sum(_size(leaf.space) for leaf in leaves(observation.space) if leaf.is_array)
        if size > limit:  # a stranger's idea of a space shall not fill the memory
            raise SpaceError(f"observations of this space take {size} bytes, and a message may have {limit}")
    trimmed = trim(chosen.observation_space, include=hello.include, exclude=hello.exclude, dtype=hello.obs_dtype)
    return dataclasses.replace(chosen, observation_space=trimmed)


def _narrowed(probe: Probe, wished: Choices) -> Chosen:
    observation = wished.observation_space if wished.observation_space is not None else probe.observation_space
    action = wished.action_space if wished.action_space is not None else probe.action_space
    keyed = any(key is not None for key in (wished.obs_key, wished.action_key, wished.mask_key))
    if probe.vector or keyed or not fits(observation, probe.observation_space):
        raise SpaceError(f"a value of {probe.observation_space} isn't sent as one of {observation}")
    if not (fits(action, probe.action_space) and fits(probe.action_space, action)):
        raise SpaceError(f"a value of {action} isn't taken for one of {probe.action_space}")
    return Chosen(observation, action)


def _merged(wished: Choices, own: Choices) -> Choices:
    """The client's choice of the observation, or else the server's; and the same for the action."""
    sees = wished if wished.obs_key is not None or wished.observation_space is not None else own
    acts = wished if wished.action_key is not None or wished.action_space is not None else own
    return Choices(sees.obs_key, acts.action_key, sees.observation_space, acts.action_space, wished.mask_key)


def _size(space: gym.Space[Any]) -> int:
    return math.prod(leaf_shape(space)) * leaf_dtype(space).itemsize


def _spaceless(name: str, problem: str) -> str:
    return (
        f"{name} is an OpenEnv environment that no spaces can be inferred for: {problem}. Say so here, or in the "
        "server's create_app(...)"
    )
