"""What a server's processes ask each other, as lines of JSON: each end of a pair of pipes has an `Intercom`."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

__all__ = ["Intercom"]

logger = logging.getLogger(__name__)


class Intercom:
    """Asks the other end, and answers it.

    Guarantees: everything here belongs to the event loop's thread. Questions are taken up in the order in which they
    were asked.

    Args:
        write: sends a line to the other end.
        answers: the function that answers each kind of question; its arguments and its result are plain data.
    """

    def __init__(self, write: Callable[[bytes], Any], answers: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        self._write = write
        self._answers = answers
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def ask(self, what: str, *arguments: Any) -> Any:
        """Ask, and wait for the answer. The question is on its way before this first waits.

        Raises:
            ConnectionError: if the other end is gone.
        """
        id = next(self._ids)
        self._waiting[id] = asyncio.get_running_loop().create_future()
        try:
            self._send({"id": id, "ask": what, "arguments": arguments})
            return await self._waiting[id]
        finally:
            self._waiting.pop(id, None)

    def tell(self, what: str, *arguments: Any) -> None:
        """Say something that needs no answer.

        Raises:
            ConnectionError: if the other end is gone.
        """
        self._send({"id": None, "ask": what, "arguments": arguments})

    def take(self, line: bytes) -> None:
        """Take a line from the other end."""
        message = json.loads(line)
        if "ask" in message:
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif message["id"] in self._waiting and not self._waiting[message["id"]].done():
            self._waiting[message["id"]].set_result(message["answer"])

    def hang_up(self) -> None:
        """Tell those who wait that the other end is gone."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the server's other process is gone"))
        for task in self._answering:
            task.cancel()

    async def _answer(self, message: dict[str, Any]) -> None:
        answer = await self._answers[message["ask"]](*message["arguments"])
        if message["id"] is not None:
            self._send({"id": message["id"], "answer": answer})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._write(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise ConnectionError(f"the server's other process is gone: {error}") from error
