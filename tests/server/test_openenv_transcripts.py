"""Conversations with OpenEnv's own server and with this one, around the same environments: word for word the same."""

import json

import pytest
from starlette.testclient import TestClient

from openenv_gym.refusals import in_words
from openenv_gym.server import create_app


@pytest.fixture(scope="module")
def envs():
    import helpers_openenv

    return helpers_openenv


def reset(**data):
    return {"type": "reset", "data": data}


def step(order="", **data):
    return {"type": "step", "data": {"order": order, **data}}


STATE, CLOSE = {"type": "state"}, {"type": "close"}

EPISODES = {
    "an episode": [reset(), step(), step(turn="right", colour="green", hold=True), STATE, step("end"), STATE],
    "no reset": [STATE, step(), STATE],
    "a step after the end": [reset(), step("end"), step()],
    "the arguments of a reset": [reset(seed=3, episode_id="mine", difficulty="hard", unknown=1), STATE],
    "wrong arguments of a reset": [reset(seed="x"), reset(seed=-1), reset(difficulty=[1]), reset(options={"a": 1})],
    "a reset without data": [{"type": "reset"}, {"type": "reset", "data": None}, {"type": "reset", "data": []}],
    "a reset that fails": [reset(seed=1), step(), reset(fail=True), STATE, step(), reset(seed=2), step()],
    "an argument of the wrong kind": [reset(), {"type": "reset", "data": {"fail": []}}],
    "a step that fails": [reset(), step("fail"), STATE, step()],
    "an exception without text": [reset(), step("mute")],
    "an env that returns nothing": [reset(), step("nothing"), step()],
    "a state that fails": [reset(), *[step()] * 5, STATE, step(), STATE],
    "numbers that JSON doesn't have": [reset(), step("nan")],
    "values that JSON doesn't have": [reset(), step("odd"), step()],
    "what can't be sent": [reset(), step("unsendable"), step()],
    "fields of all types": [
        reset(),
        step(gear=6, arm={"joint": 4, "angle": -1}, point=[1, 2.5], note="hm", scale=-2, metadata={"m": 1}),
        step(scale=0, note=None),
        step("x" * 40),
    ],
    "actions that don't fit": [
        reset(),
        step(gear=7),
        step(gear="2"),
        step(gear=1.5),
        step(turn="up", colour="blue"),
        step(arm={"joint": 9}),
        step(arm={"elbow": 1, "joint": None}),
        step(point=[1]),
        step(point="ab", hold="maybe"),
        step("x" * 41),
        step(speed=3),
        step(scale=13),
        step(),
    ],
    "messages that are none": [
        "{",
        "",
        '"text"x',
        {"type": "nope"},
        {"type": 3},
        {},
        {"type": "step"},
        {"type": "step", "data": "x"},
        {"type": "step", "data": {}, "request_id": "a"},
        {"type": "state", "data": {}},
        {"type": "close", "data": {}},
        {"type": "reset", "data": {}, "more": 1},
        {"type": ""},
        reset(),
    ],
    "leaving": [reset(), CLOSE],
}


def talk(app, messages, url="/ws"):
    """The replies to messages, and how the connection ended if it did."""
    replies = []
    with TestClient(app) as client, client.websocket_connect(url) as socket:
        for message in messages:
            socket.send_text(message if isinstance(message, str) else json.dumps(message))
            received = socket.receive()
            if received["type"] == "websocket.close":
                return [*replies, ("closed", received["code"])]
            replies.append(json.loads(received["text"]))
    return replies


@pytest.mark.parametrize("name", ["Every", "EveryAsync", "Shaped"])
@pytest.mark.parametrize("episode", EPISODES)
def test_the_same_conversation(envs, name, episode):
    env = getattr(envs, name)
    hosted = env, envs.EveryAction, envs.EveryObservation
    stock = talk(envs.create_app(*hosted, max_concurrent_envs=4), EPISODES[episode])
    assert talk(create_app(*hosted, max_concurrent_envs=4), EPISODES[episode]) == stock
    assert len(stock) == len(EPISODES[episode])


@pytest.mark.parametrize("model", ["Action", "CallToolAction"])
def test_tools_as_actions(envs, model):
    """An environment with tools is stepped with tool actions, whichever of OpenEnv's own models it declares."""
    data = [
        {"type": "list_tools"},
        {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1, "b": 2}},
        {"type": "call_tool", "tool_name": "add", "arguments": {"a": "x"}},
        {"type": "call_tool", "tool_name": "unknown"},
        {"type": "call_tool", "tool_name": "fail"},
        {"type": "call_tool"},
        {"type": "other"},
        {},
    ]
    messages = [reset(), *({"type": "step", "data": fields} for fields in data), STATE]
    hosted = envs.Tools, getattr(envs, model), envs.Observation
    stock = talk(envs.create_app(*hosted), messages)
    assert talk(create_app(*hosted), messages) == stock
    assert stock[2]["data"]["observation"]["result"]["data"] == 3


class TestHttp:
    @pytest.mark.parametrize(
        "method, path, body",
        [
            ("GET", "/metadata", None),
            ("GET", "/schema", None),
            ("GET", "/state", None),
            ("POST", "/reset", None),
            ("POST", "/reset", {}),
            ("POST", "/reset", {"seed": 3, "episode_id": "mine", "difficulty": "hard"}),
            ("POST", "/reset", {"seed": -1}),
            ("POST", "/reset", {"episode_id": "x" * 256}),
            ("POST", "/step", {"action": {"turn": "right"}}),
            ("POST", "/step", {"action": {"order": "end"}, "timeout_s": 3, "request_id": "r", "more": 1}),
            ("POST", "/step", {"action": {"gear": 9, "bad": 1}}),
            ("POST", "/step", {}),
            ("POST", "/step", {"action": {}, "timeout_s": -1}),
        ],
    )
    @pytest.mark.parametrize("name", ["Every", "Shaped"])
    def test_the_same_answer(self, envs, name, method, path, body):
        hosted = getattr(envs, name), envs.EveryAction, envs.EveryObservation
        answers = []
        for build in (envs.create_app, create_app):
            with TestClient(build(*hosted)) as client:
                answer = client.request(method, path, json=body)
                answers.append((answer.status_code, without_links(answer.json())))
        assert answers[0] == answers[1]

    @pytest.mark.parametrize(
        "method, path, body, text",
        [
            ("GET", "/state", None, "…/state.db is gone"),
            ("POST", "/reset", {"fail": True}, "no luck"),
            ("POST", "/reset", {"difficulty": [1]}, "text: Input should be a valid string"),
            ("POST", "/step", {"action": {"order": "fail"}}, "the arm is gone"),
            ("POST", "/step", {"action": {"order": "unsendable"}}, "serialize"),
        ],
    )
    def test_what_an_env_fails_with_is_its_servers_fault(self, envs, method, path, body, text):
        """The status is the same; the body says why here, where OpenEnv's servers say "Internal Server Error"."""

        class Lost(envs.Every):
            @property
            def state(self):
                raise OSError("/home/somebody/state.db is gone")

        for build in (envs.create_app, create_app):
            app = build(Lost, envs.EveryAction, envs.EveryObservation)
            with TestClient(app, raise_server_exceptions=False) as client:
                answer = client.request(method, path, json=body)
                assert answer.status_code == 500
        told = answer.json()["detail"]
        assert told["code"] == "EXECUTION_ERROR"
        assert text in told["message"] or text in in_words(told["errors"])
        assert "somebody" not in answer.text

    @pytest.mark.parametrize("declared", [{}, {"state_cls": "MoreState"}], ids=str)
    def test_of_a_state_only_what_was_declared(self, envs, declared):
        hosted = envs.Stately, envs.EveryAction, envs.EveryObservation
        declared = {name: getattr(envs, model) for name, model in declared.items()}
        answers = []
        for build in (envs.create_app, create_app):
            app = build(*hosted, **declared)
            with TestClient(app) as client:
                answers.append([client.get("/state").json(), *talk(app, [STATE])])
        assert answers[0] == answers[1]
        assert ("speed" in answers[1][0]) is bool(declared)


def without_links(data):
    """Pydantic's own lists have links to its manual, FastAPI's have none: ours never has where FastAPI answers."""
    for error in data["detail"] if isinstance(data, dict) and isinstance(data.get("detail"), list) else []:
        error.pop("url", None)
    return data


class TestBetterOnPurpose:
    """What ends a session there costs an error reply here."""

    @pytest.mark.parametrize("bad", ["[]", "3", "null"])
    def test_json_that_is_no_object(self, envs, bad):
        replies = talk(create_app(envs.Every, envs.EveryAction, envs.EveryObservation), [reset(), bad, STATE])
        assert [reply["type"] for reply in replies] == ["observation", "error", "state"]
        assert replies[1]["data"]["code"] == "VALIDATION_ERROR"

    def test_a_validator_that_raises(self, envs):
        class Careful(envs.Action):
            push: int = 0

            @envs.field_validator("push")
            @classmethod
            def _small(cls, push):
                if push > 1:
                    raise ValueError("push less")
                return push

        class Pushed(envs.Every):
            def step(self, action, timeout_s=None):
                return envs.EveryObservation(count=action.push)

        push = {"type": "step", "data": {"push": 2}}
        _, bad, good = talk(create_app(Pushed, Careful, envs.EveryObservation), [reset(), push, STATE])
        assert bad["data"]["message"] == "Invalid message"
        assert bad["data"]["errors"][0]["msg"] == "Value error, push less"
        assert bad["data"]["errors"][0]["ctx"] == {"error": "push less"}
        assert good["type"] == "state"

    def test_numpy_in_an_observation(self, envs):
        import numpy as np

        class Numpy(envs.Every):
            def step(self, action, timeout_s=None):
                return envs.EveryObservation(anything=np.array([[1, 2]], np.int8), table={"x": np.float32(0.5)})

        _, reply = talk(create_app(Numpy, envs.EveryAction, envs.EveryObservation), [reset(), step()])
        assert reply["data"]["observation"]["anything"] == [[1, 2]]
        assert reply["data"]["observation"]["table"] == {"x": 0.5}
