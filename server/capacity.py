"""How many envs a server admits: reserved before they are built, returned on every way out."""

from __future__ import annotations

import threading

__all__ = ["Capacity", "CapacityReached"]


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

    Guarantees: `reserve` and `release` are atomic and may be called from any thread.

    Args:
        maximum: envs that are admitted.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._active = 0
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

    def release(self, count: int) -> None:
        """Give room back."""
        with self._lock:
            self._active -= count
