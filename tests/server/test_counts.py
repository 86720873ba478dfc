"""Sums and quantiles, without a server."""

from time import perf_counter

import msgspec
import pytest

from openenv_gym.messages import Since, Timings
from openenv_gym.server.counts import BOUNDS_S, PARTS, Counts, quantile


def counted(*seconds, codes=(), **fields):
    counts = Counts(**fields)
    for each in seconds:
        counts.stepped(4, each)
    for code in codes:
        counts.failed(code)
    return counts


def test_a_step_request_is_in_one_bucket_and_its_bound_belongs_to_it():
    counts = counted(0.00001, 0.001, 0.0011, 99.0)
    found = dict(zip((*BOUNDS_S, "more"), counts.step_buckets, strict=True))
    assert {bound: n for bound, n in found.items() if n} == {0.00005: 1, 0.001: 1, 0.002: 1, "more": 1}
    assert counts.steps == 16
    assert counts.step_seconds == pytest.approx(99.00211)


def test_sums_are_those_of_all():
    total = Counts()
    total.add(counted(0.25, codes=["A", "B"], opened=1, sent_bytes=10))
    total.add(counted(0.25, 4.0, codes=["B"], opened=1, resumed=2))
    assert total == counted(0.25, 0.25, 4.0, codes=["A", "B", "B"], opened=2, resumed=2, sent_bytes=10)


def test_where_the_time_went():
    counts = Counts()
    for env in (0.5, 0.25):
        counts.took(Timings(decode=1.0, queue=2.0, hop=4.0, env=env, encode=Since(perf_counter())))
    sums = dict(zip(PARTS, counts.part_seconds, strict=True))
    assert 0 < sums.pop("encode") < 1
    assert sums == {"decode": 2.0, "queue": 4.0, "hop": 8.0, "env": 0.75}
    assert counts.timed == 2


def test_two_counts_share_nothing():
    first, second = counted(0.001, codes=["A"]), Counts()
    assert (second.errors, sum(second.step_buckets)) == ({}, 0)
    second.add(first)
    second.failed("A")
    assert first.errors == {"A": 1}


def test_they_travel_between_processes():
    counts = counted(0.3, codes=["A"], lost=1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(counts), type=Counts) == counts


@pytest.mark.parametrize(
    "seconds, share, low, high",
    [
        ([0.0015] * 100, 0.5, 0.001, 0.002),
        ([0.0015] * 99 + [0.3], 0.99, 0.001, 0.002),
        ([0.0015] * 99 + [0.3], 1.0, 0.2, 0.5),
        ([0.00001] * 3, 0.5, 0.0, 0.00005),
        ([99.0], 0.5, 10.0, 10.0),
        ([0.0015] + [0.015] * 3, 0.25, 0.001, 0.002),
    ],
)
def test_a_quantile_lies_in_its_bucket(seconds, share, low, high):
    assert low <= quantile(counted(*seconds).step_buckets, share) <= high


def test_without_steps_there_is_no_quantile():
    assert quantile(Counts().step_buckets, 0.5) is None
