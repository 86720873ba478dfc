"""All sessions of a server: opens them, keeps the disconnected for their grace time, reaps the idle, closes all at shutdown."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence

from openenv_gym.server.adapters import EnvSource
from openenv_gym.server.capacity import Capacity
from openenv_gym.server.encoding import Encoding
from openenv_gym.server.executor import Executor
from openenv_gym.server.probe import Probe, probe
from openenv_gym.server.session import Session
from openenv_gym.server.settings import ServerSettings
from openenv_gym.server.slots import Slots

__all__ = ["Registry"]

logger = logging.getLogger(__name__)


class Registry:
    """The sessions of one server.

    Guarantees: everything here belongs to the event loop's thread. A slot that was reserved is released on every way
    out, and each env is closed once.

    Args:
        source: where envs come from.
        settings: the server's settings.

    Attributes:
        source: where envs come from.
        settings: the server's settings.
        probe: what one env showed.
        capacity: how many envs there are.
        sessions: the open sessions by name.
        draining: whether no more sessions are opened.

    Raises:
        FactoryError: if an env can't be built.
        SpaceError: if its spaces can't be described.
    """

    def __init__(self, source: EnvSource, settings: ServerSettings) -> None:
        self.source = source
        self.settings = settings
        self.probe: Probe = probe(source, calibrate=settings.max_workers is None and settings.max_step_s is None)
        self.capacity = Capacity(settings.max_envs)
        self.sessions: dict[str, Session] = {}
        self.draining = False
        # A limit on one env's step can only be kept where that env has a thread of its own.
        self._executor = Executor(
            max_workers=settings.max_workers, apart=self.probe.waits or settings.max_step_s is not None
        )
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None

    @property
    def workers(self) -> int:
        """Threads that run envs."""
        return self._executor.workers

    def start(self) -> None:
        """Start reaping idle sessions, inside the server's event loop."""
        if self.settings.idle_timeout_s is not None:
            self._reaper = asyncio.create_task(self._reap(self.settings.idle_timeout_s))

    async def stop(self) -> None:
        """Close all sessions; envs that don't end within ``shutdown_s`` are left behind."""
        self.draining = True
        if self._reaper is not None:
            self._reaper.cancel()
        ending = [asyncio.create_task(self.end(session)) for session in list(self.sessions.values())]
        if ending:
            _, stuck = await asyncio.wait(ending, timeout=self.settings.shutdown_s)
            if stuck:
                logger.warning("%d session(s) did not end within %g s", len(stuck), self.settings.shutdown_s)
        self._executor.stop()

    async def open(
        self,
        count: int,
        encoding: Encoding,
        *,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
    ) -> Session:
        """Open a session with its envs built.

        Args:
            count: the number of envs.
            encoding: how observations, infos and actions travel.
            render_mode: the envs' render mode.
            max_episode_steps: truncate episodes at this length.

        Raises:
            CapacityReached: if there is no room, before anything is built.
            FactoryError: if an env can't be built.
        """
        slots = Slots(
            self.source,
            count,
            (self.probe.observation_space, self.probe.action_space),
            encoding,
            render_mode=render_mode,
            max_episode_steps=max_episode_steps,
            debug=self.settings.debug,
        )
        self.capacity.reserve(count)
        session = Session(slots, self._executor.place(count), self.settings)
        self.sessions[session.name] = session
        try:
            await session.build()
        except BaseException:
            await asyncio.shield(self.end(session))
            raise
        return session

    async def end(self, session: Session) -> None:
        """Close a session and give its room back; closing twice is fine."""
        self._cancel_grace(session)
        if self.sessions.pop(session.name, None) is None:
            return
        try:
            await session.close()
        finally:
            self.capacity.release(session.slots.count)
            for worker in session.workers:
                self._executor.leave(worker)

    def find(self, name: str, secret: str) -> Session | None:
        """The session to resume, if it is still there and the secret is right."""
        session = self.sessions.get(name)
        if session is None or not secrets.compare_digest(session.secret.encode(), secret.encode()):
            return None
        self._cancel_grace(session)
        return session

    def disconnected(self, session: Session) -> None:
        """Keep a session for its grace time."""
        if session.name in self.sessions:
            self._cancel_grace(session)
            loop = asyncio.get_running_loop()
            self._graces[session.name] = loop.call_later(self.settings.grace_s, self._end_soon, session)

    def _end_soon(self, session: Session) -> None:
        task = asyncio.create_task(self.end(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel_grace(self, session: Session) -> None:
        grace = self._graces.pop(session.name, None)
        if grace is not None:
            grace.cancel()

    async def _reap(self, limit_s: float) -> None:
        while True:
            await asyncio.sleep(min(limit_s / 4, 10.0))
            for session in self._idle(limit_s):
                logger.info("session %s was idle for %g s and is closed", session.name, limit_s)
                await session.disconnect(4408, "idle for too long")
                await self.end(session)

    def _idle(self, limit_s: float) -> Sequence[Session]:
        latest = time.monotonic() - limit_s
        return [s for s in self.sessions.values() if not s.busy and s.last_active < latest]
