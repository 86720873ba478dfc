"""Batches and replies, taken apart and put together."""

import msgspec
import numpy as np
import pytest

from openenv_gym.messages import Array, EnvFailure, FinalRows, Observed, Stepped, Values
from openenv_gym.slices import Gathering, joined, overlaid, picked, some_observations, some_steps


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


def test_replies_that_follow_each_other():
    whole = joined([stepped([4, 5], truncated=[True, False]), stepped([6]), stepped([7, 8, 9])], [2, 1, 3])
    assert plain(whole.observations) == plain(batch(4, 5, 6, 7, 8, 9))
    assert whole.observations[0].dtype == "<f4"
    assert whole.rewards.numpy().tolist() == [4, 5, 6, 7, 8, 9]
    assert whole.terminated.numpy().tolist() == [False] * 6
    assert whole.truncated.numpy().tolist() == [True] + [False] * 5


@pytest.mark.parametrize(
    "other",
    [
        {"observations": batch(1)[:1]},
        {"observations": batch(1)[::-1]},
        {"observations": batch(1, 2)},
        {"observations": [Array.of(np.zeros((1, 2), np.float64)), Values(["1"])]},
        {"observations": [Array.of(np.zeros((1, 3), np.float32)), Values(["1"])]},
        {"observations": [Array("<f4", (1, 2), memoryview(bytes(4))), Values(["1"])]},
        {"observations": [batch(1)[0], Values([])]},
        {"rewards": Array.of(np.zeros(2))},
        {"rewards": Array.of(np.zeros(()))},
        {"truncated": Array.of(np.zeros(1))},
        {"vector_infos": {}},
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_replies_of_different_forms_are_not_joined(other, first):
    replies = [stepped([0]), msgspec.structs.replace(stepped([1]), **other)]
    assert joined(replies[::-1] if first else replies, [1, 1]) is None


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


def test_some_of_a_reply():
    final = FinalRows([0, 2], batch(60, 62), [{"l": 0}, {"l": 2}])
    whole = stepped([10, 11, 12], final=final, infos={1: {"k": 1}, 2: {"k": 2}}, truncated=[False, False, True])
    some = some_steps(whole, [2, 1])
    assert plain(some.observations) == plain(batch(12, 11))
    assert some.rewards.numpy().tolist() == [12, 11]
    assert some.truncated.numpy().tolist() == [True, False]
    assert some.infos == {0: {"k": 2}, 1: {"k": 1}}
    assert (some.final.positions, some.final.infos) == ([0], [{"l": 2}])
    assert plain(some.final.observations) == plain(batch(62))
    assert some_steps(whole, [0, 1, 2]) is whole
    begun = some_observations(Observed(0, batch(1, 2), {1: {"n": 2}}, []), [1])
    assert (plain(begun.observations), begun.infos) == (plain(batch(2)), {0: {"n": 2}})


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
