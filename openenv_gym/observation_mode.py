"""The ``observation_mode`` of a vector env: how one observation space stands for those of all envs.

As in gymnasium/vector/sync_vector_env.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import gymnasium as gym
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from openenv_gym.errors import SpaceError
from openenv_gym.spaces import alike

__all__ = ["ObservationMode", "batched_space", "check_observation_mode"]

ObservationMode: TypeAlias = "str | tuple[gym.Space[Any], gym.Space[Any]]"
"""``"same"``, ``"different"``, or the batched and the single observation space to have."""


def check_observation_mode(mode: object) -> None:
    """Refuse what is no mode.

    Raises:
        ValueError: in the words of ``SyncVectorEnv``.
    """
    if mode in ("same", "different"):
        return
    if isinstance(mode, tuple) and len(mode) == 2 and all(isinstance(space, gym.Space) for space in mode):
        return
    raise ValueError(
        "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation space, "
        f"actual got {mode}"
    )


def batched_space(mode: ObservationMode, spaces: Sequence[gym.Space[Any]]) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """The single and the batched observation space.

    Args:
        mode: how they are made.
        spaces: each env's own.

    Raises:
        SpaceError: if the spaces that the mode brings have other shapes or dtypes than the envs'. It is a
            ``RuntimeError``.
    """
    if isinstance(mode, tuple):
        batched, single = mode
        for space in spaces:
            if not alike(space, single):
                raise SpaceError(f"an env's observation space is {space}, and not of the form of {single}")
        return single, batched
    return spaces[0], batch_space(spaces[0], len(spaces)) if mode == "same" else batch_differing_spaces(spaces)
