"""openenv_gym.json_values: values of any space through strict JSON and back, or an error that names what is wrong."""

import json
import warnings

import gymnasium as gym
import jsonschema
import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    GraphInstance,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)
from helpers_spaces import NAMED, every_space, identical, spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openenv_gym.errors import SpaceError
from openenv_gym.json_values import from_json, to_json
from openenv_gym.server.space_schemas import json_schema

INF, NAN = np.inf, np.nan
UNIT = Box(0, 1, (2,))
BYTE = Box(0, 255, (2,), np.uint8)


def travelled(space, value):
    """The value after a journey as strict JSON."""
    return from_json(space, json.loads(json.dumps(to_json(space, value), allow_nan=False)))


def refused(function, *args, **kwargs):
    """The text of the SpaceError that the call raises."""
    with pytest.raises(SpaceError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


def samples(space, count=3):
    space.seed(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium overflows in samples of the largest integers
        return [space.sample() for _ in range(count)]


class TestRoundTrip:
    @every_space
    def test_gives_the_same_value(self, space):
        for value in samples(space):
            assert identical(travelled(space, value), value)

    @every_space
    def test_the_value_is_in_the_space(self, space):
        for value in samples(space):
            assert travelled(space, value) in space or value not in space

    @every_space
    def test_the_json_fits_the_schema(self, space):
        schema = json.loads(json.dumps(json_schema(space), allow_nan=False))
        jsonschema.Draft202012Validator.check_schema(schema)
        for value in samples(space):
            if value in space:
                jsonschema.Draft202012Validator(schema).validate(to_json(space, value))

    @given(spaces)
    @settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
    def test_of_random_spaces(self, space):
        schema = json_schema(space)
        jsonschema.Draft202012Validator.check_schema(schema)
        with np.errstate(all="ignore"):
            for value in samples(space, 1):
                data = to_json(space, value)
                back = travelled(space, value)
                assert identical(to_json(space, back), data)
                assert identical(travelled(space, back), back)
                if back in space:  # gymnasium's samples of the largest integers aren't
                    jsonschema.Draft202012Validator(schema).validate(data)

    @every_space
    def test_arrays_are_owned_and_writeable(self, space):
        def arrays(value):
            inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
            return [value] if isinstance(value, np.ndarray) else [array for part in inner for array in arrays(part)]

        for array in arrays(travelled(space, samples(space, 1)[0])):
            assert array.flags.writeable

    @pytest.mark.parametrize("stack", [False, True])
    @pytest.mark.parametrize("part", [UNIT, Discrete(3), Text(2), NAMED["dict"], NAMED["tuple"], MultiBinary(2)])
    def test_of_sequences_of_any_length(self, part, stack):
        space = Sequence(part, stack=stack)
        for length in (0, 1, 3):
            part.seed(length)
            data = [to_json(part, part.sample()) for _ in range(length)]
            value = from_json(space, data)
            assert to_json(space, value) == data
            assert value in space or length == 0


class TestToJson:
    @pytest.mark.parametrize(
        "space, value, data",
        [
            (UNIT, np.array([0.5, 1.0], np.float32), [0.5, 1.0]),
            (UNIT, np.array([0.1, 1.0]), [0.1, 1.0]),
            (UNIT, [0.5, 1], [0.5, 1.0]),
            (UNIT, [0, 1], [0, 1]),
            (UNIT, (np.float32(0.5), None), [0.5, None]),
            (UNIT, (np.float32(0.5), np.float64(1)), [0.5, 1.0]),
            (Box(0, 1, ()), np.float32(0.5), 0.5),
            (Box(0, 1, ()), np.array(0.5), 0.5),
            (Box(0, 1, (1, 2)), np.zeros((1, 2)), [[0.0, 0.0]]),
            (Box(0, 1, (0, 2)), np.zeros((0, 2)), []),
            (Box(0, 1, (2,), bool), np.array([True, False]), [True, False]),
            (Box(0, 1, (2,), bool), [1, 0], [True, False]),
            (BYTE, np.array([1.0, 255.0]), [1, 255]),
            (BYTE, [True, False], [1, 0]),
            (Box(-INF, INF, (4,)), np.array([NAN, INF, -INF, 1.5]), [None, None, None, 1.5]),
            (Box(-INF, INF, ()), NAN, None),
            (Box(-INF, INF, ()), np.float32(INF), None),
            (Discrete(3), np.int64(2), 2),
            (Discrete(3), 2, 2),
            (Discrete(3), np.array(2, np.int8), 2),
            (Discrete(3), True, 1),
            (MultiDiscrete([[2, 3]]), np.array([[1, 2]]), [[1, 2]]),
            (MultiBinary(2), np.array([0, 1], np.int8), [0, 1]),
            (MultiBinary(2), np.array([False, True]), [0, 1]),
            (Text(5), "hé", "hé"),
            (Text(5), np.str_("a"), "a"),
            (Tuple([Discrete(2), UNIT]), (1, np.zeros(2)), [1, [0.0, 0.0]]),
            (Dict([("b", Discrete(2)), ("a", Discrete(2))]), {"a": 0, "b": 1}, {"b": 1, "a": 0}),
            (Sequence(Discrete(3)), (np.int64(1), 2), [1, 2]),
            (Sequence(UNIT, stack=True), np.zeros((2, 2)), [[0.0, 0.0], [0.0, 0.0]]),
            (Graph(Discrete(3), None), GraphInstance(np.array([1, 2]), None, None),
             {"nodes": [1, 2], "edges": None, "edge_links": None}),
            (Graph(Discrete(3), UNIT), GraphInstance(np.array([1, 2]), np.zeros((1, 2)), np.array([[0, 1]])),
             {"nodes": [1, 2], "edges": [[0.0, 0.0]], "edge_links": [[0, 1]]}),
            (OneOf([Discrete(2), UNIT]), (np.int64(1), np.zeros(2)), [1, [0.0, 0.0]]),
        ],
    )  # fmt: skip
    def test_is_this(self, space, value, data):
        result = to_json(space, value)
        assert identical(result, data)
        assert json.loads(json.dumps(result, allow_nan=False)) == data

    def test_keys_come_in_the_order_of_the_space(self):
        space = Dict([("b", Discrete(2)), ("a", Discrete(2))])
        assert list(to_json(space, {"a": 0, "b": 1})) == ["b", "a"]

    @pytest.mark.parametrize(
        "space, value, text",
        [
            (UNIT, np.zeros(3), "the shape is (3,), not (2,)"),
            (UNIT, 0.5, "the shape is (), not (2,)"),
            (UNIT, [[1], [2, 3]], "a ragged list is no array of shape (2,)"),
            (UNIT, ["a", 1], "0: 'a' doesn't fit float32"),
            (UNIT, {"a": 1}, "a dict doesn't fit float32"),
            (Discrete(3), 1.5, "1.5 doesn't fit int64"),
            (Discrete(3), None, "None doesn't fit int64"),
            (Discrete(3), np.array([1]), "the shape is (1,), not ()"),
            (BYTE, [1, 300], "1: 300 doesn't fit uint8"),
            (Text(3), 5, "5 is no text"),
            (Text(3), b"a", "a bytes is no text"),
            (NAMED["robot"], None, "None is no dict with the keys ['robot', 'goal', 'note']"),
            (NAMED["dict"], {"a": [0, 0]}, "the key 'b' is missing"),
            (NAMED["dict"], {"a": [0, 0], "b": 1, "c": 1}, "the key 'c' isn't one of ['a', 'b']"),
            (Dict(x=Dict(y=BYTE)), {"x": {"y": [0, -1]}}, "x.y.1: -1 doesn't fit uint8"),
            (Tuple([Discrete(2)]), (1, 2), "[1, 2] is no list of 1 items"),
            (Tuple([Discrete(2)]), 1, "1 is no list of 1 items"),
            (Tuple([Discrete(2), BYTE]), (1, [0, 0.5]), "1.1: 0.5 doesn't fit uint8"),
            (Sequence(Discrete(2)), 1, "1 is no list"),
            (Sequence(Discrete(2)), (1, 0.5), "1: 0.5 doesn't fit int64"),
            (OneOf([UNIT]), (1, [0, 0]), "0: 1 is no index of 1 spaces"),
            (OneOf([UNIT]), (-1, [0, 0]), "0: -1 is no index of 1 spaces"),
            (OneOf([UNIT]), (0, [0]), "1: the shape is (1,), not (2,)"),
            (Graph(Discrete(2), None), GraphInstance(np.array([1]), np.array([1]), np.array([[0, 0]])),
             "edges: this Graph has no edge space"),
            (Graph(Discrete(2), Discrete(2)), GraphInstance(np.array([1]), np.array([1]), np.array([[0, 0], [0, 0]])),
             "edge_links: the shape is (2, 2), not (1, 2)"),
        ],
    )  # fmt: skip
    def test_errors(self, space, value, text):
        assert refused(to_json, space, value) == text

    def test_other_classes(self):
        assert refused(to_json, gym.Space(), "x", path="a") == "a: 'x', a value of Space, has no JSON form"


class TestFromJson:
    @pytest.mark.parametrize(
        "space, data, value",
        [
            (UNIT, [0.1, 1], np.array([0.1, 1], np.float32)),
            (UNIT, (0, True), np.array([0, 1], np.float32)),
            (UNIT, [None, 0.5], np.array([NAN, 0.5], np.float32)),
            (UNIT, [None, None], np.array([NAN, NAN], np.float32)),
            (UNIT, [INF, NAN], np.array([INF, NAN], np.float32)),
            (UNIT, [2**70, None], np.array([2.0**70, NAN], np.float32)),
            (Box(0, 1, (2,), np.float16), [0.1, 65504], np.array([0.1, 65504], np.float16)),
            (Box(0, 1, (), np.float64), 1, np.array(1.0)),
            (Box(0, 1, (), np.float64), None, np.array(NAN)),
            (Box(0, 1, (0, 3)), [], np.zeros((0, 3), np.float32)),
            (Box(0, 1, (2, 0)), [[], []], np.zeros((2, 0), np.float32)),
            (BYTE, [0, 255], np.array([0, 255], np.uint8)),
            (BYTE, [1.0, 2], np.array([1, 2], np.uint8)),
            (BYTE, [True, 2], np.array([1, 2], np.uint8)),
            (Box(0, 1, (2,), bool), [True, 0], np.array([True, False])),
            (NAMED["box exact int64"], [-(2**63), 2**53 + 1], np.array([-(2**63), 2**53 + 1])),
            (Box(0, 1, (2,), np.uint64), [1, 2**64 - 1], np.array([1, 2**64 - 1], np.uint64)),
            (Box(0, 1, (2,), np.int64), [2.0**53 - 1, 2**63 - 1], np.array([2**53 - 1, 2**63 - 1])),
            (NAMED["discrete huge"], 2**62 + 1, np.int64(2**62 + 1)),
            (Discrete(3), 2, np.int64(2)),
            (Discrete(3), 2.0, np.int64(2)),
            (Discrete(3), True, np.int64(1)),
            (Discrete(3), 99, np.int64(99)),
            (MultiDiscrete([2, 3], dtype=np.int8), [1, 2], np.array([1, 2], np.int8)),
            (MultiBinary(2), [0, 1], np.array([0, 1], np.int8)),
            (Text(2), "too long", "too long"),
            (Tuple([Discrete(2), Text(1)]), [1, "a"], (np.int64(1), "a")),
            (Sequence(Discrete(2)), [], ()),
            (Sequence(Discrete(2)), [1], (np.int64(1),)),
            (Sequence(BYTE, stack=True), [[1, 2]], np.array([[1, 2]], np.uint8)),
            (Sequence(BYTE, stack=True), [], np.zeros((0, 2), np.uint8)),
            (Graph(BYTE, Discrete(2)), {"nodes": [[1, 2]], "edges": [1], "edge_links": [[0, 0]]},
             GraphInstance(np.array([[1, 2]], np.uint8), np.array([1]), np.array([[0, 0]], np.int32))),
            (Graph(BYTE, Discrete(2)), {"nodes": [], "edges": [], "edge_links": []},
             GraphInstance(np.zeros((0, 2), np.uint8), np.zeros(0, np.int64), np.zeros((0, 2), np.int32))),
            (Graph(BYTE, None), {"nodes": [[1, 2]], "edges": None, "edge_links": None},
             GraphInstance(np.array([[1, 2]], np.uint8), None, None)),
            (OneOf([UNIT, Discrete(2)]), [1, 0], (np.int64(1), np.int64(0))),
        ],
    )  # fmt: skip
    def test_is_this(self, space, data, value):
        assert identical(from_json(space, data), value)

    def test_keys_come_in_the_order_of_the_space(self):
        space = Dict([("b", Discrete(2)), ("a", Dict([("z", Text(1)), ("y", Text(1))]))])
        value = from_json(space, {"a": {"y": "1", "z": "2"}, "b": 1})
        assert identical(value, {"b": np.int64(1), "a": {"z": "2", "y": "1"}})

    @pytest.mark.parametrize("path", ["", "obs"])
    @pytest.mark.parametrize(
        "space, data, where, text",
        [
            (BYTE, [0, 300], "1", "300 doesn't fit uint8"),
            (BYTE, [0, -1], "1", "-1 doesn't fit uint8"),
            (BYTE, [1.5, 0], "0", "1.5 doesn't fit uint8"),
            (BYTE, [NAN, 0], "0", "nan doesn't fit uint8"),
            (BYTE, [INF, 0], "0", "inf doesn't fit uint8"),
            (BYTE, [0, None], "1", "None doesn't fit uint8"),
            (BYTE, [0, 2**64], "1", "an integer of 65 bits doesn't fit uint8"),
            (BYTE, [0, "1"], "1", "'1' doesn't fit uint8"),
            (BYTE, "12", "", "'12' doesn't fit uint8"),
            (BYTE, None, "", "None doesn't fit uint8"),
            (BYTE, {"0": 1}, "", "a dict doesn't fit uint8"),
            (BYTE, [1], "", "the shape is (1,), not (2,)"),
            (BYTE, [[1, 2]], "", "the shape is (1, 2), not (2,)"),
            (BYTE, [], "", "the shape is (0,), not (2,)"),
            (BYTE, [[1], [1, 2]], "", "a ragged list is no array of shape (2,)"),
            (BYTE, [1, [2]], "", "a ragged list is no array of shape (2,)"),
            (Box(0, 1, (2, 2), np.int8), [[0, 0], [0, 128]], "1.1", "128 doesn't fit int8"),
            (Box(0, 1, (2,), bool), [0, 2], "1", "2 doesn't fit bool"),
            (Box(0, 1, (2,), bool), [0, 0.5], "1", "0.5 doesn't fit bool"),
            (Box(0, 1, (2,), np.int64), [0, 2**63], "1", "9223372036854775808 doesn't fit int64"),
            (Box(0, 1, (2,), np.int64), [2.0**53, 0], "0", f"{2.0**53} doesn't fit int64"),
            (Box(0, 1, (2,), np.uint64), [-1, 2**63], "0", "-1 doesn't fit uint64"),
            (Box(0, 1, (2,), np.int64), [0.5, 2**53 + 1], "0", "0.5 doesn't fit int64"),
            (UNIT, [0, 1e39], "1", "1e+39 doesn't fit float32"),
            (UNIT, [0, -(10**39)], "1", "an integer of 130 bits doesn't fit float32"),
            (UNIT, [0.5, 10**400], "1", "an integer of 1329 bits doesn't fit float32"),
            (Box(0, 1, (), np.float16), 65520, "", "65520 doesn't fit float16"),
            (Box(0, 1, (), np.float64), 10**400, "", "an integer of 1329 bits doesn't fit float64"),
            (UNIT, ["0.5", 1], "0", "'0.5' doesn't fit float32"),
            (Discrete(3), 1.5, "", "1.5 doesn't fit int64"),
            (Discrete(3), None, "", "None doesn't fit int64"),
            (Discrete(3), "1", "", "'1' doesn't fit int64"),
            (Discrete(3), [1], "", "the shape is (1,), not ()"),
            (MultiBinary(2), [0, 128], "1", "128 doesn't fit int8"),
            (Text(3), None, "", "None is no text"),
            (NAMED["dict"], {"a": [0, 0]}, "", "the key 'b' is missing"),
            (NAMED["dict"], {"a": [0, 0], "b": 1, "z": 1}, "", "the key 'z' isn't one of ['a', 'b']"),
            (NAMED["dict"], [1], "", "[1] is no dict with the keys ['a', 'b']"),
            (Dict(a=Dict(c=Discrete(2))), {"a": {}}, "a", "the key 'c' is missing"),
            (Dict(a=Tuple([BYTE])), {"a": [[0, 256]]}, "a.0.1", "256 doesn't fit uint8"),
            (Tuple([BYTE]), [[0, 0], 1], "", "a list is no list of 1 items"),
            (Sequence(Discrete(2)), "01", "", "'01' is no list"),
            (Sequence(BYTE, stack=True), [[0, 0], [0, 256]], "1.1", "256 doesn't fit uint8"),
            (Graph(BYTE, None), {"nodes": []}, "", "the key 'edges' is missing"),
            (Graph(BYTE, None), {"nodes": [], "edges": [1], "edge_links": [[0, 0]]}, "edges",
             "this Graph has no edge space"),
            (Graph(BYTE, UNIT), {"nodes": [[0, 256]], "edges": None, "edge_links": None}, "nodes.0.1",
             "256 doesn't fit uint8"),
            (Graph(BYTE, UNIT), {"nodes": [], "edges": [[0, 1e39]], "edge_links": [[0, 0]]}, "edges.0.1",
             "1e+39 doesn't fit float32"),
            (Graph(BYTE, UNIT), {"nodes": [], "edges": [[0, 1]], "edge_links": []}, "edge_links",
             "the shape is (0,), not (1, 2)"),
            (OneOf([UNIT]), [1, [0, 0]], "0", "1 is no index of 1 spaces"),
            (OneOf([UNIT]), [0.5, [0, 0]], "0", "0.5 doesn't fit int64"),
            (OneOf([UNIT]), [0, [0, None, 1]], "1", "the shape is (3,), not (2,)"),
            (OneOf([UNIT]), 0, "", "0 is no list of 2 items"),
        ],
    )  # fmt: skip
    def test_errors(self, space, data, where, text, path):
        with pytest.raises(SpaceError) as caught:
            from_json(space, data, path=path)
        assert caught.value.path == ".".join(filter(None, [path, where]))
        assert caught.value.message == text

    def test_other_classes(self):
        text = "'x' can't become a value of Space, which has no JSON form"
        assert refused(from_json, gym.Space(), "x") == text

    @given(
        spaces,
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
            max_leaves=8,
        ),
    )
    @settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
    def test_any_data_gives_a_value_or_a_space_error(self, space, data):
        try:
            value = from_json(space, data)
        except SpaceError:
            return
        assert identical(travelled(space, value), value)


class TestSchema:
    @pytest.mark.parametrize(
        "space, schema",
        [
            (Box(0, 1, (), np.float64), {"type": "number", "minimum": 0.0, "maximum": 1.0}),
            (Box(-INF, 1, (), np.float64), {"type": "number", "maximum": 1.0}),
            (
                Box(0, 255, (2, 3), np.uint8),
                {
                    "type": "array",
                    "items": {
                        "type": "array",
                        "items": {"type": "integer", "minimum": 0, "maximum": 255},
                        "minItems": 3,
                        "maxItems": 3,
                    },
                    "minItems": 2,
                    "maxItems": 2,
                },
            ),
            (
                Box(np.array([0, 0]), np.array([1, 2]), dtype=np.int8),
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2},
            ),
            (Box(-INF, INF, (), np.int8), {"type": "integer"}),
            (Box(0, 1, (), bool), {"type": "boolean"}),
            (Box(0, 1, (0,)), {"type": "array", "items": {"type": "number"}, "minItems": 0, "maxItems": 0}),
            (Discrete(3, start=-1), {"type": "integer", "minimum": -1, "maximum": 1}),
            (
                MultiDiscrete([3, 3], start=[1, 1]),
                {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 1, "maximum": 3},
                    "minItems": 2,
                    "maxItems": 2,
                },
            ),
            (
                MultiDiscrete([3, 4]),
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2},
            ),
            (
                MultiBinary(2),
                {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 0, "maximum": 1},
                    "minItems": 2,
                    "maxItems": 2,
                },
            ),
            (Text(5, min_length=2), {"type": "string", "minLength": 2, "maxLength": 5}),
            (
                Dict([("b", Text(1)), ("a", Discrete(1))]),
                {
                    "type": "object",
                    "properties": {
                        "b": {"type": "string", "minLength": 1, "maxLength": 1},
                        "a": {"type": "integer", "minimum": 0, "maximum": 0},
                    },
                    "required": ["b", "a"],
                    "additionalProperties": False,
                },
            ),
            (
                Tuple([Text(1)]),
                {
                    "type": "array",
                    "prefixItems": [{"type": "string", "minLength": 1, "maxLength": 1}],
                    "minItems": 1,
                    "maxItems": 1,
                },
            ),
            (Tuple([]), {"type": "array", "minItems": 0, "maxItems": 0}),
            (
                Sequence(Discrete(2), stack=True),
                {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 1}},
            ),
            (
                Graph(Discrete(2), None),
                {
                    "type": "object",
                    "properties": {
                        "nodes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 1}},
                        "edges": {"type": "null"},
                        "edge_links": {"type": "null"},
                    },
                    "required": ["nodes", "edges", "edge_links"],
                    "additionalProperties": False,
                },
            ),
            (
                OneOf([Discrete(2)]),
                {
                    "oneOf": [
                        {
                            "type": "array",
                            "prefixItems": [{"const": 0}, {"type": "integer", "minimum": 0, "maximum": 1}],
                            "minItems": 2,
                            "maxItems": 2,
                        }
                    ]
                },
            ),
        ],
    )
    def test_is_this(self, space, schema):
        assert identical(json_schema(space), schema)

    @pytest.mark.parametrize(
        "space, data",
        [
            (Discrete(3), 3),
            (Discrete(3), 1.5),
            (UNIT, [0.5]),
            (UNIT, [0.5, 2]),
            (MultiBinary(2), [0, 2]),
            (Text(2), "abc"),
            (NAMED["dict"], {"a": [0, 0]}),
            (NAMED["dict"], {"a": [0, 0], "b": 1, "c": 1}),
            (Tuple([Discrete(2)]), []),
            (Tuple([Discrete(2)]), [1, 1]),
            (OneOf([Discrete(2), Text(1)]), [0, "a"]),
            (OneOf([Discrete(2), Text(1)]), [2, "a"]),
            (NAMED["graph"], {"nodes": [[0, 0]], "edges": [1], "edge_links": [[0]]}),
            (NAMED["graph without edges"], {"nodes": [1], "edges": [1], "edge_links": [[0, 0]]}),
        ],
    )
    def test_refuses(self, space, data):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(json_schema(space)).validate(data)

    def test_of_other_classes(self):
        assert refused(json_schema, Dict(a=gym.Space())) == "values of Space have no JSON form"
