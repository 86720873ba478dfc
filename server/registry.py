"""All sessions of a server: opens them, keeps the disconnected for a while, reaps the idle, closes all at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from openenv_gym.errors import FactoryError, OpenEnvGymError
from openenv_gym.server.adapters import EnvSource
from openenv_gym.server.capacity import Capacity
from openenv_gym.server.counts import Counts
from openenv_gym.server.disclosure import disclosed
from openenv_gym.server.encoding import Encoding
from openenv_gym.server.executor import Executor
from openenv_gym.server.hosting import limited
from openenv_gym.server.probe import Probe, probe
from openenv_gym.server.session import Session
from openenv_gym.server.settings import ServerSettings
from openenv_gym.server.siblings import Alone, Company
from openenv_gym.server.slots import Slots
from openenv_gym.server.vector_encoding import VectorEncoding
from openenv_gym.server.vector_slots import VectorSlots, check_vector

__all__ = ["GoingAway", "Registry"]

logger = logging.getLogger(__name__)


class GoingAway(OpenEnvGymError):
    """Raised when a session is wanted of a server that is shutting down."""

    def __str__(self) -> str:
        return "the server is shutting down"


class Registry:
    """The sessions of one server.

    Guarantees: everything here belongs to the event loop's thread. A slot that was reserved is released on every way
    out, and each env is closed once.

    Args:
        source: where envs come from.
        settings: the server's settings, before `limited` by what the env's class says about itself.

    Attributes:
        source: where envs come from.
        settings: the server's settings.
        probe: what one env showed.
        capacity: how many envs there are in this process.
        company: the processes of this server.
        sessions: the open sessions by name.
        draining: whether no more sessions are opened.
        watched_until: while ``time.perf_counter`` is below, somebody looks at the page, and step requests are timed.
        answers: what this process answers to the server's processes, itself among them, by the question's name.
        counts: what happened outside of open sessions; `total` has all.

    Raises:
        FactoryError: if an env can't be built.
        SpaceError: if its spaces can't be described.
        OptionError: for more envs, or more threads, than its class can have.
    """

    def __init__(self, source: EnvSource, settings: ServerSettings) -> None:
        self.source = source
        self.probe: Probe = probe(source, calibrate=settings.max_workers is None and settings.max_step_s is None)
        self.settings = settings = limited(self.probe.kind, settings)
        self.capacity = Capacity(settings.max_envs)
        self.answers: dict[str, Callable[..., Awaitable[Any]]] = {"snapshot": self._snapshot}
        self.company: Company = Alone(self.capacity, self.answers)
        self.sessions: dict[str, Session] = {}
        self.draining = False
        self.watched_until = 0.0
        self.counts = Counts()
        self._stopping = asyncio.Event()
        # An env that takes too long can only be given up together with its thread.
        apart = self.probe.waits or settings.max_step_s is not None
        self._executor = Executor(max_workers=settings.max_workers, apart=apart)
        self._leaving: set[Session] = set()
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None

    @property
    def workers(self) -> int:
        """Threads that run envs."""
        return self._executor.workers

    @property
    def queued(self) -> int:
        """Jobs that wait for their thread."""
        return self._executor.queued

    @property
    def running(self) -> int:
        """Requests that run now."""
        return sum(session.busy for session in self.sessions.values())

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the server shuts down."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def total(self) -> Counts:
        """What happened since the start, in all sessions."""
        total = Counts()
        for counts in (self.counts, *(s.counts for s in (*self.sessions.values(), *self._leaving))):
            total.add(counts)
        return total

    async def ask_all(self, what: str) -> list[Any]:
        """What each of the server's processes answers to a question (see `answers`), if it does; this one always."""
        try:
            return await self.company.ask_all(what) or [await self.answers[what]()]
        except ConnectionError:  # the supervisor is gone, and soon this process will be
            return [await self.answers[what]()]

    async def _snapshot(self) -> dict[str, Any]:
        """This process in numbers, as plain data."""
        return {
            "pid": os.getpid(),
            "draining": self.draining,
            "active_envs": self.capacity.active,
            "sessions": len(self.sessions),
            "connected": sum(session.connected for session in self.sessions.values()),
            "threads": self.workers,
            "running": self.running,
            "queued": self.queued,
            "counts": msgspec.to_builtins(self.total()),
        }

    def start(self) -> None:
        """Start reaping idle sessions, inside the server's event loop."""
        if self.settings.idle_timeout_s is not None:
            self._reaper = asyncio.create_task(self._reap(self.settings.idle_timeout_s))

    async def stop(self) -> None:
        """Close all sessions; envs that don't end within ``shutdown_s`` are left behind. Stopping twice is fine."""
        self.draining = True
        self._stopping.set()
        if self._reaper is not None:
            self._reaper.cancel()
        for session in list(self.sessions.values()):
            self._dismiss(session, 1012, "the server is shutting down")
        if self._endings:  # those too that began before
            _, stuck = await asyncio.wait(self._endings, timeout=self.settings.shutdown_s)
            for ending in stuck:
                ending.cancel()
            if stuck:
                what = {"sessions": len(stuck), "limit_s": self.settings.shutdown_s}
                logger.warning("sessions did not end in time", extra=what)
                await asyncio.wait(stuck, timeout=1)  # they still tell their clients
        self._executor.stop()

    async def open(
        self,
        count: int,
        encoding: Encoding,
        *,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
        autoreset_mode: str | None = None,
        varied: bool = False,
    ) -> Session:
        """Open a session with its envs built.

        Args:
            count: the number of envs.
            encoding: how observations, infos and actions travel.
            render_mode: the envs' render mode.
            max_episode_steps: truncate episodes at this length.
            autoreset_mode: the ``AutoresetMode`` that the client expects of a vector env.
            varied: let the bounds of the envs' observation spaces differ.

        Raises:
            OptionError: for what a vector env can't do.
            GoingAway: if the server is shutting down.
            CapacityReached: if there is no room, before anything is built or allocated.
            FactoryError: if an env can't be built.
            SpaceError: if an env has other spaces than the server's.
        """
        spaces, debug = (self.probe.observation_space, self.probe.action_space), self.settings.debug
        if self.probe.vector:
            check_vector(self.source.name, self.probe.fixed_size, count, max_episode_steps, autoreset_mode)
        await self._reserve(count)
        try:
            self._check_open()
            slots: Slots
            if isinstance(encoding, VectorEncoding):
                slots = VectorSlots(
                    self.source,
                    count,
                    spaces,
                    encoding,
                    autoreset_mode=autoreset_mode,
                    render_mode=render_mode,
                    debug=debug,
                )
            else:
                slots = Slots(
                    self.source,
                    count,
                    spaces,
                    encoding,
                    render_mode=render_mode,
                    max_episode_steps=max_episode_steps,
                    varied=varied,
                    debug=debug,
                )
            session = Session(slots, self._executor, self.settings)
        except BaseException:
            await self._release(count)
            raise
        session.name = self.company.named(session.name)
        self.sessions[session.name] = session
        try:
            await self._build(session)
        except BaseException:
            await asyncio.shield(self._dismiss(session, 1011, "the session could not be opened"))
            raise
        logger.info("a session was opened", extra={"session": session.name, "envs": count, "render": render_mode})
        return session

    async def _reserve(self, count: int) -> None:
        self._check_open()
        try:
            await self.company.reserve(count)
        except ConnectionError:  # the supervisor is gone, and soon this process will be
            raise GoingAway from None

    def _check_open(self) -> None:
        if self.draining:
            raise GoingAway

    async def _release(self, count: int) -> None:
        self.company.leave(count)
        await self.company.release(count)

    async def _build(self, session: Session) -> None:
        try:
            await session.build()
        except FactoryError as error:
            error.reason = disclosed(error.reason, debug=self.settings.debug)
            raise
        if session.closed:  # by `stop`, meanwhile
            raise GoingAway

    async def end(self, session: Session) -> None:
        """Close a session and give its room back; closing twice is fine.

        It goes on if its caller is cancelled, as uvicorn does it a second after it was told to shut down; `stop` waits.
        """
        await asyncio.shield(self._background(self._end(session)))

    async def _end(self, session: Session) -> None:
        self._cancel_grace(session)
        found = self.sessions.pop(session.name, None)
        if found is not None:
            self._leaving.add(session)
            self.company.leave(session.slots.count)
        try:
            await session.close()
        finally:
            if found is not None:
                self._leaving.discard(session)
                self.counts.add(session.counts)
                await self.company.release(session.slots.count)
                open_s = round(time.monotonic() - session.opened, 3)
                what = {"session": session.name, "steps": session.counts.steps, "open_s": open_s}
                logger.info("a session was closed", extra=what)

    def find(self, name: str, secret: str) -> Session | None:
        """The session to resume, if it is still there and the secret is right."""
        session = self.sessions.get(name)
        if session is None or not secrets.compare_digest(session.secret.encode(), secret.encode()):
            return None
        return session

    def connected(self, session: Session) -> None:
        """Note that a session has a connection again."""
        self._cancel_grace(session)
        session.counts.resumed += 1
        logger.info("a session was resumed", extra={"session": session.name})

    def disconnected(self, session: Session) -> None:
        """Keep a session for its grace time."""
        if session.name in self.sessions:
            self._cancel_grace(session)
            session.counts.disconnected += 1
            grace_s = self.settings.grace_s
            logger.info("a connection was lost", extra={"session": session.name, "grace_s": grace_s})
            self._graces[session.name] = asyncio.get_running_loop().call_later(grace_s, self._lose, session)

    def _lose(self, session: Session) -> None:
        session.counts.lost += 1
        self._dismiss(session, 1001, "the grace time is over")

    def _cancel_grace(self, session: Session) -> None:
        grace = self._graces.pop(session.name, None)
        if grace is not None:
            grace.cancel()

    def _dismiss(self, session: Session, code: int, reason: str) -> asyncio.Task[None]:
        """Close a session, and then its connection: a late request gets ``SESSION_EXPIRED``, and no closed env."""

        async def dismiss() -> None:
            try:
                await self._end(session)
            finally:
                await session.disconnect(code, reason)

        return self._background(dismiss())

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin to end a session; `stop` waits for it."""
        ending = asyncio.create_task(work)
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return ending

    async def _reap(self, limit_s: float) -> None:
        while True:
            await asyncio.sleep(min(limit_s / 4, 10.0))
            for session in self._idle(limit_s):
                logger.info("a session is idle and will be closed", extra={"session": session.name, "idle_s": limit_s})
                self._dismiss(session, 4408, "idle for too long")

    def _idle(self, limit_s: float) -> Sequence[Session]:
        latest = time.monotonic() - limit_s
        return [s for s in self.sessions.values() if not s.busy and s.last_active < latest]
