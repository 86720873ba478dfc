"""Steps that run by themselves, over a pool's links: sent for some rows, and landing as their replies come in.

A link with one env steps it, and the reply is all there is to wait for. A link with several launches their steps and
collects those that have ended (see `openenv_gym.messages.Launch`): only when somebody waits, and for as many at once as
the other links can't bring, so that a step that all envs make in the same time costs one round trip.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from openenv_gym.messages import Launch, Observed, Reset, Step, Stepped
from openenv_gym.pool import Pool
from openenv_gym.streams import Stream

__all__ = ["Flight", "Flights", "Landing"]

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


class Flights:
    """The requests under way on the links of one pool.

    Guarantees: public methods belong to one thread at a time, which isn't the loop thread. Each slot of each request
    lands once, unless it is given up; the caller sends nothing for a slot that hasn't landed.

    Args:
        pool: the links.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._streams = [Stream(link, partial(self._land, i), self._ask) for i, link in enumerate(pool.links)]
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
