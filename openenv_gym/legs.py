"""Which slots of a learner's link are in which sessions, and what to remember of their episodes. No I/O here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np

from openenv_gym.batch_link import BatchLink
from openenv_gym.errors import SessionLost
from openenv_gym.messages import Batch, EnvFailure, Launch, Reset, Set, Step
from openenv_gym.slices import overlaid, picked
from openenv_gym.sticky_options import StickyOptions

__all__ = ["NEXT_STEP", "SAME_STEP", "Leg", "Legs", "part"]

NEXT_STEP, SAME_STEP, _ = (mode.value for mode in gym.vector.AutoresetMode)


class Leg:
    """One session of a link with several.

    Attributes:
        link: the session.
        server: the name of its server.
        slots: the slot that each of its envs is for; None for those that are free.
        loss: the last loss of the session that was noticed.
    """

    def __init__(self, link: BatchLink, slots: Sequence[int | None]) -> None:
        self.link = link
        self.slots = list(slots)
        self.loss = link.loss
        self._places = {slot: place for place, slot in enumerate(slots) if slot is not None}

    @property
    def server(self) -> str:
        """See the class."""
        return self.link.server

    @property
    def empty(self) -> bool:
        """Whether no slot is, or is to be, on it."""
        return not self._places

    @property
    def free(self) -> int:
        """How many envs are for no slot."""
        return len(self.slots) - len(self._places)

    def take(self, slot: int) -> None:
        """Let a free env be for a slot."""
        self._places[slot] = place = self.slots.index(None)
        self.slots[place] = slot

    def leave(self, slot: int) -> None:
        """Let a slot's env be free."""
        self.slots[self._places.pop(slot)] = None

    def places(self, slots: Iterable[int]) -> list[int]:
        """The envs of some slots."""
        return [self._places[slot] for slot in slots]

    def failures(self, failures: list[EnvFailure]) -> list[EnvFailure]:
        """The failures of envs here, by their slots."""
        return [msgspec.structs.replace(failure, slot=self.slots[failure.slot]) for failure in failures]


class Legs:
    """The sessions of one link, and its slots in them.

    Args:
        link: the session that all slots are in at first.

    Attributes:
        count: the number of slots.
        all: the sessions.
        bound: the slots that move when they are reset next, each with the leg where an env waits for it.
        plain: whether all slots are on the first session, in order.
        fresh: slots without an episode, whose next step is a reset.
        orphans: slots whose episode went with its session, and why; their next step has to report it.
        sticky: the options that autoresets pass.
    """

    def __init__(self, link: BatchLink) -> None:
        self.count = link.slots
        self.all = [Leg(link, range(link.slots))]
        self.bound: dict[int, Leg] = {}
        self.plain = True
        self.fresh: set[int] = set()
        self.orphans: dict[int, SessionLost] = {}
        self.sticky = StickyOptions()
        self._home = [self.all[0]] * link.slots
        self._over = np.zeros(link.slots, np.bool_)
        self._last: Batch = []
        self._later: dict[int, tuple[Batch, int]] = {}  # observations that came after those

    @property
    def homes(self) -> list[str]:
        """The server that each slot is on."""
        return [leg.server for leg in self._home]

    # ----------------------------------------------------------------------------------------------- moves

    def bind(self, slot: int, leg: Leg) -> None:
        """Let a slot move to a leg with a free env at its next reset."""
        self.unbind(slot)
        leg.take(slot)
        self.bound[slot] = leg

    def unbind(self, slot: int) -> None:
        """Let a slot stay where it is."""
        leg = self.bound.pop(slot, None)
        if leg is not None:
            leg.leave(slot)

    def move(self, slots: Iterable[int]) -> None:
        """Move those of the slots that are bound; they have to be reset now."""
        for slot in slots:
            leg = self.bound.pop(slot, None)
            if leg is not None:
                self._home[slot].leave(slot)
                self._home[slot] = leg
                self.plain = False

    def parts(self, slots: Sequence[int], positions: Iterable[int]) -> dict[Leg, list[int]]:
        """Some positions of a request for these slots, by the leg that the slot is on."""
        parts: dict[Leg, list[int]] = {}
        for position in positions:
            parts.setdefault(self._home[slots[position]], []).append(position)
        return parts

    # -------------------------------------------------------------------------------------------- episodes

    def notice_losses(self) -> None:
        """Make orphans of the slots whose session was lost."""
        for leg in self.all:
            loss = leg.link.loss
            if loss is not None and loss is not leg.loss:
                leg.loss = loss
                self.orphans.update({slot: loss for slot, home in enumerate(self._home) if home is leg})

    def forget_losses(self) -> None:
        """Take note of lost sessions that somebody else reports."""
        for leg in self.all:
            leg.loss = leg.link.loss

    def stepped(self, slots: Sequence[int], observations: Batch, over: Any) -> None:
        """Remember a step of some slots.

        Args:
            slots: the slots.
            observations: their observations, in this order.
            over: whether their episodes have ended, as bools.
        """
        self._over[list(slots)] = over
        if len(slots) == self.count:  # all of them, in order
            self._last = observations
            self._later.clear()
        else:
            self._later.update((slot, (observations, position)) for position, slot in enumerate(slots))

    def begun(self, slots: Sequence[int], observations: Batch) -> None:
        """Remember that slots have new episodes; see `stepped`. The reset may have found a session lost."""
        self.notice_losses()
        self.stepped(slots, observations, False)
        self.fresh.difference_update(slots)
        self.reported(slots)

    def reported(self, slots: Iterable[int]) -> list[str]:
        """Take slots off the orphans. Returns what to tell the user if their rows are truncated."""
        causes = Counter(str(self.orphans.pop(slot)) for slot in slots if slot in self.orphans)
        return [f"{cause}: {count} row(s) are truncated" for cause, count in causes.items()]

    def last(self, slots: Sequence[int]) -> Batch:
        """The last observations of slots, all of which were reset at some time."""
        layers = [(range(self.count), self._last)] if self._last else []
        later = [([slot], picked(batch, [position])) for slot, (batch, position) in self._later.items()]
        return picked(overlaid(self.count, [*layers, *later]), slots)

    def ends(self, slot: int, autoreset: str | None) -> bool:
        """Whether a slot moves with its next step, since that is the reset of a new episode."""
        return autoreset == NEXT_STEP and slot in self.bound and bool(self._over[slot])


def part(request: Any, slots: list[int], positions: Sequence[int]) -> Any:
    """A request for some of its envs, which are other ones where it goes to.

    Args:
        request: a request for several envs.
        slots: the envs that it is for there.
        positions: where they stand in the whole request.
    """
    if isinstance(request, (Step, Launch)):
        return msgspec.structs.replace(request, slots=slots, actions=picked(request.actions, positions))
    if isinstance(request, Reset):
        seeds = None if request.seeds is None else [request.seeds[position] for position in positions]
        options = None if request.options is None else [request.options[position] for position in positions]
        return msgspec.structs.replace(request, slots=slots, seeds=seeds, options=options)
    if isinstance(request, Set):
        return msgspec.structs.replace(request, slots=slots, values=[request.values[p] for p in positions])
    return msgspec.structs.replace(request, slots=slots)
