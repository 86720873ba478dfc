"""How a server does now, as plain data, for somebody who looks at it once a second: all its processes together."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import starmap
from operator import sub
from pathlib import Path
from typing import Any, Final, NamedTuple

from openenv_gym.images import png
from openenv_gym.server.counts import PARTS, Counts, quantile
from openenv_gym.server.registry import Registry
from openenv_gym.server.session import Session

__all__ = ["Overview"]

_WINDOW: Final = 5
"""Moments that rates and quantiles are taken over."""

_APART_S: Final = 0.5
"""What lies between two moments at least, however many people look."""

_STALE_S: Final = 5.0
"""A moment that is older than this, because nobody looked, is of no use for rates."""

_WATCHED_S: Final = 3.0
"""How long step requests are timed after somebody looked."""

_FRAME_S: Final = 5.0
_MOST_FRAME_BYTES: Final = 8_000_000
_MOST_SESSIONS: Final = 50


class _Moment(NamedTuple):
    """What was counted when somebody looked."""

    at: float
    cpu_s: float
    total: Counts
    steps: dict[str, int]
    buckets: dict[str, list[int]]


class Overview:
    """What the page shows. It costs the server nothing while nobody looks.

    Each process answers for itself, with sums and rates that can be added up, and the one that serves the page adds
    them up.

    Args:
        registry: this process's sessions.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._moments: deque[_Moment] = deque(maxlen=_WINDOW)
        registry.answers.update(look=self._look, frame=self._frame)

    async def look(self) -> dict[str, Any]:
        """The server's numbers now, and what changed within the last looks."""
        company = self._registry.company
        looks = await self._registry.ask_all("look")
        return {
            **_together(looks),
            "answering": len(looks),
            "processes": company.processes,
            "max_envs": self._registry.capacity.maximum,  # of all processes together
        }

    async def frame(self, session: str, env: int) -> bytes | None:
        """What an env of a session shows now, as a PNG file.

        Args:
            session: the session's name, in whichever process it is.
            env: the env's number in the session.

        Returns:
            the file; None if the session is gone, busy, or draws nothing.
        """
        try:
            image = await self._registry.company.ask_owner(session, "frame", env)
        except ConnectionError:  # the supervisor is gone, and soon this process will be
            return None
        return None if image is None else base64.b64decode(image)

    # --------------------------------------------------------------------------------- what this process answers

    async def _look(self) -> dict[str, Any]:
        registry, now = self._registry, self._moment()
        registry.watched_until = time.perf_counter() + _WATCHED_S
        if self._moments and now.at - self._moments[-1].at > _STALE_S:
            self._moments.clear()
        before = self._moments[0] if self._moments else now
        if not self._moments or now.at - self._moments[-1].at >= _APART_S:
            self._moments.append(now)
        seconds = max(now.at - before.at, 1e-3)
        sessions = [self._session(session, before, seconds) for session in registry.sessions.values()]
        total = now.total
        return {
            "sessions": len(sessions),
            "connected": sum(session["connected"] for session in sessions),
            "envs": registry.capacity.active,
            "workers": registry.workers,
            "running": registry.running,
            "queued": registry.queued,
            "memory_bytes": _memory_bytes(),
            "cpu": (now.cpu_s - before.cpu_s) / seconds,
            "steps": total.steps,
            "steps_per_s": (total.steps - before.total.steps) / seconds,
            "received_per_s": (total.received_bytes - before.total.received_bytes) / seconds,
            "sent_per_s": (total.sent_bytes - before.total.sent_bytes) / seconds,
            "step_buckets": _difference(total.step_buckets, before.total.step_buckets),
            "timed": total.timed - before.total.timed,
            "part_seconds": _difference(total.part_seconds, before.total.part_seconds),
            "errors": total.errors,
            "resumed": total.resumed,
            "disconnected": total.disconnected,
            "lost": total.lost,
            "draining": registry.draining,
            "list": _busiest(sessions),
        }

    async def _frame(self, name: str, number: int) -> str | None:
        session = self._registry.sessions.get(name)
        frame = None
        if session is not None and session.renders and 0 <= number < session.slots.count:
            with contextlib.suppress(asyncio.TimeoutError):
                frame = await asyncio.wait_for(session.frame(number), _FRAME_S)
        image = await asyncio.to_thread(png, frame)
        return None if image is None or len(image) > _MOST_FRAME_BYTES else base64.b64encode(image).decode()

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
            "process": self._registry.company.process,
            "envs": session.slots.count,
            "connected": session.connected,
            "running": session.busy,
            "age_s": now - session.opened,
            "idle_s": now - session.last_active,
            "steps": counts.steps,
            "steps_per_s": (counts.steps - before.steps.get(session.name, 0)) / seconds,
            **_quantiles(_difference(counts.step_buckets, past)),
            "errors": sum(counts.errors.values()),
            "renders": session.renders,
        }


_SUMS: Final = (
    *("sessions", "connected", "envs", "workers", "running", "queued", "cpu", "steps", "steps_per_s"),
    *("received_per_s", "sent_per_s", "resumed", "disconnected", "lost"),
)


def _together(looks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several processes answered, as if they were one."""
    sums = {name: sum(look[name] for look in looks) for name in _SUMS}
    buckets, part_seconds = (
        [sum(column) for column in zip(*(look[name] for look in looks), strict=True)]
        for name in ("step_buckets", "part_seconds")
    )
    timed = sum(look["timed"] for look in looks)
    memory = [look["memory_bytes"] for look in looks]
    errors: dict[str, int] = {}
    for look in looks:
        errors.update({code: errors.get(code, 0) + count for code, count in look["errors"].items()})
    return {
        **sums,
        "memory_bytes": None if None in memory else sum(memory),
        "step_buckets": buckets,
        **_quantiles(buckets),
        # Where the time of a step request went, in seconds on average; None if none was timed.
        "parts": {name: seconds / timed for name, seconds in zip(PARTS, part_seconds, strict=True)} if timed else None,
        "errors": errors,
        "draining": any(look["draining"] for look in looks),
        "list": _busiest([session for look in looks for session in look["list"]]),
    }


def _busiest(sessions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(sessions, key=lambda session: (-session["steps_per_s"], session["age_s"]))[:_MOST_SESSIONS]


def _difference(now: Sequence[Any], before: Sequence[Any]) -> list[Any]:
    return list(starmap(sub, zip(now, before, strict=True)))


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
