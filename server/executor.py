"""Runs envs' calls on threads: each env always on the thread that built it.

Playwright, GL and MuJoCo contexts belong to the thread that made them, so an env never moves. A batch is one job for
each *thread*, not for each env, and the last thread to finish completes the batch, so nothing waits on the event loop.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

__all__ = ["Executor", "Job", "Worker", "run_together"]

Job: TypeAlias = Callable[[], None]

logger = logging.getLogger(__name__)


class Worker:
    """One thread with a queue of jobs.

    Attributes:
        envs: envs that live on this thread.
        idle_since: when its last job ended, on ``time.perf_counter``.
    """

    def __init__(self, name: str) -> None:
        self.envs = 0
        self.idle_since = time.perf_counter()
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Jobs that wait."""
        return self._queue.qsize()

    def submit(self, job: Job) -> None:
        """Run a job after those that were submitted before. What it raises is logged."""
        self._queue.put(job)

    def stop(self) -> None:
        """End the thread after its jobs."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; False if it hasn't in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except BaseException:
                logger.exception("a job failed on %s", self._thread.name)
            self.idle_since = time.perf_counter()
            del job  # or the last job's env would live until the next one


class Executor:
    """Hands out workers to envs.

    Guarantees: `place` and `leave` belong to one thread, the event loop's; workers take jobs from any thread.

    Args:
        max_workers: the most threads; envs beyond share them. None sets no limit.
        apart: give each env a thread of its own, rather than one for each group that is placed together.
    """

    def __init__(self, *, max_workers: int | None, apart: bool) -> None:
        self.apart = apart or max_workers is not None
        self._max_workers = max_workers
        self._workers: list[Worker] = []
        self._numbers = itertools.count()

    @property
    def workers(self) -> int:
        """Threads that run."""
        return len(self._workers)

    @property
    def queued(self) -> int:
        """Jobs that wait for their thread."""
        return sum(worker.queued for worker in self._workers)

    def place(self, count: int, *, as_one: bool = False) -> list[Worker]:
        """Choose a worker for each of ``count`` new envs that are stepped together.

        Args:
            count: the number of envs.
            as_one: they are one vector env, and have one worker in any case.

        Raises:
            RuntimeError: if the system has no room for another thread.
        """
        if as_one or not self.apart:
            return [self._one(count)] * count
        placed: list[Worker] = []
        try:
            while len(placed) < count:
                placed.append(self._one())
        except BaseException:
            for worker in placed:
                self.leave(worker)
            raise
        return placed

    def leave(self, worker: Worker) -> None:
        """Note that an env left its worker; a worker without envs ends."""
        worker.envs -= 1
        if worker.envs == 0 and worker in self._workers:
            self._workers.remove(worker)
            worker.stop()

    def abandon(self, worker: Worker) -> None:
        """Give up on a worker whose job doesn't return: it gets no more envs, and ends if ever it can."""
        if worker in self._workers:
            self._workers.remove(worker)
            worker.stop()

    def stop(self) -> None:
        """End all workers after their jobs."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def _one(self, envs: int = 1) -> Worker:
        if self._max_workers is not None and len(self._workers) >= self._max_workers:
            worker = min(self._workers, key=lambda w: w.envs)
        else:
            worker = Worker(f"env-worker-{next(self._numbers)}")
            self._workers.append(worker)
        worker.envs += envs
        return worker


def run_together(jobs: Sequence[tuple[Worker, Job]], finish: Job) -> None:
    """Run a job on each worker at the same time, and ``finish`` on the one that ends last.

    Args:
        jobs: at least one worker with its job.
        finish: what completes the batch.
    """
    if len(jobs) == 1:
        worker, only = jobs[0]

        def run_alone() -> None:
            try:
                only()
            finally:
                finish()

        worker.submit(run_alone)
        return
    remaining = itertools.count(len(jobs) - 1, -1)  # next() is atomic

    def run(job: Job) -> None:
        try:
            job()
        finally:
            if next(remaining) == 0:
                finish()

    for worker, job in jobs:
        worker.submit(lambda job=job: run(job))  # type: ignore[misc]
