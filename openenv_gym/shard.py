"""A link whose envs can be on several servers: row by row they move to another one, each when it is reset.

The pool sees one link with the same slots for ever. As long as all of its envs are on one server this hands requests
through; after that it sends each server its part, and puts the replies together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import gymnasium as gym
import msgspec
import numpy as np

from openenv_gym.batch_link import BatchLink
from openenv_gym.errors import LocalProtocolError, RemoteProtocolError, SessionLost
from openenv_gym.link import Deliver
from openenv_gym.messages import (
    Batch,
    Collect,
    EnvFailure,
    Launch,
    Observed,
    Reply,
    Request,
    Reset,
    Returned,
    Set,
    Step,
    Stepped,
)
from openenv_gym.slices import Gathering, overlaid, picked

__all__ = ["Leg", "Shard"]

_R = TypeVar("_R", Observed, Returned, Stepped)

_NEXT_STEP, _SAME_STEP, _ = (mode.value for mode in gym.vector.AutoresetMode)


class Leg:
    """One session of a shard.

    Attributes:
        link: the session.
        server: the name of its server.
        slots: the shard's slot that each of its envs is for; None for those that are free.
    """

    def __init__(self, link: BatchLink, slots: Sequence[int | None]) -> None:
        self.link = link
        self.slots = list(slots)

    @property
    def server(self) -> str:
        """See the class."""
        return self.link.server

    @property
    def empty(self) -> bool:
        """Whether no slot is, or is to be, on it."""
        return all(slot is None for slot in self.slots)

    @property
    def free(self) -> int:
        """How many envs are for no slot."""
        return self.slots.count(None)

    def failures(self, failures: list[EnvFailure]) -> list[EnvFailure]:
        """The failures of envs here, by the shard's slots."""
        return [msgspec.structs.replace(failure, slot=self.slots[failure.slot]) for failure in failures]


class Shard:
    """Some envs of a learner; see `openenv_gym.link.Link`.

    Guarantees: everything here runs on the loop thread.

    Args:
        link: the session that all of its envs are in at first.
        truncates: whether rows of a lost session are reported as truncated, rather than the loss raised.

    Attributes:
        legs: its sessions.
        bound: the slots that move when they are reset next, each with the leg where an env waits for it.
        watch: what looks for other servers, as long as this is open.
    """

    def __init__(self, link: BatchLink, *, truncates: bool) -> None:
        self.slots = link.slots
        self.observation_space, self.action_space = link.observation_space, link.action_space
        self.metadata, self.env_name = link.metadata, link.env_name
        self.notes, self.traffic = link.notes, link.traffic
        self.legs = [Leg(link, range(link.slots))]
        self.bound: dict[int, Leg] = {}
        self.watch: asyncio.Task[None] | None = None
        self._home = [self.legs[0]] * self.slots
        self._truncates = truncates
        self._fresh: set[int] = set()  # slots without an episode, whose next step is a reset
        self._over = np.zeros(self.slots, np.bool_)
        self._last: Batch = []
        self._plain = True  # all slots are on the first session, in order
        self._launched = False
        self._running: asyncio.Task[None] | None = None
        self._gone = {"reconnects": 0, "sessions_lost": 0}

    @property
    def url(self) -> str:
        """See `openenv_gym.link.Link`; several with commas between them."""
        return ", ".join(dict.fromkeys(leg.link.url for leg in self.legs))

    @property
    def counters(self) -> dict[str, int]:
        """See `openenv_gym.link.Link`."""
        return {key: old + sum(leg.link.counters[key] for leg in self.legs) for key, old in self._gone.items()}

    @property
    def movable(self) -> bool:
        """Whether its envs can move: those that are stepped with ``send`` stay until their session ends."""
        return not self._launched

    @property
    def homes(self) -> list[str]:
        """The server that each slot is on."""
        return [leg.server for leg in self._home]

    # ----------------------------------------------------------------------------------------------- moves

    def bind(self, slot: int, leg: Leg) -> None:
        """Let a slot move to a leg with a free env at its next reset."""
        self.unbind(slot)
        leg.slots[leg.slots.index(None)] = slot
        self.bound[slot] = leg

    def unbind(self, slot: int) -> None:
        """Let a slot stay where it is."""
        leg = self.bound.pop(slot, None)
        if leg is not None:
            leg.slots[leg.slots.index(slot)] = None

    def adopt(self, link: BatchLink) -> Leg:
        """Take a new session, all of whose envs are free."""
        link.notes, link.traffic = self.notes, self.traffic
        leg = Leg(link, [None] * link.slots)
        self.legs.append(leg)
        return leg

    async def drop_empty(self, timeout_s: float) -> None:
        """Close the sessions that no slot needs."""
        for leg in [leg for leg in self.legs if leg.empty]:
            self.legs.remove(leg)
            self._gone = {key: old + leg.link.counters[key] for key, old in self._gone.items()}
            await leg.link.close(timeout_s)

    def _move(self, slots: Iterable[int]) -> None:
        """Move those of the slots that are bound; they have to be reset now."""
        for slot in slots:
            leg = self.bound.pop(slot, None)
            if leg is not None:
                old = self._home[slot]
                old.slots[old.slots.index(slot)] = None
                self._home[slot] = leg
                self._plain = False

    # -------------------------------------------------------------------------------------------- requests

    def start(self, request: Request, deliver: Deliver) -> None:
        """See `openenv_gym.link.Link.start`."""
        if isinstance(request, Launch) and self._plain:
            self._launched = True
            for slot in list(self.bound):
                self.unbind(slot)
        if self._plain and self._running is None and not self.bound and not self._fresh:

            def seen(reply: Reply | Exception) -> None:
                self._note(request, reply)
                deliver(reply)

            self.legs[0].link.start(request, seen)
            return
        self._running = asyncio.get_running_loop().create_task(self._run(request, deliver, self._running))

    def _note(self, request: Request, reply: Reply | Exception) -> None:
        """Remember what there is to remember of an episode's last step."""
        if isinstance(reply, Stepped):
            self._last, self._over = reply.observations, reply.terminated.numpy() | reply.truncated.numpy()
        elif isinstance(reply, Observed) and isinstance(request, Reset):
            slots = self._slots_of(request)
            layers = [(range(self.slots), self._last)] if self._last else []
            self._last = overlaid(self.slots, [*layers, (slots, reply.observations)])
            self._over = self._over & ~np.isin(np.arange(self.slots), slots)

    def _slots_of(self, request: Any) -> Sequence[int]:
        chosen: Sequence[int] | None = getattr(request, "slots", None)
        return range(self.slots) if chosen is None else chosen

    async def _run(self, request: Request, deliver: Deliver, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait([before])
            reply: Reply | Exception = await self._answer(request)
            self._note(request, reply)
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
        if isinstance(request, Reset):
            self._move(slots)
            return await self._reset(request, slots)
        if isinstance(request, Step):
            return await self._step(request, slots)
        if isinstance(request, (Launch, Collect)):
            raise LocalProtocolError("envs that have moved to other servers can't be stepped with `send`: use `step`")
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
        self._fresh.difference_update(slots)
        return gathered.whole_observed()

    async def _step(self, request: Step, slots: Sequence[int]) -> Stepped:
        starting = {slot for slot in slots if slot in self._fresh or self._ends(slot, request)}
        self._move(starting)
        first = [position for position, slot in enumerate(slots) if slot in starting]
        rest = [position for position, slot in enumerate(slots) if slot not in starting]
        resets = asyncio.ensure_future(self._begin([slots[position] for position in first]))
        gathered = Gathering(len(slots))
        gone: list[int] = []
        for leg, positions, result in await self._scatter(request, slots, rest):
            if isinstance(result, SessionLost) and self._truncates and len(positions) < len(slots):
                gone += positions
                self.notes.append(f"{result}: {len(positions)} row(s) are truncated")
            else:
                reply = _expect(Stepped, result)
                gathered.stepped(positions, reply, leg.failures(reply.failures))
        begun = await resets
        if begun is not None:
            gathered.observed(first, begun, begun.failures)
        if gone:
            gathered.lost(gone, picked(self._last, [slots[position] for position in gone]))
            self._fresh.update(slots[position] for position in gone)
        if request.autoreset == _SAME_STEP:
            await self._begin_elsewhere(gathered, slots, gone)
        return gathered.whole_stepped()

    def _ends(self, slot: int, request: Step) -> bool:
        return request.autoreset == _NEXT_STEP and slot in self.bound and bool(self._over[slot])

    async def _begin(self, slots: Sequence[int]) -> Observed | None:
        """Start the next episodes of some slots."""
        return await self._reset(Reset(0, None, None, None), slots) if slots else None

    async def _begin_elsewhere(self, gathered: Gathering, slots: Sequence[int], gone: Sequence[int]) -> None:
        """Under same-step autoreset, reset lost rows too, and those that were reset where they shall no longer be."""
        gathered.end(gone)
        again = [position for position in gathered.ended if position in gone or slots[position] in self.bound]
        self._move([slots[position] for position in again])
        begun = await self._begin([slots[position] for position in again])
        if begun is not None:
            gathered.observed(again, begun, begun.failures)

    async def _scatter(
        self, request: Any, slots: Sequence[int], positions: Sequence[int]
    ) -> list[tuple[Leg, list[int], Any]]:
        """Send each leg its part of a request, and wait for what they reply."""
        parts: dict[Leg, list[int]] = {}
        for position in positions:
            parts.setdefault(self._home[slots[position]], []).append(position)
        calls = [
            _call(leg.link, _part(request, [leg.slots.index(slots[p]) for p in mine], mine))
            for leg, mine in parts.items()
        ]
        replies = await asyncio.gather(*calls)
        return [(leg, mine, reply) for (leg, mine), reply in zip(parts.items(), replies, strict=True)]

    # ------------------------------------------------------------------------------------------------ ends

    def abandon(self) -> None:
        """See `openenv_gym.link.Link.abandon`."""
        if self._running is not None:
            self._running.cancel()
        for leg in self.legs:
            leg.link.abandon()

    async def close(self, timeout_s: float) -> None:
        """See `openenv_gym.link.Link.close`."""
        for task in filter(None, (self.watch, self._running)):
            task.cancel()
        await asyncio.gather(*(leg.link.close(timeout_s) for leg in self.legs))


def _part(request: Any, slots: list[int], positions: Sequence[int]) -> Any:
    """A request for some of its envs, which are other ones where it goes to."""
    if isinstance(request, Step):
        return msgspec.structs.replace(request, slots=slots, actions=picked(request.actions, positions))
    if isinstance(request, Reset):
        seeds = None if request.seeds is None else [request.seeds[position] for position in positions]
        options = None if request.options is None else [request.options[position] for position in positions]
        return Reset(0, slots, seeds, options)
    if isinstance(request, Set):
        return msgspec.structs.replace(request, slots=slots, values=[request.values[p] for p in positions])
    return msgspec.structs.replace(request, slots=slots)


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
