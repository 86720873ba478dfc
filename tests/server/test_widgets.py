"""Widgets for spaces, and examples for schemas."""

import json

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from openenv_gym.server.widgets import example, widget


@pytest.mark.parametrize(
    "space, kind",
    [
        (Discrete(4), "buttons"),
        (Discrete(30), "choice"),
        (Discrete(1000), "json"),
        (Box(-1, 1, (3,)), "numbers"),
        (Box(-1, 1, ()), "numbers"),
        (Box(0, 255, (84, 84), np.uint8), "json"),
        (MultiDiscrete([2, 3]), "numbers"),
        (MultiBinary(4), "flags"),
        (MultiBinary([2, 2]), "flags"),
        (Dict({"a": Discrete(2)}), "group"),
        (Tuple([Discrete(2)]), "json"),
        (Text(3), "json"),
        (Box(-1, 1, (0,)), "json"),
    ],
)
def test_kinds(space, kind):
    found = widget(space)
    assert found.kind == kind
    assert found.kind != "json" or json.loads(found.text) is not None


def test_choices_begin_where_the_space_does():
    assert list(widget(Discrete(3, start=-1)).choices) == [-1, 0, 1]


def test_numbers_have_the_bounds_of_the_space():
    space = Box(np.array([[-1, -np.inf], [2, 0]], np.float32), np.array([[1, 0], [np.inf, 3]], np.float32))
    numbers = widget(space).numbers
    assert [(n.label, n.low, n.high, n.value) for n in numbers] == [
        ("0, 0", -1, 1, 0),
        ("0, 1", None, 0, 0),
        ("1, 0", 2, None, 2),
        ("1, 1", 0, 3, 0),
    ]
    assert {n.step for n in numbers} == {"any"}
    assert space.contains(np.array([n.value for n in numbers], np.float32).reshape(2, 2))


def test_whole_numbers():
    numbers = widget(MultiDiscrete([2, 5], start=[0, 3])).numbers
    assert [(n.low, n.high, n.step, n.value) for n in numbers] == [(0, 1, "1", 0), (3, 7, "1", 3)]


def test_groups_name_their_parts():
    found = widget(Dict({"turn": Box(-1, 1, (2,)), "grip": Discrete(2), "more": Dict({"x": MultiBinary(2)})}))
    assert [(part.kind, part.name) for part in found.parts] == [
        ("choice", "grip"),
        ("group", "more"),
        ("numbers", "turn"),
    ]
    assert found.parts[1].parts[0].kind == "flags"


def test_an_example_of_a_schema():
    schema = {
        "properties": {
            "message": {"type": "string"},
            "count": {"type": "integer", "minimum": 2},
            "mode": {"enum": ["a", "b"]},
            "on": {"type": "boolean", "default": True},
            "where": {"type": "array"},
            "any": {},
            "metadata": {"type": "object"},
        }
    }
    expected = {"message": "", "count": 2, "mode": "a", "on": True, "where": [], "any": None}
    assert json.loads(example(schema)) == expected
    assert json.loads(example({})) == {}
