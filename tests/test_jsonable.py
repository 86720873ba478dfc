"""openenv_gym.jsonable: plain data as strict JSON data, or an error that names the place."""

import collections
import dataclasses
import enum
import json
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from openenv_gym.codec import MAX_DEPTH, PackError
from openenv_gym.jsonable import jsonable

NAN, INF = float("nan"), float("inf")


class Colour(enum.Enum):
    RED = "red"
    PLACE = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    __slots__ = ()

    def __str__(self):
        return "not this"


class Point(NamedTuple):
    x: float
    y: float


@dataclasses.dataclass
class Shape:
    name: str
    sides: Any


class Model(BaseModel):
    value: Any
    other: int = 1


@pytest.mark.parametrize(
    "value, expected",
    [
        (None, None),
        (True, True),
        (2**70, 2**70),
        (1.5, 1.5),
        (NAN, None),
        (-INF, None),
        ("ä", "ä"),
        (Name("this"), "this"),
        (b"ab", "YWI="),
        (bytearray(b"ab"), "YWI="),
        (memoryview(b"a-b-")[::2], "YWI="),
        (np.bytes_(b"ab"), "YWI="),
        (np.str_("x"), "x"),
        (np.bool_(True), True),
        (np.int8(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float32(0.1), 0.10000000149011612),
        (np.float64(NAN), None),
        (np.longdouble(0.5), 0.5),
        (np.array(3), 3),
        (np.array(INF), None),
        (np.array([[1, 2]], np.uint8), [[1, 2]]),
        (np.array([True, False]), [True, False]),
        (np.array([1.0, NAN, -INF], np.float16), [1.0, None, None]),
        (np.array([0.5, INF], np.longdouble), [0.5, None]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array([b"ab"]), ["YWI="]),
        (np.array([1, None, {"a": NAN}], object), [1, None, {"a": None}]),
        (np.zeros((0, 2)), []),
        ((1, (2, 3)), [1, [2, 3]]),
        (Point(1.0, NAN), [1.0, None]),
        ({8, 1}, [1, 8]),  # a set iterates over 8 first
        (frozenset("ba"), ["a", "b"]),
        ({(1, "a")}, [[1, "a"]]),
        (Colour.RED, "red"),
        (Colour.PLACE, [1, 2]),
        (Level.HIGH, 3),
        (Shape("triangle", np.array([3, 4, 5])), {"name": "triangle", "sides": [3, 4, 5]}),
        (Model(value=(np.float32(0.5), NAN)), {"value": [0.5, None], "other": 1}),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        ({1: "a", 2.5: "b", None: "c", False: "d"}, {"1": "a", "2.5": "b", "None": "c", "False": "d"}),
        ({np.int64(1): 1, Level.HIGH: 2, b"ab": 3, np.str_("s"): 4}, {"1": 1, "3": 2, "YWI=": 3, "s": 4}),
    ],
)
def test_values(value, expected):
    result = jsonable(value)
    assert result == expected
    assert json.dumps(result, allow_nan=False) == json.dumps(expected)  # equality alone takes 1 for True


def test_the_order_of_keys_is_kept():
    assert list(jsonable({"z": 1, 5: 2, "a": 3})) == ["z", "5", "a"]


def test_mixed_sets_have_no_order_but_arrive():
    assert sorted(jsonable({1, "a"}), key=str) == [1, "a"]


def test_nothing_is_shared():
    value = {"list": [1], "dict": {}}
    result = jsonable(value)
    assert result["list"] is not value["list"]
    assert result["dict"] is not value["dict"]


@pytest.mark.parametrize(
    "value, message",
    [
        ({"map": [0, {"x": object()}]}, "info['map'][1]['x']: a value of type builtins.object has no JSON form"),
        ({"f": test_values}, "info['f']: a value of type builtins.function"),
        ({"c": 1j}, "info['c']: a value of type builtins.complex"),
        ({"c": np.array([1j])}, "info['c']: an array of dtype complex128"),
        ({"t": np.datetime64("2020-01-01")}, "info['t']: an array of dtype datetime64[D]"),
        ({"v": np.zeros(1, "V3")}, "info['v']: an array of dtype |V3"),
        ({"o": np.array([object()])}, "info['o'][0]: a value of type builtins.object"),
        ({"s": Shape("x", {1: range(3)})}, "info['s']['sides'][1]: a value of type builtins.range"),
        ({"class": Shape}, "info['class']: a value of type builtins.type"),
        ({(1, 2): 3}, "info: a key of type tuple has no JSON form"),
        ({"d": {1: "a", "1": "b"}}, "info['d']: two keys become '1'"),
        ({"u": ["\ud800"]}, "info['u'][0]: surrogates not allowed (at position 0)"),
        ({"\ud800": 1}, "info: surrogates not allowed"),
    ],
)
def test_refused(value, message):
    with pytest.raises(PackError) as caught:
        jsonable(value, "info")
    assert str(caught.value).startswith(message)


def test_depth():
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert jsonable(deep) == deep
    with pytest.raises(PackError, match=f"nested deeper than {MAX_DEPTH}"):
        jsonable([deep])


@pytest.mark.parametrize("make", [list, lambda: np.empty(1, object)])
def test_what_contains_itself(make):
    loop = make()
    if isinstance(loop, list):
        loop.append(loop)
    else:
        loop[0] = loop
    with pytest.raises(PackError, match="nested deeper"):
        jsonable(loop)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
keys = st.text() | st.integers()
data = st.recursive(
    scalars | scalars.map(lambda value: np.array([value])[0]),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner),
)


@given(data)
def test_what_comes_out_is_strict_json_or_nothing(value):
    try:
        result = jsonable(value)
    except PackError:
        return
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    json.dumps(result, ensure_ascii=False).encode()
