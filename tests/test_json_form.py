"""openenv_gym.json_form: OpenEnv's objects with named fields, as values of spaces and back."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from helpers_spaces import identical

from openenv_gym.action_masks import ActionMask
from openenv_gym.errors import SpaceError
from openenv_gym.inference import Fields
from openenv_gym.json_form import JsonForm, Transition
from openenv_gym.messages import PROTOCOL_VERSION, Hello

POINT = Box(-1, 1, (2,))
COUNT = Discrete(10)
PAIR = Dict([("b", POINT), ("a", COUNT)])


def schema(*names, **more):
    """The schema of an object with these fields, beside those that each OpenEnv observation has."""
    plain = {name: {} for name in (*names, "done", "reward", "metadata")}
    return {"type": "object", "properties": {**plain, **more}}


def form(observation_space=POINT, action_space=COUNT, **kwargs):
    fields = list(observation_space.spaces) if isinstance(observation_space, Dict) else ["at"]
    moves = list(action_space.spaces) if isinstance(action_space, Dict) else ["move"]
    described = {"observation": schema(*fields), "action": schema(*moves)}
    return JsonForm.for_schema(described, observation_space, action_space, **kwargs)


def reply(observation=None, **more):
    return {"observation": observation if observation is not None else {"at": [0.5, 1]}, **more}


def read(observation=None, **more):
    return form().transition(reply(observation, **more))


class TestFields:
    def test_a_space_is_the_only_field(self):
        assert (form().observation_field, form().action_field) == ("at", "move")

    def test_a_dict_names_its_fields(self):
        made = form(PAIR, PAIR)
        assert (made.observation_field, made.action_field) == (None, None)
        assert (made.observation_space, made.action_space) == (PAIR, PAIR)

    @pytest.mark.parametrize("part", ["observation", "action"])
    def test_a_space_cannot_be_one_of_several(self, part):
        described = {"observation": schema("at"), "action": schema("move")} | {part: schema("x", "y")}
        with pytest.raises(
            SpaceError, match=rf"{part}_space is \w+, but the server's {part} has the fields \['x', 'y'\]"
        ):
            JsonForm.for_schema(described, POINT, COUNT)

    def test_an_empty_schema_has_none(self):
        with pytest.raises(SpaceError, match=r"has the fields \[\]"):
            JsonForm.for_schema({}, POINT, COUNT)


class TestTrimmed:
    SPACE = Dict({"arm": Dict({"a": POINT, "b": COUNT}), "camera": COUNT})
    REPLY = {"observation": {"arm": {"a": [0.1, 1], "b": 2}, "camera": "broken"}, "metadata": {"m": 1, "n": 2}}

    def trimmed(self, **wanted):
        return form(self.SPACE).trimmed(Hello(version=PROTOCOL_VERSION, num_envs=1, **wanted))

    def test_what_is_left_out_is_never_read(self):
        made = self.trimmed(exclude=["arm.b", "camera"])
        assert made.observation_space == Dict({"arm": Dict({"a": POINT})})
        read = made.transition(self.REPLY).observation
        assert identical(read, {"arm": {"a": np.array([0.1, 1], np.float32)}})

    def test_dtypes(self):
        space = self.trimmed(include=["arm"], obs_dtype="float16").observation_space
        assert space == Dict({"arm": Dict({"a": Box(-1, 1, (2,), np.float16), "b": COUNT})})

    @pytest.mark.parametrize("keys, info", [(None, {"m": 1, "n": 2}), ([], {}), (["n", "x"], {"n": 2})])
    def test_info_keys(self, keys, info):
        assert self.trimmed(include=["arm"], info_keys=keys).transition(self.REPLY).info == info

    def test_info_keys_leave_the_end_of_an_episode(self):
        cut = self.trimmed(include=["arm"], info_keys=[]).transition(
            {**self.REPLY, "done": True, "metadata": {"TimeLimit.truncated": True}}
        )
        assert (cut.terminated, cut.truncated, cut.info) == (False, True, {})

    def test_names_what_is_not_there(self):
        with pytest.raises(SpaceError, match=r"^'nose' names nothing here; the paths are 'arm', 'arm.a'"):
            self.trimmed(include=["nose"])


class TestActionData:
    @pytest.mark.parametrize(
        "space, action, data",
        [
            (COUNT, np.int64(3), {"move": 3}),
            (POINT, np.array([0.5, 1], np.float32), {"move": [0.5, 1.0]}),
            (PAIR, {"a": 1, "b": np.zeros(2)}, {"a": 1, "b": [0.0, 0.0]}),
        ],
        ids=str,
    )
    def test_is_an_object(self, space, action, data):
        assert form(action_space=space).action_data(action) == data

    def test_of_something_else_is_refused(self):
        with pytest.raises(SpaceError):
            form().action_data("left")

    def test_can_be_made_by_the_user(self):
        made = JsonForm(
            Fields(POINT, "at"), Fields(COUNT, "move"), encode_action=lambda action: {"go": int(action) + 1}
        )
        assert made.action_data(np.int64(3)) == {"go": 4}

    def test_has_labels(self):
        enum = {"enum": ["left", "right"]}
        made = JsonForm.for_schema({"observation": schema("at"), "action": schema(move=enum)}, POINT, Discrete(2))
        assert made.action_data(1) == {"move": "right"}

    def test_has_labels_in_a_dict(self):
        fields = Fields(Dict({"a": Discrete(2), "b": POINT}), None, {("a",): (False, True)})
        data = JsonForm(Fields(POINT, "at"), fields).action_data({"a": np.int64(1), "b": np.array([0.5, 1])})
        assert data == {"a": True, "b": [0.5, 1.0]}


class TestResetData:
    @pytest.mark.parametrize(
        "seed, options, gymnasium, data",
        [
            (None, None, False, {}),
            (0, None, False, {"seed": 0}),
            (7, {"size": 4}, False, {"seed": 7, "size": 4}),
            (None, {"size": 4}, True, {"options": {"size": 4}}),
            (None, {}, True, {"options": {}}),
            (None, {}, False, {}),
        ],
    )
    def test_is_this(self, seed, options, gymnasium, data):
        before = None if options is None else dict(options)
        assert form(gymnasium=gymnasium).reset_data(seed, options) == data
        assert options == before


class TestTransition:
    def test_has_all_parts(self):
        transition = read(reward=1.5, done=True, metadata={"lives": 2}, seed_ignored=True)
        assert identical(transition.observation, np.array([0.5, 1], np.float32))
        parts = transition.reward, transition.terminated, transition.truncated, transition.info, transition.seed_ignored
        assert identical(parts, (1.5, True, False, {"lives": 2}, True))

    def test_of_a_reset_has_defaults(self):
        transition = read()
        parts = transition.reward, transition.terminated, transition.truncated, transition.info, transition.seed_ignored
        assert identical(parts, (0.0, False, False, {}, False))

    @pytest.mark.parametrize(
        "data, terminated, truncated",
        [
            ({}, False, False),
            ({"done": False}, False, False),
            ({"done": True}, True, False),
            ({"done": None}, False, False),
            ({"done": True, "truncated": True}, False, True),
            ({"done": True, "truncated": False}, True, False),
            ({"done": True, "truncated": None}, True, False),
            ({"done": True, "terminated": None}, True, False),
            ({"done": True, "terminated": None, "truncated": None}, True, False),
            ({"done": True, "terminated": False, "truncated": True}, False, True),
            ({"done": True, "terminated": True, "truncated": True}, True, True),
            ({"done": True, "metadata": {"truncated": True}}, False, True),
            ({"done": True, "metadata": {"TimeLimit.truncated": True}}, False, True),
            ({"done": True, "metadata": {"truncated": None, "TimeLimit.truncated": True}}, False, True),
            ({"done": True, "truncated": False, "metadata": {"truncated": True}}, True, False),
        ],
        ids=str,
    )
    def test_ends_an_episode(self, data, terminated, truncated):
        transition = read(**data)
        assert (transition.terminated, transition.truncated) == (terminated, truncated)

    @pytest.mark.parametrize("done, own, truncated", [(True, True, True), (False, True, False), (True, 1, False)])
    def test_can_say_it_in_the_observation(self, done, own, truncated):
        assert read({"at": [0, 0], "truncated": own}, done=done).truncated is truncated

    def test_takes_the_metadata_of_the_observation(self):
        assert read({"at": [0, 0], "metadata": {"a": 1}}).info == {"a": 1}
        assert read({"at": [0, 0], "metadata": {"a": 1}}, metadata={"b": 2}).info == {"b": 2}

    @pytest.mark.parametrize("reward, value", [(None, 0.0), (2, 2.0), (-0.5, -0.5), (True, 1.0), ("1.5", 1.5)])
    def test_has_a_float_for_a_reward(self, reward, value):
        assert identical(read(reward=reward).reward, value)

    def test_has_nan_for_the_reward_of_a_gymnasium_env_that_json_could_not_say(self):
        assert np.isnan(form(gymnasium=True).transition(reply(reward=None)).reward)

    @pytest.mark.parametrize(
        "data, text",
        [
            ({}, "the reply has no observation object"),
            ({"observation": None}, "the reply has no observation object"),
            ({"observation": [1, 2]}, "the reply has no observation object"),
            (reply({"other": 1, "but": 2}), "the observation has no field 'at', only ['but', 'other']"),
            (reply({"at": [0, "x"]}), "at"),
            (reply({"at": [0, 1, 2]}), "at"),
            (reply(reward="much"), "reward: 'much' isn't a number"),
            (reply(reward=[1]), "reward: [1] isn't a number"),
            (reply(metadata=[1]), "metadata: list instead of an object"),
            (reply({"at": [0, 0], "metadata": "x"}), "metadata: str instead of an object"),
        ],
        ids=str,
    )
    def test_names_what_is_wrong(self, data, text):
        with pytest.raises(SpaceError) as caught:
            form().transition(data)
        assert str(caught.value).startswith(text)

    def test_of_a_dict_takes_its_fields_only(self):
        observation = form(PAIR).transition(reply({"a": 3, "b": [0, 1], "more": 1})).observation
        assert identical(observation, {"b": np.array([0, 1], np.float32), "a": np.int64(3)})
        with pytest.raises(SpaceError, match=r"^the key 'b' is missing$"):
            form(PAIR).transition(reply({"a": 3}))

    def test_can_be_read_by_the_user(self):
        made = JsonForm(Fields(COUNT, "at"), Fields(COUNT, "move"), decode_observation=lambda fields: fields["x"] * 2)
        assert made.transition(reply({"x": 4})).observation == 8

    def test_has_labels(self):
        enum = {"enum": ["left", "right"]}
        made = JsonForm.for_schema({"observation": schema(at=enum), "action": schema("move")}, Discrete(2), COUNT)
        assert identical(made.transition(reply({"at": "right"})).observation, np.int64(1))
        with pytest.raises(SpaceError, match=r"^at: 'up' isn't one of"):
            made.transition(reply({"at": "up"}))

    def test_has_labels_in_a_dict(self):
        made = JsonForm(
            Fields(Dict({"at": POINT, "turn": Discrete(2)}), None, {("turn",): ("a", "b")}), Fields(COUNT, "m")
        )
        assert made.transition(reply({"at": [0, 1], "turn": "b", "more": 1})).observation["turn"] == 1
        with pytest.raises(SpaceError, match=r"^turn: 'c' isn't one of"):
            made.transition(reply({"at": [0, 1], "turn": "c"}))


class TestImages:
    """Some servers send an image as one long list."""

    IMAGE = Box(0, 255, (2, 3), np.uint8)

    def observation(self, data):
        return form(self.IMAGE).transition(reply({"at": data})).observation

    @pytest.mark.parametrize("data", [[0, 1, 2, 3, 4, 255], [[0, 1, 2], [3, 4, 255]]], ids=str)
    def test_arrive_in_shape(self, data):
        assert identical(self.observation(data), np.array([[0, 1, 2], [3, 4, 255]], np.uint8))

    @pytest.mark.parametrize(
        "data", [[0] * 5, [0] * 7, ["a"] * 6, [0, [1], 2, 3, 4, 5], [0, None, "a", 1, 1, 1], 5, []]
    )
    def test_of_other_sizes_are_refused(self, data):
        with pytest.raises(SpaceError):
            self.observation(data)

    def test_can_lack_numbers(self):
        unknown = form(Box(-np.inf, np.inf, (2, 2))).transition(reply({"at": [0, None, 1, 2]})).observation
        assert identical(unknown, np.array([[0, np.nan], [1, 2]], np.float32))

    def test_in_a_dict_too(self):
        observation = form(Dict(i=self.IMAGE)).transition(reply({"i": [1] * 6})).observation
        assert identical(observation, {"i": np.ones((2, 3), np.uint8)})


class TestActionMask:
    MADE = JsonForm(Fields(COUNT, "at"), Fields(Discrete(2), "move"), mask=ActionMask("legal", Discrete(2)))

    def test_is_an_info_beside_the_metadata(self):
        data = reply({"at": 1, "legal": [1]}, metadata={"a": 1})
        assert identical(self.MADE.transition(data).info, {"a": 1, "action_mask": np.array([0, 1], np.int8)})
        assert data["metadata"] == {"a": 1}

    def test_stays_whatever_infos_are_wanted(self):
        made = self.MADE.trimmed(Hello(version=PROTOCOL_VERSION, num_envs=1, info_keys=[]))
        info = made.transition(reply({"at": 1, "legal": [1]}, metadata={"a": 1})).info
        assert list(info) == ["action_mask"]


class TestSameStep:
    FIRST = Transition("first", 0.0, False, False, {"n": 0}, True)
    LAST = Transition("last", 2.5, True, False, {"n": 9})

    def test_is_followed_by_the_next_episode(self):
        assert self.LAST.followed_by(self.FIRST) == Transition("first", 2.5, True, False, {"n": 0})

    def test_is_cut_off(self):
        assert self.LAST.cut_off() == Transition("last", 2.5, True, True, {"n": 9})
        assert self.FIRST.cut_off() == Transition("first", 0.0, False, True, {"n": 0}, True)
