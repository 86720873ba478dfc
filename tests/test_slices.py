"""Batches and replies, taken apart and put together."""

import numpy as np
import pytest

from openenv_gym.messages import Array, EnvFailure, FinalRows, Observed, Stepped, Values
from openenv_gym.slices import Gathering, overlaid, picked


def batch(*numbers):
    return [Array.of(np.array([[n, -n] for n in numbers], np.float32)), Values([str(n) for n in numbers])]


def plain(batch):
    return [leaf.numpy().tolist() if isinstance(leaf, Array) else leaf.items for leaf in batch]


def stepped(numbers, *, final=None, infos=None, truncated=None):
    over = np.zeros(len(numbers), np.bool_) if truncated is None else np.array(truncated)
    ends = Array.of(np.zeros(len(numbers), np.bool_)), Array.of(over)
    return Stepped(0, batch(*numbers), Array.of(np.array(numbers, np.float64)), *ends, infos or {}, final, [])


@pytest.mark.parametrize("positions", [[0], [2, 0], [1, 2], []])
def test_picked(positions):
    assert plain(picked(batch(5, 6, 7), positions)) == plain(batch(*[5 + p for p in positions])) or positions == []


def test_overlaid():
    whole = overlaid(4, [([3, 1], batch(3, 1)), ([0, 2], batch(0, 9)), ([2], batch(2))])
    assert plain(whole) == plain(batch(0, 1, 2, 3))
    assert whole[0].dtype == "<f4"


def test_steps_of_several_sessions():
    gathering = Gathering(3)
    failure = EnvFailure(7, "EXECUTION_ERROR", "ValueError", "no")
    final = FinalRows([1], batch(60), [{"l": 1}])
    gathering.stepped([2, 0], stepped([2, 0], final=final, infos={0: {"k": 1}}, truncated=[False, True]), [failure])
    gathering.stepped([1], stepped([1]), [])
    whole = gathering.whole_stepped()
    assert plain(whole.observations) == plain(batch(0, 1, 2))
    assert whole.rewards.numpy().tolist() == [0, 1, 2]
    assert whole.truncated.numpy().tolist() == [True, False, False]
    assert whole.infos == {2: {"k": 1}}
    assert whole.failures == [failure]
    assert (whole.final.positions, whole.final.infos) == ([0], [{"l": 1}])
    assert plain(whole.final.observations) == plain(batch(60))


def test_lost_rows_that_are_reset_in_the_same_step():
    gathering = Gathering(2)
    gathering.stepped([0], stepped([0]), [])
    gathering.lost([1], batch(11))
    gathering.end([1])
    gathering.observed([1], Observed(0, batch(12), {0: {"new": 1}}, []), [])
    whole = gathering.whole_stepped()
    assert plain(whole.observations) == plain(batch(0, 12))
    assert whole.truncated.numpy().tolist() == [False, True]
    assert whole.infos == {1: {"new": 1, "connection_lost": True}}
    assert plain(whole.final.observations) == plain(batch(11))
    assert whole.final.infos == [{"connection_lost": True}]


def test_a_reset_in_place_of_another_leaves_nothing_of_its_info():
    gathering = Gathering(1)
    gathering.stepped([0], stepped([0], infos={0: {"old": 1}}), [])
    gathering.observed([0], Observed(0, batch(5), {}, [], unseeded=True), [])
    assert gathering.whole_stepped().infos == {}
    assert plain(gathering.whole_observed().observations) == plain(batch(5))
    assert gathering.whole_observed().unseeded
