"""Runs an env's coroutines on the env's own thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Any

__all__ = ["Coroutines"]

logger = logging.getLogger(__name__)


class Coroutines:
    """An event loop of one env, kept from its first coroutine until it is closed.

    Kept, and not one for each call as with ``asyncio.run``, because what an async env holds between two calls (an HTTP
    session, a subprocess, a lock) belongs to the loop that it was made in. Tasks that the env leaves behind go on while
    its next coroutine runs.

    Guarantees: used from one thread at a time, which runs no other event loop.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._holding: tuple[asyncio.Task[None], asyncio.Event] | None = None

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Wait for an awaitable, and return its result or raise its error."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_awaited(awaitable))

    def hold(self, context: AbstractAsyncContextManager[Any]) -> None:
        """Enter a context, which `let_go` leaves. One task does both, because some contexts demand that.

        Raises:
            Exception: what entering it raises.
        """

        async def begin() -> None:
            entered, leave = asyncio.get_running_loop().create_future(), asyncio.Event()

            async def stay() -> None:
                try:
                    async with context:
                        entered.set_result(None)
                        await leave.wait()
                except Exception as error:
                    if entered.done():
                        raise
                    entered.set_exception(error)

            self._holding = asyncio.create_task(stay()), leave
            await entered

        self.run(begin())

    def let_go(self) -> None:
        """Leave the context that is held, if there is one; what that raises is logged."""
        holding, self._holding = self._holding, None
        if holding is None:
            return
        task, leave = holding
        leave.set()
        try:
            self.run(task)
        except Exception:
            logger.exception("leaving an env's context failed")

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
