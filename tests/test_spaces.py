"""openenv_gym.spaces: nothing is lost on the way through plain data, and nothing bad comes in by it."""

import json
import math
import tracemalloc
from enum import Enum
from types import MappingProxyType

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple
from gymnasium.spaces.utils import flatten, flatten_space
from gymnasium.vector.utils import batch_space
from helpers_spaces import NAMED, ZOO, every_space, identical, spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openenv_gym.errors import SpaceError
from openenv_gym.spaces import (
    MAX_CHILDREN,
    MAX_DEPTH,
    MAX_ELEMENTS,
    Json,
    Leaf,
    alike,
    build,
    describe,
    fits,
    generators,
    leaf_dtype,
    leaf_shape,
    leaves,
    path_name,
    restore_generators,
    same,
    trim,
)

INF = np.inf
UNIT = Box(0, 1, (2,))


class Special(Box):
    """A class that isn't gymnasium's own."""


class SpecialDict(Dict):
    """Another one."""


def travelled(space):
    """The space after a journey as strict JSON."""
    return build(json.loads(json.dumps(describe(space), allow_nan=False)))


def dict_of(*keys):
    return Dict([(key, UNIT) for key in keys])


def refused(function, *args, **kwargs):
    """The text of the SpaceError that the call raises."""
    with pytest.raises(SpaceError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


# --------------------------------------------------------------------------------------- describe and build


class TestRoundTrip:
    @every_space
    def test_gives_the_same_space(self, space):
        built = travelled(space)
        assert built == space
        assert type(built) is type(space)
        assert same(built, space)
        assert repr(built) == repr(space)

    @every_space
    def test_survives_messagepack(self, space):
        assert same(build(msgspec.msgpack.decode(msgspec.msgpack.encode(describe(space)))), space)

    @every_space
    def test_describes_alike_again(self, space):
        assert describe(travelled(space)) == describe(space)

    @every_space
    def test_samples_alike_from_the_same_seed(self, space):
        built = travelled(space)
        space.seed(42)
        built.seed(42)
        assert all(identical(built.sample(), space.sample()) for _ in range(5))

    @every_space
    def test_flattens_alike(self, space):
        huge = isinstance(space, Discrete) and space.n > 2**30  # it would be one-hot
        if space.is_np_flattenable and leaves(space) and not huge:
            built = travelled(space)
            space.seed(1)
            value = space.sample()
            assert flatten_space(built) == flatten_space(space)
            assert identical(flatten(built, value), flatten(space, value))

    @every_space
    def test_batches_alike(self, space):
        assert same(batch_space(travelled(space), 3), batch_space(space, 3))

    @every_space
    def test_every_dtype_is_the_same(self, space):
        for ours, theirs in zip(leaves(travelled(space)), leaves(space), strict=True):
            assert ours.space.dtype == theirs.space.dtype
            assert type(ours.space.dtype) is type(theirs.space.dtype)

    @given(spaces)
    @settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
    def test_of_random_spaces(self, space):
        built = travelled(space)
        assert same(built, space)
        assert describe(built) == describe(space)

    @pytest.mark.parametrize("name", ["box each bound", "box exact int64", "box wide floats", "box half bounded"])
    def test_bounds_are_exact(self, name):
        built = travelled(NAMED[name])
        assert identical((built.low, built.high), (NAMED[name].low, NAMED[name].high))  # == is only allclose

    @pytest.mark.parametrize("name", ["box open int", "box half open int", "box half bounded", "box int32"])
    def test_open_bounds_stay_open(self, name):
        built = travelled(NAMED[name])
        assert np.array_equal(built.bounded_below, NAMED[name].bounded_below)
        assert np.array_equal(built.bounded_above, NAMED[name].bounded_above)

    @pytest.mark.parametrize("exact", [2**53 + 1, -(2**63)])
    def test_an_open_bound_beside_an_exact_one(self, exact):
        description = {"type": "Box", "dtype": "int64", "shape": [2], "low": ["-inf", exact], "high": "inf"}
        space = build(description)
        assert space.low.tolist() == [-(2**63), exact]
        assert space.bounded_below.tolist() == [False, True]
        assert describe(space) == description

    @pytest.mark.parametrize("sort_keys", [True, False])
    def test_keeps_the_flag_that_orders_a_batch(self, sort_keys):
        if "dict unsorted" not in NAMED:
            pytest.skip("sort_keys came with gymnasium 1.4")
        space = Dict([("b", UNIT), ("a", Discrete(2))], sort_keys=sort_keys)
        built = travelled(space)
        assert built.sort_keys is sort_keys
        assert list(batch_space(built, 2)) == list(batch_space(space, 2))

    def test_keeps_the_order_of_characters(self):
        assert travelled(Text(3, charset="zyxa")).character_list == tuple("zyxa")

    def test_takes_any_mapping_and_tuples(self):
        description = describe(UNIT)
        assert build(MappingProxyType({**description, "shape": tuple(description["shape"])})) == UNIT

    def test_keys_become_plain_str(self):
        class Sensor(str, Enum):
            CAMERA = "camera"

        [[key, _]] = describe(Dict([(Sensor.CAMERA, UNIT)]))["spaces"]
        assert type(key) is str
        assert key == "camera"


class TestDescription:
    @pytest.mark.parametrize(
        "space, description",
        [
            (
                Box(-1, INF, (2, 3), np.float32),
                {"type": "Box", "dtype": "float32", "shape": [2, 3], "low": -1.0, "high": "inf"},
            ),
            (
                Box(np.array([-INF, 0.5]), np.array([1.0, 2.0]), dtype=np.float64),
                {"type": "Box", "dtype": "float64", "shape": [2], "low": ["-inf", 0.5], "high": [1.0, 2.0]},
            ),
            (Box(0, 1, (), bool), {"type": "Box", "dtype": "bool", "shape": [], "low": False, "high": True}),
            (Box(0, 1, (0,)), {"type": "Box", "dtype": "float32", "shape": [0], "low": [], "high": []}),
            (
                Box(-INF, 7, (2,), np.int8),
                {"type": "Box", "dtype": "int8", "shape": [2], "low": "-inf", "high": 7},
            ),
            (Discrete(3, start=-1), {"type": "Discrete", "dtype": "int64", "n": 3, "start": -1}),
            (
                MultiDiscrete([[2, 3]]),
                {"type": "MultiDiscrete", "dtype": "int64", "shape": [1, 2], "nvec": [2, 3], "start": 0},
            ),
            (MultiBinary(3), {"type": "MultiBinary", "n": 3}),
            (MultiBinary([2, 3]), {"type": "MultiBinary", "n": [2, 3]}),
            (Text(4, charset="ba"), {"type": "Text", "min_length": 1, "max_length": 4, "charset": "ba"}),
            (
                Dict([("b", MultiBinary(1)), ("a", Tuple([]))]),
                {
                    "type": "Dict",
                    "spaces": [["b", {"type": "MultiBinary", "n": 1}], ["a", {"type": "Tuple", "spaces": []}]],
                    "sort_keys": True,
                },
            ),
            (OneOf([MultiBinary(1)]), {"type": "OneOf", "spaces": [{"type": "MultiBinary", "n": 1}]}),
            (
                Sequence(MultiBinary(1), stack=True),
                {"type": "Sequence", "feature_space": {"type": "MultiBinary", "n": 1}, "stack": True},
            ),
            (
                Graph(Discrete(2), None),
                {
                    "type": "Graph",
                    "node_space": {"type": "Discrete", "dtype": "int64", "n": 2, "start": 0},
                    "edge_space": None,
                },
            ),
        ],
        ids=lambda x: x["type"] if isinstance(x, dict) else "",
    )
    def test_is_this(self, space, description):
        assert describe(space) == description

    def test_of_an_image_is_short(self):
        assert len(json.dumps(describe(Box(0, 255, (1080, 1920, 3), np.uint8)))) < 100

    def test_holds_only_plain_types(self):
        def types(data):
            inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
            return {type(data)}.union(*map(types, inner))

        assert set().union(*(types(describe(space)) for space in ZOO)) <= {
            dict,
            list,
            str,
            int,
            float,
            bool,
            type(None),
        }


class TestJson:
    DATA = [None, True, 3, 0.5, "ä", [1, [None, "x"]], {"a": {"b": [1.5, {}]}}, (1, 2)]

    @pytest.mark.parametrize("value", DATA)
    def test_what_it_has(self, value):
        assert value in Json()
        assert Json().from_jsonable(Json().to_jsonable([value])) == [value]

    @pytest.mark.parametrize(
        "value", [math.nan, math.inf, {1: 2}, b"x", {1}, [np.float64("nan")], np.zeros(2), object()]
    )
    def test_what_it_has_not(self, value):
        assert value not in Json()

    def test_a_value_that_contains_itself(self):
        value = []
        value.append(value)
        assert value not in Json()

    def test_it_is_a_space_like_others(self):
        assert Json() == Json() != Discrete(2)
        assert Json().sample() in Json()
        assert not Json().is_np_flattenable
        assert batch_space(Json(), 2) == Tuple([Json(), Json()])
        assert eval(repr(Json())) == Json()


class TestWhatCantBeDescribed:
    def test_a_class_of_ones_own(self):
        assert refused(describe, Special(0, 1)) == (
            "Special can't be described, only gymnasium's own Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, "
            "Tuple, OneOf, Sequence, Graph and Json; exclude this part, or replace it with one of those"
        )

    @pytest.mark.parametrize("wrong", [gym.Space(), None, object(), 3, Box])
    def test_anything_else(self, wrong):
        assert " can't be described" in refused(describe, wrong)

    @pytest.mark.parametrize(
        "around, path",
        [
            (lambda x: Dict(a=Dict(b=x)), "a.b"),
            (lambda x: Tuple([UNIT, Dict(b=x)]), "1.b"),
            (lambda x: OneOf([UNIT, x]), "1"),
            (Sequence, "feature_space"),
            (lambda x: Graph(x, None), "node_space"),
            (lambda x: Graph(UNIT, x), "edge_space"),
        ],
    )
    def test_the_error_says_where(self, around, path):
        with pytest.raises(SpaceError) as caught:
            describe(around(Special(0, 1)))
        assert caught.value.path == path
        assert str(caught.value).startswith(f"{path}: Special can't be described")

    @pytest.mark.parametrize("key", [1, ("a", "b"), None, b"a", "k" * 1025])
    def test_other_keys_than_str(self, key):
        text = refused(describe, Dict([("x", Dict([(key, UNIT)]))]))
        assert text.startswith("x: a key must be a str of at most 1024 characters, not ")

    def test_text_that_utf8_cant_carry(self):
        assert refused(describe, Dict([("\ud800", UNIT)])) == "a lone surrogate can't be sent as UTF-8"
        assert refused(describe, Dict(t=Text(2, charset="\udfff"))) == "t: a lone surrogate can't be sent as UTF-8"

    @pytest.mark.parametrize(
        "dtype", [np.longdouble, np.dtype(np.float32).newbyteorder(), np.dtype(np.int16).newbyteorder()]
    )
    def test_other_dtypes(self, dtype):
        text = refused(describe, Dict(x=Box(np.zeros(2, dtype), np.ones(2, dtype), dtype=dtype)))
        assert text.startswith(f"x: dtype {np.dtype(dtype).str} can't be described, only bool, int8, ")

    def test_deep_nesting(self):
        space = UNIT
        for _ in range(MAX_DEPTH):
            space = Tuple([space])
        assert same(travelled(space), space)
        assert refused(describe, Tuple([space])).endswith("0.0: spaces nest more than 32 deep")

    def test_a_space_that_contains_itself(self):
        space = Dict(a=UNIT)
        space["a"] = space
        assert "spaces nest more than 32 deep" in refused(describe, space)


BOX = describe(UNIT)
DISCRETE = describe(Discrete(3))
MULTI = describe(MultiDiscrete([2, 3]))


def with_field(description, **fields):
    return {**description, **fields}


class TestWhatIsRefused:
    @pytest.mark.parametrize("wrong", [None, 3, "Box", [], [BOX], True, b"", float("nan")])
    def test_no_mapping(self, wrong):
        assert refused(build, wrong).startswith("a space is described by a dict, not by ")

    @pytest.mark.parametrize("kind", ["box", "Space", "os.system", "", None, 1, ["Box"], {"Box": 1}])
    def test_unknown_types(self, kind):
        assert refused(build, {"type": kind}).endswith(
            "; known are Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, Tuple, OneOf, Sequence, Graph, Json"
        )
        assert refused(build, {}).startswith("unknown type None; ")

    def test_errors_are_short_whatever_came(self):
        for long in ("x" * 10**6, ["x" * 10**6] * 10**4, 10**4000, {"x": "x" * 10**6}):
            assert len(refused(build, {"type": long})) < 700
            assert len(refused(build, with_field(BOX, dtype=long))) < 700
        assert len(refused(build, with_field(BOX, **{"x" * 10**6: 1}))) < 700

    @every_space
    def test_a_missing_field(self, space):
        description = describe(space)
        for field in description.keys() - {"type"}:
            rest = {name: value for name, value in description.items() if name != field}
            assert refused(build, rest) == f"{type(space).__name__} lacks the field '{field}'"

    @every_space
    def test_an_extra_field(self, space):
        assert refused(build, with_field(describe(space), seed=1)) == f"{type(space).__name__} has no field 'seed'"

    @pytest.mark.parametrize(
        "dtype", ["object", "O", "V8", "datetime64[s]", "timedelta64", "str", "<U8", "complex64", "float128"]
    )
    @pytest.mark.parametrize("description", [BOX, DISCRETE, MULTI], ids=["Box", "Discrete", "MultiDiscrete"])
    def test_dtypes(self, description, dtype):
        assert refused(build, with_field(description, dtype=dtype)).startswith("dtype must be one of ")

    @pytest.mark.parametrize("dtype", [None, 1, ["float32"], {}, "float32 ", "f4", ">f4", "float"])
    def test_other_spellings_of_dtypes(self, dtype):
        assert refused(build, with_field(BOX, dtype=dtype)).startswith("dtype must be one of bool, int8, ")

    @pytest.mark.parametrize("dtype", ["bool", "float32"])
    def test_dtypes_that_dont_count(self, dtype):
        assert refused(build, with_field(DISCRETE, dtype=dtype)).startswith("dtype must be one of int8, ")
        assert refused(build, with_field(MULTI, dtype=dtype)).startswith("dtype must be one of int8, ")

    @pytest.mark.parametrize("shape", [[-1], [1.0], [True], ["1"], [None], [[1]], [2**25 + 1], [0, 2**62], [10**5000]])
    def test_sizes(self, shape):
        assert refused(build, with_field(BOX, shape=shape)).startswith(
            "shape must be a list of integers from 0 to 33554432"
        )

    @pytest.mark.parametrize("shape", [None, 3, "23", {}, [1] * 33])
    def test_shapes(self, shape):
        assert refused(build, with_field(BOX, shape=shape)).startswith("shape must be a list of 0 to 32 items")

    @pytest.mark.parametrize(
        "dtype, value, shown",
        [
            ("float32", 1e39, "1e+39"),
            ("float64", 10**400, "an integer of 1329 bits"),
            ("float16", 65536, "65536"),
            ("float32", math.nan, "nan"),
            ("float32", math.inf, "inf"),
            ("float32", "nan", "'nan'"),
            ("float32", None, "None"),
            ("float32", True, "True"),
            ("float32", {}, "a dict"),
            ("int8", 128, "128"),
            ("int8", 1.0, "1.0"),
            ("int8", True, "True"),
            ("uint8", -1, "-1"),
            ("uint8", "inf", "'inf'"),
            ("uint64", 2**64, "an integer of 65 bits"),
            ("bool", 1, "1"),
            ("bool", "inf", "'inf'"),
        ],
    )
    @pytest.mark.parametrize("field", ["low", "high"])
    def test_bounds(self, dtype, value, shown, field):
        zero = False if dtype == "bool" else 0
        for bound in (value, [zero, value]):
            wrong = with_field(BOX, dtype=dtype, low=zero, high=zero) | {field: bound}
            assert refused(build, wrong) == f"{field} has {shown}, which {dtype} doesn't hold"

    @pytest.mark.parametrize("bound", [[], [0], [0, 0, 0], [0] * 2**10])
    def test_the_wrong_number_of_bounds(self, bound):
        assert refused(build, with_field(BOX, low=bound)).startswith("low must be one number or 2 of them, not [")

    def test_nested_bounds(self):
        assert refused(build, with_field(BOX, low=[[0], [0]])) == "low has [0], which float32 doesn't hold"

    def test_bounds_in_the_wrong_order(self):
        assert refused(build, with_field(BOX, low=[0, 2])) == "low must not be above high"
        assert refused(build, with_field(BOX, low="inf")) == "low must not be above high"

    @pytest.mark.parametrize(
        "fields, text",
        [
            ({"n": 0}, "n must be an integer from 1 to 9223372036854775807, not 0"),
            ({"n": 2.0}, "n must be an integer from 1 to 9223372036854775807, not 2.0"),
            ({"n": True}, "n must be an integer from 1 to 9223372036854775807, not True"),
            ({"n": 2**63}, "n must be an integer from 1 to 9223372036854775807, not 9223372036854775808"),
            ({"n": 10**5000}, "n must be an integer from 1 to 9223372036854775807, not an integer of 16610 bits"),
            ({"start": 128, "dtype": "int8"}, "start must be an integer from -128 to 127, not 128"),
            ({"n": 3, "start": 254, "dtype": "uint8"}, "n must be an integer from 1 to 2, not 3"),
        ],
    )  # fmt: skip
    def test_discrete(self, fields, text):
        assert refused(build, with_field(DISCRETE, **fields)) == text

    @pytest.mark.parametrize(
        "fields",
        [{"nvec": 0}, {"nvec": [2, -1]}, {"nvec": 0, "dtype": "uint8"}, {"nvec": 9, "start": 120, "dtype": "int8"}],
    )
    def test_multi_discrete(self, fields):
        text = refused(build, with_field(MULTI, **fields))
        dtype = fields.get("dtype", "int64")
        assert text == f"nvec must be positive, and start + nvec - 1 must fit {dtype}"

    def test_multi_discrete_counts_are_integers(self):
        assert refused(build, with_field(MULTI, nvec=1.5)) == "nvec has 1.5, which int64 doesn't hold"
        assert refused(build, with_field(MULTI, start="inf")) == "start has 'inf', which int64 doesn't hold"

    @pytest.mark.parametrize("n", [0, -1, 1.0, True, None, "3", [0], [2, -1], {}, MAX_ELEMENTS + 1])
    def test_multi_binary(self, n):
        assert refused(build, {"type": "MultiBinary", "n": n}).startswith("n must be ")

    @pytest.mark.parametrize(
        "fields, text",
        [
            ({"min_length": -1}, "min_length must be an integer from 0 to 5, not -1"),
            ({"min_length": 6}, "min_length must be an integer from 0 to 5, not 6"),
            ({"max_length": 2**31}, "max_length must be an integer from 0 to 2147483647, not 2147483648"),
            ({"charset": ["a", "b"]}, "charset must be a str, not ['a', 'b']"),
            ({"charset": "\ud800"}, "a lone surrogate can't be sent as UTF-8"),
        ],
    )
    def test_text(self, fields, text):
        assert refused(build, with_field(describe(Text(5)), **fields)) == text

    @pytest.mark.parametrize(
        "spaces_field, text",
        [
            ([["a", BOX], ["a", BOX]], "the key 'a' is there twice"),
            ([["a"]], "spaces must hold pairs of a key and a space, not ['a']"),
            (["ab"], "spaces must hold pairs of a key and a space, not 'ab'"),
            ([[1, BOX]], "a key must be a str of at most 1024 characters, not 1"),
            ([["a", None]], "a: a space is described by a dict, not by None"),
            ({"a": BOX}, "spaces must be a list of 0 to 4096 items, not a dict"),
        ],
    )
    def test_dict(self, spaces_field, text):
        assert refused(build, {"type": "Dict", "spaces": spaces_field, "sort_keys": True}) == text

    def test_flags(self):
        assert (
            refused(build, {"type": "Dict", "spaces": [], "sort_keys": 1}) == "sort_keys must be true or false, not 1"
        )
        text = refused(build, {"type": "Sequence", "feature_space": BOX, "stack": "yes"})
        assert text == "stack must be true or false, not 'yes'"

    def test_one_of_nothing(self):
        assert refused(build, {"type": "OneOf", "spaces": []}) == "spaces must be a list of 1 to 4096 items, not []"

    def test_the_error_says_where(self):
        description = describe(Dict([("a", Tuple([UNIT, Sequence(Graph(UNIT, Discrete(2)))]))]))
        inner = description["spaces"][0][1]["spaces"][1]["feature_space"]
        inner["edge_space"]["n"] = 0
        with pytest.raises(SpaceError) as caught:
            build(description)
        assert caught.value.path == "a.1.feature_space.edge_space"

    def test_what_gymnasium_itself_refuses(self, monkeypatch):
        def older(node_space, edge_space):  # as Graph did before gymnasium 1.4
            raise AssertionError("Values of the node_space should be instances of Box or Discrete")

        monkeypatch.setattr("openenv_gym.spaces.descriptions.Graph", older)
        text = refused(build, {"type": "Graph", "node_space": BOX, "edge_space": None})
        assert text == (
            f"gymnasium {gym.__version__} refuses this Graph: "
            "Values of the node_space should be instances of Box or Discrete"
        )


class TestLimits:
    def test_what_nests_too_deep(self):
        description = BOX
        for _ in range(MAX_DEPTH + 1):
            description = {"type": "Tuple", "spaces": [description]}
        assert refused(build, description).endswith("0.0: spaces nest more than 32 deep")

    def test_what_contains_itself(self):
        description = {"type": "Tuple", "spaces": []}
        description["spaces"].append(description)
        assert refused(build, description).endswith("0.0: spaces nest more than 32 deep")

    def test_too_many_children(self):
        children = [BOX] * (MAX_CHILDREN + 1)
        text = f"spaces must be a list of {{}} to {MAX_CHILDREN} items, not a list"
        assert refused(build, {"type": "Tuple", "spaces": children}) == text.format(0)
        assert refused(build, {"type": "OneOf", "spaces": children}) == text.format(1)
        pairs = [[str(index), BOX] for index in range(MAX_CHILDREN + 1)]
        assert refused(build, {"type": "Dict", "spaces": pairs, "sort_keys": True}) == text.format(0)

    @pytest.mark.parametrize(
        "description",
        [
            with_field(BOX, shape=[MAX_ELEMENTS]),
            with_field(BOX, shape=[2**13, 2**13]),
            with_field(BOX, shape=[0, 2**13, 2**13], low=[], high=[]),
            with_field(MULTI, shape=[2**20, 2**20], nvec=2),
            {"type": "MultiBinary", "n": [2**13, 2**13]},
            {"type": "MultiBinary", "n": MAX_ELEMENTS},
            {"type": "Tuple", "spaces": [{"type": "MultiBinary", "n": 2**24}] * 2},
            {"type": "Tuple", "spaces": [{"type": "Tuple", "spaces": [BOX] * 99}] * 99},
            {"type": "Sequence", "feature_space": with_field(BOX, shape=[2**24]), "stack": True},
            {"type": "Text", "min_length": 0, "max_length": 1, "charset": "a" * 2**21},
        ],
        ids=lambda description: description["type"],
    )
    def test_what_is_too_large_is_refused_before_it_is_built(self, description):
        tracemalloc.start()
        try:
            text = refused(build, description)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert text.endswith("the whole space is too large: it counts for more than 33554432 elements")
        assert peak < (2**25 if description["type"] == "Tuple" else 2**17)

    @pytest.mark.parametrize(
        "around",
        [
            lambda inner: {"type": "Graph", "node_space": inner, "edge_space": None},
            lambda inner: {"type": "Graph", "node_space": DISCRETE, "edge_space": inner},
            lambda inner: {"type": "Sequence", "feature_space": inner, "stack": True},
        ],
        ids=["nodes", "edges", "stacked"],
    )
    def test_copies_inside_of_copies_count(self, around):
        """Gymnasium would hold 2**14 spaces for a description of a thousand bytes."""
        description = DISCRETE
        for _ in range(14):
            description = around(description)
        assert "the whole space is too large" in refused(build, description)

    def test_a_4k_frame_is_fine(self):
        description = with_field(BOX, dtype="uint8", shape=[2160, 3840, 3], low=0, high=255)
        assert build(description).shape == (2160, 3840, 3)


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["inf", "-inf", "float32"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def corrupted(draw):
    """A description of a random space with some part replaced, taken away or added."""
    description = describe(draw(spaces))
    for _ in range(draw(st.integers(1, 3))):
        container = description
        while True:
            keys = list(container) if isinstance(container, dict) else list(range(len(container)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(container[key], (dict, list)) and draw(st.booleans()):
                container = container[key]
                continue
            if draw(st.integers(0, 3)):
                container[key] = draw(json_like | st.sampled_from(["int8", "float16", 0, 1, -1, 2**31, 2**64, [], [0]]))
            else:
                del container[key]
            break
    return description


class TestAnyInput:
    """Whatever comes in, a space or a SpaceError comes out; a hang or a lack of memory would fail too."""

    def check(self, data):
        try:
            space = build(data)
        except SpaceError as error:
            text = str(error)
        else:
            text = "" if same(build(describe(space)), space) else "another space"
        assert text != "another space"
        assert len(text) < 2000

    @given(json_like)
    def test_plain_data(self, data):
        self.check(data)

    @given(st.sampled_from(ZOO), st.data())
    def test_fields_of_any_value(self, space, data):
        description = {name: data.draw(st.just(value) | json_like) for name, value in describe(space).items()}
        self.check({**description, "type": type(space).__name__})

    @given(corrupted())
    @settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    def test_corrupted_descriptions(self, data):
        self.check(data)


# ----------------------------------------------------------------------------------------------- the parts


class TestLeaves:
    def test_are_walked_depth_first_in_the_order_of_the_space(self):
        space = NAMED["robot"]
        found = [(leaf.path, type(leaf.space), leaf.is_array) for leaf in leaves(space)]
        assert found == [
            (("robot", "joints"), Box, True),
            (("robot", "camera"), Box, True),
            (("goal", 0), Box, True),
            (("goal", 1), Discrete, True),
            (("note",), Text, False),
        ]
        assert leaves(space)[0].space is space["robot"]["joints"]

    @pytest.mark.parametrize("space", [UNIT, Discrete(2), MultiDiscrete([2]), MultiBinary(2)])
    def test_an_array_is_a_leaf(self, space):
        assert leaves(space) == [Leaf((), space, True)]

    @pytest.mark.parametrize(
        "space",
        [Text(2), Sequence(UNIT), Graph(UNIT, None), OneOf([UNIT]), Special(0, 1), SpecialDict(a=UNIT), gym.Space()],
    )
    def test_other_spaces_are_leaves_without_a_fixed_shape(self, space):
        assert leaves(space) == [Leaf((), space, False)]
        assert refused(leaf_shape, space) == f"values of {type(space).__name__} have no fixed shape and dtype"
        assert refused(leaf_dtype, space) == f"values of {type(space).__name__} have no fixed shape and dtype"

    @pytest.mark.parametrize("space", [Dict({}), Tuple([]), Dict(a=Tuple([]))])
    def test_an_empty_space_has_none(self, space):
        assert leaves(space) == []

    @pytest.mark.parametrize("path, name", [((), ""), (("a",), "a"), (("robot", 0, "cam"), "robot.0.cam"), ((3,), "3")])
    def test_paths_have_names(self, path, name):
        assert path_name(path) == name

    @every_space
    def test_shape_and_dtype_are_those_of_the_values(self, space):
        space.seed(0)
        value = space.sample()
        for leaf in leaves(space):
            part = value
            for step in leaf.path:
                part = part[step]
            if leaf.is_array:
                assert part.shape == leaf_shape(leaf.space)
                assert part.dtype == leaf_dtype(leaf.space)
                assert isinstance(leaf_dtype(leaf.space), np.dtype)


class TestFits:
    @every_space
    def test_a_space_fits_itself(self, space):
        assert fits(travelled(space), space)

    @pytest.mark.parametrize(
        "wanted, fitting",
        [
            (Tuple([Discrete(5), Dict({"b": Box(0, 1, (2,))})]), True),
            (Tuple([Discrete(2)]), False),
            (Tuple([Discrete(2), Dict({"c": Box(0, 1, (2,))})]), False),
            (Tuple([Discrete(2), Dict({"b": Box(0, 1, (3,))})]), False),
            (Tuple([Discrete(2), Dict({"b": Box(0, 1, (2,), np.float64)})]), False),
            (Tuple([Discrete(2), Dict()]), True),
            (Dict(), False),
        ],
    )
    def test_nested(self, wanted, fitting):
        own = Tuple([Discrete(2), Dict({"a": Text(3), "b": Box(-1, 1, (2,))})])
        assert fits(wanted, own) is fitting

    def test_other_spaces_must_be_the_same(self):
        assert not fits(Text(3), Text(4))
        assert not fits(MultiBinary(3), MultiBinary(4))


class TestGenerators:
    @pytest.mark.parametrize("name", NAMED)
    def test_a_space_built_from_a_description_samples_on(self, name):
        space = NAMED[name]
        space.seed(7)
        space.sample()
        built = build(describe(space))
        restore_generators(built, generators(space))
        for _ in range(3):
            assert identical(built.sample(), space.sample())

    def test_what_was_never_seeded_stays_so(self):
        space = Tuple([Discrete(2), Discrete(3, seed=1)])
        assert [state is None for state in generators(space)] == [True, True, False]
        built = build(describe(space))
        restore_generators(built, generators(space))
        assert [state is None for state in generators(built)] == [True, True, False]

    def test_generators_of_another_kind_stay_behind(self):
        space = Discrete(2)
        space._np_random = np.random.Generator(np.random.MT19937(1))
        assert generators(space) == [None]

    @pytest.mark.parametrize(
        "states, text",
        [([], "0 generators came for a space with 1"), ([None, None], "2 generators"), ([b"x"], "has 1 bytes, not 37")],
        ids=["none", "two", "short"],
    )
    def test_a_strangers_states(self, states, text):
        with pytest.raises(SpaceError, match=text):
            restore_generators(Discrete(2), states)


class TestAlike:
    @pytest.mark.parametrize(
        "a, b, expected",
        [
            (Box(0, 1, (2,)), Box(-3, 9, (2,)), True),
            (Discrete(2), Discrete(5, start=-1), True),
            (Dict({"a": Discrete(2)}), Dict({"a": Discrete(3)}), True),
            (Dict({"a": Discrete(2)}), Dict({"a": Discrete(3), "b": Discrete(2)}), False),
            (Dict({"a": Discrete(2), "b": Discrete(2)}), Dict({"a": Discrete(3)}), False),
            (Box(0, 1, (2,)), Box(0, 1, (3,)), False),
            (Box(0, 1, (2,), np.float32), Box(0, 1, (2,), np.float64), False),
            (Discrete(2), Box(0, 1, ()), False),
        ],
    )
    def test_only_bounds_may_differ(self, a, b, expected):
        assert alike(a, b) is expected


class TestSame:
    @every_space
    def test_a_space_is_the_same_as_itself(self, space):
        assert same(space, space)
        assert same(space, travelled(space))

    def test_all_others_are_different(self):
        assert [(a, b) for index, a in enumerate(ZOO) for b in ZOO[:index] if same(a, b)] == []

    @pytest.mark.parametrize(
        "a, b",
        [
            (dict_of("a", "b"), dict_of("b", "a")),
            (Dict(x=dict_of("a", "b")), Dict(x=dict_of("b", "a"))),
            (Tuple([dict_of("a", "b")]), Tuple([dict_of("b", "a")])),
            (OneOf([dict_of("a", "b")]), OneOf([dict_of("b", "a")])),
            (Sequence(dict_of("a", "b")), Sequence(dict_of("b", "a"))),
            (Graph(UNIT, Box(0, 1)), Graph(UNIT, Box(0, 2))),
            (Graph(UNIT, UNIT), Graph(UNIT, None)),
            (Text(2, charset="ab"), Text(2, charset="ba")),
            (MultiDiscrete([2], dtype=np.int8), MultiDiscrete([2], dtype=np.int64)),
            (Box(0, 1, (2,), np.float32), Box(0, 1, (2,), np.float64)),
            (Box(0, 1, (2,)), Special(0, 1, (2,))),
            (Box(0, 1, (1,), np.int64), Discrete(2)),
        ],
    )
    def test_tells_apart(self, a, b):
        assert not same(a, b)
        assert not same(b, a)

    def test_bounds_may_be_rounded_differently(self):
        assert same(Box(0, 1.0, (1,)), Box(0, np.nextafter(np.float32(1), np.float32(2)), (1,)))

    def test_custom_spaces_compare_as_they_like(self):
        assert same(Special(0, 1), Special(0, 1))
        assert not same(gym.Space(), gym.Space())


# ---------------------------------------------------------------------------------------------------- trim


ROBOT = NAMED["robot"]


def keys(space):
    return [path_name(leaf.path) for leaf in leaves(space)]


class TestTrim:
    @every_space
    def test_nothing_to_do_gives_the_same_object(self, space):
        assert trim(space) is space
        assert trim(space, exclude=[]) is space
        assert trim(space, dtype={}) is space

    def test_everything_included_or_cast_to_what_it_is_gives_the_same_object(self):
        assert trim(ROBOT, include=["note", "robot", "goal"]) is ROBOT
        assert trim(ROBOT, dtype={"robot.camera": "uint8", "goal": "float32"}) is ROBOT
        assert trim(UNIT, dtype="float32") is UNIT
        assert trim(Discrete(2), dtype="float32").__class__ is Discrete

    @pytest.mark.parametrize(
        "include, exclude, kept",
        [
            (["robot.camera"], None, ["robot.camera"]),
            (["note", "robot"], None, ["robot.joints", "robot.camera", "note"]),
            (None, ["robot.camera"], ["robot.joints", "goal.0", "goal.1", "note"]),
            (None, ["robot"], ["goal.0", "goal.1", "note"]),
            (None, ["robot.joints", "robot.camera"], ["goal.0", "goal.1", "note"]),
            (["robot", "goal"], ["robot.camera", "note"], ["robot.joints", "goal.0", "goal.1"]),
            (["goal"], [], ["goal.0", "goal.1"]),
            ("robot.camera", None, ["robot.camera"]),
            (None, "robot", ["goal.0", "goal.1", "note"]),
            (iter(["note"]), None, ["note"]),
        ],
    )
    def test_what_remains(self, include, exclude, kept):
        trimmed = trim(ROBOT, include=include, exclude=exclude)
        assert keys(trimmed) == kept
        assert type(trimmed) is Dict

    def test_parts_that_stay_are_the_same_objects(self):
        trimmed = trim(ROBOT, exclude=["robot.camera"])
        assert trimmed["goal"] is ROBOT["goal"]
        assert trimmed["robot"]["joints"] is ROBOT["robot"]["joints"]
        assert keys(ROBOT)[1] == "robot.camera"  # the space itself is as it was

    def test_the_order_of_keys_is_kept(self):
        assert list(trim(dict_of("z", "b", "y", "a"), include=["a", "y", "z"])) == ["z", "y", "a"]

    def test_the_flag_that_orders_a_batch_is_kept(self):
        if "dict unsorted" not in NAMED:
            pytest.skip("sort_keys came with gymnasium 1.4")
        space = Dict({"b": UNIT, "a": UNIT, "c": UNIT}, sort_keys=False)
        assert trim(space, exclude=["c"]).sort_keys is False
        assert trim(Dict(dict(space)), exclude=["c"]).sort_keys is True

    def test_a_key_with_a_dot(self):
        assert list(trim(NAMED["dict ordered"], include=["c.d"])) == ["c.d"]

    def test_an_empty_dict_may_stay(self):
        space = Dict([("a", Dict({})), ("b", UNIT), ("c", UNIT)])
        assert list(trim(space, exclude=["b"])) == ["a", "c"]
        assert list(trim(space, include=["b"])) == ["b"]

    def test_custom_spaces_may_stay_or_go(self):
        space = Dict(mission=Special(0, 1), image=UNIT)
        assert trim(space, exclude=["image"])["mission"] is space["mission"]
        assert describe(trim(space, exclude=["mission"])) == describe(Dict(image=UNIT))

    @pytest.mark.parametrize(
        "space, options, text",
        [
            (
                ROBOT,
                {"include": ["robot.cam"]},
                "'robot.cam' names nothing here; the paths are 'robot', 'robot.joints', 'robot.camera', 'goal', 'note'",
            ),
            (dict_of("a", "b"), {"exclude": ["a", "c"]}, "'c' names nothing here; the paths are 'a', 'b'"),
            (Dict(a=Tuple([UNIT])), {"include": ["a.0"]}, "'a.0' names nothing here; the paths are 'a'"),
            (dict_of("a"), {"include": [""]}, "'' names nothing here; the paths are 'a'"),
            (dict_of("a"), {"include": [1]}, "1 names nothing here; the paths are 'a'"),
            (dict_of("a"), {"dtype": {"b": "float64"}}, "'b' names nothing here; the paths are 'a'"),
            (dict_of("a"), {"dtype": {"": "float64"}}, "'' names nothing here; the paths are 'a'"),
            (UNIT, {"include": ["a"]}, "'a' names nothing here; the space has no such parts"),
            (UNIT, {"exclude": ["a"]}, "'a' names nothing here; the space has no such parts"),
            (Tuple([dict_of("a")]), {"include": ["0.a"]}, "'0.a' names nothing here; the space has no such parts"),
            (Discrete(2), {"dtype": {"": "int8"}}, "'' names nothing here; the space has no such parts"),
            (dict_of("a", "b"), {"exclude": ["b", "a"]}, "include and exclude leave nothing of the space"),
            (dict_of("a", "b"), {"include": ["a"], "exclude": ["a"]}, "include and exclude leave nothing of the space"),
            (dict_of("a", "b"), {"include": []}, "include and exclude leave nothing of the space"),
        ],
    )  # fmt: skip
    def test_errors(self, space, options, text):
        assert refused(trim, space, **options) == text


class TestTrimDtype:
    def test_one_for_every_box(self):
        trimmed = trim(ROBOT, dtype="float64")
        assert [leaf.space.dtype for leaf in leaves(trimmed)][:4] == ["float64", "float64", "float64", "int64"]
        assert trimmed["note"] is ROBOT["note"]
        assert list(trimmed) == list(ROBOT)

    def test_by_path(self):
        trimmed = trim(ROBOT, dtype={"robot": "float64", "robot.camera": "float16", "goal.0": "float16"})
        assert [leaf.space.dtype for leaf in leaves(trimmed)][:3] == ["float64", "float16", "float16"]
        assert same(trimmed["goal"][1], ROBOT["goal"][1])

    def test_of_a_bare_box(self):
        assert same(trim(UNIT, dtype={"": "float64"}), Box(0, 1, (2,), np.float64))

    def test_after_keys_are_gone(self):
        assert same(
            trim(ROBOT, include=["robot.camera"], dtype="uint16")["robot"]["camera"], Box(0, 255, (2, 2, 3), np.uint16)
        )
        assert "'goal.0' names nothing" in refused(trim, ROBOT, include=["robot"], dtype={"goal.0": "float64"})

    @pytest.mark.parametrize(
        "box, dtype, cast",
        [
            (Box(-INF, INF, (2,)), "float16", Box(-INF, INF, (2,), np.float16)),
            (Box(np.array([-INF, 0.1]), np.array([0.2, 0.3]), dtype=np.float64), "float32",
             Box(np.array([-INF, 0.1], "f4"), np.array([0.2, 0.3], "f4"), dtype=np.float32)),
            (Box(0, 255, (2,), np.uint8), "float32", Box(0, 255, (2,), np.float32)),
            (Box(-0.5, 1.5, (2,)), "int8", Box(0, 1, (2,), np.int8)),
            (Box(0, 1, (2,)), "bool", Box(0, 1, (2,), np.bool_)),
            (Box(0, 1, (2,), np.bool_), "float32", Box(0, 1, (2,), np.float32)),
            (Box(0, 1, (0, 3)), "uint8", Box(0, 1, (0, 3), np.uint8)),
            (Box(0, 1, ()), "float64", Box(0, 1, (), np.float64)),
            (Box(-INF, INF, (2,), np.int8), "int16", Box(-128, 127, (2,), np.int16)),
        ],
    )  # fmt: skip
    def test_bounds_are_cast(self, box, dtype, cast):
        trimmed = trim(box, dtype=dtype)
        assert same(trimmed, cast)
        assert identical((trimmed.low, trimmed.high), (cast.low, cast.high))

    @pytest.mark.parametrize(
        "box, dtype, text",
        [
            (Box(-INF, 1, (2,)), "int64", "an infinite bound can't become int64"),
            (Box(0, INF, (2,)), "uint8", "an infinite bound can't become uint8"),
            (Box(0, INF, (2,)), "bool", "an infinite bound can't become bool"),
            (Box(0, 256, (2,)), "uint8", "the bound 256.0 doesn't fit uint8"),
            (Box(-1, 1, (2,)), "uint8", "the bound -1.0 doesn't fit uint8"),
            (Box(0, 2, (2,)), "bool", "the bound 2.0 doesn't fit bool"),
            (Box(0, 2.0**63, (2,)), "int64", "the bound 9.223372036854775808e+18 doesn't fit int64"),
            (Box(0, 1e300, (2,), np.float64), "float32", "the bound 1e+300 doesn't fit float32"),
            (Box(np.array([0, 1e300]), np.array([INF, INF]), dtype=np.float64), "float32",
             "the bound 1e+300 doesn't fit float32"),
            (Box(0, 2**16, (2,), np.int32), "float16", "the bound 65536 doesn't fit float16"),
            (Box(-INF, INF, (2,), np.int32), "int8", "the bound -2147483648 doesn't fit int8"),
        ],
    )  # fmt: skip
    def test_bounds_that_dont_fit(self, box, dtype, text):
        text = text.replace("9.223372036854775808e+18", str(2.0**63))
        assert refused(trim, box, dtype=dtype) == text
        assert refused(trim, Dict(a=Dict(b=box)), dtype=dtype) == f"a.b: {text}"

    @pytest.mark.parametrize("dtype", ["f4", "object", "", 3, np.float32])
    def test_unknown_dtypes(self, dtype):
        assert refused(trim, dict_of("x"), dtype=dtype).startswith("x: unknown dtype ")
        assert refused(trim, UNIT, dtype={"": dtype}).endswith(
            "; known are bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64"
        )

    @given(spaces, st.sampled_from(["float64", "float32", "int64"]))
    @settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
    def test_of_random_spaces(self, space, dtype):
        try:
            trimmed = trim(space, dtype=dtype)
        except SpaceError:
            return
        assert keys(trimmed) == keys(space)
        assert all(leaf.space.dtype == dtype for leaf in leaves(trimmed) if type(leaf.space) is Box)
