"""A link whose envs can be on several servers: row by row they move to another one, each when it is reset.

The pool sees one link with the same slots for ever. As long as all of its envs are on one server this hands requests
through; after that it sends each server its part, and puts the replies together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from openenv_gym.batch_link import BatchLink
from openenv_gym.errors import RemoteProtocolError, SessionLost
from openenv_gym.legs import SAME_STEP, Leg, Legs, part
from openenv_gym.link import Deliver
from openenv_gym.messages import Collect, EnvFailure, Launch, Observed, Reply, Request, Reset, Returned, Step, Stepped
from openenv_gym.shard_flights import ShardFlights
from openenv_gym.slices import Gathering

__all__ = ["Shard"]

_R = TypeVar("_R", Observed, Returned, Stepped)


class Shard:
    """Some envs of a learner; see `openenv_gym.link.Link`.

    Guarantees: everything here runs on the loop thread.

    Args:
        link: the session that all of its envs are in at first.
        truncates: whether rows of a lost session are reported as truncated, rather than the loss raised.

    Attributes:
        legs: its sessions, and the slots in them.
        loss: none of all rows at once; each row's is reported here, among its steps.
        watch: what looks for other servers, as long as this is open.
    """

    loss: SessionLost | None = None

    def __init__(self, link: BatchLink, *, truncates: bool) -> None:
        self.slots = link.slots
        self.observation_space, self.action_space = link.observation_space, link.action_space
        self.observation_spaces = link.observation_spaces
        self.metadata, self.env_name = link.metadata, link.env_name
        self.notes, self.outages, self.traffic = link.notes, link.outages, link.traffic
        self.legs = Legs(link)
        self.watch: asyncio.Task[None] | None = None
        self._truncates = truncates
        self._flights = ShardFlights(self.legs, self._begin, self.notes, truncates=truncates)
        self._running: asyncio.Task[None] | None = None
        self._gone = {"reconnects": 0, "sessions_lost": 0}

    @property
    def url(self) -> str:
        """See `openenv_gym.link.Link`; several with commas between them."""
        return ", ".join(dict.fromkeys(leg.link.url for leg in self.legs.all))

    @property
    def counters(self) -> dict[str, int]:
        """See `openenv_gym.link.Link`."""
        return {key: old + sum(leg.link.counters[key] for leg in self.legs.all) for key, old in self._gone.items()}

    def adopt(self, link: BatchLink) -> Leg:
        """Take a new session, all of whose envs are free."""
        link.notes, link.outages, link.traffic = self.notes, self.outages, self.traffic
        leg = Leg(link, [None] * link.slots)
        self.legs.all.append(leg)
        return leg

    async def drop_empty(self, timeout_s: float) -> None:
        """Close the sessions that no slot needs."""
        for leg in [leg for leg in self.legs.all if leg.empty]:
            self.legs.all.remove(leg)
            self._gone = {key: old + leg.link.counters[key] for key, old in self._gone.items()}
            await leg.link.close(timeout_s)

    # -------------------------------------------------------------------------------------------- requests

    def start(self, request: Request, deliver: Deliver) -> None:
        """See `openenv_gym.link.Link.start`."""
        if isinstance(request, Launch):
            self._flights.launch(request, deliver)
            return
        if isinstance(request, Collect):
            self._flights.collect(request, deliver)
            return
        legs = self.legs
        if isinstance(request, Reset):
            legs.notice_losses()  # of envs that it leaves out: it opens a new session for all
            legs.sticky.keep(request, self._slots_of(request))
        if legs.plain and self._running is None and not (legs.bound or legs.fresh or legs.orphans):

            def seen(reply: Reply | Exception) -> None:
                self._note(request, reply)
                deliver(reply)

            legs.all[0].link.start(request, seen)
            return
        self._running = asyncio.get_running_loop().create_task(self._run(request, deliver, self._running))

    def _note(self, request: Request, reply: Reply | Exception) -> None:
        """Remember what there is to remember of a request that was handed through."""
        if isinstance(reply, Stepped):
            self._note_step(reply)
        elif isinstance(reply, Observed):
            self.legs.begun(self._slots_of(request), reply.observations)
        elif isinstance(reply, SessionLost) and isinstance(request, Step):
            self.legs.forget_losses()  # whoever sent it knows now that all rows are lost

    def _note_step(self, reply: Stepped) -> None:
        over = reply.terminated.numpy() | reply.truncated.numpy()
        self.legs.stepped(range(self.slots), reply.observations, over)

    def _slots_of(self, request: Any) -> Sequence[int]:
        chosen: Sequence[int] | None = getattr(request, "slots", None)
        return range(self.slots) if chosen is None else chosen

    async def _run(self, request: Request, deliver: Deliver, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait([before])
            reply: Reply | Exception = await self._answer(request)
        except asyncio.CancelledError:
            deliver(SessionLost(self.url, "given up by this side"))
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            reply = error
        finally:
            if self._running is asyncio.current_task():
                self._running = None
        deliver(reply)

    async def _answer(self, request: Request) -> Reply:
        slots = self._slots_of(request)
        self.legs.notice_losses()
        if isinstance(request, Reset):
            self.legs.move(slots)
            return await self._reset(request, slots)
        if isinstance(request, Step):
            return await self._step(request, slots)
        return await self._ask(request, slots)

    async def _ask(self, request: Any, slots: Sequence[int]) -> Returned:
        values: list[Any] = [None] * len(slots)
        failures: list[EnvFailure] = []
        for leg, positions, result in await self._scatter(request, slots, range(len(slots))):
            reply = _expect(Returned, result)
            failures += leg.failures(reply.failures)
            for position, value in zip(positions, reply.values, strict=True):
                values[position] = value
        return Returned(0, values, failures)

    async def _reset(self, request: Reset, slots: Sequence[int]) -> Observed:
        gathered = Gathering(len(slots))
        for leg, positions, result in await self._scatter(request, slots, range(len(slots))):
            reply = _expect(Observed, result)
            gathered.observed(positions, reply, leg.failures(reply.failures))
        reply = gathered.whole_observed()
        self.legs.begun(slots, reply.observations)
        return reply

    async def _step(self, request: Step, slots: Sequence[int]) -> Stepped:
        legs = self.legs
        gone = [position for position, slot in enumerate(slots) if slot in legs.orphans]
        first = [
            position
            for position, slot in enumerate(slots)
            if slot not in legs.orphans and (slot in legs.fresh or legs.ends(slot, request.autoreset))
        ]
        legs.move(slots[position] for position in first)
        rest = sorted(set(range(len(slots))).difference(gone, first))
        resets = asyncio.ensure_future(self._begin([slots[position] for position in first])) if first else None
        gathered = Gathering(len(slots))
        for leg, positions, result in await self._scatter(request, slots, rest):
            if isinstance(result, SessionLost) and request.autoreset is not None:
                gone += positions
            else:
                reply = _expect(Stepped, result)
                gathered.stepped(positions, reply, leg.failures(reply.failures))
        if resets is not None:
            begun = await resets
            gathered.observed(first, begun, begun.failures)
        if gone:
            self._lose(gathered, gone, slots)
        if request.autoreset == SAME_STEP:
            await self._begin_elsewhere(gathered, slots, gone)
        whole = gathered.whole_stepped()
        self._note_step(whole)
        return whole

    def _lose(self, gathered: Gathering, gone: Sequence[int], slots: Sequence[int]) -> None:
        """Report rows as truncated whose session is gone."""
        lost = [slots[position] for position in gone]
        if not self._truncates:
            raise SessionLost(self.url, "the session of some of the rows is gone")
        self.legs.notice_losses()
        gathered.lost(gone, self.legs.last(lost))
        self.notes += self.legs.reported(lost)
        self.legs.fresh.update(lost)

    async def _begin(self, slots: Sequence[int]) -> Observed:
        """Start the next episodes of some slots."""
        return await self._reset(self.legs.sticky.beginning(slots), slots)

    async def _begin_elsewhere(self, gathered: Gathering, slots: Sequence[int], gone: Sequence[int]) -> None:
        """Under same-step autoreset, reset lost rows too, and those that were reset where they shall no longer be."""
        gathered.end(gone)
        again = [position for position in gathered.ended if position in gone or slots[position] in self.legs.bound]
        if again:
            self.legs.move(slots[position] for position in again)
            begun = await self._begin([slots[position] for position in again])
            gathered.observed(again, begun, begun.failures)

    async def _scatter(
        self, request: Any, slots: Sequence[int], positions: Sequence[int]
    ) -> list[tuple[Leg, list[int], Any]]:
        """Send each leg its part of a request, and wait for what they reply."""
        parts = self.legs.parts(slots, positions)
        calls = [
            _call(leg.link, part(request, leg.places(slots[position] for position in mine), mine))
            for leg, mine in parts.items()
        ]
        replies = await asyncio.gather(*calls)
        return [(leg, mine, reply) for (leg, mine), reply in zip(parts.items(), replies, strict=True)]

    # ------------------------------------------------------------------------------------------------ ends

    def abandon(self) -> None:
        """See `openenv_gym.link.Link.abandon`."""
        if self._running is not None:
            self._running.cancel()
        self._flights.give_up()
        for leg in self.legs.all:
            leg.link.abandon()

    async def close(self, timeout_s: float) -> None:
        """See `openenv_gym.link.Link.close`."""
        for task in filter(None, (self.watch, self._running)):
            task.cancel()
        self._flights.close()
        await asyncio.gather(*(leg.link.close(timeout_s) for leg in self.legs.all))


async def _call(link: BatchLink, request: Request) -> Reply | Exception:
    result: asyncio.Future[Reply | Exception] = asyncio.get_running_loop().create_future()

    def deliver(reply: Reply | Exception) -> None:
        if not result.done():
            result.set_result(reply)

    link.start(request, deliver)
    return await result


def _expect(kind: type[_R], result: Reply | Exception) -> _R:
    if isinstance(result, kind):
        return result
    raise result if isinstance(result, Exception) else RemoteProtocolError(f"unexpected {type(result).__name__}")
