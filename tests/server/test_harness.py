"""Agents that OpenEnv environments wrap, talked to on OpenEnv's own server and on this one: the same is heard."""

import json

import pytest
from helpers_wait import LIMIT_S
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from openenv_gym.errors import OptionError
from openenv_gym.server import create_app


def say(content):
    return json.dumps({"type": "message", "content": content})


@pytest.fixture(scope="module")
def envs():
    return pytest.importorskip("helpers_openenv")


@pytest.fixture
def agent():
    """A class of this test's own, which counts nobody else's agents."""

    class Agent(pytest.importorskip("helpers_agent").Agent):
        pass

    return Agent


def models():
    from helpers_agent import HarnessAction, Observation

    return HarnessAction, Observation


def talk(build, env, messages):
    """What is heard until the connection ends, without times and ids."""
    heard = []
    with TestClient(build(env, *models(), mode="production")) as client, client.websocket_connect("/harness") as socket:
        try:
            for message in [None, *messages]:
                if message is not None:
                    socket.send_text(message)
                while not heard or heard[-1]["type"] not in {"session_started", "turn_complete", "protocol_error"}:
                    heard.append(_timeless(json.loads(socket.receive_text())))
                heard.append({"type": "silence"})
        except WebSocketDisconnect as end:
            heard.append(("closed", end.code))
    return heard


def _timeless(event):
    assert isinstance(event.pop("timestamp", 0.0), float)
    event["data"].pop("session_id", None)
    return event


CONVERSATIONS = {
    "two turns": [say("hello"), say("again")],
    "no messages": [
        "{",
        "",
        json.dumps({"type": "message"}),
        json.dumps({"type": "step", "content": "x"}),
        json.dumps({"type": "message", "content": 3}),
        say("hello"),
    ],
    "a turn that fails": [say("hello"), say("crash"), say("again")],
    "an agent that is gone": [say("gone"), say("again")],
    "an agent that died": [say("die"), say("again"), say("again")],
    "a turn without an end": [say("cut"), say("again")],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_same_conversation(envs, agent, name):
    stock = talk(envs.create_app, agent, CONVERSATIONS[name])
    assert talk(create_app, agent, CONVERSATIONS[name]) == stock
    assert stock[0] == {"type": "session_started", "data": {"harness": "parrot"}}


def test_a_turn_that_takes_too_long(envs, agent):
    stock, ours = (talk(build, lambda: agent(0.2), [say("hang")]) for build in (envs.create_app, create_app))
    assert ours == stock
    assert ours[-2]["data"]["message"] == "harness turn exceeded 0.2 seconds"


def test_an_agent_that_cannot_be_started(envs, agent, monkeypatch):
    monkeypatch.setattr(agent, "broken", True)
    stock, ours = (talk(build, agent, []) for build in (envs.create_app, create_app))
    assert ours == stock
    assert ours == [
        {"type": "error", "data": {"message": "harness session failed", "code": "SESSION_ERROR"}},
        ("closed", 1000),
    ]


def test_no_room(envs, agent):
    heard = []
    for build in (envs.create_app, create_app):
        with TestClient(build(agent, *models(), mode="production")) as client:
            with client.websocket_connect("/harness") as one, client.websocket_connect("/harness") as two:
                one.receive_text()
                heard.append(two.receive_json())
    assert heard[0] == heard[1]
    assert heard[1]["data"]["code"] == "CAPACITY_REACHED"


def test_whoever_leaves_stops_the_agent(agent, monkeypatch):
    monkeypatch.setattr("openenv_gym.server.capacity._PATIENCE_S", LIMIT_S)
    app = create_app(agent, *models(), mode="production")
    with TestClient(app) as client:
        with client.websocket_connect("/harness") as socket:
            assert socket.receive_json()["type"] == "session_started"
            before = agent.stopped
        with client.websocket_connect("/harness") as socket:  # there is room for one
            assert socket.receive_json()["type"] == "session_started"
            assert agent.stopped > before


def test_a_binary_message_costs_a_reply_only(agent):
    with TestClient(create_app(agent, *models(), mode="production")) as client:
        with client.websocket_connect("/harness") as socket:
            socket.receive_text()
            for message in (b"{}", None):
                if message is not None:
                    socket.send_bytes(message)
                else:
                    socket.send_text("[]")
                reply = socket.receive_json()
                assert (reply["type"], reply["data"]["code"]) == ("protocol_error", "VALIDATION_ERROR")
            socket.send_text(say("hello"))
            assert socket.receive_json()["type"] == "text_output"


def test_nothing_is_started_before_somebody_comes(agent):
    create_app(agent, *models()).state.registry.probe  # noqa: B018
    assert agent.stopped == 1  # when it was closed


class TestMode:
    @pytest.mark.parametrize("mode", ["simulation", "production", "PRODUCTION", None])
    def test_what_is_served(self, envs, mode):
        answers = []
        for build in (envs.create_app, create_app):
            with TestClient(build(envs.Every, envs.EveryAction, envs.EveryObservation, mode=mode)) as client:
                answers.append(
                    [
                        client.request(method, path, json=body).status_code
                        for method, path, body in [
                            ("POST", "/reset", {}),
                            ("POST", "/step", {"action": {}}),
                            ("GET", "/state", None),
                            ("GET", "/schema", None),
                            ("GET", "/metadata", None),
                            ("GET", "/health", None),
                            ("GET", "/list_environments", None),
                            ("POST", "/mcp", {}),
                        ]
                    ]
                )
                with client.websocket_connect("/ws") as socket:
                    socket.send_json({"type": "reset", "data": {}})
                    assert socket.receive_json()["type"] == "observation"
                with pytest.raises(WebSocketDisconnect), client.websocket_connect("/harness"):
                    pass
        assert answers[0] == answers[1]
        assert (answers[1][0] == 404) is (str(mode).lower() == "production")

    def test_no_harness_in_a_simulation(self, envs, agent):
        for build in (envs.create_app, create_app):
            with TestClient(build(agent, *models())) as client:
                with pytest.raises(WebSocketDisconnect), client.websocket_connect("/harness"):
                    pass

    def test_of_a_gymnasium_env(self):
        with TestClient(create_app("CartPole-v1", mode="production")) as client:
            assert client.post("/reset", json={}).status_code == 404
            assert client.get("/spaces").status_code == 200

    def test_in_the_environment(self, envs, monkeypatch):
        monkeypatch.setenv("OPENENV_MODE", "Production")
        for build in (envs.create_app, create_app):
            with TestClient(build(envs.Every, envs.EveryAction, envs.EveryObservation)) as client:
                assert client.post("/reset", json={}).status_code == 404

    def test_there_is_no_third(self, envs):
        with pytest.raises(OptionError, match=r"mode.*'simulation' or 'production'"):
            create_app(envs.Every, mode="training")


def test_turns_as_steps(envs, agent):
    """In a simulation, a turn is a step, on both servers."""
    steps = [{"type": "reset"}, {"type": "step", "data": {"message": "hello"}}, {"type": "state"}]
    heard = []
    for build in (envs.create_app, create_app):
        replies = []
        with TestClient(build(agent, *models())) as client, client.websocket_connect("/ws") as socket:
            for message in steps:
                socket.send_json(message)
                replies.append(socket.receive_json())
        for event in replies[1]["data"]["metadata"]["turn_events"]:
            event.pop("timestamp")
        for event in replies[1]["data"]["observation"]["metadata"]["turn_events"]:
            event.pop("timestamp")
        for holder in (
            replies[0]["data"]["metadata"],
            replies[0]["data"]["observation"]["metadata"],
            replies[2]["data"],
        ):
            holder.pop("episode_id")
        heard.append(replies)
    assert heard[0] == heard[1]
    assert heard[1][1]["data"]["metadata"]["response"] == "ä"
