"""A learner's rows over their links: asked together, with one hand-over to the loop thread for a call.

Errors are data here: a call returns each link's reply or error, in order. What to do about one is the vector env's
decision.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from openenv_gym.errors import ConnectFailed, LocalProtocolError, ReplyTimeout
from openenv_gym.link import Link
from openenv_gym.loop import LoopThread, client_loop
from openenv_gym.messages import Reply, Request, Step, Stepped
from openenv_gym.opening import PoolSettings, close_links, open_links
from openenv_gym.stats import Trip

__all__ = ["Pool", "PoolSettings", "close_all"]

_CLOSE_S: Final = 2.0
_LOOK_S: Final = 1.0
"""How often a caller that waits looks at what it waits for, in seconds."""


class _Call:
    """One request to some links, waited for on the caller's thread.

    Attributes:
        results: each request's reply or error, once it is there.
        last: the index of the last one.
        started: when this was made, on ``time.perf_counter``.
        launched: when the loop thread began to send.
        delivered: when the last result was there.
    """

    def __init__(self, count: int) -> None:
        self.last = 0
        self.started = time.perf_counter()
        self.launched = self.delivered = 0.0
        self.results: list[Reply | Exception | None] = [None] * count
        self._left = count
        # A lock released by the last reply costs less than a future around a coroutine.
        self._done = threading.Lock()
        if count:
            self._done.acquire()

    def deliver(self, index: int, result: Reply | Exception) -> None:
        self.results[index] = result
        self._left -= 1
        if self._left == 0:
            self.last, self.delivered = index, time.perf_counter()
            self._done.release()

    def wait(self, timeout_s: float) -> bool:
        return self._done.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))


class Pool:
    """The links of one vector env.

    Guarantees: public methods are called from one thread at a time, which isn't the loop thread.

    Args:
        settings: how to connect.

    Attributes:
        links: the links, in row order.
        rows: the rows of each link.
        meanwhile: called about once a second, on the caller's thread, while a call waits.

    Raises:
        ConnectFailed: or another error of `openenv_gym.errors`, after all connections were closed again.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self.links: list[Link] = []
        self.rows: list[range] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self._settings = settings
        self._loop: LoopThread = client_loop()
        self._pid = os.getpid()
        self._open = True
        try:
            self.links = self._loop.run(open_links(settings))
        except ConnectFailed as error:  # its text says all; below it are dozens of frames of the loop thread
            raise error.with_traceback(None) from None
        first = 0
        for link in self.links:
            self.rows.append(range(first, first + link.slots))
            first += link.slots

    # ------------------------------------------------------------------------------------------------ calls

    def call(self, requests: Sequence[tuple[int, Request]], phase: str, timeout_s: float) -> list[Reply | Exception]:
        """Send requests at the same time, and wait for all replies.

        Args:
            requests: link index and request; no link twice.
            phase: what to call it in an error.
            timeout_s: total limit.

        Returns:
            for each request its reply or error; `ReplyTimeout` where none came in time.

        Raises:
            KeyboardInterrupt: if interrupted; replies that come later are dropped.
        """
        return self.wait(self.start(requests), requests, phase, timeout_s)

    def start(self, requests: Sequence[tuple[int, Request]]) -> _Call:
        """Send requests, and return at once; `wait` takes what this returns."""
        call = _Call(len(requests))
        self.call_soon(self._launch, call, requests)
        return call

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback on the loop thread, where the links live.

        Raises:
            LocalProtocolError: in a forked child process.
        """
        if os.getpid() != self._pid:
            raise LocalProtocolError("this env was made before a fork; make a new one in the child process")
        self._loop.call_soon(callback, *args)

    def wait(
        self, call: _Call, requests: Sequence[tuple[int, Request]], phase: str, timeout_s: float
    ) -> list[Reply | Exception]:
        """Wait for what `start` sent; see `call`."""
        try:
            in_time = self.look_out(call.wait, timeout_s)
        except BaseException:
            self._abandon(_late(call.results, requests))
            raise
        results = list(call.results)  # now, for whoever is abandoned gets an error there
        late = _late(results, requests)
        if not in_time:
            self._abandon(late)
        if not late:
            return [result for result in results if result is not None]
        timeout = ReplyTimeout(
            phase, self.links[late[0]].url, timeout_s, tuple(row for i in late for row in self.rows[i])
        )
        return [timeout if result is None else result for result in results]

    def look_out(self, wait: Callable[[float], bool], timeout_s: float) -> bool:
        """Wait in short turns, with `meanwhile` between them.

        Args:
            wait: waits for so many seconds at most, and says whether that was enough.
            timeout_s: total limit.

        Returns:
            whether it was within the limit.
        """
        end = time.monotonic() + timeout_s
        while not wait(max(min(_LOOK_S, end - time.monotonic()), 0.0)):
            if time.monotonic() >= end:
                return False
            self.meanwhile()
        return True

    def trip(self, call: _Call, requests: Sequence[tuple[int, Request]]) -> Trip | None:
        """When a call's slowest request, the one answered last, passed each point of its way.

        None unless all of them are timed steps that were taken.
        """
        timed = all(isinstance(request, Step) and request.timed for _, request in requests)
        if not timed or not all(isinstance(result, Stepped) for result in call.results):
            return None
        reply, traffic = call.results[call.last], self.links[requests[call.last][0]].traffic
        timings = reply.timings if isinstance(reply, Stepped) else None
        return Trip(call.started, call.launched, traffic.sent_at, traffic.received_at, call.delivered, timings)

    def _launch(self, call: _Call, requests: Sequence[tuple[int, Request]]) -> None:
        call.launched = time.perf_counter()
        for index, (i, request) in enumerate(requests):
            deliver = functools.partial(call.deliver, index)
            try:
                self.links[i].traffic.begin()
                self.links[i].start(request, deliver)
            except Exception as error:  # noqa: BLE001 - such as a seed too large to be sent; the caller raises it
                deliver(error)

    def _abandon(self, late: Sequence[int]) -> None:
        def abandon() -> None:
            for i in late:
                self.links[i].abandon()

        self._loop.call_soon(abandon)

    # ------------------------------------------------------------------------------------------------- ends

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Close all links at the same time, within the limit; never raises, and closing twice is fine."""
        close_all([self], timeout_s)

    def close_soon(self) -> None:
        """Start closing without waiting, for finalisers."""
        links = self.leave()
        if links:
            self._loop.spawn(close_links(links, _CLOSE_S))

    def leave(self) -> list[Link]:
        """What is left to be closed, for whoever asks first; nothing in a forked child."""
        left, self._open = self.links if self._open and os.getpid() == self._pid else [], False
        return left


def _late(results: Sequence[Reply | Exception | None], requests: Sequence[tuple[int, Request]]) -> list[int]:
    """The links that haven't replied."""
    return [i for result, (i, _) in zip(results, requests, strict=True) if result is None]


def close_all(pools: Sequence[Pool], timeout_s: float) -> None:
    """Close several pools at the same time; see `Pool.close`."""
    links = [link for pool in pools for link in pool.leave()]
    if links:
        with contextlib.suppress(TimeoutError):  # each link keeps the limit; this one is for a loop that is stuck
            client_loop().run(close_links(links, timeout_s), timeout_s + 1.0)
