"""`MCPToolClient` against OpenEnv's own server and ours, around the same environment."""

import asyncio
from contextlib import ExitStack

import pytest
from helpers_server import running

from openenv_gym import MCPToolClient
from openenv_gym.errors import RemoteEnvError, ToolError, ToolNotFound
from openenv_gym.server import create_app

TOOLS = ["add", "fail", "odd", "remember", "recall"]


@pytest.fixture(scope="module")
def envs():
    return pytest.importorskip("helpers_openenv")


@pytest.fixture(scope="module")
def servers(envs):
    hosted = {"models": (envs.CallToolAction, envs.Observation), "max_envs": 8}
    with ExitStack() as stack:
        yield {
            "stock": stack.enter_context(envs.stock_server(envs.Tools, **hosted)),
            "ours": stack.enter_context(
                running(create_app(envs.Tools, *hosted["models"], max_concurrent_envs=hosted["max_envs"]))
            ),
            "none": stack.enter_context(running(create_app("CartPole-v1"))),
        }


@pytest.fixture(params=["stock", "ours"])
def url(servers, request):
    return servers[request.param]


def test_tools_are_listed_once(url):
    async def main():
        async with MCPToolClient(url) as client:
            tools = await client.list_tools()
            assert sorted(tool.name for tool in tools) == sorted(TOOLS)
            add = await client.get_tool("add")
            assert add.description == "Add two numbers."
            assert sorted(add.input_schema["properties"]) == ["a", "b"]
            assert await client.has_tool("add")
            assert not await client.has_tool("subtract")
            await client.close()  # a list that is kept needs no server
            assert await client.list_tools() == tools
            tools.clear()
            assert await client.has_tool("add")

    asyncio.run(main())


def test_calls_and_steps_share_one_env(url):
    async def main():
        async with MCPToolClient(url) as client:
            assert await client.call_tool("add", a=1, b=2) == 3
            assert await client.call_tool("odd") == {"list": [1, None, 2.5], "text": "ä", "inner": {"a": True}}
            await client.call_tool("remember", what="this")
            await client.reset()
            call = {"type": "call_tool", "tool_name": "recall", "arguments": {}}
            assert (await client.step(call)).observation["result"]["data"] == "this"
            other = await client.new_session()
            assert await other.call_tool("recall") == "nothing"
            assert await client.call_tool("recall") == "this"

    asyncio.run(main())


@pytest.mark.parametrize(
    "name, arguments, kind, text",
    [
        ("fail", {}, "execution_error", "out of order"),
        ("add", {"a": 1}, "invalid_args", "[Mm]issing required argument"),
        ("add", {"a": 1, "b": "x"}, "invalid_args", "valid integer"),
        ("subtract", {"a": 1}, "tool_not_found", "the environment has no tool 'subtract'"),
        ("add", {"a": 1, "b": 2, "name": "x"}, "invalid_args", "name"),
    ],
)
def test_errors_are_typed_and_cost_nothing_else(url, name, arguments, kind, text):
    with MCPToolClient(url).sync() as client:
        with pytest.raises(ToolError, match=text) as caught:
            client.call_tool(name, **arguments)
        assert (caught.value.tool, caught.value.kind) == (name, kind)
        assert isinstance(caught.value, ToolNotFound) is (kind == "tool_not_found")
        assert client.call_tool("add", a=2, b=2) == 4


def test_blocking_calls(url):
    with MCPToolClient(url) as client:
        assert client.has_tool("add")
        assert client.call_tool("add", a=1, b=2) == 3
        other = client.new_session()
        assert other.call_tool("add", a=3, b=4) == 7
        assert client.get_tool("add").name == "add"
        with pytest.raises(AttributeError):
            client.no_such_method()


def test_an_environment_without_tools(servers):
    with MCPToolClient(servers["none"]).sync() as client:
        with pytest.raises(RemoteEnvError, match="does not support MCP"):
            client.list_tools()
        client.reset()
        assert client.step({"action": 1}).reward == 1.0


def test_a_stock_client_on_our_server(servers):
    """It makes its session over HTTP, attaches to it, and calls tools beside it."""
    from openenv.core.mcp_client import MCPToolClient as StockClient

    heard = []
    for kind in ("stock", "ours"):
        with StockClient(base_url=servers[kind]).sync() as client:
            tools = client.list_tools()
            client.reset()
            client.call_tool("remember", what="it")
            with pytest.raises(RuntimeError) as wrong:
                client.call_tool("add", a="x")
            with pytest.raises(RuntimeError) as unknown:
                client.call_tool("unknown")
            heard.append(
                (tools, client.call_tool("recall"), client.has_tool("odd"), str(wrong.value), str(unknown.value))
            )
    assert heard[1] == heard[0]
    assert heard[0][1] == "it"
