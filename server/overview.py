"""How a server does now, as plain data, for somebody who looks at it once a second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import starmap
from operator import sub
from pathlib import Path
from typing import Any, Final, NamedTuple

from openenv_gym.server.counts import PARTS, Counts, quantile
from openenv_gym.server.registry import Registry
from openenv_gym.server.session import Session

__all__ = ["Overview"]

_WINDOW: Final = 5
"""Looks that rates and quantiles are taken over."""

_MOST_SESSIONS: Final = 50


class _Moment(NamedTuple):
    """What was counted when somebody looked."""

    at: float
    cpu_s: float
    total: Counts
    steps: dict[str, int]
    buckets: dict[str, list[int]]


class Overview:
    """What one viewer sees. It costs the server nothing between two looks.

    Args:
        registry: the server's sessions.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._moments: deque[_Moment] = deque([self._moment()], maxlen=_WINDOW)

    def look(self) -> dict[str, Any]:
        """The server's numbers now, and what changed within the last looks."""
        registry, now, before = self._registry, self._moment(), self._moments[0]
        self._moments.append(now)
        seconds = max(now.at - before.at, 1e-3)
        sessions = [self._session(session, before, seconds) for session in registry.sessions.values()]
        sessions.sort(key=lambda session: (-session["steps_per_s"], session["age_s"]))
        total = now.total
        buckets = list(starmap(sub, zip(total.step_buckets, before.total.step_buckets, strict=True)))
        return {
            "sessions": len(sessions),
            "connected": sum(session["connected"] for session in sessions),
            "envs": registry.capacity.active,
            "max_envs": registry.capacity.maximum,
            "workers": registry.workers,
            "running": registry.running,
            "queued": registry.queued,
            "memory_bytes": _memory_bytes(),
            "cpu": (now.cpu_s - before.cpu_s) / seconds,
            "steps": total.steps,
            "steps_per_s": (total.steps - before.total.steps) / seconds,
            "requests_per_s": sum(buckets) / seconds,
            "received_per_s": (total.received_bytes - before.total.received_bytes) / seconds,
            "sent_per_s": (total.sent_bytes - before.total.sent_bytes) / seconds,
            "step_buckets": buckets,
            **_quantiles(buckets),
            "parts": _parts(total, before.total),
            "errors": total.errors,
            "opened": total.opened,
            "resumed": total.resumed,
            "disconnected": total.disconnected,
            "lost": total.lost,
            "draining": registry.draining,
            "list": sessions[:_MOST_SESSIONS],
        }

    def _moment(self) -> _Moment:
        sessions = self._registry.sessions
        return _Moment(
            time.monotonic(),
            time.process_time(),
            self._registry.total(),
            {name: session.counts.steps for name, session in sessions.items()},
            {name: list(session.counts.step_buckets) for name, session in sessions.items()},
        )

    def _session(self, session: Session, before: _Moment, seconds: float) -> dict[str, Any]:
        counts, now = session.counts, time.monotonic()
        past = before.buckets.get(session.name, [0] * len(counts.step_buckets))
        return {
            "name": session.name,
            "envs": session.slots.count,
            "connected": session.connected,
            "running": session.busy,
            "age_s": now - session.opened,
            "idle_s": now - session.last_active,
            "steps": counts.steps,
            "steps_per_s": (counts.steps - before.steps.get(session.name, 0)) / seconds,
            **_quantiles(list(starmap(sub, zip(counts.step_buckets, past, strict=True)))),
            "errors": sum(counts.errors.values()),
            "renders": session.renders,
        }


def _parts(now: Counts, before: Counts) -> dict[str, float] | None:
    """Where the time of a step request went, in seconds on average; None if none was timed."""
    timed = now.timed - before.timed
    if not timed:
        return None
    sums = zip(PARTS, now.part_seconds, before.part_seconds, strict=True)
    return {name: (after - earlier) / timed for name, after, earlier in sums}


def _quantiles(buckets: Sequence[int]) -> dict[str, float | None]:
    return {name: quantile(buckets, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}


def _memory_bytes() -> int | None:
    """The memory that this process occupies; None where the system doesn't say."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * _page_size()


def _page_size() -> int:
    import resource  # only where there is /proc

    return resource.getpagesize()
