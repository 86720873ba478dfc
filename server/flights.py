"""Steps that run by themselves: launched for any envs of a session, and collected as they end. No WebSocket here."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeAlias

from openenv_gym.messages import Collected
from openenv_gym.server.counts import Counts
from openenv_gym.server.executor import Worker
from openenv_gym.server.page import Assignment, Page
from openenv_gym.server.slots import Slots

__all__ = ["Flight", "Flights", "Group"]

logger = logging.getLogger(__name__)

Group: TypeAlias = "tuple[Worker, list[Assignment]]"
"""A worker, and what it does of a request."""


class Flight:
    """One env's step.

    Attributes:
        slot: the env.
        page: where its transition goes, to the row of the slot's number.
        launched: when it was launched.
    """

    def __init__(self, slot: int, page: Page) -> None:
        self.slot = slot
        self.page = page
        self.launched = perf_counter()


class Flights:
    """The launched steps of one session.

    Guarantees: everything here but the steps themselves belongs to the event loop's thread. A transition is collected
    once. An env has no second flight before its first one was collected or forgotten.

    Args:
        slots: the envs.
        counts: takes the time of each step, from its launch on.
        on_landing: called after steps have ended.
    """

    def __init__(self, slots: Slots, counts: Counts, on_landing: Callable[[], None]) -> None:
        self._slots = slots
        self._counts = counts
        self._on_landing = on_landing
        self._page: Page | None = None
        self._under_way: dict[int, Flight] = {}
        self._ready: list[Flight] = []
        self._landed: deque[Flight] = deque()
        self._landing = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def under_way(self) -> bool:
        """Whether some step hasn't ended."""
        return bool(self._under_way)

    def launch(self, groups: Sequence[Group], actions: Sequence[Any], autoreset: str | None) -> list[Flight]:
        """Begin steps.

        Args:
            groups: workers, and the positions and slots that each of them steps one after the other.
            actions: one action for each position.
            autoreset: an ``AutoresetMode``'s value, or None.

        Raises:
            ValueError: if a slot's last flight wasn't collected; nothing is begun then.
        """
        self.refuse(groups)
        page = self._current_page()
        loop = asyncio.get_running_loop()
        launched: list[Flight] = []
        for worker, group in groups:
            flights = [Flight(number, page) for _, number in group]
            chosen = {number: actions[position] for position, number in group}
            worker.submit(lambda flights=flights, chosen=chosen: self._fly(loop, flights, chosen, autoreset))  # type: ignore[misc]
            launched += flights
        self._under_way.update((flight.slot, flight) for flight in launched)
        return launched

    def refuse(self, groups: Sequence[Group]) -> None:
        """Raise ValueError if one of the slots has a flight."""
        taken = self._under_way.keys() | {flight.slot for flight in self._ready}
        if taken and not taken.isdisjoint(slots := _slots_of(groups)):
            raise ValueError(f"slots {sorted(taken.intersection(slots))} have a launched step: collect it first")

    async def collect(self, id: int, at_least: int, hurried: Callable[[], bool]) -> Collected:
        """Wait for steps that have ended, and take them.

        Args:
            id: the request's id.
            at_least: how many to wait for, if as many are under way.
            hurried: whether to wait no longer; asked again after each `wake`.
        """
        while len(self._ready) < at_least and self._under_way and not hurried():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        # After an env was given up there are several pages; a reply has the rows of one, the next reply the others.
        page = self._ready[0].page if self._ready else self._current_page()
        taken = [flight.slot for flight in self._ready if flight.page is page]
        self._ready = [flight for flight in self._ready if flight.page is not page]
        return page.collected(id, taken)

    def wake(self) -> None:
        """Make a `collect` that waits look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def forget(self, groups: Sequence[Group]) -> None:
        """Drop the flights of some slots, whatever comes of them."""
        slots = _slots_of(groups)
        for slot in slots:
            self._under_way.pop(slot, None)
        self._ready = [flight for flight in self._ready if flight.slot not in slots]

    def is_overdue(self, flight: Flight) -> bool:
        """Whether a step hasn't ended yet, and somebody waits for it."""
        return self._under_way.get(flight.slot) is flight

    def give_up(self, flight: Flight, limit_s: float) -> None:
        """End a flight whose slot was abandoned with its thread, which may still write on the old page."""
        del self._under_way[flight.slot]
        flight.page = self._current_page()
        flight.page.give_up(flight.slot, "step", limit_s)
        self._ready.append(flight)
        self.wake()

    def _current_page(self) -> Page:
        if self._page is None or self._page.slots is not self._slots.slots:
            self._page = self._slots.begin()
        return self._page

    # ------------------------------------------------------------------------------------ on the envs' threads

    def _fly(
        self, loop: asyncio.AbstractEventLoop, flights: list[Flight], actions: dict[int, Any], autoreset: str | None
    ) -> None:
        for flight in flights:
            flight.page.clear_row(flight.slot)
            self._slots.step(flight.page, [(flight.slot, flight.slot)], actions, autoreset)
            self._landed.append(flight)
            if not self._landing:  # otherwise the loop will find it with those before it
                self._landing = True
                try:
                    loop.call_soon_threadsafe(self._land)
                except RuntimeError:  # the loop is closed, and nobody waits any more
                    logger.debug("a step ended after the server")

    def _land(self) -> None:
        self._landing = False
        while self._landed:
            flight = self._landed.popleft()
            if self.is_overdue(flight):
                del self._under_way[flight.slot]
                self._ready.append(flight)
                self._counts.stepped(1, perf_counter() - flight.launched)
        self._on_landing()
        self.wake()


def _slots_of(groups: Sequence[Group]) -> set[int]:
    return {number for _, group in groups for _, number in group}
