"""openenv_gym.batching: batches equal Gymnasium's of the same values, and each env gets what it would get there."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    GraphInstance,
    OneOf,
    Sequence,
    Text,
    Tuple,
)
from gymnasium.vector.utils import concatenate, create_empty_array
from helpers_spaces import MALFORMED_LEAVES, NAMED, arrays_in, every_space, identical, samples, share_memory, short
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openenv_gym import batching
from openenv_gym.batching import (
    BatchReader,
    BatchWriter,
    cast_exactly,
    rows_of,
)
from openenv_gym.codec import decode_reply, encode, pack
from openenv_gym.errors import RemoteProtocolError, SpaceError
from openenv_gym.messages import Array, Observed, Values

INF, NAN = np.inf, np.nan
ENVS = 4
UNIT = Box(0, 1, (2,))
BYTES = Box(0, 255, (2,), np.uint8)
GRAPH = NAMED["graph"]
POSE = Dict([("b", UNIT), ("a", Tuple([Discrete(3), Text(4)]))])


def stacked(space, values):
    """What `SyncVectorEnv` makes of the envs' observations."""
    return concatenate(space, values, create_empty_array(space, len(values)))


def sent(space, values, positions=None):
    """The batch of these values, after its journey."""
    writer = BatchWriter(space, len(values))
    for position, value in enumerate(values):
        writer.write(position, value)
    batch = writer.batch(len(values) if positions is None else positions)
    return decode_reply(encode(Observed(1, batch, {}, []))).observations


def outcome(make):
    """An array's numbers, or why there is none, as text, in which nan equals nan."""
    try:
        with np.errstate(over="ignore"):
            array = make()
    except SpaceError as error:
        return str(error)
    return f"{array.dtype.name} {array.tolist()}"


class TestObservations:
    @every_space
    def test_are_what_gymnasium_makes_of_them(self, space):
        values = samples(space)
        assert identical(BatchReader(space, ENVS).read([(slice(0, ENVS), sent(space, values))]), stacked(space, values))

    @every_space
    @pytest.mark.parametrize("rows", [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[3], [1], [0, 2]]], ids=str)
    def test_come_in_parts(self, space, rows):
        values = samples(space)
        parts = [(rows_of(some), sent(space, [values[row] for row in some])) for some in rows]
        reader = BatchReader(space, ENVS)
        assert identical(reader.read(parts), stacked(space, values))
        assert identical(stacked(space, [reader.last(row) for row in range(ENVS)]), stacked(space, values))

    @every_space
    @pytest.mark.parametrize("copy", [True, False])
    def test_of_some_rows_leave_the_others(self, space, copy):
        first, second, third = (samples(space, seed=seed) for seed in (1, 2, 3))
        reader = BatchReader(space, ENVS, copy=copy)
        reader.read([(slice(0, ENVS), sent(space, first))])
        read = reader.read([([2, 0], sent(space, [second[2], second[0]]))])
        assert identical(read, stacked(space, [second[0], first[1], second[2], first[3]]))
        read = reader.read([(slice(1, 3), sent(space, third[1:3]))])
        assert identical(read, stacked(space, [second[0], third[1], third[2], first[3]]))

    @every_space
    def test_belong_to_the_caller(self, space):
        batch = sent(space, samples(space))
        reader = BatchReader(space, ENVS)
        reads = [reader.read([(slice(0, ENVS), batch)]), reader.read([]), reader.read([(slice(0, ENVS), batch)])]
        expected = stacked(space, samples(space))
        for number, read in enumerate(reads):
            assert identical(read, expected)
            assert not any(share_memory(read, other) for other in reads[:number])
            for array in arrays_in(read):
                assert array.flags.writeable
                array[...] = 0  # as a wrapper may do
        assert identical(reader.read([]), expected)
        assert identical(reader.rows(batch, ENVS), [reader.last(row) for row in range(ENVS)])

    @pytest.mark.parametrize("name", ["box", "multi binary", "dict", "robot", "nested"])
    def test_arrays_own_their_memory(self, name):
        space = NAMED[name]
        read = BatchReader(space, ENVS).read([(slice(0, ENVS), sent(space, samples(space)))])
        assert all(array.flags.owndata for array in arrays_in(read))

    @pytest.mark.parametrize("name", ["box", "discrete", "multi binary grid", "dict ordered", "tuple", "nested"])
    def test_are_overwritten_without_copy(self, name):
        space = NAMED[name]
        reader = BatchReader(space, ENVS, copy=False)
        first = arrays_in(reader.read([(slice(0, ENVS), sent(space, samples(space, seed=1)))]))
        second = arrays_in(reader.read([(slice(0, ENVS), sent(space, samples(space, seed=2)))]))
        assert all(one is other for one, other in zip(first, second, strict=True))
        assert identical(first, arrays_in(stacked(space, samples(space, seed=2))))

    @every_space
    def test_single_ones_are_copies(self, space):
        values = samples(space)
        batch = sent(space, values)
        reader = BatchReader(space, ENVS)
        reader.read([(slice(0, ENVS), batch)])
        singles = [reader.last(row) for row in range(ENVS)]
        for others in (reader.rows(batch, ENVS), [reader.last(row) for row in range(ENVS)]):
            assert identical(others, singles)
            assert not share_memory(others, singles)
        assert identical(stacked(space, singles), stacked(space, values))
        for array in arrays_in(singles):
            assert array.flags.writeable
            array[...] = 0
        assert identical(reader.read([]), stacked(space, values))

    def test_of_no_rows_are_the_last_ones(self):
        reader = BatchReader(UNIT, 2)
        assert identical(reader.read([]), np.zeros((2, 2), np.float32))

    @pytest.mark.parametrize("space, kind", [(Discrete(3), np.int64), (Box(0, 1, ()), np.ndarray), (UNIT, np.ndarray)])
    def test_single_ones_have_the_type_of_a_single_env(self, space, kind):
        reader = BatchReader(space, 1)
        reader.read([(slice(0, 1), sent(space, samples(space, 1)))])
        assert type(reader.last(0)) is kind

    @pytest.mark.parametrize("name", ["robot", "nested", "multi discrete"])
    def test_nothing_is_looked_up_for_each_step(self, name, monkeypatch):
        space = NAMED[name]
        values = samples(space)
        writer, reader = BatchWriter(space, ENVS), BatchReader(space, ENVS)
        for function in ("leaves", "leaf_shape", "leaf_dtype"):
            monkeypatch.setattr(batching, function, None)
        for position, value in enumerate(values):
            writer.write(position, value)
        assert identical(reader.read([(slice(0, ENVS), writer.batch(ENVS))]), stacked(space, values))


class TestBatchWriter:
    def test_keeps_no_reference(self):
        array, graph = np.ones(2, np.float32), samples(GRAPH, 1)[0]
        for space, value in [(UNIT, array), (GRAPH, graph)]:
            writer = BatchWriter(space, 1)
            writer.write(0, value)
            before = encode(Observed(1, writer.batch(1), {}, []))
            for part in arrays_in(value):
                part[...] = 0
            assert encode(Observed(1, writer.batch(1), {}, [])) == before

    @every_space
    @pytest.mark.parametrize("positions", [2, [0], [3, 1], []], ids=str)
    def test_gives_the_positions_that_are_asked_for(self, space, positions):
        values = samples(space)
        chosen = [values[p] for p in (range(positions) if isinstance(positions, int) else positions)]
        read = BatchReader(space, max(len(chosen), 1)).rows(sent(space, values, positions), len(chosen))
        if chosen:
            assert identical(stacked(space, read), stacked(space, chosen))
        else:
            assert read == []

    def test_takes_several_threads(self):
        writer = BatchWriter(POSE, 100)
        values = samples(POSE, 100)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(writer.write, range(100), values))
        assert identical(BatchReader(POSE, 100).read([(slice(0, 100), writer.batch(100))]), stacked(POSE, values))

    @pytest.mark.parametrize(
        "space, value, text",
        [
            (BYTES, np.array([300, 1]), "300 of int64 doesn't fit uint8"),
            (UNIT, np.zeros(3), "a value of shape (3,) doesn't fit shape (2,) of float32"),
            (UNIT, [1, None], "[1, None] of type list doesn't fit float32"),
            (UNIT, [[1], [2, 3]], "a ragged value doesn't fit shape (2,) of float32"),
            (Discrete(3), 2**70, f"{2**70} of type int doesn't fit int64"),
            (Discrete(3), 0.5, "0.5 of float64 doesn't fit int64"),
            (Discrete(3, dtype=np.int8), 200, "200 of int64 doesn't fit int8"),
            (Box(0, 1, ()), "x", "'x' of type str doesn't fit float32"),
            (POSE, {"b": np.zeros(2)}, "the value has no 'a' (KeyError)"),
            (POSE, {"b": np.zeros(2), "a": (1,)}, "a: the value has no 1 (IndexError)"),
            (POSE, {"b": np.zeros(2), "a": None}, "a: the value has no 0 (TypeError)"),
            (POSE, {"b": np.zeros(2), "a": (0.5, "x")}, "a.0: 0.5 of float64 doesn't fit int64"),
            (POSE, None, "the value has no 'b' (TypeError)"),
            (GRAPH, None, f"None isn't a value of {GRAPH}: NoneType instead of a graph"),
            (Dict(g=GRAPH), {"g": (1,)}, f"g: (1,) isn't a value of {GRAPH}: "),
        ],
        ids=short,
    )
    def test_names_what_does_not_fit(self, space, value, text):
        with pytest.raises(SpaceError) as caught:
            BatchWriter(space, 1).write(0, value)
        assert str(caught.value).startswith(text)

    @pytest.mark.parametrize(
        "space, value, expected",
        [
            (Box(0, 1, (), np.float64), 0.1, np.array(0.1)),
            (Box(0, 1, (), np.float64), 1, np.array(1.0)),
            (Box(0, 1, (), np.float32), 0.1, np.array(0.1, np.float32)),
            (Discrete(3), 2, np.int64(2)),
            (Discrete(3), True, np.int64(1)),
            (Discrete(3, dtype=np.int8), np.int8(2), np.int8(2)),
            (Box(0, 1, (2,), np.float64), [0.1, 1], np.array([0.1, 1.0])),
            (Box(0, 9, (1, 2), np.int64), [[1, 2]], np.array([[1, 2]])),
            (Box(0, 9, (2,), np.uint8), [1, 2], np.array([1, 2], np.uint8)),
        ],
        ids=short,
    )
    def test_takes_pythons_numbers_and_lists(self, space, value, expected):
        writer = BatchWriter(space, 1)
        writer.write(0, value)
        assert identical(BatchReader(space, 1).rows(writer.batch(1), 1), [expected])

    @given(
        st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64, ">f8"]),
        st.lists(
            st.integers(-(2**53), 2**53) | st.floats() | st.floats(width=16) | st.booleans() | st.none() | st.just("1"),
            min_size=1,
            max_size=3,
        ),
    )
    @example(np.float32, [1e300])
    @example(np.float64, [10**400])
    @example(np.int64, [2**63])
    def test_takes_a_list_as_an_array_of_it(self, dtype, values):
        """Also with what `struct` refuses, rounds or takes in another way than numpy."""
        low, shape = 0 if np.dtype(dtype).kind == "u" else -1, (len(values),)
        writer = BatchWriter(Box(low, 1, shape, dtype), 2)

        def written():
            writer.write(1, values)
            return writer.columns(2)[0][1]

        assert outcome(written) == outcome(lambda: cast_exactly(values, np.dtype(dtype), shape))

    def test_takes_lists_of_nothing(self):
        writer = BatchWriter(Box(0, 1, (0,)), 2)
        writer.write(1, [])
        assert writer.columns(2)[0].shape == (2, 0)

    @pytest.mark.parametrize("value", [2, True, np.int8(2), np.int64(2), np.uint64(2)])
    def test_keeps_the_type_of_a_typed_discrete(self, value):
        writer = BatchWriter(Dict(a=Discrete(3)), 1, typed=True)
        writer.write(0, {"a": value})
        reader = BatchReader(Dict(a=Discrete(3)), 1, typed=True)
        reader.keep([(slice(0, 1), writer.batch(1))])
        for read in (*reader.rows(writer.batch(1), 1), reader.last(0)):
            assert identical(read, {"a": value})
        reader.keep([])  # as for a lost session
        assert identical(reader.last(0), {"a": value})

    def test_a_typed_reader_takes_arrays_too(self):
        reader = BatchReader(Discrete(3), 1, typed=True)
        reader.keep([(slice(0, 1), [Array.of(np.array([2]))])])
        assert identical(reader.last(0), np.int64(2))

    def test_casts_a_typed_discrete_that_is_no_integer(self):
        writer = BatchWriter(Discrete(3), 1, typed=True)
        writer.write(0, np.array(2.0))
        assert identical(BatchReader(Discrete(3), 1).rows(writer.batch(1), 1), [np.int64(2)])
        with pytest.raises(SpaceError, match="doesn't fit int64"):
            writer.write(0, 1.5)

    def test_packed_values_have_to_be_plain(self):
        with pytest.raises(TypeError, match=r"note: a value of type builtins.object can't be sent"):
            BatchWriter(Dict(note=Text(3)), 1).write(0, {"note": object()})


class TestCastExactly:
    @pytest.mark.parametrize(
        "value, dtype, cast",
        [
            ([1, 255], "u1", [1, 255]),
            ([1.0, 255.0], "u1", [1, 255]),
            ([True, False], "i8", [1, 0]),
            ([1, 0], "?", [True, False]),
            ([1.0, 0.0], "?", [True, False]),
            (np.array([0.1, 1e-300]), "f4", [np.float32(0.1), 0]),
            (np.array([2**24 + 1, 0]), "f4", [2**24, 0]),
            ([NAN, -INF], "f2", [NAN, -INF]),
            (np.array([-5, 5], ">i4"), "i1", [-5, 5]),
            ((np.int64(3), 4), "u8", [3, 4]),
        ],
        ids=repr,
    )
    def test_what_fits(self, value, dtype, cast):
        assert identical(cast_exactly(value, np.dtype(dtype), (2,)), np.array(cast, dtype))

    @pytest.mark.parametrize(
        "value, dtype, text",
        [
            ([300, 1], "u1", "300 of int64 doesn't fit uint8"),
            ([1, -1], "u1", "-1 of int64 doesn't fit uint8"),
            ([1.5, 1], "i8", "1.5 of float64 doesn't fit int64"),
            ([1, NAN], "i4", "nan of float64 doesn't fit int32"),
            ([INF, 0], "i4", "inf of float64 doesn't fit int32"),
            ([1e10, 0], "i4", "10000000000.0 of float64 doesn't fit int32"),
            ([2, 0], "?", "2 of int64 doesn't fit bool"),
            ([0.5, 0], "?", "0.5 of float64 doesn't fit bool"),
            (np.array([2**63, 0], "u8"), "i8", "9223372036854775808 of uint64 doesn't fit int64"),
            ([2**70, 0], "i8", "[1180591620717411303424, 0] of type list doesn't fit int64"),
            (None, "f4", "None of type NoneType doesn't fit float32"),
            ([None, 1], "f4", "[None, 1] of type list doesn't fit float32"),
            ("ab", "f4", "'ab' of type str doesn't fit float32"),
            (np.array([1j, 0]), "f4", "array([0.+1.j, 0.+0.j]) of type ndarray doesn't fit float32"),
            ([[1], [2, 3]], "f4", "a ragged value doesn't fit shape (2,) of float32"),
            ([1], "f4", "a value of shape (1,) doesn't fit shape (2,) of float32"),
            (1, "f4", "a value of shape () doesn't fit shape (2,) of float32"),
            ([[1, 2]], "f4", "a value of shape (1, 2) doesn't fit shape (2,) of float32"),
        ],
        ids=short,
    )
    def test_what_does_not_fit(self, value, dtype, text):
        with pytest.raises(SpaceError) as caught:
            cast_exactly(value, np.dtype(dtype), (2,), "robot.arm")
        assert str(caught.value) == f"robot.arm: {text}"

    def test_gives_its_own_memory(self):
        array = np.zeros(2)
        assert not np.shares_memory(cast_exactly(array, array.dtype, (2,)), array)


# ------------------------------------------------------------------------------------------- batches of a bad peer


def array(*args, **kwargs):
    return Array.of(np.array(*args, **kwargs))


FLOATS = array([[0, 1]], dtype=np.float32)
MALFORMED = {
    **MALFORMED_LEAVES,
    "no leaf": (UNIT, []),
    "too many leaves": (UNIT, [FLOATS, FLOATS]),
    "too few leaves": (POSE, [FLOATS]),
    "values for an array": (UNIT, [Values([pack(np.zeros(2, np.float32))])]),
    "an array for values": (Text(3), [FLOATS]),
    "another dtype": (UNIT, [array([[0, 1]], dtype=np.float64)]),
    "another kind": (UNIT, [array([[0, 1]], dtype=np.int32)]),
    "another shape": (UNIT, [array([[0, 1, 2]], dtype=np.float32)]),
    "another axis": (UNIT, [array([0, 1], dtype=np.float32)]),
    "too many rows": (UNIT, [array([[0, 1], [0, 1]], dtype=np.float32)]),
    "no axes": (Discrete(2), [array(1)]),
    "too many values": (Text(3), [Values(["a", "b"])]),
    "no values": (Text(3), [Values([])]),
    "sequence of no graphs": (Sequence(GRAPH), [Values([pack((1,))])]),
    "sequence that can't be walked": (Sequence(GRAPH), [Values([5])]),
    "dict in a sequence": (Sequence(Dict(g=GRAPH)), [Values([pack(({"h": 1},))])]),
    "no dict in a sequence": (Sequence(Dict(g=GRAPH)), [Values([pack((1,))])]),
    "tuple in a sequence": (Sequence(Tuple([GRAPH])), [Values([pack(((),))])]),
}
EVERY_MALFORMED = pytest.mark.parametrize("space, batch", MALFORMED.values(), ids=MALFORMED)


class TestMalformedBatches:
    @EVERY_MALFORMED
    def test_are_refused_and_change_nothing(self, space, batch):
        reader = BatchReader(space, 1)
        before = reader.read([(slice(0, 1), sent(space, samples(space, 1)))])
        for read in (lambda: reader.read([(slice(0, 1), batch)]), lambda: reader.rows(batch, 1)):
            with pytest.raises(RemoteProtocolError):
                read()
        assert identical(reader.read([]), before)

    @pytest.mark.parametrize("items", [[1.5], ["1"], [None], [[1]], [1, 2], [], [pack(np.float32(1))]], ids=short)
    def test_typed_discretes_are_integers(self, items):
        with pytest.raises(RemoteProtocolError):
            BatchReader(Discrete(3), 1).rows([Values(items)], 1)
        with pytest.raises(RemoteProtocolError):
            BatchReader(Discrete(3), 1).read([(slice(0, 1), [Values([1])])])

    @pytest.mark.parametrize("name", ["robot", "graph", "one of", "sequence stacked", "graph of dicts", "nested"])
    @given(data=st.data())
    @settings(deadline=None, max_examples=60)
    def test_mutated_frames_raise_nothing_else(self, name, data):
        space = NAMED.get(name, GRAPH)
        frame = bytearray(encode(Observed(1, sent(space, samples(space, 2)), {}, [])))
        for _ in range(data.draw(st.integers(1, 3))):
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        with contextlib.suppress(RemoteProtocolError):
            reply = decode_reply(bytes(frame))
            if isinstance(reply, Observed):
                BatchReader(space, 2).read([(slice(0, 2), reply.observations)])


@pytest.mark.parametrize(
    "rows, expected",
    [
        ([], []),
        ([2], slice(2, 3)),
        ([0, 1, 2], slice(0, 3)),
        (range(1, 4), slice(1, 4)),
        ([0, 2], [0, 2]),
        ([1, 0], [1, 0]),
    ],
)
def test_rows_of(rows, expected):
    assert rows_of(rows) == expected


class TestGraphs:
    """Travel as plain tuples, and are graphs again wherever they are in a space."""

    @pytest.mark.parametrize(
        "space, wrap",
        [
            (GRAPH, lambda graph: graph),
            (OneOf([Discrete(2), GRAPH]), lambda graph: (np.int64(1), graph)),
            (Sequence(GRAPH), lambda graph: (graph, graph)),
            (Sequence(Tuple([Discrete(2), GRAPH])), lambda graph: ((np.int64(0), graph),)),
            (Sequence(Dict(g=GRAPH, n=Discrete(2))), lambda graph: ({"g": graph, "n": np.int64(1)},)),
            (Dict(g=GRAPH), lambda graph: {"g": graph}),
        ],
        ids=short,
    )
    def test_are_restored(self, space, wrap):
        value = wrap(GraphInstance(np.zeros((1, 2), np.float32), None, None))
        (read,) = BatchReader(space, 1).rows(sent(space, [value]), 1)
        assert identical(read, value)

    @pytest.mark.parametrize("value", [[1, 2], (1, 2), None, "x", np.zeros(2)], ids=repr)
    def test_other_values_pass_as_they_are(self, value):
        space = Sequence(Discrete(3))
        (read,) = BatchReader(space, 1).rows(sent(space, [value]), 1)
        assert identical(read, value)


def test_a_subclass_of_dict_is_one_value():
    class Special(Dict):
        pass

    space = Tuple([Special(a=Discrete(2)), BYTES])
    value = ({"a": 1}, np.array([1, 255], np.uint8))
    assert identical(BatchReader(space, 1).read([(slice(0, 1), sent(space, [value]))]), (({"a": 1},), value[1][None]))
