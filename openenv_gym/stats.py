"""Where a vector step's time goes, and what a remote vector env has done so far: measured here, and shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openenv_gym.display import table
from openenv_gym.messages import Timings

__all__ = ["MEANINGS", "PARTS", "SERVER_AND_NETWORK", "WHOLE", "Part", "Recorder", "Stats", "Trip"]

PARTS: Final = (
    "hand_over",
    "encode",
    "network",
    "server_decode",
    "queue",
    "hop",
    "env",
    "server_encode",
    "decode",
    "hand_back",
)
"""The parts of a vector step, in their order; see `Stats`."""

SERVER_AND_NETWORK: Final = "server_and_network"
"""The part that stands for those from ``network`` to ``server_encode``, if the server doesn't say its times."""

WHOLE: Final = "whole"

MEANINGS: Final = {
    "hand_over": "caller's thread to client's loop",
    "encode": "checking and packing the actions",
    "network": "both ways, and both event loops",
    "server_decode": "reading the message",
    "queue": "waiting for a busy server thread",
    "hop": "to the server's thread and back",
    "env": "the envs' own steps",
    "server_encode": "making the reply",
    "decode": "reading the reply",
    "hand_back": "client's loop to caller's thread",
    SERVER_AND_NETWORK: "all that isn't the client's",
    WHOLE: "what the caller waits for",
}
"""Each part in a few words, for tables; `Stats` says it in full."""

_REMOTE = slice(PARTS.index("network"), PARTS.index("server_encode") + 1)
_KEPT: Final = 10_000


class Trip(NamedTuple):
    """When a vector step's slowest request passed each point, on ``time.perf_counter``.

    Attributes:
        started: the caller's thread turned to the loop thread.
        launched: the loop thread began.
        sent: the message was ready to be sent.
        received: the reply's message was there.
        delivered: the reply was decoded.
        server: what the server said about its part; None if it said nothing.
    """

    started: float
    launched: float
    sent: float
    received: float
    delivered: float
    server: Timings | None


@dataclass(frozen=True)
class Part:
    """How long one part of the vector steps took, in µs.

    Attributes:
        name: one of `PARTS`, or ``server_and_network``, or ``whole``.
        mean_us: the mean; the means of the parts add up to that of the whole.
        p50_us: the median.
        p95_us: 19 of 20 took at most this long.
        p99_us: 99 of 100 did.
    """

    name: str
    mean_us: float
    p50_us: float
    p95_us: float
    p99_us: float


@dataclass(frozen=True)
class Stats:
    """What a remote vector env has done, and where the time of its steps went.

    The parts are those of the latest 10,000 vector steps that were collected. In each of these steps they add up to
    the whole, which ends when the caller has its result; time that the caller spent elsewhere while the reply was
    already there (between ``step_async`` and ``step_wait``) isn't counted. With several connections the parts are
    those of the slowest, the one whose reply came last; with several worker threads on the server, of the thread that
    ended last.

    * ``hand_over``: from the caller's thread to the client's loop thread.
    * ``encode``: checking the actions and making the message.
    * ``network``: both ways, with all that neither program sees: the WebSockets of both sides, sockets, the waking up
      of their event loops.
    * ``server_decode``: reading the message on the server.
    * ``queue``: waiting for a server thread that was busy, or for the session's last request.
    * ``hop``: to the server thread and back to the server's event loop.
    * ``env``: the envs' steps, and writing down what they gave.
    * ``server_encode``: making the reply.
    * ``decode``: reading the reply, and making arrays and infos of it.
    * ``hand_back``: from the loop thread to the caller's.

    A stock OpenEnv server doesn't say its times; then ``server_and_network`` stands for all that isn't the client's.

    Attributes:
        num_envs: the number of envs.
        vector_steps: vector steps since the start.
        env_steps: steps of single envs since the start, the resetting steps of an autoreset included.
        reconnects: how often a broken connection was replaced.
        sessions_lost: sessions that could not be resumed.
        bytes_up: bytes of all messages sent, without the WebSocket's framing.
        bytes_down: bytes of all messages received.
        collected: vector steps that the parts are from; 0 unless it was asked for.
        steps_per_s: env steps a second that the collected steps make without a pause between them; None without any.
        whole: the whole of the collected steps; None without any.
        parts: its parts, in their order.
    """

    num_envs: int
    vector_steps: int = 0
    env_steps: int = 0
    reconnects: int = 0
    sessions_lost: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    collected: int = 0
    steps_per_s: float | None = None
    whole: Part | None = None
    parts: tuple[Part, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for ``json.dumps``."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{name:22}{value:>12,}" for name, value in self._counters()]
        if self.whole is not None:
            lines += ["", f"{'µs of a vector step':20} {'mean':>10} {'share':>7} {'p50':>10} {'p95':>10} {'p99':>10}"]
            lines += [
                f"{part.name:20} {part.mean_us:10,.1f} {share:7.1%} "
                f"{part.p50_us:10,.1f} {part.p95_us:10,.1f} {part.p99_us:10,.1f}   {MEANINGS[part.name]}"
                for part, share in self.shares()
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {name: f"{value:,}" for name, value in self._counters()}
        for part, share in self.shares():
            times = f"mean {part.mean_us:,.1f} µs, median {part.p50_us:,.1f}, p99 {part.p99_us:,.1f}"
            rows[part.name] = f"{share:.1%}: {times}"
        return table("Where the time goes", rows)

    def shares(self) -> Iterator[tuple[Part, float]]:
        """The parts and then the whole, each with its share of the whole's mean."""
        if self.whole is not None:
            for part in (*self.parts, self.whole):
                yield part, part.mean_us / self.whole.mean_us

    def _counters(self) -> list[tuple[str, int]]:
        names = ("vector_steps", "env_steps", "reconnects", "sessions_lost", "bytes_up", "bytes_down")
        counters = [(name.replace("_", " "), getattr(self, name)) for name in names]
        return counters if self.steps_per_s is None else [*counters, ("steps/s", round(self.steps_per_s))]


class Recorder:
    """Counts a vector env's steps and, while it is asked to, notes where their time goes.

    Guarantees: everything here belongs to the caller's thread, one step at a time.

    Attributes:
        collecting: whether it notes the parts of steps.
        vector_steps: vector steps so far.
        env_steps: steps of single envs so far.
    """

    def __init__(self) -> None:
        self.collecting = False
        self.vector_steps = self.env_steps = 0
        self._kept: NDArray[np.float64] = np.zeros((0, len(PARTS) + 1))
        self._count = 0
        self._server_known = True
        self._begun = self._waiting = self._woken = 0.0
        self._trip: Trip | None = None

    def collect(self, collecting: bool) -> None:
        """Start to collect, forgetting what was collected before; or stop, and keep it."""
        if collecting:
            self._kept = np.zeros((_KEPT, len(PARTS) + 1))
            self._count, self._server_known, self._trip = 0, True, None
        self.collecting = collecting

    # --------------------------------------------------------------------------------- one step, in its order

    def begin(self) -> None:
        """Note that the caller has asked for a step."""
        self._begun, self._trip = time.perf_counter(), None

    def wait(self) -> None:
        """Note that the caller waits for it."""
        self._waiting = time.perf_counter()

    def take(self, trip: Trip | None) -> None:
        """Note that the replies are there, and where their time went; None if that isn't known."""
        self.vector_steps += 1
        self._trip, self._woken = trip, time.perf_counter()

    def end(self) -> None:
        """Note that the caller has the result."""
        trip, ended = self._trip, time.perf_counter()
        if trip is None:
            return
        server = trip.server or Timings(0.0, 0.0, 0.0, 0.0, 0.0)
        self._server_known &= trip.server is not None
        at_server = server.decode + server.queue + server.hop + server.env + server.encode
        self._kept[self._count % _KEPT] = (
            trip.launched - trip.started,
            trip.started - self._begun + trip.sent - trip.launched,
            trip.received - trip.sent - at_server,
            server.decode,
            server.queue,
            server.hop,
            server.env,
            server.encode,
            trip.delivered - trip.received + ended - self._woken,
            self._woken - max(trip.delivered, self._waiting),
            ended - self._begun - max(self._waiting - trip.delivered, 0.0),
        )
        self._count += 1

    # -------------------------------------------------------------------------------------------- what it gave

    def samples(self) -> dict[str, NDArray[np.float64]]:
        """Seconds of each collected step by part, the latest last; at the end the whole."""
        kept = self._kept[: self._count]
        if self._count > _KEPT:
            kept = np.roll(kept, -(self._count % _KEPT), axis=0)
        columns = {name: kept[:, i] for i, name in enumerate((*PARTS, WHOLE))}
        if self._server_known:
            return columns
        remote = PARTS[_REMOTE]
        merged = {SERVER_AND_NETWORK if name == remote[0] else name: column for name, column in columns.items()}
        merged[SERVER_AND_NETWORK] = kept[:, _REMOTE].sum(axis=1)
        return {name: column for name, column in merged.items() if name not in remote}

    def stats(self, known: Stats) -> Stats:
        """What there is so far, besides what is known of it elsewhere."""
        known = replace(known, vector_steps=self.vector_steps, env_steps=self.env_steps)
        samples = self.samples()
        if not len(samples[WHOLE]):
            return known
        *parts, whole = (_summary(name, seconds) for name, seconds in samples.items())
        steps_per_s = 1e6 * known.num_envs / whole.mean_us
        return replace(known, collected=len(samples[WHOLE]), steps_per_s=steps_per_s, whole=whole, parts=tuple(parts))


def _summary(name: str, seconds: NDArray[np.float64]) -> Part:
    us = 1e6 * seconds
    return Part(name, float(us.mean()), *(float(value) for value in np.percentile(us, (50, 95, 99))))
