"""What happened on a server, as plain numbers that cost a request next to nothing. No threads and no I/O here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from time import perf_counter
from typing import Final

import msgspec

from openenv_gym.messages import Timings

__all__ = ["BOUNDS_S", "PARTS", "Counts", "quantile"]

PARTS: Final = Timings.__struct_fields__
"""The parts of a step request's time."""

BOUNDS_S: Final = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
"""Upper bounds in seconds of `Counts.step_buckets`; the last bucket holds what took longer than all of them."""


class Counts(msgspec.Struct, kw_only=True):
    """Sums since the start, of one session or of a whole server.

    They only grow, so the counts of sessions, or of processes, are added up to those of the whole.

    Guarantees: everything here belongs to the event loop's thread.

    Attributes:
        steps: env steps.
        resets: resets that clients asked for; an autoreset is a part of its step.
        received_bytes: bytes of the messages from clients.
        sent_bytes: bytes of the replies.
        step_buckets: how many step requests took how long, by `BOUNDS_S`. One request steps all envs of a connection;
            its time begins when it was read, and ends when its reply is ready to be written.
        step_seconds: the sum of these times.
        part_seconds: sums of the fields of `openenv_gym.messages.Timings`, over the requests that were timed.
        timed: how many of them there were: those that were asked for, and all while somebody looks at the page.
        errors: how often each error code was a client's answer, or an env's.
        opened: sessions that were opened.
        resumed: sessions that came back after their connection had broken.
        disconnected: connections that ended without a ``close``.
        lost: sessions that ended without a ``close``: nobody came back in time, or their dialect knows no resume.
    """

    steps: int = 0
    resets: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    step_buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    step_seconds: float = 0.0
    part_seconds: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(PARTS))
    timed: int = 0
    errors: dict[str, int] = {}
    opened: int = 0
    resumed: int = 0
    disconnected: int = 0
    lost: int = 0

    def stepped(self, envs: int, seconds: float) -> None:
        """Note a step request."""
        self.steps += envs
        self.step_seconds += seconds
        self.step_buckets[bisect_left(BOUNDS_S, seconds)] += 1

    def took(self, timings: Timings) -> None:
        """Note where the time of a step request went, right after its reply was encoded."""
        encode = perf_counter() - timings.encode  # a `Since`
        for i, seconds in enumerate((timings.decode, timings.queue, timings.hop, timings.env, encode)):
            self.part_seconds[i] += seconds
        self.timed += 1

    def failed(self, code: str) -> None:
        """Note an error."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def add(self, other: Counts) -> None:
        """Add what another one counted."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, list):
                theirs = [a + b for a, b in zip(mine, theirs, strict=True)]
            elif isinstance(mine, dict):
                theirs = {code: mine.get(code, 0) + theirs.get(code, 0) for code in {**mine, **theirs}}
            else:
                theirs += mine
            setattr(self, name, theirs)


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """The time in seconds that a share of the step requests took at most, as exact as the buckets are.

    Args:
        buckets: as `Counts.step_buckets`.
        share: between 0 and 1; 0.5 for the median.

    Returns:
        a time inside the bucket that holds it, by linear interpolation; None without requests.
    """
    total = sum(buckets)
    if total == 0:
        return None
    before, wanted = 0, share * total
    for i, count in enumerate(buckets):
        if count and before + count >= wanted:
            low = BOUNDS_S[i - 1] if i else 0.0
            high = BOUNDS_S[i] if i < len(BOUNDS_S) else low
            return low + (high - low) * (wanted - before) / count
        before += count
    return BOUNDS_S[-1]  # rounding
