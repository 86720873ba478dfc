"""Which actions are allowed, as the observations of an OpenEnv environment say it. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from openenv_gym.errors import SpaceError

__all__ = ["ACTION_MASK", "ActionMask"]

ACTION_MASK: Final = "action_mask"
"""The info key of the mask."""


class ActionMask:
    """Reads one field of the observations: a list of the allowed actions, or of a flag for each.

    Args:
        key: the field.
        space: the action space.
        labels: what the numbers of the space stand for; empty where they stand for themselves.

    Attributes:
        key: the field.

    Raises:
        SpaceError: for an action space that isn't Discrete.
    """

    def __init__(self, key: str, space: gym.Space[Any], labels: tuple[Any, ...] = ()) -> None:
        if not isinstance(space, spaces.Discrete):
            raise SpaceError(f"mask_key needs a Discrete action space, not {space}", path=key)
        self.key = key
        self._space = space
        self._labels = labels

    def read(self, fields: Mapping[str, Any]) -> NDArray[np.int8]:
        """The mask, as ``Discrete.sample`` takes it.

        Booleans are flags, and so are as many zeros and ones as there are actions, if one comes twice.

        Args:
            fields: an observation's, as JSON data.

        Returns:
            int8 array of shape ``(n,)``, with a one for each action that is allowed.

        Raises:
            SpaceError: for anything but a list of such actions or flags.
        """
        listed = fields.get(self.key)
        if not isinstance(listed, list):
            raise SpaceError(f"the observation has no list {self.key!r}", path=self.key)
        count = int(self._space.n)
        numbers = all(type(item) is int and 0 <= item <= 1 for item in listed) and len(set(listed)) < len(listed)
        if len(listed) == count and (numbers or all(isinstance(item, bool) for item in listed)):
            return np.array(listed, np.int8)
        mask = np.zeros(count, np.int8)
        for item in listed:
            mask[self._number(item)] = 1
        return mask

    def _number(self, item: Any) -> int:
        number = item - int(self._space.start) if type(item) is int else -1
        if item in self._labels:
            number = self._labels.index(item)
        if not 0 <= number < self._space.n:
            raise SpaceError(f"{item!r} is no action of {self._space}", path=self.key)
        return number
