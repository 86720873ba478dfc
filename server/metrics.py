"""A server's numbers for Prometheus. They are collected when they are asked for, and never before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

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
    """The numbers of one server, and of its process: memory, processor time and open files.

    Args:
        registry: the server's sessions.
    """

    def __init__(self, registry: Registry) -> None:
        self._collectors = CollectorRegistry()
        self._collectors.register(_Sessions(registry))
        ProcessCollector(registry=self._collectors)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The metrics as text, and its media type.

        Args:
            accept: the request's ``Accept`` header, which chooses between Prometheus's format and OpenMetrics.
        """
        encode, media_type = choose_encoder(accept)
        return encode(self._collectors), media_type


class _Sessions(Collector):
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are checked by a test, and need no collecting before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One value each, read on the event loop's thread."""
        registry = self._registry
        counts = registry.total()
        info = {"version": __version__, "env": registry.source.name}
        yield InfoMetricFamily("openenv_gym_server", "The server and its environment.", info)
        about = "Open sessions, by whether a client is there."
        sessions = GaugeMetricFamily("openenv_gym_sessions", about, labels=["state"])
        connected = sum(session.connected for session in registry.sessions.values())
        sessions.add_metric(["connected"], connected)
        sessions.add_metric(["waiting"], len(registry.sessions) - connected)
        yield sessions
        yield GaugeMetricFamily("openenv_gym_envs", "Envs that exist.", registry.capacity.active)
        yield GaugeMetricFamily("openenv_gym_envs_max", "Envs that may exist.", registry.capacity.maximum)
        yield GaugeMetricFamily("openenv_gym_workers", "Threads that run envs.", registry.workers)
        yield GaugeMetricFamily("openenv_gym_requests_running", "Requests that run now.", registry.running)
        yield GaugeMetricFamily("openenv_gym_jobs_queued", "Jobs that wait for their thread.", registry.queued)
        for field, meaning in _COUNTERS.items():
            yield CounterMetricFamily(f"openenv_gym_{_NAMES.get(field, field)}", meaning, getattr(counts, field))
        errors = CounterMetricFamily("openenv_gym_errors", "Errors, by their code.", labels=["code"])
        for code, count in counts.errors.items():
            errors.add_metric([code], count)
        yield errors
        yield _step_seconds(counts)


def _step_seconds(counts: Counts) -> Metric:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), counts.step_buckets, strict=True):
        total += count
        buckets.append((bound, total))
    meaning = "Seconds of a step request, which steps all envs of a connection, from its arrival to its reply."
    return HistogramMetricFamily("openenv_gym_step_seconds", meaning, buckets, counts.step_seconds)
