"""Spaces from JSON schemas as pydantic makes them, field by field, as the table in the module says."""

import enum
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text
from pydantic import BaseModel, Field, computed_field, create_model

from openenv_gym.choices import Choices
from openenv_gym.errors import SpaceError
from openenv_gym.inference import Fields, in_shape, infer
from openenv_gym.spaces import Json

INT64 = -(2**63), 2**63 - 2
UNSEEN = object()


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Arm(BaseModel):
    joint: int = Field(ge=0, le=4)
    colour: Colour = Colour.RED


class Tree(BaseModel):
    next: "Tree"


def infer_one(annotation, sample=UNSEEN, part="observation"):
    """What is inferred for a model whose only field has this annotation."""
    schema = create_model("Model", field=(annotation, ...)).model_json_schema()
    seen = None if part == "action" or sample is UNSEEN else {"field": sample}
    return infer(schema, part, sample=seen)


@pytest.mark.parametrize(
    "annotation, sample, space",
    [
        (Colour, "red", Discrete(2)),
        (Literal["a", "b", "c"], "a", Discrete(3)),
        (Literal[3, 7], 3, Discrete(2)),
        (bool, True, Discrete(2)),
        (Annotated[int, Field(ge=1, le=6)], 1, Discrete(6, start=1)),
        (Annotated[int, Field(gt=1, lt=6)], 2, Discrete(4, start=2)),
        (Annotated[int, Field(ge=0, le=1023)], 2, Discrete(1024)),
        (Annotated[int, Field(ge=0, le=1024)], 2, Box(0, 1024, (), np.int64)),
        (Annotated[int, Field(ge=-5)], 2, Box(-5, INT64[1], (), np.int64)),
        (int, 2, Box(*INT64, (), np.int64)),
        (float, 0.5, Box(-np.inf, np.inf, (), np.float64)),
        (float | int, 1, Box(-np.inf, np.inf, (), np.float64)),
        (Annotated[float, Field(ge=0, le=1)], 0.5, Box(0, 1, (), np.float64)),
        (Annotated[float, Field(gt=0)], 0.5, Box(0, np.inf, (), np.float64)),
        (str, "text", Text(4096, min_length=0)),
        (Annotated[str, Field(min_length=2, max_length=9)], "text", Text(9, min_length=2)),
        (list[float], [1.0, 2.0], Box(-np.inf, np.inf, (2,), np.float64)),
        (list[float], [1, 2], Box(-np.inf, np.inf, (2,), np.float64)),
        (list[list[int]], [[1, 2, 3], [4, 5, 6]], Box(*INT64, (2, 3), np.int64)),
        (list[Annotated[int, Field(ge=0, le=9)]], [1, 2], Box(0, 9, (2,), np.int64)),
        (list[bool], [True, False], MultiBinary([2])),
        (list[Any], [1, 2], Box(-np.inf, np.inf, (2,), np.float64)),
        (list, [1.5], Box(-np.inf, np.inf, (1,), np.float64)),
        (Any, [[1.5]], Box(-np.inf, np.inf, (1, 1), np.float64)),
        (Any, np.zeros((2, 2)), Box(-np.inf, np.inf, (2, 2), np.float64)),
        (tuple[float, int], (1.0, 2), Box(-np.inf, np.inf, (2,), np.float64)),
        (Annotated[list[int], Field(min_length=3, max_length=3)], UNSEEN, Box(*INT64, (3,), np.int64)),
        (tuple[int, int], UNSEEN, Box(*INT64, (2,), np.int64)),
        (Arm, {"joint": 1, "colour": "red"}, Dict({"joint": Discrete(5), "colour": Discrete(2)})),
    ],
)
def test_a_field(annotation, sample, space):
    found = infer_one(annotation, sample)
    if isinstance(space, Text):
        assert (found.space.min_length, found.space.max_length) == (space.min_length, space.max_length)
    else:
        assert found.space == space
    assert found.only == "field"


@pytest.mark.parametrize(
    "annotation, sample, problem",
    [
        (int | None, 1, "field: an optional field, which may be null"),
        (Literal["a"] | None, "a", "field: an optional field, which may be null"),
        (int | str, 1, "field: a union of 2 types"),
        (list[float], [[1], [1, 2]], "field: a ragged list"),
        (list[float], [], "field: the list was empty after a reset"),
        (list[float], UNSEEN, "field: the list's length isn't in the schema"),
        (list[str], ["a"], "field: a list of something else than numbers"),
        (dict[str, float], {"a": 1.0}, "field: an object without named fields"),
        (Any, "text", "field: a field of any type"),
    ],
)
def test_a_field_without_space(annotation, sample, problem):
    with pytest.raises(SpaceError) as caught:
        infer_one(annotation, sample)
    assert str(caught.value).startswith(problem)
    assert str(caught.value).endswith(
        "choose a field with obs_key=, or pass observation_space=, with decode_observation= if need be; "
        "openenv_gym.spaces.Json() takes it as it is"
    )
    assert caught.value.path == "field"


def test_a_part_of_an_object_is_named():
    model = create_model("Inner", note=(str | None, None))
    with pytest.raises(SpaceError) as caught:
        infer_one(model, {"note": None})
    assert caught.value.path == "field.note"


def test_a_schema_that_contains_itself():
    with pytest.raises(SpaceError, match="nest too deep"):
        infer(Tree.model_json_schema(), "observation", key="next", sample={"next": {}})


class TestFieldsThatAreSentOtherwise:
    """Pydantic may leave a field out, compute one, and write one under another name than its schema has."""

    class Odd(BaseModel):
        count: int = 0
        hidden: int = Field(default=3, exclude=True)
        alpha: float = Field(default=0.5, alias="first")
        ready: bool = Field(default=True, alias="isReady")
        names: list[str] = Field(default=["a"], alias="theNames")

        @computed_field
        @property
        def cells(self) -> list[int]:
            return [1, 2]

    def infer(self, key=None):
        return infer(self.Odd.model_json_schema(), "observation", key=key, sample=self.Odd().model_dump())

    def test_one_that_is_never_sent_is_left_out(self):
        class Plain(BaseModel):
            count: int = 0
            hidden: int = Field(default=3, exclude=True)

        assert infer(Plain.model_json_schema(), "observation", sample=Plain().model_dump()).only == "count"

    def test_others_in_the_place_of_those_of_the_schema(self):
        match = r"^hidden: a reset doesn't send it, but \['alpha', 'ready', 'names', 'cells'\], which the .*; choose"
        with pytest.raises(SpaceError, match=match):
            self.infer()

    @pytest.mark.parametrize(
        "key, space",
        [
            ("count", Box(*INT64, (), np.int64)),
            ("alpha", Box(-np.inf, np.inf, (), np.float64)),
            ("ready", Discrete(2)),
            ("cells", Box(-np.inf, np.inf, (2,), np.float64)),
        ],
    )
    def test_are_chosen_by_the_name_that_is_sent(self, key, space):
        assert self.infer(key).space == space

    @pytest.mark.parametrize("key", ["hidden", "first", "theNames"])
    def test_are_not_there_under_another_name(self, key):
        with pytest.raises(
            SpaceError, match=rf"no field '{key}', only \['count', 'alpha', 'ready', 'names', 'cells'\]"
        ):
            self.infer(key)

    def test_may_have_no_space(self):
        with pytest.raises(SpaceError, match="names: a list of something else than numbers has no space; choose"):
            self.infer("names")


class TestActions:
    def test_the_shape_is_in_the_schema_or_asked_for(self):
        assert infer_one(tuple[float, float], part="action").space.shape == (2,)
        with pytest.raises(SpaceError) as caught:
            infer_one(list[float], part="action")
        assert str(caught.value).startswith("field: the list's length isn't in the schema; choose a field with action_")

    def test_what_is_no_part_of_the_value(self):
        model = create_model("Move", kind=(Literal["move"], "move"), metadata=(dict, {}), to=(Colour, ...))
        found = infer(model.model_json_schema(), "action")
        assert (found.space, found.only) == (Discrete(2), "to")
        assert found.labelled(1) == {"to": "green"}

    @pytest.mark.parametrize("chosen", [-1, 3, 1.5, None, "blue", "3"])
    def test_a_choice_that_isnt_there(self, chosen):
        found = infer_one(Literal["red", "green", 7], part="action")
        for read in (found.indexed, found.labelled):
            with pytest.raises(SpaceError, match=r"is not one of 0 'red', 1 'green', 2 7$") as caught:
                read(chosen)
            assert caught.value.path == "field"

    def test_of_many_choices_some_are_named(self):
        with pytest.raises(SpaceError, match=r"7 7, …$"):
            infer_one(Literal[tuple(range(9))], part="action").labelled(9)

    def test_a_word_stands_for_its_index(self):
        found = infer_one(Literal["red", "green", 7], part="action")
        assert [found.indexed(chosen) for chosen in ("red", "green", np.int64(1), 2)] == [0, 1, 1, 2]
        assert found.labelled("green") == {"field": "green"}

    def test_nothing_is_left(self):
        with pytest.raises(SpaceError, match="the action has no fields"):
            infer(create_model("Nothing", metadata=(dict, {})).model_json_schema(), "action")


class TestObservations:
    model = create_model(
        "Seen", done=(bool, False), reward=(float | None, None), metadata=(dict, {}), truncated=(bool, False),
        board=(list[int], ...), arm=(Arm, ...), flag=(bool, ...), note=(str | None, None),
    )  # fmt: skip
    sample = {"board": [1, 2], "arm": {"joint": 2, "colour": "red"}, "flag": True, "note": None}

    def test_the_field_at_fault_is_named(self):
        with pytest.raises(SpaceError, match=r"^note: "):
            infer(self.model.model_json_schema(), "observation", sample=self.sample)

    def test_one_field(self):
        found = infer(self.model.model_json_schema(), "observation", key="board", sample=self.sample)
        assert (found.only, found.space.shape) == ("board", (2,))

    def test_an_unknown_field(self):
        with pytest.raises(SpaceError, match=r"no field 'boart', only \['board', 'arm', 'flag', 'note'\]"):
            infer(self.model.model_json_schema(), "observation", key="boart", sample=self.sample)

    def test_a_mask_is_no_part_of_the_value(self):
        found = Choices(mask_key="note").observation(self.model.model_json_schema(), self.sample)
        assert set(found.space.spaces) == {"arm", "board", "flag"}
        assert found.numbered(self.sample) == {
            "board": [1, 2],
            "arm": {"joint": 2, "colour": 0},
            "flag": 1,
            "note": None,
        }

    def test_a_value_that_isnt_known(self):
        found = infer_one(Colour, "red")
        with pytest.raises(SpaceError, match=r"^field: 'blue' isn't one of \['red', 'green'\]"):
            found.numbered({"field": "blue"})


class Call(BaseModel):
    type: Literal["call_tool"] = "call_tool"
    tool_name: str
    arguments: dict[str, Any] = {}


class TestTools:
    def test_calls_and_their_results_are_json(self):
        schema = Call.model_json_schema()
        assert Choices().action(schema) == Fields(Json(), None)
        assert Choices().observation({}, None, schema) == Fields(Json(), None)

    def test_what_is_chosen_comes_first(self):
        schema = Call.model_json_schema()
        assert Choices(action_key="tool_name").action(schema).only == "tool_name"
        result = {"properties": {"score": {"type": "number"}}}
        assert Choices(obs_key="score").observation(result, None, schema).only == "score"
        chosen = Choices(observation_space=Discrete(2)).observation(result, None, schema)
        assert (chosen.space, chosen.only) == (Discrete(2), "score")

    def test_nothing_else_is_a_tool(self):
        with pytest.raises(SpaceError, match="arguments: an object without named fields"):
            infer(create_model("Move", tool_name=(str, ...), arguments=(dict, {})).model_json_schema(), "action")


class TestGivenSpaces:
    def test_json_is_the_whole_or_one_field(self):
        schema = {"properties": {"a": {"type": "string"}, "b": {}}}
        assert Fields.given(Json(), schema, "observation") == Fields(Json(), None)
        assert Fields.given(Json(), schema, "observation", "b") == Fields(Json(), "b")
        assert Fields(Json(), None).labelled({"x": 1}) == {"x": 1}

    schema = create_model("Move", metadata=(dict, {}), to=(Colour, ...), hold=(bool, ...)).model_json_schema()

    def test_a_dict_takes_fields_by_name(self):
        fields = Choices(action_space=Dict({"to": Discrete(2), "hold": Discrete(2)})).action(self.schema)
        assert fields.only is None
        assert fields.labelled({"to": 1, "hold": 0}) == {"to": "green", "hold": False}

    def test_another_space_needs_one_field(self):
        with pytest.raises(SpaceError, match=r"has the fields \['to', 'hold'\]; choose one with action_key="):
            Choices(action_space=Discrete(2)).action(self.schema)
        fields = Choices(action_space=Discrete(2), action_key="to").action(self.schema)
        assert fields.labelled(0) == {"to": "red"}

    def test_an_unknown_field(self):
        with pytest.raises(SpaceError, match="no field 'too'"):
            Choices(action_space=Discrete(2), action_key="too").action(self.schema)

    def test_a_dict_with_an_unknown_field(self):
        closed = create_model("Seen", __config__={"extra": "forbid"}, place=(int, ...), done=(bool, False))
        wrong = Choices(observation_space=Dict({"plce": Discrete(9)}))
        with pytest.raises(SpaceError, match=r"the observation has no field 'plce', only \['place'\]"):
            wrong.observation(closed.model_json_schema(), None)
        open_one = create_model("Seen", __config__={"extra": "allow"}, place=(int, ...))  # more may come
        assert wrong.observation(open_one.model_json_schema(), None).space == wrong.observation_space

    def test_integers_stand_for_themselves(self):
        schema = create_model("Gear", gear=(Literal[3, 7], ...)).model_json_schema()
        assert Fields.given(Discrete(8), schema, "action").labelled(7) == {"gear": 7}


def test_inferred_spaces_can_be_sampled():
    for annotation in (int, Annotated[int, Field(ge=0)], float, str, tuple[int, int]):
        space = infer_one(annotation, part="action").space
        sample = space.sample()
        assert space.contains(sample if isinstance(sample, str) else np.asarray(sample))


@pytest.mark.parametrize(
    "annotation, data, lone",
    [
        (int, 3, True),
        (float, 0.5, True),
        (int | float, 0.5, True),
        (float | None, None, True),
        (list[float], [0.5], False),
    ],
    ids=str,
)
def test_a_box_with_one_axis_stands_for_a_number(annotation, data, lone):
    schema = create_model("Model", one=(annotation, ...), other=(str, ...)).model_json_schema()
    box = Box(-9, 9, (1,))
    for fields in (Fields.given(box, schema, "action", "one"), Fields.given(Dict(one=box), schema, "action")):
        assert fields.lone == ({("one",)} if lone else set())
        sent = fields.labelled([0.5] if fields.only else {"one": [0.5]})
        assert sent == {"one": 0.5 if lone else [0.5]}
    assert in_shape(Dict(one=box), {"one": data}) == {"one": [data] if lone else data}
    assert Fields.given(Box(-9, 9, ()), schema, "action", "one").lone == set()
