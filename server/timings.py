"""Where a step's time goes on the server: the moments that it passes, on one clock. No threads and no I/O here."""

from __future__ import annotations

import time

from openenv_gym.messages import Since, Timings

__all__ = ["Laps"]


class Laps:
    """The moments of one step, noted as it passes them; ``time.perf_counter`` is the same on all threads.

    Made when the request is decoded.

    Args:
        arrived: when its frame was there.

    Attributes:
        begun: when it was the session's turn; None before.
        submitted: when its jobs were given to the workers.
        timings: what `sum_up` gave.
    """

    def __init__(self, arrived: float) -> None:
        self.begun: float | None = None
        self.submitted = 0.0
        self.timings: Timings | None = None
        self._arrived = arrived
        self._decoded = time.perf_counter()
        self._jobs: list[tuple[float, float, float]] = []

    def job(self, idle_since: float, begun: float) -> None:
        """Note the end of a job, on its worker's thread.

        Args:
            idle_since: when the worker had ended its job before.
            begun: when it began this one.
        """
        self._jobs.append((time.perf_counter(), begun, idle_since))  # atomic, so all threads may

    def sum_up(self) -> Timings | None:
        """The times so far, when all jobs have ended and before the reply is made; None if none has ended."""
        now = time.perf_counter()
        if not self._jobs or self.begun is None:
            return None
        ended, begun, idle_since = max(self._jobs)
        free = max(idle_since, self.submitted)
        self.timings = Timings(
            decode=self._decoded - self._arrived + self.submitted - self.begun,
            queue=self.begun - self._decoded + free - self.submitted,
            hop=begun - free + now - ended,
            env=ended - begun,
            encode=Since(now),
        )
        return self.timings
