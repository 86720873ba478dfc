"""A server's numbers for Prometheus. They are collected when they are asked for, and never before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from openenv_gym.server.counts import BOUNDS_S, Counts
from openenv_gym.server.registry import Registry
from openenv_gym.version import __version__

__all__ = ["Metrics"]

_COUNTERS: Final = {
    "steps": "Env steps.",
    "resets": "Resets that clients asked for.",
    "received_bytes": "Bytes of messages from clients.",
    "sent_bytes": "Bytes of replies to clients.",
    "opened": "Sessions that were opened.",
    "resumed": "Sessions that came back after their connection had broken.",
    "disconnected": "Connections that ended without a close.",
    "lost": "Sessions that ended without a close.",
}
"""Fields of `Counts` -> what they mean."""

_NAMES: Final = {
    "opened": "sessions_opened",
    "resumed": "sessions_resumed",
    "disconnected": "connections_lost",
    "lost": "sessions_lost",
}


class Metrics:
    """The numbers of one server, added up over its processes; memory, processor time and files are this process's.

    Args:
        registry: the server's sessions.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._sessions = _Sessions(registry)
        self._collectors = CollectorRegistry()
        self._collectors.register(self._sessions)
        ProcessCollector(registry=self._collectors)

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """The metrics as text, and its media type.

        Args:
            accept: the request's ``Accept`` header, which chooses between Prometheus's format and OpenMetrics.
        """
        snapshots = await self._registry.ask_all("snapshot")
        encode, media_type = choose_encoder(accept)
        self._sessions.snapshots = snapshots  # nothing else runs until they are encoded
        return encode(self._collectors), media_type


class _Sessions(Collector):
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.snapshots: list[dict[str, Any]] = []

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are checked by a test, and need no collecting before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One value each, of `snapshots`."""
        counts = Counts()
        for snapshot in self.snapshots:
            counts.add(msgspec.convert(snapshot["counts"], Counts))
        info = {"version": __version__, "env": self._registry.source.name}
        yield InfoMetricFamily("openenv_gym_server", "The server and its environment.", info)
        yield GaugeMetricFamily("openenv_gym_processes", "Processes of the server that answered.", len(self.snapshots))
        about = "Open sessions, by whether a client is there."
        sessions = GaugeMetricFamily("openenv_gym_sessions", about, labels=["state"])
        connected = self._sum("connected")
        sessions.add_metric(["connected"], connected)
        sessions.add_metric(["waiting"], self._sum("sessions") - connected)
        yield sessions
        yield GaugeMetricFamily("openenv_gym_envs", "Envs that exist.", self._sum("active_envs"))
        maximum = self._registry.capacity.maximum  # of all processes together
        yield GaugeMetricFamily("openenv_gym_envs_max", "Envs that may exist.", maximum)
        yield GaugeMetricFamily("openenv_gym_workers", "Threads that run envs.", self._sum("threads"))
        yield GaugeMetricFamily("openenv_gym_requests_running", "Requests that run now.", self._sum("running"))
        yield GaugeMetricFamily("openenv_gym_jobs_queued", "Jobs that wait for their thread.", self._sum("queued"))
        for field, meaning in _COUNTERS.items():
            yield CounterMetricFamily(f"openenv_gym_{_NAMES.get(field, field)}", meaning, getattr(counts, field))
        errors = CounterMetricFamily("openenv_gym_errors", "Errors, by their code.", labels=["code"])
        for code, count in counts.errors.items():
            errors.add_metric([code], count)
        yield errors
        yield _step_seconds(counts)

    def _sum(self, name: str) -> int:
        return sum(snapshot[name] for snapshot in self.snapshots)


def _step_seconds(counts: Counts) -> Metric:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), counts.step_buckets, strict=True):
        total += count
        buckets.append((bound, total))
    meaning = "Seconds of a step request, which steps all envs of a connection, from its arrival to its reply."
    return HistogramMetricFamily("openenv_gym_step_seconds", meaning, buckets, counts.step_seconds)
