"""A client's slots on their workers: requests in, replies out, one at a time. No WebSocket and no dialect here."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium as gym

from openenv_gym.codec import PackError, unpack
from openenv_gym.errors import OpenEnvGymError
from openenv_gym.messages import (
    Call,
    Close,
    Closed,
    Failed,
    Get,
    Render,
    Reply,
    Request,
    Reset,
    Returned,
    Set,
    State,
    Step,
    Stepped,
)
from openenv_gym.protocol import ServerProtocol
from openenv_gym.server.adapters import GymnasiumEnv
from openenv_gym.server.executor import Job, Worker, run_together
from openenv_gym.server.settings import ServerSettings
from openenv_gym.server.slots import Assignment, Slots

__all__ = ["Connection", "Session"]

logger = logging.getLogger(__name__)


class Connection(Protocol):
    """What a session needs of its WebSocket."""

    async def send(self, frame: bytes) -> None:
        """Send a binary message; raises ConnectionError once the connection is gone."""

    async def close(self, code: int, reason: str) -> None:
        """Close the connection; never raises."""


class Session:
    """One client's envs, on their workers.

    Guarantees: everything here belongs to the event loop's thread; envs are touched only by jobs on their workers.
    Requests run one at a time, in the order of their calls.

    Args:
        slots: the envs.
        workers: the worker of each slot.
        settings: the server's settings.

    Attributes:
        slots: the envs.
        workers: the worker of each slot.
        name: the session's public name.
        secret: what a resume must show.
        protocol: ids and kept replies.
        steps: env steps so far.
        last_active: when the last request ended, on the monotonic clock.
        closed: whether its envs were closed.
        client_limit: the largest frame in bytes that its client reads.
    """

    def __init__(self, slots: Slots, workers: Sequence[Worker], settings: ServerSettings) -> None:
        self.slots = slots
        self.workers = workers
        self.name = secrets.token_hex(8)
        self.secret = secrets.token_urlsafe(32)
        self.protocol = ServerProtocol()
        self.steps = 0
        self.last_active = time.monotonic()
        self.closed = False
        self.client_limit = settings.max_message_bytes
        self._settings = settings
        self._turn = asyncio.Lock()
        self._sending = asyncio.Lock()
        self._connection: Connection | None = None
        self._groups = _by_worker(workers, range(slots.count))
        self._all = _by_worker(workers, [(n, n) for n in range(slots.count)])

    @property
    def busy(self) -> bool:
        """Whether a request is running."""
        return self._turn.locked()

    async def execute(self, request: Request) -> Reply:
        """Run a request; whatever goes wrong is in the reply.

        Args:
            request: a request with slots that exist or not.

        Returns:
            the reply with the same id.
        """
        async with self._turn:
            try:
                if self.closed:
                    return Failed(request.id, "SESSION_EXPIRED", "", "the session was closed")
                return await self._run(request)
            except (OpenEnvGymError, PackError, ValueError, LookupError) as error:
                return Failed(request.id, "VALIDATION_ERROR", type(error).__name__, str(error))
            finally:
                self.last_active = time.monotonic()

    async def step_in_turn(self, steps: Sequence[Step], take: Callable[[Stepped], bool]) -> Failed | None:
        """Run steps of the only env as one job on its worker, which saves handing over each of them.

        Args:
            steps: the steps, each for one slot.
            take: takes each reply, on the worker, before the next step overwrites it; False ends the job.

        Returns:
            None, or why nothing was run.
        """
        taken = 0
        errors: list[Exception] = []

        def run_all(group: Sequence[Assignment]) -> None:
            nonlocal taken
            try:
                for step in steps:
                    self.slots.begin()
                    self.slots.step(group, self.slots.actions(step, 1), step.autoreset)
                    taken += 1
                    if not take(self.slots.stepped(step.id, 1)):
                        return
            except Exception as error:
                errors.append(error)

        async with self._turn:
            if self.closed:
                return Failed(0, "SESSION_EXPIRED", "", "the session was closed")
            await self._scatter(self._all, run_all)
            self.steps += taken
            self.last_active = time.monotonic()
        if errors:
            raise errors[0]
        return None

    async def close(self) -> None:
        """Close the envs, each on its own thread and once."""
        async with self._turn:
            if self.closed:
                return
            self.closed = True

            def close_all(slots: Sequence[int]) -> None:
                try:
                    self.slots.close(slots)
                except Exception:
                    logger.exception("closing an env of session %s failed", self.name)

            await self._scatter(self._groups, close_all)

    async def build(self) -> None:
        """Build the envs.

        Raises:
            FactoryError: if one can't be built.
            SpaceError: if one has other spaces than the server's.
        """
        errors: list[Exception] = []

        def build_all(slots: Sequence[int]) -> None:
            try:
                self.slots.build(slots)
            except Exception as error:
                errors.append(error)

        async with self._turn:
            await self._scatter(self._groups, build_all)
        if errors:
            raise errors[0]

    # ----------------------------------------------------------------------------------------- connections

    async def attach(self, connection: Connection, frames: Sequence[bytes]) -> None:
        """Make a connection the session's only one, and send what its client misses before anything else.

        Args:
            connection: the new connection. An older one is closed: its client has given up on it.
            frames: what to send first.
        """
        async with self._sending:
            old, self._connection = self._connection, connection
            for frame in frames:
                await connection.send(frame)
        if old is not None:
            await old.close(4409, "resumed on another connection")

    def detach(self, connection: Connection) -> bool:
        """Forget a connection that ended; False if it was no longer the session's."""
        if self._connection is not connection:
            return False
        self._connection = None
        return True

    async def deliver(self, frame: bytes) -> None:
        """Send a reply, if there is a connection; otherwise the client gets it when it resumes."""
        async with self._sending:
            if self._connection is not None:
                try:
                    await self._connection.send(frame)
                except ConnectionError:
                    logger.debug("session %s lost its connection before a reply", self.name)

    async def disconnect(self, code: int, reason: str) -> None:
        """Close the session's connection, if it has one."""
        if self._connection is not None:
            await self._connection.close(code, reason)

    # ------------------------------------------------------------------------------------------- requests

    async def _run(self, request: Request) -> Reply:
        if isinstance(request, Step):
            return await self._step(request)
        if isinstance(request, Reset):
            return await self._reset(request)
        if isinstance(request, Close):
            return Closed(request.id)
        return await self._each(request)

    async def _step(self, request: Step) -> Reply:
        count, groups = self._assign(request.slots)
        if request.autoreset is not None:
            gym.vector.AutoresetMode(request.autoreset)  # ValueError for an unknown mode
        actions = self.slots.actions(request, count)
        self.slots.begin()
        await self._scatter(groups, lambda group: self.slots.step(group, actions, request.autoreset))
        self.steps += count
        return self.slots.stepped(request.id, count)

    async def _reset(self, request: Reset) -> Reply:
        count, groups = self._assign(request.slots)
        for name in ("seeds", "options"):
            given = getattr(request, name)
            if given is not None and len(given) != count:
                raise ValueError(f"{len(given)} {name} for {count} envs")
        self.slots.begin()
        await self._scatter(groups, lambda group: self.slots.reset(group, request))
        return self.slots.observed(request.id, count)

    async def _each(self, request: Call | Get | Set | Render | State) -> Reply:
        count, groups = self._assign(request.slots)
        if isinstance(request, State):
            numbers = range(self.slots.count) if request.slots is None else request.slots
            return Returned(request.id, [self.slots.state(n) for n in numbers], [])
        use = self._use(request)
        if isinstance(request, Set) and len(request.values) != count:
            raise ValueError(f"{len(request.values)} values for {count} envs")
        values: list[Any] = [None] * count
        self.slots.begin()
        await self._scatter(groups, lambda group: self.slots.each(group, values, use))
        return Returned(request.id, values, self.slots.failures)

    def _use(self, request: Call | Get | Set | Render) -> Callable[[GymnasiumEnv, int], Any]:
        """What to do with each env, as ``use(env, position)``."""
        if isinstance(request, Render):
            return lambda env, position: env.render()
        if isinstance(request, Set):
            self._allow(request.name, self._settings.allow_set, "set")
            values = [unpack(value) for value in request.values]
            return lambda env, position: env.set(request.name, values[position], force=request.force)
        if isinstance(request, Get):
            self._allow(request.name, self._settings.allow_get, "read")
            return lambda env, position: _plain(env.get(request.name), request.name)
        self._allow(request.name, self._settings.allow_call, "call")
        args, kwargs = unpack(request.args), unpack(request.kwargs)

        def call(env: GymnasiumEnv, position: int) -> Any:
            found = env.get(request.name)
            return found(*args, **kwargs) if callable(found) else found

        return call

    def _allow(self, name: str, allowed: frozenset[str] | None, verb: str) -> None:
        if name.startswith("_") or (allowed is not None and name not in allowed):
            raise PermissionRefused(f"this server doesn't let clients {verb} {name!r} (see --allow-{verb})")

    # -------------------------------------------------------------------------------------------- threads

    def _assign(self, slots: list[int] | None) -> tuple[int, Sequence[tuple[Worker, list[Assignment]]]]:
        if slots is None:
            return self.slots.count, self._all
        if not slots or len(set(slots)) != len(slots) or not all(0 <= n < self.slots.count for n in slots):
            raise ValueError(f"slots {slots} of a session with {self.slots.count}")
        return len(slots), _by_worker([self.workers[n] for n in slots], list(enumerate(slots)))

    async def _scatter(self, groups: Sequence[tuple[Worker, Any]], work: Callable[[Any], None]) -> None:
        """Run ``work`` with each group on its worker, and wait until all have ended."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def finish() -> None:
            loop.call_soon_threadsafe(lambda: done.done() or done.set_result(None))

        jobs: list[tuple[Worker, Job]] = [(worker, lambda group=group: work(group)) for worker, group in groups]  # type: ignore[misc]
        run_together(jobs, finish)
        await done


class PermissionRefused(OpenEnvGymError):
    """Raised for a name that the server doesn't allow."""


def _by_worker(workers: Sequence[Worker], items: Sequence[Any]) -> list[tuple[Worker, list[Any]]]:
    groups: dict[Worker, list[Any]] = {}
    for worker, item in zip(workers, items, strict=True):
        groups.setdefault(worker, []).append(item)
    return list(groups.items())


def _plain(value: Any, name: str) -> Any:
    if callable(value):
        raise AttributeError(f"{name!r} is a method; only plain data can be read")
    return value
