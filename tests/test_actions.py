"""openenv_gym.actions: each env gets what it would get from Gymnasium, and what can't be right is never sent."""

import collections

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector.utils import batch_space, iterate
from helpers_spaces import MALFORMED_LEAVES, NAMED, arrays_in, every_space, identical, samples, share_memory, short

from openenv_gym.actions import ActionReader, check_actions, gather_actions, to_batch
from openenv_gym.codec import decode_request, encode
from openenv_gym.errors import ActionError, RemoteProtocolError
from openenv_gym.messages import Array, Step, Values
from openenv_gym.spaces import leaves

ENVS = 4
INF, NAN = np.inf, np.nan
UNIT = Box(0, 1, (2,))
GRAPH = NAMED["graph"]
POSE = Dict([("b", UNIT), ("a", Tuple([Discrete(3), Text(4)]))])
FLOATS = Array.of(np.array([[0, 1]], np.float32))


def received(space, actions, count=ENVS, rows=None):
    """What the envs of some rows get."""
    batch = to_batch(check_actions(space, actions, count), slice(0, count) if rows is None else rows)
    request = decode_request(encode(Step(1, None, batch, None)))
    return ActionReader(space).read(request.actions, count if rows is None else len(rows))


class Tensor:
    """Like a tensor of another library."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


def _without_numpy(action, found, path=()):
    """The same action, with the values of its array leaves as lists and Python's numbers."""
    if any(leaf.path == path for leaf in found):
        is_array = next(leaf for leaf in found if leaf.path == path).is_array
        return action.tolist() if is_array and hasattr(action, "tolist") else action
    if isinstance(action, dict):
        return {key: _without_numpy(value, found, (*path, key)) for key, value in action.items()}
    return tuple(_without_numpy(value, found, (*path, i)) for i, value in enumerate(action))


class TestActions:
    @every_space
    def test_arrive_as_gymnasium_hands_them_out(self, space):
        batched = batch_space(space, ENVS)
        (actions,) = samples(batched, 1)
        if space in (Dict({}), Tuple([])):  # of which gymnasium makes no actions at all
            assert received(space, actions) == [actions] * ENVS
        else:
            assert identical(received(space, actions), list(iterate(batched, actions)))

    @every_space
    def test_arrive_with_pythons_numbers_where_these_are_wanted(self, space):
        (actions,) = samples(batch_space(space, ENVS), 1)
        batch = to_batch(check_actions(space, actions, ENVS), slice(0, ENVS))
        reader = ActionReader(space)
        wanted = [_without_numpy(action, leaves(space)) for action in reader.read(batch, ENVS)]
        assert identical(reader.read_plain(batch, ENVS), wanted)

    @every_space
    def test_go_to_the_rows_that_are_asked_for(self, space):
        (actions,) = samples(batch_space(space, ENVS), 1)
        everything = received(space, actions)
        assert identical(received(space, actions, rows=[3, 1]), [everything[3], everything[1]])

    @pytest.mark.parametrize(
        "space", [UNIT, Discrete(3), MultiDiscrete([2, 3]), MultiBinary(2), Text(3), GRAPH, NAMED["one of"]]
    )
    @pytest.mark.parametrize("make", [list, tuple, collections.deque])
    def test_can_be_a_sequence_of_single_ones(self, space, make):
        actions = make(samples(space))
        assert identical(received(space, actions), list(actions))

    @pytest.mark.parametrize(
        "space, actions, arrive",
        [
            (Discrete(3), [2, 0], [2, 0]),
            (Discrete(3), (True, np.int8(1)), [True, np.int8(1)]),
            (Discrete(3), range(2), [0, 1]),
            (Discrete(3), np.array([2, 0], np.int32), [np.int32(2), np.int32(0)]),
            (Discrete(3), np.array([2, None], object), [2, None]),
            (Discrete(3), Tensor([2, 0]), [np.int64(2), np.int64(0)]),
            (Discrete(3), [None, "left"], [None, "left"]),  # what an env takes is its own affair
            (UNIT, np.ones((2, 2)), [np.ones(2), np.ones(2)]),  # float64 stays float64
            (UNIT, np.array([[INF, 0], [0, -INF]]), [np.array([INF, 0.0]), np.array([0.0, -INF])]),
            (UNIT, [[0, 1], [0.5, 1.0]], [[0, 1], [0.5, 1.0]]),
            (UNIT, [(0, 1), np.zeros(2, np.float32)], [(0, 1), np.zeros(2, np.float32)]),
            (UNIT, Tensor([[0.0, 1.0], [1.0, 0.0]]), [np.array([0.0, 1.0]), np.array([1.0, 0.0])]),
            (Text(3), np.array(["ab", "c"]), [np.str_("ab"), np.str_("c")]),
            (POSE, {"b": np.zeros((2, 2)), "a": ([1, 2], ["x", "y"]), "more": 1},
             [{"a": (1, "x"), "b": np.zeros(2)}, {"a": (2, "y"), "b": np.zeros(2)}]),
        ],
        ids=short,
    )  # fmt: skip
    def test_keep_their_types(self, space, actions, arrive):
        result = received(space, actions, 2)
        if space is POSE:  # the order of keys is that of the batched space
            assert [list(action) for action in result] == [list(batch_space(POSE, 2).spaces)] * 2
            result = [{"a": action["a"], "b": action["b"]} for action in result]
        assert identical(result, arrive)

    def test_can_be_an_array_of_objects(self):
        actions = np.empty(2, object)
        actions[:] = [np.zeros(2), [1, 2]]
        assert identical(received(UNIT, actions, 2), [np.zeros(2), [1, 2]])

    @pytest.mark.parametrize("name", ["box", "discrete", "multi discrete", "box bool"])
    def test_arrays_travel_as_arrays(self, name):
        (actions,) = samples(batch_space(NAMED[name], ENVS), 1)
        assert [type(leaf) for leaf in to_batch(check_actions(NAMED[name], actions, ENVS), slice(0, ENVS))] == [Array]

    @every_space
    def test_belong_to_the_env(self, space):
        (actions,) = samples(batch_space(space, ENVS), 1)
        each = received(space, actions)
        for number, action in enumerate(each):
            assert not share_memory(action, actions)
            assert not any(share_memory(action, other) for other in each[:number])
            assert all(part.flags.writeable for part in arrays_in(action))

    @every_space
    def test_are_those_of_the_moment_of_the_call(self, space):
        (actions,) = samples(batch_space(space, ENVS), 1)
        batch = to_batch(check_actions(space, actions, ENVS), slice(0, ENVS))
        frame = encode(Step(1, None, batch, None))
        for part in arrays_in(actions):
            part[...] = 0
        assert encode(Step(1, None, batch, None)) == frame


NESTED = Dict(a=Tuple([UNIT, Discrete(2)]))


def unable(shown):
    """What is said of actions that aren't one for each env."""
    return f"Unable to iterate over the following elements: {shown}; pass one action for each of the 2 env(s)"


def one(shown, missing, space, kind, form):
    """What is said of actions that are no dict or tuple."""
    return (
        f"Unable to iterate over the following elements: {shown} (no {missing} in it); "
        f"the actions of a {space} space are one {kind} of arrays: {form}"
    )


class TestActionErrors:
    @pytest.mark.parametrize(
        "space, actions, error, text",
        [
            (Discrete(2), [0], ActionError, "1 actions for 2 envs"),
            (Discrete(2), [0, 1, 0], ActionError, "3 actions for 2 envs"),
            (Discrete(2), [], ActionError, "0 actions for 2 envs"),
            (UNIT, np.zeros((3, 2)), ActionError, "3 actions for 2 envs"),
            (Text(3), ["a"], ActionError, "1 actions for 2 envs"),
            (NESTED, {"a": (np.zeros((2, 2)), [0])}, ActionError, "1 actions for 'a.1' for 2 envs"),
            (Discrete(2), 1, TypeError, unable("1")),
            (Discrete(2), None, TypeError, unable("None")),
            (Discrete(2), np.int64(1), TypeError, unable("array(1)")),
            (Discrete(2), np.array(1), TypeError, unable("array(1)")),
            (Discrete(2), Tensor(1), TypeError, unable("array(1)")),
            (Discrete(2), {0: 1, 1: 0}, TypeError, unable("{0: 1, 1: 0}")),
            (Text(3), "ab", TypeError, unable("'ab'")),
            (Text(3), b"ab", TypeError, unable("b'ab'")),
            (NESTED, [{}, {}], TypeError, one("[{}, {}]", "'a'", "Dict", "dict", "{'a': array of 2, …}")),
            (NESTED, {"a": 1}, TypeError, one("1", "0", "Tuple", "tuple", "(array of 2, …)")),
            (NESTED, {}, ActionError, "the actions have no 'a.0'"),
            (NESTED, {"a": (np.zeros((2, 2)),)}, ActionError, "the actions have no 'a.1'"),
            (UNIT, np.zeros((2, 3)), ActionError, "actions of shape (2, 3), not (2, 2)"),
            (UNIT, np.zeros(2), ActionError, "actions of shape (2,), not (2, 2)"),
            (Discrete(2), np.zeros((2, 1), int), ActionError, "actions of shape (2, 1), not (2,)"),
            (NESTED, {"a": (np.zeros(2), [0, 1])}, ActionError, "actions for 'a.0' of shape (2,), not (2, 2)"),
            (UNIT, [np.zeros(2), np.zeros(3)], ActionError, "the action of env 1 has shape (3,), not (2,)"),
            (UNIT, [[0, 1], [0, 1, 2]], ActionError, "the action of env 1 has shape (3,), not (2,)"),
            (UNIT, [[0, 1], [0, [1]]], ActionError, "the action of env 1 is ragged"),
            (UNIT, np.array([[0, 1], [NAN, 1]]), ActionError, "the action of env 1 holds NaN"),
            (UNIT, np.array([[0, 1], [NAN, 1]], np.float16), ActionError, "the action of env 1 holds NaN"),
            (UNIT, [[0, 1], [0, NAN]], ActionError, "the action of env 1 holds NaN"),
            (UNIT, [np.array([NAN, 1]), np.zeros(2)], ActionError, "the action of env 0 holds NaN"),
            (Box(0, 1, ()), [0.5, NAN], ActionError, "the action of env 1 holds NaN"),
            (Box(0, 1, ()), [0.5, np.float32(NAN)], ActionError, "the action of env 1 holds NaN"),
            (NESTED, {"a": (np.full((2, 2), NAN), [0, 1])}, ActionError, "the action for 'a.0' of env 0 holds NaN"),
        ],
        ids=short,
    )
    def test_come_before_anything_is_sent(self, space, actions, error, text):
        with pytest.raises(error) as caught:
            check_actions(space, actions, 2)
        assert type(caught.value) is error
        assert str(caught.value) == text

    @pytest.mark.parametrize("action", [{}, {"a": 1}, {"a": (np.zeros(2),)}, None], ids=short)
    def test_of_a_single_action_name_the_part(self, action):
        with pytest.raises(ActionError, match=r"an action has no ('a'|0|1)$"):
            gather_actions(NESTED, [action])

    def test_are_value_errors(self):
        assert issubclass(ActionError, ValueError)

    def test_of_masked_arrays_come_on_the_callers_thread(self):
        actions = np.ma.array([0, 1], mask=[True, False])
        with pytest.raises(TypeError, match="a masked array can't be sent"):
            to_batch(check_actions(Discrete(2), actions, 2), slice(0, 2))

    @pytest.mark.parametrize(
        "space, batch",
        [
            (UNIT, []),
            (UNIT, [FLOATS, FLOATS]),
            (UNIT, [Array.of(np.zeros((2, 2)))]),
            (UNIT, [Array.of(np.array(1))]),
            (Text(3), [Values([])]),
            (NESTED, [FLOATS, Values([1, 2])]),
            *MALFORMED_LEAVES.values(),
        ],
        ids=short,
    )
    def test_of_a_bad_peer(self, space, batch):
        with pytest.raises(RemoteProtocolError):
            ActionReader(space).read(batch, 1)
