"""Runs an env's coroutines on the env's own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

__all__ = ["Coroutines"]


class Coroutines:
    """An event loop of one env, kept from its first coroutine until it is closed.

    Kept, and not one for each call as with ``asyncio.run``, because what an async env holds between two calls (an HTTP
    session, a subprocess, a lock) belongs to the loop that it was made in. Tasks that the env leaves behind go on while
    its next coroutine runs.

    Guarantees: used from one thread at a time, which runs no other event loop.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Wait for an awaitable, and return its result or raise its error."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_awaited(awaitable))

    def close(self) -> None:
        """Cancel the tasks that are left, and close the loop; closing twice is fine."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
