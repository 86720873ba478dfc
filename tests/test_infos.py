"""openenv_gym.infos: the same as Gymnasium where that loses nothing, and nothing lost where it would."""

import gymnasium as gym
import numpy as np
import pytest
from helpers_spaces import identical
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from openenv_gym.infos import merge_infos

ENVS = 3


def gymnasium_infos(infos):
    """What Gymnasium's vector envs make of the same infos."""
    env = gym.vector.VectorEnv()
    env.num_envs = ENVS
    merged = {}
    for row, info in infos:
        merged = env._add_info(merged, info, row)
    return merged


def merge(*infos):
    """The vector info of the first rows; None for a row without an info."""
    return merge_infos([(row, info) for row, info in enumerate(infos) if info is not None], ENVS)


def values(vector_info, key):
    """What each env gave: the value at each row that the mask names."""
    return {int(row): vector_info[key][row] for row in np.flatnonzero(vector_info[f"_{key}"])}


def same(a, b):
    """Whether two vector infos are equal in types, dtypes, shapes and bits. Key order has no meaning."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if (type(a), a.dtype, a.shape) != (type(b), b.dtype, b.shape):
        return False
    return identical(list(a.flat), list(b.flat)) if a.dtype == object else a.tobytes() == b.tobytes()


# Each gives a strategy whose values are all of one type, dtype and shape.
LEAVES = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(),
    "bool": st.booleans(),
    "np.bool": st.sampled_from([np.True_, np.False_]),
    "str": st.text(max_size=3),
    "None": st.none(),
    "list": st.lists(st.integers(), max_size=2),
    "tuple": st.tuples(st.integers(0, 3)),
    "int8": st.integers(-9, 9).map(np.int8),
    "uint64": st.integers(0, 9).map(np.uint64),
    "float32": st.floats(width=32).map(np.float32),
    "complex": st.complex_numbers(allow_nan=False).map(np.complex128),
    "array": hnp.arrays(np.float32, (2, 3)),
    "array of no axes": hnp.arrays(np.int64, ()),
    "array of nothing": hnp.arrays(np.bool_, (0,)),
    "array of strings": hnp.arrays("<U3", (2,)),
    "array of dates": st.integers(0, 9).map(lambda n: np.array([n], "M8[s]")),
    "array of objects": hnp.arrays(object, (2,), elements=st.none() | st.integers()),
}
leaves = st.sampled_from(list(LEAVES.values()))
keys = st.sampled_from(["score", "r", "l", "final_info", "final_obs", "a b", "é", 7])
schemas = st.dictionaries(
    keys,
    st.recursive(leaves, lambda inner: st.dictionaries(keys, inner, max_size=2), max_leaves=4),
    min_size=1,
    max_size=3,
)


def infos_of(schema):
    """Infos whose keys have the types that the schema says; each row has some of them."""
    inner = {key: infos_of(value) if isinstance(value, dict) else value for key, value in schema.items()}
    return st.fixed_dictionaries({}, optional=inner)


class TestLikeGymnasium:
    @pytest.mark.parametrize("leaf", LEAVES)
    @given(st.data())
    @settings(deadline=None, max_examples=20)
    def test_of_each_type(self, leaf, data):
        pairs = [
            (row, {"x": value})
            for row, value in enumerate(data.draw(st.lists(LEAVES[leaf], min_size=1, max_size=ENVS)))
        ]
        assert same(merge_infos(pairs, ENVS), gymnasium_infos(pairs))

    @given(
        infos=schemas.flatmap(lambda schema: st.lists(infos_of(schema), max_size=ENVS)),
        rows=st.permutations(range(ENVS)),
    )
    @settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
    def test_where_each_key_has_one_type(self, infos, rows):
        pairs = list(zip(rows, infos, strict=False))
        assert same(merge_infos(pairs, ENVS), gymnasium_infos(pairs))

    @pytest.mark.parametrize(
        "infos",
        [
            [],
            [{}],
            [{}, {}, {}],
            [{"x": 1}],
            [{}, {"x": 1.5}],
            [{"x": np.bool_(True)}, {"x": np.bool_(False)}],
            [{"x": {}}, {}],
            [{"x": {"y": {"z": 1}}}, {"x": {"y": {}}}, {"x": {"w": "a"}}],
            [{"final_obs": np.zeros(2), "final_info": {"x": 1}}, {"x": 2}],
            [{"final_obs": (1, {"a": 2}), "final_info": {}}, {"final_obs": None}],
            [{"x": {"final_obs": np.zeros(2)}}, {"x": {"final_obs": np.ones(2)}}],
            [{"final_obs": {"a": 1}}, {"final_obs": {"a": 2}}],
        ],
        ids=repr,
    )
    def test_in_layout(self, infos):
        pairs = list(enumerate(infos))
        assert same(merge_infos(pairs, ENVS), gymnasium_infos(pairs))

    def test_of_the_last_info_of_a_row(self):
        pairs = [(0, {"a": 1, "b": 2}), (1, {"a": 3}), (0, {"a": 4})]
        assert same(merge_infos(pairs, ENVS), gymnasium_infos(pairs))

    def test_without_infos_it_is_empty(self):
        assert merge() == {}

    def test_nothing_is_shared(self):
        array = np.zeros(2)
        merged = merge({"x": array, "y": 1})
        array[:] = 7
        assert merged["x"].tolist() == [[0, 0], [0, 0], [0, 0]]
        assert all(value.flags.writeable and value.flags.owndata for value in merged.values())


NAN = np.array(np.nan)
SHORT, LONG = np.array(["abc"]), np.array(["abcdef"])


class TestMixedTypes:
    @pytest.mark.parametrize(
        "given, dtype",
        [
            ([1, 1.5], "float64"),
            ([1.5, 1], "float64"),
            ([1.5, None], "object"),
            ([1, None], "object"),
            ([None, 1], "object"),
            ([1, "x"], "object"),
            ([1, True], "object"),
            ([True, 1], "object"),
            ([True, 1.5], "object"),
            ([np.True_, True], "object"),
            ([2**70], "object"),
            ([1, 2**70], "object"),
            ([-(2**63) - 1, 0], "object"),
            ([2**60 + 1, 1.5], "object"),
            ([1.5, 2**60 + 1], "object"),
            ([2**60, 1.5], "float64"),
            ([2**70, 1.5], "float64"),
            ([2**70 + 1, 1.5], "object"),
            ([2**2000, 1.5], "object"),
            ([2**63 - 1, 1.5], "object"),
            ([np.int64(2**60 + 1), 1.5], "object"),
            ([np.int8(1), np.int16(300)], "int16"),
            ([np.uint8(200), np.int8(-1)], "int16"),
            ([np.uint64(2**63 + 1), np.int64(-1)], "object"),
            ([np.uint64(3), np.int64(-1)], "float64"),
            ([np.float32(0.1), np.float64(0.1)], "float64"),
            ([np.float32(0.5), 1], "float64"),
            ([np.complex64(1j), 2**60 + 1], "object"),
            ([np.complex64(1j), 2], "complex128"),
            ([np.int8(1), np.datetime64(5, "s")], "object"),
            ([np.float16(1), "x"], "object"),
            ([{"a": 1}, 2], "object"),
            ([2, {"a": 1}], "object"),
            ([[1], (1,)], "object"),
        ],
        ids=repr,
    )
    def test_lose_nothing(self, given, dtype):
        merged = merge(*({"x": value} for value in given))
        assert merged["x"].dtype == dtype
        for row, value in values(merged, "x").items():
            assert value == given[row]
            assert dtype != "object" or type(value) is type(given[row])
        assert merged["_x"].tolist() == [row < len(given) for row in range(ENVS)]

    @pytest.mark.parametrize(
        "given, dtype, shape",
        [
            ([SHORT, LONG], "<U6", (3, 1)),
            ([np.array([b"ab"]), np.array([b"abcd"])], "S4", (3, 1)),
            ([SHORT, np.array([b"ab"])], "object", (3,)),
            ([np.zeros(2), np.zeros(3)], "object", (3,)),
            ([np.zeros(1), np.ones(2)], "object", (3,)),
            ([np.ones(2), np.zeros(())], "object", (3,)),
            ([np.zeros(2, int), np.array([0.5, 1])], "float64", (3, 2)),
            ([np.array([2**60 + 1]), np.array([0.5])], "object", (3,)),
            ([np.array([2**63 - 1]), np.array([0.5])], "object", (3,)),
            ([np.array([0.5]), np.array([2**60])], "float64", (3, 1)),
            ([np.array([True]), np.array([2])], "object", (3,)),
            ([np.zeros(2), [0, 1]], "object", (3,)),
            ([np.array(["2024"], "M8[Y]"), np.array(["2024-01"], "M8[M]")], "object", (3,)),
            ([NAN, np.array(1)], "float64", (3,)),
        ],
        ids=repr,
    )
    def test_of_arrays_lose_nothing(self, given, dtype, shape):
        merged = merge(*({"x": value} for value in given))
        assert (merged["x"].dtype, merged["x"].shape) == (dtype, shape)
        for row, value in values(merged, "x").items():
            assert np.array_equal(value, given[row], equal_nan=np.asarray(given[row]).dtype.kind == "f")

    def test_inside_dicts_lose_nothing(self):
        merged = merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 1.5}}, {"a": {"b": "x"}})
        assert values(merged["a"], "b") == {0: 1, 1: 1.5, 2: "x"}
        assert values(merged["a"], "c") == {0: 2}
        assert merged["_a"].tolist() == [True, True, True]

    def test_of_dict_and_value_stay_apart(self):
        merged = merge({"a": {"b": 1}}, {"a": 5}, {"a": {}})
        assert values(merged, "a") == {0: {"b": 1}, 1: 5, 2: {}}


class TestKeysLikeMasks:
    @pytest.mark.parametrize(
        "keys, names",
        [
            (["_a"], ["_a"]),
            (["a", "_a"], ["a", "_a_"]),
            (["_a", "a"], ["_a_", "a"]),
            (["_a", "__a"], ["_a", "__a_"]),
            (["a", "_a", "_a_"], ["a", "_a_", "_a__"]),
            (["a", "_a", "__a_", "__a"], ["a", "_a_", "__a__", "__a"]),
            (["_", ""], ["__", ""]),
            ([1, "1"], [1, "1_"]),
            ([1, "_1"], [1, "_1_"]),
        ],
        ids=repr,
    )
    def test_are_renamed_where_they_collide(self, keys, names):
        merged = merge({key: number for number, key in enumerate(keys)})
        assert merged.keys() == {*names, *(f"_{name}" for name in names)}
        for number, name in enumerate(names):
            assert values(merged, name) == {0: number}

    @given(st.lists(st.text("_a1", max_size=4) | st.integers(0, 1), unique=True, max_size=8))
    def test_lose_nothing(self, keys):
        merged = merge({key: f"value {number}" for number, key in enumerate(keys)})
        assert len(merged) == 2 * len(keys)
        found = [value[0] for value in merged.values() if value.dtype == object]
        assert sorted(found) == [f"value {number}" for number in range(len(keys))]
        assert sum(value.dtype == bool and value.tolist() == [True, False, False] for value in merged.values()) == len(
            keys
        )
