"""Launched steps of a link whose envs are on several servers: begun where each env is, and collected from everywhere.

To the pool it looks as if they were all in one session (see `openenv_gym.messages.Launch`). What a lost session takes
along, and what moves to another server, concerns single slots here: they land as one step among the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from openenv_gym.errors import SessionLost
from openenv_gym.legs import SAME_STEP, Leg, Legs, part
from openenv_gym.link import Deliver
from openenv_gym.messages import Array, Collect, Collected, EnvFailure, Launch, Launched, Observed, Stepped
from openenv_gym.slices import Gathering, picked, some_observations, some_steps
from openenv_gym.streams import Stream

__all__ = ["ShardFlights"]

_Note: TypeAlias = "Callable[[Gathering, dict[int, int]], None]"
"""Writes what came of some slots into a reply, where each of them stands; those that stand nowhere have failed."""


class ShardFlights:
    """The launched steps of one link.

    Guarantees: everything here runs on the loop thread.

    Args:
        legs: the link's sessions and slots.
        begin: starts the next episodes of slots, where they are now.
        notes: takes what the user should be told.
        truncates: whether rows of a lost session are reported as truncated, rather than the loss raised.
    """

    def __init__(
        self, legs: Legs, begin: Callable[[Sequence[int]], Awaitable[Observed]], notes: list[str], *, truncates: bool
    ) -> None:
        self._legs = legs
        self._begin = begin
        self._notes = notes
        self._truncates = truncates
        self._autoreset: str | None = None
        self._streams: dict[Leg, Stream] = {}
        self._beginnings: dict[asyncio.Task[None], int] = {}
        self._landed: list[tuple[list[int], int, _Note]] = []  # slots, how many count, and what came of them
        self._error: Exception | None = None
        self._waiting: list[tuple[int, Deliver]] = []

    def launch(self, request: Launch, deliver: Deliver) -> None:
        """Begin steps; those that start an episode elsewhere are begun by a reset there."""
        legs, self._autoreset = self._legs, request.autoreset
        slots = range(legs.count) if request.slots is None else request.slots
        legs.notice_losses()
        lost = [slot for slot in slots if slot in legs.orphans]
        first = [slot for slot in slots if slot not in legs.orphans and self._starts(slot)]
        others = legs.orphans.keys() | first
        rest = [position for position, slot in enumerate(slots) if slot not in others]
        if lost:
            self._take_lost(lost)
        if first:
            legs.move(first)
            self._start(first)
        self._streams = {leg: stream for leg, stream in self._streams.items() if leg in legs.all}
        for leg, positions in legs.parts(slots, rest).items():
            places = leg.places(slots[position] for position in positions)
            self._stream(leg).send(part(request, places, positions), places)
        deliver(Launched(0))
        self._answer()

    def collect(self, request: Collect, deliver: Deliver) -> None:
        """Give what has landed once that is enough, or no more can come; a question before this is answered now."""
        self._answer(at_once=True)
        self._waiting.append((request.at_least, deliver))
        self._answer()

    def close(self) -> None:
        """Start no more episodes."""
        for task in self._beginnings:
            task.cancel()

    def give_up(self) -> None:
        """Wait for nothing any more."""
        self.close()
        for stream in self._streams.values():
            stream.give_up()
        self._streams, self._beginnings, self._landed, self._waiting, self._error = {}, {}, [], [], None

    def _starts(self, slot: int) -> bool:
        return slot in self._legs.fresh or self._legs.ends(slot, self._autoreset)

    def _stream(self, leg: Leg) -> Stream:
        if leg not in self._streams:
            self._streams[leg] = Stream(leg.link, partial(self._land, leg), self._answer)
        return self._streams[leg]

    # -------------------------------------------------------------------------------------- what has ended

    def _land(self, leg: Leg, places: list[int], outcome: Stepped | Observed | Exception) -> None:
        slots = [slot for slot in map(leg.slots.__getitem__, places) if slot is not None]
        if isinstance(outcome, Stepped):
            self._take_stepped(leg, slots[: len(slots) - len(outcome.failures)], outcome)
        elif isinstance(outcome, SessionLost) and self._truncates:
            self._legs.notice_losses()
            self._take_lost(slots)
        else:
            self._error = outcome if isinstance(outcome, Exception) else TypeError(f"unexpected {outcome!r}")

    def _take_stepped(self, leg: Leg, slots: list[int], reply: Stepped) -> None:
        self._legs.stepped(slots, reply.observations, reply.terminated.numpy() | reply.truncated.numpy())
        failures = leg.failures(reply.failures)
        reset = [] if reply.final is None else [slots[position] for position in reply.final.positions]
        moving = [slot for slot in reset if slot in self._legs.bound]  # they were reset where they shall no longer be

        def stepped(to: Gathering, places: dict[int, int], mine: Sequence[int], raised: list[EnvFailure]) -> None:
            rows = [row for row, slot in enumerate(slots) if slot in mine and slot in places]
            to.stepped([places[slots[row]] for row in rows], some_steps(reply, rows), raised)

        rest = [slot for slot in slots if slot not in moving] if moving else slots
        self._take(rest, partial(stepped, mine=rest, raised=failures), len(failures))
        if moving:
            self._legs.move(moving)
            self._start(moving, partial(stepped, mine=moving, raised=[]))

    def _take_lost(self, slots: list[int]) -> None:
        if not self._truncates:
            self._error = SessionLost(self._legs.all[0].link.url, "the session of some of the rows is gone")
            return
        last = self._legs.last(slots)
        self._notes += self._legs.reported(slots)
        if self._autoreset != SAME_STEP:
            self._legs.fresh.update(slots)
            self._take(slots, lambda to, places: to.lost([places[slot] for slot in slots], last))
            return

        def lost(to: Gathering, places: dict[int, int]) -> None:
            rows = [row for row, slot in enumerate(slots) if slot in places]
            positions = [places[slots[row]] for row in rows]
            to.lost(positions, picked(last, rows))
            to.end(positions)

        self._legs.move(slots)
        self._start(slots, lost)

    def _start(self, slots: list[int], before: _Note | None = None) -> None:
        """Start the next episodes of slots; what ended before belongs to the same step."""

        async def start() -> None:
            try:
                begun = await self._begin(slots)
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                self._error = error
            else:
                failed = {failure.slot for failure in begun.failures}
                rows = [row for row, slot in enumerate(slots) if slot not in failed]

                def note(to: Gathering, places: dict[int, int]) -> None:
                    if before is not None:
                        before(to, places)
                    positions = [places[slots[row]] for row in rows]
                    to.observed(positions, some_observations(begun, rows), begun.failures)

                self._take([slots[row] for row in rows], note, len(failed))
            finally:
                self._beginnings.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            self._answer()

        task = asyncio.get_running_loop().create_task(start())
        self._beginnings[task] = len(slots)

    def _take(self, slots: list[int], note: _Note, failed: int = 0) -> None:
        self._landed.append((slots, len(slots) + failed, note))

    # -------------------------------------------------------------------------------------- what is wanted

    def _answer(self, *, at_once: bool = False) -> None:
        """Answer whoever waits, or ask the sessions for what is missing."""
        if not self._waiting:
            return
        missing = self._waiting[0][0] - sum(count for _, count, _ in self._landed)
        streams = list(self._streams.values())
        under_way = sum(self._beginnings.values()) + sum(len(stream.under_way) for stream in streams)
        if missing <= 0 or not under_way or at_once or self._error is not None:
            self._waiting.pop(0)[1](self._collected())
            return
        for stream in streams:
            stream.collect(max(1, missing - under_way + len(stream.under_way)))

    def _collected(self) -> Collected | Exception:
        if self._error is not None:
            error = self._error
            self.give_up()
            return error
        landed, self._landed = self._landed, []
        slots = sorted(slot for mine, _, _ in landed for slot in mine)
        if not landed:
            nothing = (Array.of(np.zeros(0)), Array.of(np.zeros(0, np.bool_)), Array.of(np.zeros(0, np.bool_)))
            return Collected(0, [], Stepped(0, [], *nothing, {}, None, []))
        places = {slot: place for place, slot in enumerate(slots)}
        whole = Gathering(len(slots))
        for _, _, note in landed:
            note(whole, places)
        return Collected(0, slots, whole.whole_stepped())
