"""Where a session's replies go: to one connection at a time, each frame once and in order. No WebSocket here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

__all__ = ["Connection", "Outlet"]

logger = logging.getLogger(__name__)


class Connection(Protocol):
    """What a session needs of its WebSocket."""

    async def send(self, frame: bytes) -> None:
        """Send a message; raises ConnectionError once the connection is gone."""

    async def close(self, code: int, reason: str) -> None:
        """Close the connection; never raises."""


class Outlet:
    """The connection that a session has, if it has one.

    Guarantees: everything here belongs to the event loop's thread. A connection that doesn't take what it is sent holds
    up nobody but its own sender: sending on a new one never waits for an old one.
    """

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._sending = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    async def attach(self, connection: Connection, frames: Sequence[bytes]) -> None:
        """Make a connection the session's only one, and send what its client misses before anything else.

        Args:
            connection: the new connection. An older one is closed: its client has given up on it.
            frames: what to send first.

        Raises:
            ConnectionError: if the new connection is gone.
        """
        old, self._connection = self._connection, connection
        self._sending = asyncio.Lock()
        if old is not None:
            task = asyncio.create_task(old.close(4409, "resumed on another connection"))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        async with self._sending:  # a fresh lock is taken without a pause, so no reply comes in between
            for frame in frames:
                await connection.send(frame)

    def detach(self, connection: Connection) -> bool:
        """Forget a connection that ended; False if it was no longer the session's."""
        if self._connection is not connection:
            return False
        self._connection = None
        return True

    async def deliver(self, frame: bytes) -> None:
        """Send a reply, if there is a connection; otherwise the client gets it when it resumes."""
        connection = self._connection
        if connection is not None:
            try:
                async with self._sending:
                    await connection.send(frame)
            except ConnectionError:
                logger.debug("a connection was lost before a reply")

    async def disconnect(self, code: int, reason: str) -> None:
        """Close the session's connection, if it has one."""
        if self._connection is not None:
            await self._connection.close(code, reason)
