"""How many envs a server admits: reserved before they are built, returned on every way out."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Final

__all__ = ["Capacity", "CapacityReached"]

_PATIENCE_S: Final = 1.0


class CapacityReached(Exception):
    """Raised when there is no room.

    Attributes:
        active: envs that exist or are being built.
        maximum: envs that are admitted.
    """

    def __init__(self, active: int, maximum: int) -> None:
        super().__init__(active, maximum)
        self.active = active
        self.maximum = maximum

    def __str__(self) -> str:
        # The sentence that OpenEnv's servers send (openenv/core/env_server/exceptions.py, SessionCapacityError).
        used = f"{self.active}/{self.maximum}"
        return f"Server at capacity: {used} sessions active. Cannot accept new connections."


class Capacity:
    """Counts envs.

    Guarantees: `reserve` and `release` are atomic and may be called from any thread; the rest belongs to one event
    loop, and so does `release` while somebody waits in `reserve_soon`.

    Args:
        maximum: envs that are admitted.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._active = 0
        self._leaving = 0
        self._freed = asyncio.Event()
        self._lock = threading.Lock()

    @property
    def active(self) -> int:
        """Envs that exist or are being built."""
        return self._active

    def reserve(self, count: int) -> None:
        """Take room for ``count`` envs, all or none.

        Raises:
            CapacityReached: if there is less.
        """
        with self._lock:
            if self._active + count > self.maximum:
                raise CapacityReached(self._active, self.maximum)
            self._active += count

    async def reserve_soon(self, count: int) -> None:
        """Take room, and wait a little for what is just being given back.

        A client that closes one session and at once opens the next, as a training script does between two runs, must
        not find the server full of its own old envs.

        Raises:
            CapacityReached: if there is less.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + _PATIENCE_S
        while True:
            try:
                return self.reserve(count)
            except CapacityReached:
                if not self._leaving or loop.time() >= end:
                    raise
            self._freed.clear()
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._freed.wait(), max(end - loop.time(), 0))

    def leave(self, count: int) -> None:
        """Say that room is about to be given back."""
        self._leaving += count

    def release(self, count: int) -> None:
        """Give room back."""
        with self._lock:
            self._active -= count
            self._leaving = max(self._leaving - count, 0)
        self._freed.set()
