"""A vector env's seeds and reset masks: Gymnasium's checks, in its order and words, before anything is sent.

They are those of ``SyncVectorEnv.reset`` (gymnasium/vector/sync_vector_env.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["each_seed", "split_mask"]


def each_seed(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """One seed for each env, as Python ints.

    Args:
        seed: None; an int, from which each env gets the next; or one int or None for each env.
        num_envs: the number of envs.

    Raises:
        ValueError: for a wrong number of seeds.
        gymnasium.error.Error: for a negative seed, or one that is no integer.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        seed = [int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={num_envs} but got length={len(seed)}."
        )
    return [None if one is None else _checked(one) for one in seed]


def _checked(seed: Any) -> int:
    if not isinstance(seed, (int, np.integer)):
        raise gym.error.Error(f"Seed must be a python integer, actual type: {type(seed)}")
    if seed < 0:
        raise gym.error.Error(f"Seed must be greater or equal to zero, actual value: {seed}")
    return int(seed)


def split_mask(options: dict[str, Any] | None, num_envs: int) -> tuple[list[int] | None, dict[str, Any] | None]:
    """Take ``reset_mask`` out of options, which stay as they are.

    Args:
        options: the options of a reset.
        num_envs: the number of envs.

    Returns:
        the rows to reset, or None for all; and the options for the envs.

    Raises:
        TypeError: for a mask that is no bool array.
        ValueError: for a mask of the wrong shape, or without any True.
    """
    if options is None or "reset_mask" not in options:
        return None, options
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    rest = {key: value for key, value in options.items() if key != "reset_mask"}
    return [int(row) for row in np.flatnonzero(mask)], rest
