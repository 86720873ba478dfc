"""Options that autoresets pass too, kept on this side for the episodes that a new session begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openenv_gym.messages import Reset

__all__ = ["StickyOptions"]


class StickyOptions:
    """The options that each env was last reset with, as far as they are sticky.

    A session keeps them itself, for its autoresets. What begins episodes in another session, after the last one was
    lost or left, is told here what to send.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}

    def keep(self, request: Reset, envs: Sequence[int]) -> None:
        """Remember what some envs are reset with, in the request's order."""
        if request.sticky:
            self._kept.update(zip(envs, request.options or [None] * len(envs), strict=True))

    def beginning(self, envs: Sequence[int], slots: list[int] | None = None) -> Reset:
        """The reset that begins the next episodes of some envs, as an autoreset would.

        Args:
            envs: the envs, by the numbers that `keep` knows them by.
            slots: their slots in the session; None for all.
        """
        if not self._kept:
            return Reset(0, slots, None, None)
        return Reset(0, slots, None, [self._kept.get(env) for env in envs], sticky=True)
