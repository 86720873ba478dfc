"""A step's times on the server, by the rules alone and of real sessions."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from helpers_core import Talk, make_registry, run
from helpers_envs import Count

from openenv_gym.messages import Array, Reset, Step
from openenv_gym.server import timings
from openenv_gym.server.timings import Laps


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(timings, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def laps(clock, *jobs):
    """Arrived at 1, decoded at 2, begun at 4, submitted at 8; jobs are (idle since, begun, ended)."""
    clock.now = 2.0
    laps = Laps(1.0)
    laps.begun, laps.submitted = 4.0, 8.0
    for idle_since, begun, ended in jobs:
        clock.now = ended
        laps.job(idle_since, begun)
    return laps


@pytest.mark.parametrize(
    "jobs, queue, hop, env",
    [
        ([(3, 16, 32)], 2, 8 + 32, 16),
        ([(12, 16, 32)], 2 + 4, 4 + 32, 16),  # the worker was busy until 12
        ([(3, 16, 32), (3, 17, 20)], 2, 8 + 32, 16),  # the one that ended last
        ([(3, 17, 20), (3, 16, 32)], 2, 8 + 32, 16),
    ],
)
def test_the_times(clock, jobs, queue, hop, env):
    measured = laps(clock, *jobs)
    clock.now = 64.0
    times = measured.sum_up()
    assert (times.decode, times.queue, times.hop, times.env) == (1 + 4, queue, hop, env)
    assert times.decode + times.queue + times.hop + times.env == 64 - 1


def test_without_a_job_that_ended_there_are_none(clock):
    assert laps(clock).sum_up() is None


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("max_workers", [None, 2])
def test_only_who_asks_gets_them(timed, max_workers):
    async def main():
        registry = make_registry(Count, max_workers=max_workers)
        talk = await Talk.hello(registry, 4)
        await talk.ask(Reset(1, None, None, None))
        begun = time.perf_counter()
        reply = await talk.ask(Step(2, None, [Array.of(np.zeros(4, np.int64))], "NextStep", timed))
        took = time.perf_counter() - begun
        await registry.stop()
        return reply.timings, took

    times, took = run(main())
    if timed:
        parts = [times.decode, times.queue, times.hop, times.env, times.encode]
        assert min(parts) > 0
        assert sum(parts) <= took
    else:
        assert times is None
