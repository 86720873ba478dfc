"""openenv_gym.server.tools: where an environment's tools are; their answers are compared in test_mcp_endpoint.py."""

import enum
from dataclasses import dataclass

import pytest
from helpers_envs import Count
from pydantic import BaseModel

from openenv_gym.server.adapters import GymnasiumEnv
from openenv_gym.server.mcp import RpcError
from openenv_gym.server.openenv_env import Models, OpenEnvEnv
from openenv_gym.server.tools import Tools, plain_result


@pytest.fixture(scope="module")
def envs():
    return pytest.importorskip("helpers_openenv")


@pytest.mark.parametrize("name", ["Tools", "ServerOnly", "ToolActions"])
def test_wherever_they_are(envs, name):
    env = OpenEnvEnv(getattr(envs, name)())
    tools = Tools(env, Models(envs.CallToolAction, envs.Observation))
    assert "add" in [tool["name"] for tool in tools.listed()["tools"]]
    result = tools.called("add", {"a": 1, "b": 2})
    assert 3 in (result, result["result"] if name == "ToolActions" else result["data"] if name == "Tools" else None)
    env.close()


def test_there_are_none(envs):
    for env, models in (
        (GymnasiumEnv(Count()), None),
        (OpenEnvEnv(envs.Every()), Models(envs.EveryAction, envs.EveryObservation)),
    ):
        with pytest.raises(RpcError, match="does not support MCP"):
            Tools(env, models)


def test_a_session_of_tools_is_as_long_as_the_env(envs):
    """What a tool keeps in its session is there at the next call."""
    env = OpenEnvEnv(envs.Tools())
    tools = Tools(env, Models(envs.CallToolAction, envs.Observation))
    tools.called("remember", {"what": "it"})
    assert tools.called("recall", {})["data"] == "it"
    assert env.env.mcp_client.is_connected()
    client = env.env.mcp_client
    env.close()
    assert not client.is_connected()


def test_plain_results():
    class Part(BaseModel):
        a: int = 1

    @dataclass
    class Whole:
        parts: tuple
        more: dict

    class Colour(enum.Enum):
        RED = 1

    whole = Whole((Part(), "x", None), {"k": [1.5, True], "odd": {3}})
    assert plain_result(whole) == {"parts": [{"a": 1}, "x", None], "more": {"k": [1.5, True], "odd": "{3}"}}
    assert plain_result(b"ab") == "b'ab'"
