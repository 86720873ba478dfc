"""A session's envs on their workers: built, given work, given up if they don't return, and closed. No requests here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from openenv_gym.errors import FactoryError
from openenv_gym.server.executor import Executor, Job, Worker, run_together
from openenv_gym.server.flights import Group
from openenv_gym.server.page import Assignment, Page
from openenv_gym.server.slots import Slots

__all__ = ["Crew"]

logger = logging.getLogger(__name__)


class Crew:
    """The workers of one session's slots.

    Guarantees: everything here belongs to the event loop's thread; envs are touched only by jobs on their workers. The
    caller sees to it that one piece of work runs at a time; only `close` may come during another.

    Args:
        slots: the envs.
        executor: gives out the workers.
        name: what to call the session in the log.
        max_step_s: the limit for each piece of work, after which an env is given up; None sets none.

    Attributes:
        workers: the worker of each slot.
        everyone: the workers with their slots.
    """

    def __init__(self, slots: Slots, executor: Executor, name: str, max_step_s: float | None) -> None:
        self._slots = slots
        self._executor = executor
        self._name = name
        self._limit_s = max_step_s
        self.workers = executor.place(slots.count, as_one=slots.as_one)
        self._closed = False
        self.everyone = self.groups_of(range(slots.count))

    def groups_of(self, slots: Sequence[int]) -> list[Group]:
        """Some slots by their workers, each with its position among them."""
        groups: dict[Worker, list[Assignment]] = {}
        for assignment in enumerate(slots):
            groups.setdefault(self.workers[assignment[1]], []).append(assignment)
        return list(groups.items())

    def assign(self, slots: list[int] | None) -> tuple[int, Sequence[Group]]:
        """How many slots a request names, and their groups; None names all.

        Raises:
            ValueError: for slots that don't exist, or come twice.
        """
        if slots is None:
            return self._slots.count, self.everyone
        count = self._slots.count
        if not 0 < len(slots) <= count:
            raise ValueError(f"{len(slots)} slots of a session with {count}")
        if len(set(slots)) != len(slots) or not all(0 <= n < count for n in slots):
            raise ValueError(f"slots are numbered from 0 to {count - 1}, and may be named once each")
        return len(slots), self.groups_of(slots)

    # ------------------------------------------------------------------------------------- beginning and end

    async def build(self) -> None:
        """Build the envs. If the crew is closed meanwhile, those that are left aren't built.

        Raises:
            FactoryError: if one can't be built, or not within the limit.
            SpaceError: if one has other spaces than the server's.
        """
        errors: list[Exception] = []
        slots = self._slots.slots

        def build_all(group: Sequence[Assignment]) -> None:
            try:
                for _, number in group:
                    if not (errors or self._closed):
                        slots[number].build()
            except Exception as error:  # noqa: BLE001 - raised below, on the loop's thread
                errors.append(error)

        stuck = await self.run(self.everyone, build_all)
        if stuck and self._limit_s is not None:
            self.give_up("build", stuck)
            errors.append(FactoryError(self._slots.source.name, f"not built within {self._limit_s:g} second(s)"))
        if errors:
            raise errors[0]

    async def close(self) -> None:
        """Close the envs, each on its own thread and once, after what runs there now; no env takes a new place."""
        self._closed = True
        slots = self._slots.slots

        def close_all(group: Sequence[Assignment]) -> None:
            for _, number in group:
                try:
                    slots[number].close()
                except BaseException:
                    logger.exception("an env could not be closed", extra={"session": self._name, "env": number})

        try:
            for worker, group in await self.run(self.everyone, close_all):
                logger.warning("an env was not closed in time", extra={"session": self._name, "env": group[0][1]})
                self._executor.abandon(worker)
        finally:
            for worker in self.workers:
                self._executor.leave(worker)

    # --------------------------------------------------------------------------------------------------- work

    async def scatter(
        self, doing: str, groups: Sequence[Group], work: Callable[[Page, list[Assignment]], None]
    ) -> Page:
        """Run ``work(page, assignments)`` for each group on its worker; give the page once all have ended.

        An env that isn't done within the limit is given up, and an error stands for it on the page.
        """
        page = self._slots.begin()
        stuck = await self.run(groups, lambda group: work(page, group))
        if stuck and self._limit_s is not None:
            self.give_up(doing, stuck)
            late = [assignment for _, group in stuck for assignment in group]
            return page.without(late, doing, self._limit_s)
        self._slots.end(page)
        return page

    async def run(self, groups: Sequence[Group], work: Callable[[list[Assignment]], None]) -> list[Group]:
        """Run ``work(assignments)`` for each group on its worker, and wait until all have ended, or for the limit.

        Returns:
            the groups that have not ended.
        """
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        ended: set[Worker] = set()

        def run(worker: Worker, group: list[Assignment]) -> None:
            try:
                work(group)
            finally:
                ended.add(worker)

        def finish() -> None:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:  # the loop is closed, and nobody waits any more
                logger.debug("a job ended after the server", extra={"session": self._name})

        jobs: list[tuple[Worker, Job]] = [(w, lambda w=w, group=group: run(w, group)) for w, group in groups]  # type: ignore[misc]
        run_together(jobs, finish)
        if self._limit_s is None:
            await done.wait()
            return []
        try:
            await asyncio.wait_for(done.wait(), self._limit_s)
        except asyncio.TimeoutError:
            return [group for group in groups if group[0] not in ended]
        return []

    def give_up(self, doing: str, stuck: Sequence[Group]) -> None:
        """Leave workers alone with their env and the page; what they still do there concerns nobody any more."""
        for worker, _ in stuck:  # with a limit, each env, or vector env, has a worker of its own
            numbers = [number for number, other in enumerate(self.workers) if other is worker]
            what = {"session": self._name, "env": numbers[0], "doing": doing}
            logger.warning("an env takes too long and is given up", extra=what)
            worker.submit(self._slots.abandon(numbers[0]).close)
            self._executor.abandon(worker)
            if not self._closed:
                fresh = self._executor.place(len(numbers), as_one=self._slots.as_one)
                for number, other in zip(numbers, fresh, strict=True):
                    self.workers[number] = other
        self.everyone = self.groups_of(range(self._slots.count))

    def give_up_slot(self, doing: str, slot: int) -> None:
        """The same for one slot, whose worker has no other."""
        self.give_up(doing, [(self.workers[slot], [(slot, slot)])])

    def idle_since(self, group: Sequence[Assignment]) -> float:
        """When the group's worker had ended its last job, on ``time.perf_counter``."""
        return self.workers[group[0][1]].idle_since
