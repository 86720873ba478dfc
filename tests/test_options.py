"""`RemoteOptions`: what is refused and how it is said, and what the pool is told."""

import math
import ssl

import pytest
from gymnasium.spaces import Box, Discrete

from openenv_gym import RemoteVecEnv
from openenv_gym.dial import Target
from openenv_gym.discovery import Reading
from openenv_gym.errors import OptionError
from openenv_gym.messages import PROTOCOL_VERSION, Hello
from openenv_gym.options import RemoteOptions
from openenv_gym.pool import PoolSettings
from openenv_gym.spaces import describe

SECRET = "s3cr3t"
NOT_POSITIVE = "Input should be greater than 0"
NO_SERVER = "isn't a URL of a server; write it like http://localhost:8000 or wss://host/path"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Whatever the shell has set doesn't count."""
    monkeypatch.delenv("OPENENV_BASE_URL", raising=False)
    monkeypatch.delenv("OPENENV_GYM_TOKEN", raising=False)
    return monkeypatch


def options(**given):
    return RemoteOptions.from_kwargs(given)


def refusal(**given):
    with pytest.raises(OptionError) as caught:
        options(**given)
    return str(caught.value)


def target(**given):
    return options(**given).pool_settings(1).targets[0]


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "given, text",
    [
        ({"conections": 2}, "unknown option 'conections'; did you mean 'connections'?"),
        ({"url": "x"}, "unknown option 'url'; did you mean 'base_url'?"),
        ({"a": 1, "b": 2}, "unknown option 'a'; unknown option 'b'"),
        ({"connections": 0}, "connections: Input should be greater than or equal to 1"),
        ({"include": "image"}, "include: Input should be a valid tuple, such as ('image',)"),
        ({"include": 3}, "include: Input should be a valid tuple"),
        ({"num_envs": 3}, "unknown option 'num_envs': gym.make makes one env, and gym.make_vec several"),
        ({"on_lost": "ignore"}, "on_lost: Input should be 'truncate' or 'raise'"),
        ({"dialect": "batch"}, "dialect: Input should be 'openenv'"),
        ({"observation_space": 3}, "observation_space: Input should be an instance of Space"),
        ({"action_space": 3}, "action_space: Input should be an instance of Space"),
        ({"encode_action": 3}, "encode_action: Input should be callable"),
        ({"ssl": True}, "ssl: Input should be an instance of SSLContext"),
        ({"reconnect_timeout_s": math.inf}, "reconnect_timeout_s: Input should be a finite number"),
        ({"max_episode_steps": -2}, "max_episode_steps: Input should be greater than or equal to -1"),
        ({"reconnect_timeout_s": -1}, "reconnect_timeout_s: Input should be greater than or equal to 0"),
        ({"connections": 0, "x": 1}, "connections: Input should be greater than or equal to 1; unknown option 'x'"),
    ],
    ids=str,
)
def test_each_bad_option_is_named(given, text):
    assert refusal(**given) == text


@pytest.mark.parametrize(
    "name",
    [
        "connect_timeout_s",
        "message_timeout_s",
        "reset_timeout_s",
        "close_timeout_s",
        "max_message_size_mb",
        "ping_interval_s",
        "ping_timeout_s",
    ],
)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_limits_are_positive_and_finite(name, value):
    text = NOT_POSITIVE if math.isfinite(value) else "Input should be a finite number"
    if name in ("message_timeout_s", "reset_timeout_s"):
        if value == math.inf:
            assert getattr(RemoteOptions.from_kwargs({name: value}), name) == math.inf
            return
        text = NOT_POSITIVE
    assert refusal(**{name: value}) == f"{name}: {text}"


def test_zero_means_no_reconnecting():
    assert options(reconnect_timeout_s=0).pool_settings(1).reconnect_timeout_s == 0


def test_options_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        options().on_lost = "raise"


# ------------------------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize("given", [{"token": SECRET}, {"headers": {"Authorization": SECRET}}], ids=["token", "header"])
def test_secrets_are_never_shown(given):
    made = options(**given)
    settings = made.pool_settings(1)
    assert SECRET not in f"{made!r} {made} {settings!r} {settings.targets[0]}"
    assert SECRET in settings.targets[0].all_headers()["Authorization"]


@pytest.mark.parametrize(
    "given",
    [
        {"token": SECRET, "connections": 0},
        {"token": [SECRET]},
        {"tokn": SECRET},
        {"headers": SECRET},
        {"headers": {"Authorization": [SECRET]}},
    ],
    ids=str,
)
def test_errors_show_no_values(given):
    with pytest.raises(OptionError) as caught:
        options(**given)
    assert SECRET not in f"{caught.value!r} {caught.value}"
    assert caught.value.__cause__ is caught.value.__context__ is None


# ---------------------------------------------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    "base_url, urls",
    [
        ("http://a:1", ("ws://a:1/ws",)),
        ("https://a/path/", ("wss://a/path/ws",)),
        ("ws://a/ws", ("ws://a/ws",)),
        ("wss://a", ("wss://a/ws",)),
        (["http://a", "wss://b/ws"], ("ws://a/ws", "wss://b/ws")),
        (("http://a",), ("ws://a/ws",)),
        (None, ("ws://localhost:8000/ws",)),
    ],
    ids=str,
)
def test_url_forms(base_url, urls):
    assert options(base_url=base_url).urls == urls


@pytest.mark.parametrize(
    "base_url, text",
    [
        ([], "base_url is an empty list"),
        ("", f"'' {NO_SERVER}"),
        ("localhost:8000", f"'localhost:8000' {NO_SERVER}"),
        (["http://a", "ftp://b"], f"'ftp://b' {NO_SERVER}"),
    ],
    ids=str,
)
def test_bad_urls(base_url, text):
    made = options(base_url=base_url)
    with pytest.raises(OptionError) as caught:
        made.pool_settings(1)
    assert str(caught.value) == text


# --------------------------------------------------------------------------------------- environment variables


def test_the_url_from_the_environment(environment):
    environment.setenv("OPENENV_BASE_URL", "https://there/x")
    assert options().urls == ("wss://there/x/ws",)
    assert options(base_url="http://here").urls == ("ws://here/ws",)
    environment.setenv("OPENENV_BASE_URL", "")
    assert options().urls == ("ws://localhost:8000/ws",)


def test_the_token_from_the_environment(environment):
    assert target().token is None
    environment.setenv("OPENENV_GYM_TOKEN", "there")
    assert target().token == "there"
    assert target(token="here").token == "here"
    environment.setenv("OPENENV_GYM_TOKEN", "")
    assert target().token is None


# --------------------------------------------------------------------------------------------- pool settings


def test_pool_settings_by_default():
    limit = 100 * 1024 * 1024
    assert options().pool_settings(3) == PoolSettings(
        targets=[Target("ws://localhost:8000/ws", None, {}, 10.0, limit, 60.0, 60.0, None)],
        num_envs=3,
        connections=None,
        hello=Hello(version=PROTOCOL_VERSION, num_envs=3, max_message_bytes=limit),
        reading=Reading(),
        open_timeout_s=70.0,
        reconnect_timeout_s=30.0,
    )


def test_pool_settings_of_everything():
    observations, actions, tls = Box(0, 1, (2,)), Discrete(3), ssl.create_default_context()
    made = options(
        base_url=["https://a", "https://b"],
        connections=4,
        include=["x", "y.z"],
        exclude=("w",),
        obs_dtype={"x": "float16"},
        info_keys=[],
        render_mode="rgb_array",
        max_episode_steps=9,
        token="t",
        headers={"X-One": "1"},
        connect_timeout_s=1,
        reset_timeout_s=2,
        reconnect_timeout_s=3,
        wait_for_room=True,
        openenv_sessions=False,
        max_message_size_mb=0.5,
        ping_interval_s=None,
        ping_timeout_s=None,
        observation_space=observations,
        action_space=actions,
        obs_key="o",
        action_key="a",
        encode_action=dict,
        decode_observation=list,
        mask_key="m",
        ssl=tls,
    )
    half = 512 * 1024
    assert made.pool_settings(6) == PoolSettings(
        targets=[Target(f"wss://{h}/ws", "t", {"X-One": "1"}, 1.0, half, None, None, tls) for h in ("a", "b")],
        num_envs=6,
        connections=4,
        hello=Hello(
            version=PROTOCOL_VERSION,
            num_envs=6,
            include=["x", "y.z"],
            exclude=["w"],
            obs_dtype={"x": "float16"},
            info_keys=[],
            render_mode="rgb_array",
            max_episode_steps=9,
            max_message_bytes=half,
            observation_space=describe(observations),
            action_space=describe(actions),
            obs_key="o",
            action_key="a",
            mask_key="m",
        ),
        dialect="openenv",
        observation_space=observations,
        action_space=actions,
        reading=Reading("o", "a", dict, list, "m"),
        open_timeout_s=3.0,
        reconnect_timeout_s=3.0,
        room_timeout_s=1.0,
        openenv_sessions=False,
    )


def test_whom_to_trust_is_said_in_one_way(tmp_path):
    with pytest.raises(OptionError, match="leave one out"):
        options(ca_file="ca.pem", ssl=ssl.create_default_context()).pool_settings(1)
    with pytest.raises(OptionError, match=r"ca_file: .*no\.pem can't be used: .*No such file"):
        options(ca_file=tmp_path / "no.pem").pool_settings(1)


@pytest.mark.parametrize("given, sent", [(None, None), (-1, None), (5, 5)])
def test_minus_one_leaves_the_limit_of_the_env(given, sent):
    assert options(max_episode_steps=given).pool_settings(1).hello.max_episode_steps == sent


def test_a_reset_takes_as_long_as_a_step_unless_said_otherwise():
    assert options(message_timeout_s=5).resets_within_s == 5
    assert options(message_timeout_s=5, reset_timeout_s=7).resets_within_s == 7


@pytest.mark.parametrize(
    "given, dialect",
    [
        ({}, None),
        ({"dialect": "openenv"}, "openenv"),
        ({"observation_space": Discrete(2)}, None),
        ({"obs_key": "o"}, None),
        ({"action_key": "a"}, None),
        ({"encode_action": dict}, "openenv"),
        ({"decode_observation": list}, "openenv"),
        ({"mask_key": "m"}, None),
    ],
    ids=str,
)
def test_functions_of_the_user_select_the_dialect(given, dialect):
    assert options(**given).pool_settings(1).dialect == dialect


def test_arguments_that_are_no_options_may_be_meant_too():
    assert "did you mean" not in refusal(num_env=2)
    with pytest.raises(OptionError, match="unknown option 'num_env'; did you mean 'num_envs'"):
        RemoteVecEnv(num_env=2)


@pytest.mark.parametrize("mode", ["same_step", "", None, 3])
def test_an_autoreset_mode_is_one_of_three(mode):
    with pytest.raises(OptionError, match="autoreset_mode is one of 'NextStep', 'SameStep', 'Disabled', not "):
        RemoteVecEnv(autoreset_mode=mode)
