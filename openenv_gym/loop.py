"""The client's private event-loop thread, which owns every socket of this process from first byte to last.

A loop of our own, on a thread of its own, is what lets pings be answered while the learner computes, and what makes
synchronous calls work in scripts, under ``asyncio.run`` and in a notebook's running loop alike. No global policy is
changed and no running loop is patched.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["LoopThread", "client_loop", "settle"]

_T = TypeVar("_T")


class LoopThread:
    """An event loop that runs on a daemon thread until the process ends.

    Attributes:
        loop: the loop; use it from other threads through `call_soon` and `run` only.
        pid: the process that it lives in: a forked child has no such thread.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = _new_loop()
        self._running: set[asyncio.Task[Any]] = set()
        threading.Thread(target=self.loop.run_forever, name="openenv-gym-client", daemon=True).start()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback on the loop, from any thread."""
        self.loop.call_soon_threadsafe(callback, *args)

    def spawn(self, coroutine: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Start a coroutine on the loop, from any thread."""

        async def noted() -> _T:
            task = asyncio.current_task()
            assert task is not None
            self._running.add(task)
            try:
                return await coroutine
            finally:
                self._running.discard(task)

        return asyncio.run_coroutine_threadsafe(noted(), self.loop)

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run a coroutine on the loop and wait for it, from any other thread.

        The coroutine is cancelled when the wait ends early, also by an interrupt.

        Raises:
            TimeoutError: if it takes longer than ``timeout_s``.
        """
        future = self.spawn(coroutine)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done():  # the coroutine's own
                raise
            raise TimeoutError(f"not done within {timeout_s:g} second(s)") from None
        finally:
            if not future.done():
                future.cancel()

    def settle(self, timeout_s: float) -> None:
        """Wait within the limit until all that was started has ended, also what was cancelled and is clearing up."""

        async def end() -> None:
            rest = self._running - {asyncio.current_task()}
            if rest:
                await asyncio.wait(rest, timeout=timeout_s)

        with contextlib.suppress(TimeoutError):  # a loop that is stuck
            self.run(end(), timeout_s + 1.0)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_lock = threading.Lock()


_loops: dict[int, LoopThread] = {}


def client_loop() -> LoopThread:
    """This process's loop thread, started at the first call and anew after a fork."""
    with _lock:
        pid = os.getpid()
        if pid not in _loops:
            _loops.clear()
            _loops[pid] = LoopThread()
        return _loops[pid]


def settle(timeout_s: float) -> None:
    """See `LoopThread.settle`, of this process's loop thread if there is one."""
    loop = _loops.get(os.getpid())
    if loop is not None:
        loop.settle(timeout_s)
