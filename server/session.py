"""A client's slots on their workers: requests in, replies out, one at a time. No WebSocket and no dialect here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from time import perf_counter
from typing import Any

import gymnasium as gym

from openenv_gym.codec import PackError, unpack
from openenv_gym.errors import OpenEnvGymError
from openenv_gym.messages import (
    Close,
    Closed,
    Collect,
    Collected,
    EnvFailure,
    Failed,
    Launch,
    Launched,
    Observed,
    Render,
    Reply,
    Request,
    Reset,
    Returned,
    State,
    Step,
    Stepped,
)
from openenv_gym.protocol import ServerProtocol
from openenv_gym.server.access import NotAllowed, use_of
from openenv_gym.server.adapters import HostedEnv
from openenv_gym.server.counts import Counts
from openenv_gym.server.crew import Crew
from openenv_gym.server.executor import Executor
from openenv_gym.server.flights import Flight, Flights, Group
from openenv_gym.server.outlet import Connection, Outlet
from openenv_gym.server.page import Assignment, Page
from openenv_gym.server.settings import ServerSettings
from openenv_gym.server.slots import Slots
from openenv_gym.server.timings import Laps

__all__ = ["Connection", "Session"]

logger = logging.getLogger(__name__)


class Session(Outlet):
    """One client's envs, on their workers.

    Guarantees: everything here belongs to the event loop's thread; envs are touched only by jobs on their workers.
    Requests run one at a time, in the order of their calls.

    Args:
        slots: the envs.
        executor: gives out the workers.
        settings: the server's settings.

    Attributes:
        slots: the envs.
        crew: their workers.
        name: the session's public name.
        secret: what a resume must show.
        protocol: ids and kept replies.
        counts: what happened so far.
        opened: when it was opened, on the monotonic clock.
        last_active: when the last request ended, on the monotonic clock.
        closed: whether its envs are closed, or about to be.
        client_limit: the largest frame in bytes that its client reads.
    """

    def __init__(self, slots: Slots, executor: Executor, settings: ServerSettings) -> None:
        super().__init__()
        self.slots = slots
        self.name = secrets.token_hex(8)
        self.secret = secrets.token_urlsafe(32)
        self.protocol = ServerProtocol(settings.max_message_bytes)
        self.counts = Counts(opened=1)
        self.opened = self.last_active = time.monotonic()
        self.closed = False
        self.client_limit = settings.max_message_bytes
        self._flights = Flights(slots, self.counts, self._note_activity)
        self.crew = Crew(slots, executor, self.name, settings.max_step_s)
        self._settings = settings
        self._turn = asyncio.Lock()
        self._gone = asyncio.Event()

    @property
    def renders(self) -> bool:
        """Whether its envs draw frames."""
        return self.slots.metadata.get("render_mode") == "rgb_array" and not self.slots.as_one

    @property
    def busy(self) -> bool:
        """Whether a request or a launched step is running."""
        return self._turn.locked() or self._flights.under_way

    def _note_activity(self) -> None:
        self.last_active = time.monotonic()

    async def attach(self, connection: Connection, frames: Sequence[bytes]) -> None:
        """See `Outlet.attach`. A `Collect` that the old connection waits for is answered, on the new one."""
        self._flights.wake()
        await super().attach(connection, frames)

    async def build(self) -> None:
        """Build the envs; see `openenv_gym.server.crew.Crew.build`."""
        async with self._turn:
            try:
                await self.crew.build()
            finally:
                self._note_activity()

    async def close(self) -> None:
        """Close the envs, each on its own thread and once, after what runs there now."""
        if self.closed:
            await self._gone.wait()
            return
        self.closed = True
        self._flights.wake()
        try:
            await self.crew.close()
        finally:
            self._gone.set()

    # ------------------------------------------------------------------------------------------- requests

    async def execute(
        self, request: Request, following: asyncio.Future[bytes] | None = None, laps: Laps | None = None
    ) -> Reply:
        """Run a request; whatever goes wrong is in the reply.

        Args:
            request: a request with slots that exist or not.
            following: is done once the client's next request is there, or its connection is lost: a `Collect` waits no
                longer than that.
            laps: takes the times of a step; its reply holds them if the request asks for that.

        Returns:
            the reply with the same id. Its arrays are valid until the next request runs.
        """
        began = perf_counter()
        reply = await self._reply(request, following, laps)
        self._count(request, reply, perf_counter() - began)
        return reply

    async def _reply(self, request: Request, following: asyncio.Future[bytes] | None, laps: Laps | None) -> Reply:
        async with self._turn:
            try:
                if self.closed:
                    return Failed(request.id, "SESSION_EXPIRED", "", "the session was closed")
                return await self._run(request, following, laps)
            except NotAllowed as error:
                return Failed(request.id, "NOT_ALLOWED", "PermissionError", str(error))
            except (OpenEnvGymError, PackError, ValueError, LookupError) as error:
                return Failed(request.id, "VALIDATION_ERROR", type(error).__name__, str(error))
            except Exception as error:  # a mistake of ours: without a reply the client would wait for ever
                logger.exception("a request could not be run", extra={"session": self.name})
                return Failed(request.id, "EXECUTION_ERROR", type(error).__name__, "the server failed; see its log")
            finally:
                self._note_activity()

    async def frame(self, number: int) -> Any:
        """What an env shows now, drawn on its thread between two requests; None if it can't. This is no activity."""
        frames: list[Any] = []

        def draw(_: Sequence[Assignment]) -> None:
            env = self.slots.slots[number].env
            if env is not None:
                with contextlib.suppress(Exception):  # such as an env that wasn't reset yet
                    frames.append(env.render())

        async with self._turn:
            if not self.closed:
                await self.crew.run(self.crew.groups_of([number]), draw)
        return frames[0] if frames else None

    def _count(self, request: Request, reply: Reply, seconds: float) -> None:
        if isinstance(reply, Failed):
            self.counts.failed(reply.code)
        elif isinstance(reply, Collected):
            self._count_failures(reply.steps.failures)
        elif isinstance(reply, (Stepped, Observed, Returned)) and not isinstance(request, (Collect, Close)):
            envs = self.slots.count if request.slots is None else len(request.slots)
            if isinstance(reply, Stepped):
                self.counts.stepped(envs, seconds)
            elif isinstance(reply, Observed):
                self.counts.resets += envs
            self._count_failures(reply.failures)

    def _count_failures(self, failures: Iterable[EnvFailure]) -> None:
        for failure in failures:
            self.counts.failed(failure.code)

    async def visit(self, use: Callable[[HostedEnv], Any]) -> Any:
        """What ``use(env)`` gives for the first env, on its thread. It must keep nothing of the env.

        Raises:
            Exception: what ``use`` raises.
            TimeoutError: if the env is given up, or was given up before.
        """
        outcomes: list[tuple[Any, BaseException | None]] = []

        def run(page: Page, group: Sequence[Assignment]) -> None:
            for _, number in group:
                try:
                    outcomes.append((use(page.slots[number].present()), None))
                except BaseException as error:  # noqa: BLE001 - raised below, on the loop's thread
                    outcomes.append((None, error))

        async with self._turn:
            if self.closed:
                raise RuntimeError("the session was closed")
            await self.crew.scatter("call", self.crew.groups_of([0]), run)
            self._note_activity()
        if not outcomes:
            raise TimeoutError("the env didn't return in time, and is given up")
        result, error = outcomes[0]
        if error is not None:
            raise error
        return result

    async def step_in_turn(self, steps: Sequence[Step], take: Callable[[Stepped], bool]) -> Failed | None:
        """Run steps of the only env, where possible as one job on its worker, which saves handing over each of them.

        Args:
            steps: the steps, each for one slot.
            take: takes each reply before the next step overwrites it, on any thread; False ends the steps.

        Returns:
            None, or why nothing was run.
        """
        began = perf_counter()
        done: list[list[EnvFailure]] = []

        def note(reply: Stepped) -> bool:
            done.append(reply.failures)
            return take(reply)

        async with self._turn:
            if self.closed:
                return Failed(0, "SESSION_EXPIRED", "", "the session was closed")
            try:
                if self._settings.max_step_s is None:
                    await self._steps_as_one(steps, note)
                else:  # each of them has its limit
                    for step in steps:
                        if not note(await self._step(step)):
                            break
            finally:
                self._note_activity()
                self.counts.stepped(len(done), perf_counter() - began)
                self._count_failures(chain.from_iterable(done))
        return None

    async def _steps_as_one(self, steps: Sequence[Step], take: Callable[[Stepped], bool]) -> None:
        errors: list[Exception] = []

        def run_all(page: Page, group: Sequence[Assignment]) -> None:
            try:
                for step in steps:
                    page.clear()
                    self.slots.step(page, group, self.slots.actions(step, 1), step.autoreset)
                    if not take(page.stepped(step.id, 1)):
                        return
            except Exception as error:  # noqa: BLE001 - raised below, on the loop's thread
                errors.append(error)

        await self.crew.scatter("step", self.crew.everyone, run_all)
        if errors:
            raise errors[0]

    async def _run(self, request: Request, following: asyncio.Future[bytes] | None, laps: Laps | None) -> Reply:
        self.slots.check(request)
        if isinstance(request, Step):
            return await self._step(request, laps)
        if isinstance(request, Reset):
            return await self._reset(request)
        if isinstance(request, Launch):
            return self._launch(request)
        if isinstance(request, Collect):
            return await self._collect(request, following)
        if isinstance(request, Close):
            return Closed(request.id)
        count, groups = self.crew.assign(request.slots)
        if isinstance(request, State) and self.slots.source.openenv:
            page = await self.crew.scatter("state", groups, self.slots.own_states)
            return page.returned(request.id, count)
        if isinstance(request, State):
            numbers = range(self.slots.count) if request.slots is None else request.slots
            return Returned(request.id, [self.slots.state(n) for n in numbers], [])
        use = use_of(request, count, self._settings)
        name = "render" if isinstance(request, Render) else request.name
        page = await self.crew.scatter(name, groups, lambda page, group: self.slots.each(page, group, use))
        return page.returned(request.id, count)

    async def _step(self, request: Step, laps: Laps | None = None) -> Stepped:
        if laps is not None:
            laps.begun = perf_counter()
        count, groups, actions = self._prepare(request)
        self._flights.refuse(groups)

        def work(page: Page, group: Sequence[Assignment]) -> None:
            begun = perf_counter()
            self.slots.step(page, group, actions, request.autoreset)
            if laps is not None:
                laps.job(self.crew.idle_since(group), begun)

        if laps is not None:
            laps.submitted = perf_counter()
        page = await self.crew.scatter("step", groups, work)
        timings = laps.sum_up() if laps is not None else None
        return page.stepped(request.id, count, timings if request.timed else None)

    def _prepare(self, request: Step | Launch) -> tuple[int, Sequence[Group], Sequence[Any]]:
        count, groups = self.crew.assign(request.slots)
        if request.autoreset is not None:
            gym.vector.AutoresetMode(request.autoreset)  # ValueError for an unknown mode
        return count, groups, self.slots.actions(request, count)

    def _launch(self, request: Launch) -> Launched:
        _, groups, actions = self._prepare(request)
        launched = self._flights.launch(groups, actions, request.autoreset)
        if self._settings.max_step_s is not None:
            limit_s = self._settings.max_step_s
            asyncio.get_running_loop().call_later(limit_s, self._end_overdue, launched, limit_s)
        return Launched(request.id)

    def _end_overdue(self, launched: Sequence[Flight], limit_s: float) -> None:
        for flight in launched:
            if self._flights.is_overdue(flight) and not self.closed:
                self.crew.give_up_slot("step", flight.slot)
                self._flights.give_up(flight, limit_s)

    async def _collect(self, request: Collect, following: asyncio.Future[bytes] | None) -> Reply:
        connection = self._connection

        def hurried() -> bool:
            return self.closed or self._connection is not connection or (following is not None and following.done())

        if following is not None:
            following.add_done_callback(lambda _: self._flights.wake())
        collected = await self._flights.collect(request.id, request.at_least, hurried)
        if self.closed:
            return Failed(request.id, "SESSION_EXPIRED", "", "the session was closed")
        return collected

    async def _reset(self, request: Reset) -> Reply:
        count, groups = self.crew.assign(request.slots)
        seeds = [None] * count if request.seeds is None else [unpack(seed) for seed in request.seeds]
        options = [None] * count if request.options is None else [unpack(given) for given in request.options]
        if not len(seeds) == len(options) == count:
            raise ValueError(f"{len(seeds)} seeds and {len(options)} options for {count} envs")
        if not all(given is None or isinstance(given, dict) for given in options):
            raise ValueError("an env's options are a dict or None")
        if not all(seed is None or type(seed) is int for seed in seeds):
            raise ValueError("an env's seed is an integer or None")
        self._flights.forget(groups)
        page = await self.crew.scatter(
            "reset", groups, lambda page, group: self.slots.reset(page, group, seeds, options, request.sticky)
        )
        return page.observed(request.id, count)
