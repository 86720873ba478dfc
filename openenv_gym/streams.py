"""Steps of one session that run by themselves: launched for some of its envs, and collected as they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from openenv_gym.errors import SessionLost
from openenv_gym.link import Link
from openenv_gym.messages import WINDOW, Collect, Collected, Launch, Launched, Observed, Reply, Reset, Step, Stepped

__all__ = ["Stream"]

_SENT_AT_ONCE: Final = WINDOW // 2
_ASKED_AT_ONCE: Final = WINDOW // 4
"""Requests of a link without a reply, and questions for what has landed; more wait on this side. The rest of the window
is for others."""


class Stream:
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
        self._loss = link.loss

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
        loss = self._link.loss
        if loss is not None and loss is not self._loss:
            self._loss = loss
            self._lose([], loss)

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
