"""Steps that run by themselves, over a pool's links: sent for some rows, and landing as their replies come in.

A link with one env steps it, and the reply is all there is to wait for. A link with several launches their steps and
collects those that have ended (see `openenv_gym.messages.Launch`): only when somebody waits, and for as many at once as
the other links can't bring, so that a step that all envs make in the same time costs one round trip.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from openenv_gym.errors import SessionLost
from openenv_gym.link import Link
from openenv_gym.messages import WINDOW, Collect, Collected, Launch, Launched, Observed, Reply, Reset, Step, Stepped
from openenv_gym.pool import Pool

__all__ = ["Flight", "Flights", "Landing", "SessionReplaced"]

_SENT_AT_ONCE: Final = WINDOW // 2
_ASKED_AT_ONCE: Final = WINDOW // 4
"""Requests of a link without a reply, and questions for what has landed; more wait on this side. The rest of the window
is for others."""

Flight: TypeAlias = "tuple[int, list[int], Step | Launch | Reset]"
"""A link's index, its slots, and their request."""


class Landing(NamedTuple):
    """What came of some slots' requests.

    Attributes:
        link: the link's index.
        slots: the slots; those that failed are in the reply's failures.
        outcome: the reply for these slots in this order, or the error in its place.
    """

    link: int
    slots: list[int]
    outcome: Stepped | Observed | Exception


class SessionReplaced(SessionLost):
    """Stands for steps of a session that was lost, and for which another request has opened a new one since."""


class Flights:
    """The requests under way on the links of one pool.

    Guarantees: public methods belong to one thread at a time, which isn't the loop thread. Each slot of each request
    lands once, unless it is given up; the caller sends nothing for a slot that hasn't landed.

    Args:
        pool: the links.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._streams = [_Stream(link, partial(self._land, i), self._ask) for i, link in enumerate(pool.links)]
        self._landings: list[Landing] = []
        self._landed = 0
        self._wanted = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()

    def send(self, flights: Sequence[Flight]) -> None:
        """Send requests, and return at once."""
        self._pool.call_soon(self._send, flights)

    def wait(self, count: int, timeout_s: float) -> bool:
        """Wait until so many steps have landed, or anything else did, or for no special reason.

        Returns:
            whether it was within the limit.

        Raises:
            KeyboardInterrupt: if interrupted; nothing is lost by that.
        """
        self._wake.clear()
        self._pool.call_soon(self._want, count)
        return self._wake.wait(min(timeout_s, threading.TIMEOUT_MAX))

    def take(self) -> list[Landing]:
        """What has landed, each once."""
        with self._lock:
            landings, self._landings, self._landed = self._landings, [], 0
        return landings

    def give_up(self) -> None:
        """Wait for nothing any more: what comes late is dropped. After this only `take` is of use."""
        self._pool.call_soon(self._give_up)

    # ------------------------------------------------------------------------------------ on the loop's thread

    def _send(self, flights: Sequence[Flight]) -> None:
        for link, slots, request in flights:
            self._streams[link].send(request, slots)

    def _want(self, count: int) -> None:
        self._wanted = count
        self._ask()

    def _land(self, link: int, slots: list[int], outcome: Stepped | Observed | Exception) -> None:
        with self._lock:
            self._landings.append(Landing(link, slots, outcome))
            self._landed += len(slots)
        if not isinstance(outcome, Stepped) or outcome.failures:
            self._wanted = min(self._wanted, self._landed)  # somebody must see to it now

    def _ask(self) -> None:
        """Ask each link for as many steps as the others can't bring; or wake who waits."""
        missing = self._wanted - self._landed
        if missing <= 0:
            self._wanted = 0
            self._wake.set()
            return
        under_way = sum(len(stream.under_way) for stream in self._streams)
        for stream in self._streams:
            if stream.collects:
                stream.collect(max(1, missing - under_way + len(stream.under_way)))

    def _give_up(self) -> None:
        for stream in self._streams:
            stream.give_up()


class _Stream:
    """The requests of one link, on the loop's thread.

    Args:
        link: the link.
        land: takes slots and what came of them.
        go_on: called after each reply.

    Attributes:
        under_way: slots that haven't landed.
        collects: whether it has several slots, whose steps are launched and collected.
    """

    def __init__(
        self, link: Link, land: Callable[[list[int], Stepped | Observed | Exception], None], go_on: Callable[[], None]
    ) -> None:
        self.under_way: set[int] = set()
        self.collects = link.slots > 1
        self._link = link
        self._land = land
        self._go_on = go_on
        self._queue: deque[tuple[Step | Launch | Reset, list[int]]] = deque()
        self._unanswered = 0
        self._launched: set[int] = set()
        self._asked: deque[int] = deque()
        self._losses = link.counters["sessions_lost"]

    def send(self, request: Step | Launch | Reset, slots: list[int]) -> None:
        """Send a request, or let it wait until those before it were answered."""
        self.under_way.update(slots)
        self._queue.append((request, slots))
        self._send_queued()

    def collect(self, at_least: int) -> None:
        """Ask for launched steps that have ended, unless no more than so many are asked for already."""
        if self._queue or not self._launched or len(self._asked) == _ASKED_AT_ONCE:
            return
        if min(self._asked, default=at_least + 1) > at_least:
            self._asked.append(at_least)
            self._start(Collect(0, at_least), self._take_collected)

    def give_up(self) -> None:
        """Land nothing any more."""
        self._land, self._go_on = _ignore, _do_nothing
        self._queue.clear()
        if self.under_way:
            self._link.abandon()

    def _send_queued(self) -> None:
        while self._queue and self._unanswered < _SENT_AT_ONCE:
            request, slots = self._queue.popleft()
            self._unanswered += 1
            if isinstance(request, Launch):
                self._notice_loss()
                self._launched.update(slots)
            self._start(request, partial(self._take_answer, slots))

    def _start(self, request: Step | Launch | Reset | Collect, take: Callable[[Reply | Exception], None]) -> None:
        try:
            self._link.start(request, take)
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            take(error)

    def _take_answer(self, slots: list[int], answer: Reply | Exception) -> None:
        self._unanswered -= 1
        if isinstance(answer, SessionLost):
            self._lose(slots, answer)
        elif not isinstance(answer, Launched):
            self._end(slots, answer)
        self._send_queued()
        self._go_on()

    def _take_collected(self, answer: Reply | Exception) -> None:
        self._asked.popleft()
        if isinstance(answer, Collected):
            self._notice_loss()
            slots = [*answer.slots, *(failure.slot for failure in answer.steps.failures)]
            if slots:
                self._end(slots, answer.steps)
        else:
            self._lose([], answer)
        self._go_on()

    def _notice_loss(self) -> None:
        """End what was launched in a session that was lost while nobody asked for anything there."""
        losses = self._link.counters["sessions_lost"]
        if losses != self._losses:
            self._losses = losses
            self._lose([], SessionReplaced(self._link.url, "the session was lost, and a new one was opened"))

    def _lose(self, slots: list[int], answer: Reply | Exception) -> None:
        """End these slots' requests, and all launched steps, with one error."""
        lost = sorted(self._launched.union(slots) & self.under_way)
        if lost:
            self._end(lost, answer)

    def _end(self, slots: list[int], answer: Reply | Exception) -> None:
        self.under_way.difference_update(slots)
        self._launched.difference_update(slots)
        outcome = answer if isinstance(answer, Stepped | Observed | Exception) else TypeError(f"unexpected {answer!r}")
        self._land(slots, outcome)


def _ignore(slots: list[int], outcome: Stepped | Observed | Exception) -> None:
    """Drop what nobody waits for."""


def _do_nothing() -> None:
    """Nobody waits."""
