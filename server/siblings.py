"""What a server process knows of the others behind the same address: one capacity, and who has which session.

A server is `Alone`, or has `Siblings` under one `openenv_gym.server.supervisor.Supervisor`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from openenv_gym.server.capacity import Capacity, CapacityReached
from openenv_gym.server.intercom import Intercom

__all__ = ["Alone", "Company", "Siblings"]


class Company(Protocol):
    """The processes of one server, as one of them sees them.

    Attributes:
        processes: how many there are.
        process: which of them this one is, from 0.
    """

    processes: int
    process: int

    def named(self, session: str) -> str:
        """A session's name, from which each process knows whose it is."""

    async def reserve(self, count: int) -> None:
        """Take room for ``count`` envs, all or none. Raises `CapacityReached` if there is less."""

    def leave(self, count: int) -> None:
        """Say that room is about to be given back; see `release`."""

    async def release(self, count: int) -> None:
        """Give room back that `leave` has announced."""

    async def expect(self, owner: int | str) -> int | None:
        """Have the next connection go to another process: one of a number, or the one that has a session of this name.

        Returns:
            the other process; None if this one is as good as any: it is the one, or there is none such any more.
        """

    async def ask_all(self, what: str) -> list[Any]:
        """What each process answers to a question, in the order of their numbers; without those that don't.

        Raises:
            ConnectionError: if the supervisor is gone.
        """

    async def ask_owner(self, session: str, what: str, *arguments: Any) -> Any:
        """What the process that has a session of this name answers; None if there is none such, or it doesn't.

        Args:
            session: the session's name, the question's first argument.
            what: the question.
            *arguments: the others.

        Raises:
            ConnectionError: if the supervisor is gone.
        """


class Alone:
    """A server of one process; see `Company`.

    Args:
        capacity: counts its envs.
        answers: what it answers to questions.
    """

    processes = 1
    process = 0

    def __init__(self, capacity: Capacity, answers: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        self._capacity = capacity
        self._answers = answers

    def named(self, session: str) -> str:
        """See `Company.named`."""
        return session

    async def reserve(self, count: int) -> None:
        """See `Company.reserve`."""
        await self._capacity.reserve_soon(count)

    def leave(self, count: int) -> None:
        """See `Company.leave`."""
        self._capacity.leave(count)

    async def release(self, count: int) -> None:
        """See `Company.release`."""
        self._capacity.release(count)

    async def expect(self, owner: int | str) -> int | None:
        """See `Company.expect`."""
        return None

    async def ask_all(self, what: str) -> list[Any]:
        """See `Company.ask_all`."""
        return [await self._answers[what]()]

    async def ask_owner(self, session: str, what: str, *arguments: Any) -> Any:
        """See `Company.ask_owner`."""
        return await self._answers[what](session, *arguments)


class Siblings:
    """One process of several; see `Company`.

    Args:
        intercom: asks the supervisor.
        capacity: counts the envs of this process.
        process: which process this is, from 0.
        processes: how many there are.
        life: how many had this number before; a process that was started again has none of the old sessions.
    """

    def __init__(self, intercom: Intercom, capacity: Capacity, process: int, processes: int, life: int) -> None:
        self.process = process
        self.processes = processes
        self._intercom = intercom
        self._capacity = capacity
        self._life = life

    def named(self, session: str) -> str:
        """See `Company.named`."""
        return f"{self.process}.{self._life}.{session}"

    async def reserve(self, count: int) -> None:
        """See `Company.reserve`."""
        asking = asyncio.ensure_future(self._intercom.ask("reserve", count))
        try:
            full = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda done: self._give_up(done, count))
            raise
        if full is not None:
            raise CapacityReached(*full)
        self._capacity.reserve(count)

    def leave(self, count: int) -> None:
        """See `Company.leave`."""
        with contextlib.suppress(ConnectionError):  # then nobody counts any more
            self._intercom.tell("leave", count)

    async def release(self, count: int) -> None:
        """See `Company.release`. Once it returns, all processes know."""
        self._capacity.release(count)
        with contextlib.suppress(ConnectionError):
            await self._intercom.ask("release", count)

    async def expect(self, owner: int | str) -> int | None:
        """See `Company.expect`."""
        if isinstance(owner, int):
            process, life = owner % self.processes, None
        else:
            process, life = _owner_of(owner)
        if process == self.process:
            return None
        return process if await self._intercom.ask("expect", process, life) else None

    async def ask_all(self, what: str) -> list[Any]:
        """See `Company.ask_all`."""
        answers: list[Any] = await self._intercom.ask("ask_all", what)
        return answers

    async def ask_owner(self, session: str, what: str, *arguments: Any) -> Any:
        """See `Company.ask_owner`."""
        return await self._intercom.ask("ask_one", *_owner_of(session), what, session, *arguments)

    def _give_up(self, asking: asyncio.Future[Any], count: int) -> None:
        """Give back what was granted to somebody who is gone."""
        if not asking.cancelled() and asking.exception() is None and asking.result() is None:
            with contextlib.suppress(ConnectionError):
                self._intercom.tell("release", count)


def _owner_of(session: str) -> tuple[int, int]:
    """The process and its life in a session's name; what no process can have for a name of another kind."""
    process, _, rest = session.partition(".")
    life = rest.partition(".")[0]
    return (int(process), int(life)) if process.isdecimal() and life.isdecimal() else (-1, -1)
