"""Several server processes behind one address: accepts connections, and hands each over to one of the processes.

A connection travels as its file descriptor, before a byte of it is read, so TLS needs nothing special and nothing
stands between a client and its process afterwards. The processes are taken in turn. Where that is not the one that has
a session, or that a client chose to spread its envs evenly, the process says so here (``expect``), and its client dials
once more.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from openenv_gym.errors import FactoryError, OptionError
from openenv_gym.interpreter import command
from openenv_gym.server.capacity import Capacity, CapacityReached
from openenv_gym.server.intercom import Intercom
from openenv_gym.server.run import SPARE_S
from openenv_gym.server.settings import ServerSettings

__all__ = ["Supervisor"]

_RESTART_S: Final = 10.0
"""How long a client may wait for a process that is just being started again, before another one serves it."""

_EXPECTED_S: Final = 1.0
_ALL_ANSWER_S: Final = 1.0
_ONE_ANSWERS_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 30.0

logger = logging.getLogger(__name__)


class _Member:
    """One of the processes, and those that had its number before.

    Attributes:
        number: which it is, from 0.
        life: how many had this number before; -1 before the first.
        ready: set while it serves.
        envs: envs that it has, or builds.
        leaving: those of them that it is about to give back.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.life = -1
        self.ready = asyncio.Event()
        self.envs = 0
        self.leaving = 0
        self.process: asyncio.subprocess.Process | None = None
        self.intercom: Intercom | None = None
        self.handover: socket.socket | None = None


class Supervisor:
    """Runs processes (see `openenv_gym.server.process`), starts again those that die, and ends all of them.

    Args:
        configuration: what they serve (see `openenv_gym.server.parent.application`), as plain data.
        workers: how many.
        listener: a listening socket.
        settings: the application's settings; its ``max_envs`` is for all processes together.
        on_started: called once all serve.
        server: arguments for `openenv_gym.server.run.make_server` there, such as ``ssl_certfile``, as plain data.

    Raises:
        OptionError: where the system can't hand connections over.
    """

    def __init__(
        self,
        configuration: Mapping[str, Any],
        workers: int,
        listener: socket.socket,
        settings: ServerSettings,
        *,
        on_started: Callable[[], None] | None = None,
        server: Mapping[str, Any] | None = None,
    ) -> None:
        if not hasattr(socket, "send_fds"):
            raise OptionError(f"several workers need a Unix system, and this is {sys.platform}: leave out `workers`")
        self._configuration = {**configuration, "server": dict(server or {})}
        self._workers = workers
        self._listener = listener
        self._shutdown_s = settings.shutdown_s
        self._on_started = on_started
        self._capacity = Capacity(settings.max_envs)
        self._members: list[_Member] = []
        self._turn = 0
        self._expected: collections.deque[tuple[float, int]] = collections.deque()
        self._serving = asyncio.Event()  # while there is a process to hand connections to
        self._ending = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False

    def run(self) -> None:
        """Serve until `end` is called.

        Raises:
            FactoryError: if a process ends before it has ever served.
        """
        asyncio.run(self._run())

    def end(self) -> None:
        """End all processes, each in order. May be called from any thread, and from a signal's handler."""
        self._ended = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._ending.set)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._ended:  # before there was a loop
            self._ending.set()
        self._members = [_Member(number) for number in range(self._workers)]
        keeping = [asyncio.create_task(self._keep(member)) for member in self._members]
        accepting = asyncio.create_task(self._serve())
        ending = asyncio.create_task(self._ending.wait())
        done, _ = await asyncio.wait([*keeping, accepting, ending], return_when=asyncio.FIRST_COMPLETED)
        self._ending.set()
        accepting.cancel()
        self._listener.close()
        await asyncio.wait([*keeping, *(asyncio.create_task(self._stop(member)) for member in self._members)])
        ending.cancel()
        for task in done - {ending}:
            task.result()  # what went wrong

    # ------------------------------------------------------------------------------------------- connections

    async def _serve(self) -> None:
        for member in self._members:
            await member.ready.wait()
        if self._on_started is not None:
            self._on_started()
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # too many open files, or a client that is gone already
                logger.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            with connection:  # a process that takes it has a descriptor of its own
                await self._hand_over(connection)

    async def _hand_over(self, connection: socket.socket) -> None:
        """Hand a connection to the process that expects one, else to the next in turn that serves and keeps up."""
        await self._serving.wait()
        first = self._next()
        for member in (*self._members[first:], *self._members[:first]):
            if member.ready.is_set() and member.handover is not None:
                with contextlib.suppress(OSError):
                    socket.send_fds(member.handover, [b"."], [connection.fileno()])
                    return
        logger.warning("a connection was refused: no process keeps up")

    def _next(self) -> int:
        now = asyncio.get_running_loop().time()
        while self._expected:
            until, number = self._expected.popleft()
            if until > now:
                return number
        self._turn = (self._turn + 1) % len(self._members)
        return self._turn

    # --------------------------------------------------------------------------------------------- processes

    async def _keep(self, member: _Member) -> None:
        """Run a member's process, and a new one whenever it ends."""
        loop = asyncio.get_running_loop()
        pause_s = 0.0
        while not self._ending.is_set():
            began = loop.time()
            served, code = await self._live(member)
            if self._ending.is_set():
                return
            if member.life == 0 and not served:
                raise FactoryError(str(self._configuration["env"]), f"a server process ended with exit code {code}")
            logger.warning("server process %d ended with exit code %d, and is started again", member.number, code)
            pause_s = 0.0 if loop.time() - began > _LONGEST_PAUSE_S else min(2 * pause_s + 0.1, _LONGEST_PAUSE_S)
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause_s)

    async def _live(self, member: _Member) -> tuple[bool, int]:
        """Run one process to its end; give whether it ever served, and its exit code."""
        member.handover, theirs = socket.socketpair()
        member.handover.setblocking(False)
        with theirs, member.handover:
            process = await asyncio.create_subprocess_exec(
                *command("openenv_gym.server.process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                limit=2**24,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            member.life += 1
            member.process = process
            about = {
                "process": member.number,
                "processes": self._workers,
                "life": member.life,
                "handover": theirs.fileno(),
            }
            process.stdin.write(json.dumps({**self._configuration, "member": about}).encode() + b"\n")
            theirs.close()
            member.intercom = Intercom(process.stdin.write, self._answers(member))
            if self._ending.is_set():
                process.kill()
            async for line in process.stdout:
                member.intercom.take(line)
            served = member.ready.is_set()
            member.ready.clear()
            if not any(other.ready.is_set() for other in self._members):
                self._serving.clear()
            member.intercom.hang_up()
            self._capacity.leave(member.envs - member.leaving)
            self._capacity.release(member.envs)
            member.envs = member.leaving = 0
            return served, await process.wait()

    async def _stop(self, member: _Member) -> None:
        """End a member's process, by force where it doesn't in time."""
        process = member.process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()  # it ends with its standard input, once it serves
        try:
            limit_s = self._shutdown_s + SPARE_S if member.ready.is_set() else 0.0
            await asyncio.wait_for(process.wait(), limit_s)
        except (TimeoutError, asyncio.TimeoutError):
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    # ------------------------------------------------------------------------------- what the processes ask for

    def _answers(self, member: _Member) -> dict[str, Callable[..., Awaitable[Any]]]:
        async def started() -> None:
            member.ready.set()
            self._serving.set()

        async def reserve(count: int) -> tuple[int, int] | None:
            try:
                await self._capacity.reserve_soon(count)
            except CapacityReached as full:
                return full.active, full.maximum
            member.envs += count
            return None

        async def leave(count: int) -> None:
            member.leaving += count
            self._capacity.leave(count)

        async def release(count: int) -> None:
            member.envs -= count
            member.leaving = max(member.leaving - count, 0)
            self._capacity.release(count)

        return {
            "started": started,
            "reserve": reserve,
            "leave": leave,
            "release": release,
            "expect": self._expect,
            "ask_all": self._ask_all,
            "ask_one": self._ask_one,
        }

    async def _expect(self, number: int, life: int | None) -> bool:
        """Let the next connection go to a process, in a certain life of its; False if it isn't there."""
        if not 0 <= number < len(self._members):
            return False
        member = self._members[number]
        if life is None:
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(member.ready.wait(), _RESTART_S)
        if not member.ready.is_set() or life not in {None, member.life}:
            return False
        self._expected.append((asyncio.get_running_loop().time() + _EXPECTED_S, number))
        return True

    async def _ask_all(self, what: str) -> list[Any]:
        """What each process answers to a question, in the order of their numbers; those that don't are left out."""
        asking = [
            asyncio.create_task(asyncio.wait_for(member.intercom.ask(what), _ALL_ANSWER_S))
            for member in self._members
            if member.ready.is_set() and member.intercom is not None
        ]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _ask_one(self, number: int, life: int, what: str, *arguments: Any) -> Any:
        """What a process, in a certain life of its, answers to a question; None if it isn't there, or doesn't."""
        member = self._members[number] if 0 <= number < len(self._members) else None
        if member is None or member.life != life or member.intercom is None or not member.ready.is_set():
            return None
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.TimeoutError):
            return await asyncio.wait_for(member.intercom.ask(what, *arguments), _ONE_ANSWERS_S)
        return None
