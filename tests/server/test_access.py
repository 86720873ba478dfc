"""What clients may call, read and set."""

import gymnasium as gym
import numpy as np
import pytest
from helpers_envs import Count

from openenv_gym.codec import pack
from openenv_gym.errors import RemoteProtocolError
from openenv_gym.messages import Call, Get, Render, Set
from openenv_gym.server.access import NotAllowed, use_of
from openenv_gym.server.adapters import GymnasiumEnv
from openenv_gym.server.settings import ServerSettings


@pytest.fixture
def env():
    return GymnasiumEnv(gym.wrappers.TimeLimit(Count(render_mode="rgb_array"), 3))


def use(env, request, *, count=1, position=0, **settings):
    return use_of(request, count, ServerSettings(**settings))(env, position)


def call(name, *args, **kwargs):
    return Call(1, None, name, [pack(arg) for arg in args], {key: pack(value) for key, value in kwargs.items()})


class TestPermissions:
    @pytest.mark.parametrize(
        "request_, settings, text",
        [
            (call("add"), {}, "clients of this server may not call 'add'; it allows none (its setting is allow_call)"),
            (call("add"), {"allow_call": {"b", "a"}}, "may not call 'add'; it allows a, b (its setting is allow_call)"),
            (Set(1, None, "level", [1]), {}, "may not set 'level'; it allows none (its setting is allow_set)"),
            (
                Get(1, None, "level"),
                {"allow_get": {"t"}},
                "may not read 'level'; it allows t (its setting is allow_get)",
            ),
        ],
    )
    def test_what_is_not_allowed(self, request_, settings, text):
        with pytest.raises(NotAllowed) as caught:
            use_of(request_, 1, ServerSettings(**settings))
        assert str(caught.value).endswith(text)

    @pytest.mark.parametrize("name", ["_level", "__class__", "_np_random"])
    @pytest.mark.parametrize("allowed", [None, "listed"])
    def test_names_with_an_underscore_never_are(self, name, allowed):
        names = None if allowed is None else {name}
        settings = ServerSettings(allow_call=names, allow_set=names, allow_get=names)
        for request in (call(name), Get(1, None, name), Set(1, None, name, [1])):
            with pytest.raises(NotAllowed, match=f"'{name}': names with a leading underscore are private"):
                use_of(request, 1, settings)

    def test_everything_else_can_be_allowed(self, env):
        settings = {"allow_call": None, "allow_set": None}
        assert use(env, call("add", 1, b=2), **settings) == 3
        assert use(env, Set(1, None, "level", [7]), **settings) is True
        assert env.env.unwrapped.level == 7

    def test_one_name_can_be_allowed(self, env):
        assert use(env, call("add", 1, b=2), allow_call={"add"}) == 3
        use(env, Set(1, None, "level", [7]), allow_set={"level"})
        assert env.env.unwrapped.level == 7
        assert use(env, Get(1, None, "level"), allow_get={"level"}) == 7


class TestReading:
    @pytest.mark.parametrize("value", [1, "x", None, [1, {"a": (2,)}], np.arange(3), {"k": np.float32(1)}])
    def test_plain_data(self, env, value):
        env.env.unwrapped.level = value
        assert use(env, Get(1, None, "level")) is value

    @pytest.mark.parametrize(
        "name, text",
        [
            ("add", "'add' is a method; only plain data can be read"),
            ("reset", "'reset' is a method"),
            ("np_random", "only plain data can be read; np_random: a value of type numpy.random"),
            ("spec_of_nothing", "spec_of_nothing"),
            ("unwrapped", "only plain data can be read"),
            ("np_random.bit_generator", "np_random.bit_generator"),
        ],
    )
    def test_nothing_else_exists(self, env, name, text):
        with pytest.raises(AttributeError) as caught:
            use(env, Get(1, None, name))
        assert text in str(caught.value)

    def test_a_class_is_no_data(self, env):
        env.env.unwrapped.level = Count
        with pytest.raises(AttributeError, match="only plain data"):
            use(env, Get(1, None, "level"))


class TestSetting:
    def test_each_env_gets_its_own_value(self, env):
        request = Set(1, None, "level", [1, pack((2, 3))])
        use(env, request, count=2, position=1, allow_set=None)
        assert env.env.unwrapped.level == (2, 3)

    @pytest.mark.parametrize("values", [[], [1], [1, 2, 3]])
    def test_another_number_of_values(self, values):
        with pytest.raises(ValueError, match=f"{len(values)} values for 2 envs"):
            use_of(Set(1, None, "level", values), 2, ServerSettings(allow_set=None))

    def test_without_force(self, env):
        assert use(env, Set(1, None, "levels", [1], force=False), allow_set=None) is False
        assert not hasattr(env.env.unwrapped, "levels")


class TestCalling:
    def test_arguments_keep_their_types(self, env):
        env.env.unwrapped.echo = lambda *args, **kwargs: (args, kwargs)
        assert use(env, call("echo", (1, 2), k={3}), allow_call=None) == (((1, 2),), {"k": {3}})

    def test_no_env_gets_what_another_one_changed(self, env):
        env.env.unwrapped.append = lambda items: items.append(1) or len(items)
        each = use_of(call("append", []), 2, ServerSettings(allow_call=None))
        assert [each(env, 0), each(env, 1)] == [1, 1]

    def test_an_attribute_is_read(self, env):
        assert use(env, call("level"), allow_call={"level"}) == 1

    @pytest.mark.parametrize("bad", [{"args": [b"x", pack((1,), "a")], "kwargs": {}}, {"args": [], "kwargs": {}}])
    def test_malformed_arguments_are_refused_before_anything_is_called(self, bad):
        import msgspec

        broken = msgspec.msgpack.Ext(99, b"")
        with pytest.raises(RemoteProtocolError, match="malformed data"):
            use_of(Call(1, None, "add", [*bad["args"], broken], bad["kwargs"]), 1, ServerSettings(allow_call=None))
        with pytest.raises(RemoteProtocolError, match="malformed data"):
            use_of(Set(1, None, "level", [broken]), 1, ServerSettings(allow_set=None))


def test_rendering(env):
    assert use(env, Render(1, None)).shape == (2, 3, 3)
