"""Tools over HTTP and WebSockets: the same answers as OpenEnv's own server gives for the same environments."""

import json
import re

import pytest
from helpers_dialect import Client, Count, made, make_registry
from helpers_wait import LIMIT_S
from starlette.testclient import TestClient

from openenv_gym.server import create_app
from openenv_gym.server.json_sessions import JsonSessions
from openenv_gym.server.mcp_endpoint import answer, converse

ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{16}\b")


@pytest.fixture(scope="module")
def envs():
    return pytest.importorskip("helpers_openenv")


@pytest.fixture(scope="module")
def hosted(envs):
    """Environments by name: with tools in several places, and without."""
    return {
        "tools": (envs.Tools, envs.CallToolAction, envs.Observation),
        "server only": (envs.ServerOnly, envs.CallToolAction, envs.Observation),
        "actions": (envs.ToolActions, envs.CallToolAction, envs.Observation),
        "wrong actions": (envs.WrongToolActions, envs.CallToolAction, envs.Observation),
        "none": (envs.Every, envs.EveryAction, envs.EveryObservation),
    }


@pytest.fixture
def apps(envs, hosted, request):
    """OpenEnv's own server and ours, around the same environment."""
    return [build(*hosted[request.param], max_concurrent_envs=2) for build in (envs.create_app, create_app)]


def call(method, id=1, **params):
    return {"jsonrpc": "2.0", "method": method, "params": params, "id": id}


def tool(name, id=2, /, **arguments):
    return call("tools/call", id, name=name, arguments=arguments)


REQUESTS = [
    call("tools/list"),
    tool("add", a=1, b=2),
    tool("add", "text", a="x"),
    tool("fail"),
    tool("unknown"),
    tool("odd"),
    call("tools/call"),
    call("tools/call", name=""),
    call("initialize"),
    call("openenv/session/close"),
    call("openenv/session/close", session_id="nobody"),
    call("tools/list", session_id="nobody"),
    {"jsonrpc": "2.0", "method": "tools/list"},
    {"jsonrpc": "1.0", "method": "tools/list"},
    {"jsonrpc": "2.0", "params": {}},
    {"jsonrpc": "2.0", "method": "tools/list", "params": []},
    {"jsonrpc": "2.0", "method": "tools/list", "more": 1},
]
ALL = pytest.mark.parametrize("apps", ["tools", "server only", "actions", "wrong actions", "none"], indirect=True)
TOOLS = pytest.mark.parametrize("apps", ["tools"], indirect=True)


def without_ids(data):
    return json.loads(ID.sub("ID", json.dumps(data)))


def answers(app, talk):
    with TestClient(app) as client:
        return without_ids(talk(client))


@ALL
def test_over_http(apps):
    stock, ours = (
        answers(app, lambda client: [client.post("/mcp", json=request).json() for request in REQUESTS]) for app in apps
    )
    assert ours == stock


@ALL
def test_on_a_connection_of_its_own(apps):
    def talk(client):
        with client.websocket_connect("/mcp") as socket:
            heard = []
            for request in [*REQUESTS, call("openenv/session/create")]:
                socket.send_text(json.dumps(request))
                heard.append(json.loads(socket.receive_text()))
            socket.send_text("{")
            return [*heard, json.loads(socket.receive_text())]

    stock, ours = (answers(app, talk) for app in apps)
    assert ours == stock


@ALL
def test_in_a_session(apps):
    def talk(client):
        with client.websocket_connect("/ws") as socket:
            heard = []
            for request in REQUESTS:
                socket.send_text(json.dumps({"type": "mcp", "data": request}))
                heard.append(json.loads(socket.receive_text()))
            return heard

    stock, ours = (answers(app, talk) for app in apps)
    assert ours == stock


@TOOLS
def test_sessions_made_over_http(apps, monkeypatch):
    """One is made, used over HTTP, attached to twice, closed while it has a connection, and then gone."""
    monkeypatch.setattr("openenv_gym.server.capacity._PATIENCE_S", LIMIT_S)  # its env may still be being closed

    def talk(client):
        heard = []

        def ask(request):
            heard.append(client.post("/mcp", json=request).json())
            return heard[-1]

        def say(socket, message):
            socket.send_text(json.dumps(message))
            heard.append(json.loads(socket.receive_text()))

        name = ask(call("openenv/session/create"))["result"]["session_id"]
        ask(call("tools/call", name="remember", arguments={"what": "this"}, session_id=name))
        ask(call("tools/call", name="recall", session_id=name))
        with client.websocket_connect(f"/ws?session_id={name}") as socket:
            for message in (
                {"type": "mcp", "data": tool("recall")},
                {"type": "reset", "data": {}},
                {"type": "mcp", "data": call("openenv/session/create")},
                {"type": "mcp", "data": call("openenv/session/close", session_id=name)},
                {"type": "state"},
            ):
                say(socket, message)
            with client.websocket_connect(f"/ws?session_id={name}") as second:
                heard.append(json.loads(second.receive_text()))  # it has one already
        with client.websocket_connect(f"/ws?session_id={name}") as socket:
            say(socket, {"type": "mcp", "data": tool("recall")})
            ask(call("openenv/session/close", session_id=name))
            say(socket, {"type": "state"})  # it is closed as soon as its connection is
        with client.websocket_connect(f"/ws?session_id={name}") as socket:
            heard.append(json.loads(socket.receive_text()))
        ask(call("tools/call", name="recall", session_id=name))
        ask(call("openenv/session/close", session_id=name))
        other = ask(call("openenv/session/create"))["result"]["session_id"]
        ask(call("openenv/session/create"))
        ask(call("openenv/session/create"))  # there is no more room
        with client.websocket_connect("/mcp") as socket:
            heard.append(json.loads(socket.receive_text()))
        ask(call("openenv/session/close", session_id=other))
        ask(call("openenv/session/create"))
        return heard

    stock, ours = (answers(app, talk) for app in apps)
    for mine, theirs in zip(ours, stock, strict=True):
        if "max_sessions" in json.dumps(theirs):  # worded otherwise, with the same facts
            texts = {one["error"].pop("message") for one in (mine, theirs)}
            assert all("2" in text for text in texts)
        assert mine == theirs


@pytest.mark.parametrize("text", ["[]", "3", "null"])
def test_json_that_is_no_object_costs_an_error(envs, hosted, text):
    """OpenEnv's server ends the connection, and over HTTP calls it no JSON."""
    with TestClient(create_app(*hosted["tools"])) as client:
        assert client.post("/mcp", content=text).json()["error"]["code"] == -32600
        with client.websocket_connect("/mcp") as socket:
            socket.send_text(text)
            assert json.loads(socket.receive_text())["error"]["code"] == -32600
            socket.send_text(json.dumps(tool("add", a=1, b=2)))
            assert json.loads(socket.receive_text())["result"]["data"] == 3


def test_without_a_network():
    """Gymnasium envs have no tools, but sessions; and a connection's env is closed with it."""
    import asyncio

    async def main():
        factory, made_envs = made(Count)
        registry = make_registry(factory, max_envs=1)
        sessions = JsonSessions(registry)
        listed = await answer(sessions, call("tools/list"))
        assert listed["error"]["message"] == "Environment does not support MCP"
        client = Client(call("tools/list"))
        with pytest.raises(ConnectionError):
            await converse(sessions, client, client.receive)
        assert client.replies == [listed]
        assert registry.capacity.active == 0
        assert made_envs[-1].calls == [("close",)]
        name = (await answer(sessions, call("openenv/session/create")))["result"]["session_id"]
        full = Client()
        await converse(sessions, full, full.receive)
        assert full.replies[0]["error"]["data"] == {"active_sessions": 1, "max_sessions": 1}
        assert (await answer(sessions, call("openenv/session/close", session_id=name)))["result"]["closed"]
        await registry.stop()

    asyncio.run(main())
