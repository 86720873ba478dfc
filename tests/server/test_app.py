"""The application on a real server: routes, admission, both dialects on /ws, OpenEnv's own validator and clients."""

import asyncio
import json
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import gymnasium as gym
import httpx
import jsonschema
import pytest
import websockets
from gymnasium.spaces import Discrete
from helpers_dialect import Count, Robot, batch_step, made, reset, step, strict
from helpers_server import running
from helpers_wait import LIMIT_S
from openenv.cli._validation import validate_running_environment
from openenv.core import GenericEnvClient
from websockets.sync.client import connect

from openenv_gym import codec
from openenv_gym.errors import FactoryError, OptionError
from openenv_gym.messages import PROTOCOL_VERSION, SUBPROTOCOL, Hello, Welcome
from openenv_gym.server import create_app

FIRST = {"observation": {"observation": [0.0]}, "reward": None, "done": False, "terminated": False, "truncated": False}
SECOND = {**FIRST, "observation": {"observation": [1.0]}, "reward": 1.0}


@pytest.fixture(scope="module")
def cartpole():
    with running(create_app("CartPole-v1", max_envs=4)) as url:
        yield url


@pytest.fixture
def serve():
    """Start servers that end with the test, each with an HTTP client for it."""
    with ExitStack() as stack:

        def start(env, **options):
            url = stack.enter_context(running(create_app(env, **options)))
            return stack.enter_context(httpx.Client(base_url=url, timeout=30))

        yield start


def ws(url, **kwargs):
    return connect(str(url).replace("http", "ws", 1).rstrip("/") + kwargs.pop("path", "/ws"), proxy=None, **kwargs)


def ask(socket, message):
    socket.send(json.dumps(message))
    return strict(socket.recv(timeout=30))


class TestRoutes:
    def test_health(self, cartpole):
        answer = httpx.get(f"{cartpole}/health").json()
        assert answer == {"status": "healthy", "active_envs": 0, "max_envs": 4, "sessions": 0, "processes": 1}

    def test_metadata(self, cartpole):
        answer = httpx.get(f"{cartpole}/metadata").json()
        assert answer["name"] == "CartPole-v1"
        assert answer["version"] == "1"
        assert answer["description"].startswith("This environment corresponds to")
        assert answer["render_modes"] == ["human", "rgb_array"]
        assert answer["render_fps"] == 50

    def test_metadata_of_an_env_that_says_little(self, serve):
        answer = serve(Plain, env_name="mine").get("/metadata").json()
        assert answer == {
            "name": "mine",
            "description": "The environment mine.",
            "version": None,
            "render_modes": [],
            "render_fps": None,
        }

    def test_spaces(self, cartpole):
        answer = httpx.get(f"{cartpole}/spaces").json()
        assert answer["action_space"] == {"type": "Discrete", "dtype": "int64", "n": 2, "start": 0}
        assert answer["observation_space"]["shape"] == [4]

    def test_state(self, cartpole):
        assert httpx.get(f"{cartpole}/state").json() == {"episode_id": None, "step_count": 0}

    @pytest.mark.parametrize("env", ["CartPole-v1", Robot])
    def test_schemas_describe_what_travels(self, serve, env):
        client = serve(env)
        schemas = client.get("/schema").json()
        actions = {"CartPole-v1": {"action": 1}, Robot: {"turn": [0, 0.5], "grip": 0}}
        jsonschema.validate(actions[env], schemas["action"])
        for bad in ({}, {"jump": 1}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(bad, schemas["action"])
        with ws(client.base_url, path="/ws?info_keys=") as socket:
            first = ask(socket, reset())
            jsonschema.validate(first["data"]["observation"], schemas["observation"])
            jsonschema.validate(ask(socket, {"type": "state"})["data"], schemas["state"])

    def test_a_schema_can_be_trimmed_as_a_session_can(self, serve):
        client = serve(Robot)
        schema = client.get("/schema?include=camera&include=arm.b").json()["observation"]
        assert list(schema["properties"]) == ["arm", "camera"]
        assert list(schema["properties"]["arm"]["properties"]) == ["b"]
        bad = client.get("/schema", params={"include": "nose"})
        assert bad.status_code == 422
        assert bad.json()["detail"][0]["loc"] == ["query"]

    def test_openapi(self, cartpole):
        api = httpx.get(f"{cartpole}/openapi.json").json()
        assert api["info"]["title"] == "CartPole-v1"
        assert api["info"]["version"].startswith("1.")
        assert {"/reset", "/step", "/state", "/schema", "/metadata", "/health", "/mcp"} <= api["paths"].keys()
        models = api["components"]["schemas"]
        assert {"seed", "options", "include", "render"} <= models["ResetRequest"]["properties"].keys()
        assert models["StepRequest"]["required"] == ["action"]
        assert {"observation", "reward", "done", "terminated", "truncated"} == set(models["Result"]["required"])
        undescribed = [
            (name, field)
            for name, model in models.items()
            if name not in ("HTTPValidationError", "ValidationError")
            for field, schema in model.get("properties", {}).items()
            if "description" not in schema
        ]
        assert undescribed == []

    def test_openenvs_validator_passes(self, cartpole):
        report = validate_running_environment(cartpole)
        assert [criterion for criterion in report["criteria"] if not criterion["passed"]] == []
        assert report["passed"] is True
        assert report["standard_profile"] == "openenv-http/1.x"

    @pytest.mark.slow  # it imports all of OpenEnv's command line
    def test_openenv_validate_on_the_command_line(self, cartpole):
        command = [str(Path(sys.executable).with_name("openenv")), "validate", "--url", cartpole]
        result = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "Verdict: PASS" in result.stdout

    @pytest.mark.parametrize(
        "body, error", [(b"{}", -32600), (b'{"jsonrpc":"2.0","method":"x"}', -32601), (b"", -32700)]
    )
    def test_mcp(self, cartpole, body, error):
        answer = httpx.post(f"{cartpole}/mcp", content=body)
        assert answer.status_code == 200
        assert answer.json()["jsonrpc"] == "2.0"
        assert answer.json()["error"]["code"] == error


class Plain(gym.Env):
    observation_space = action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}


class TestStateless:
    def test_reset(self, serve):
        factory, envs = made(Count)
        client = serve(factory)
        before = len(envs)
        assert client.post("/reset").json() == FIRST
        assert client.post("/reset", json={"seed": 3, "options": {"a": 1}}).json() == FIRST
        assert [env.calls for env in envs[before:]] == [
            [("reset", None, None), ("close",)],
            [("reset", 3, {"a": 1}), ("close",)],
        ]
        assert client.get("/health").json()["active_envs"] == 0

    def test_step(self, serve):
        factory, envs = made(Count)
        client = serve(factory)
        before = len(envs)
        body = {"action": {"action": 0}, "seed": 4, "timeout_s": 3.0, "request_id": "r"}
        assert client.post("/step", json=body).json() == SECOND
        assert client.post("/step", json=body).json() == SECOND
        assert [env.calls for env in envs[before:]] == [[("reset", 4, None), ("step", 0), ("close",)]] * 2

    def test_options(self, serve):
        client = serve(Robot)
        answer = client.post("/reset", json={"include": ["camera"], "info_keys": ["lives"]}).json()
        assert answer["observation"] == {"camera": [7, 255]}
        assert answer["metadata"] == {"lives": 3}
        rendered = serve(Count).post("/reset", json={"render": True}).json()
        assert rendered["render"]["shape"] == [2, 3, 3]

    def test_a_seed_that_is_ignored(self, serve):
        class Unseeded(Count):
            def reset(self):
                return super().reset()

        client = serve(Unseeded)
        assert client.post("/reset", json={"seed": 1}).json() == {**FIRST, "seed_ignored": True}
        assert client.post("/step", json={"seed": 1, "action": {"action": 0}}).json() == {
            **SECOND,
            "seed_ignored": True,
        }

    @pytest.mark.parametrize(
        "route, body, loc",
        [
            ("/step", {"action": {"action": 7}}, ["body", "action", "action"]),
            ("/step", {"action": {"action": "left"}}, ["body", "action", "action"]),
            ("/step", {"action": {}}, ["body", "action", "action"]),
            ("/step", {"action": {"action": 0, "jump": 1}}, ["body", "action", "jump"]),
            ("/step", {"action": 0}, ["body", "action"]),
            ("/step", {}, ["body", "action"]),
            ("/step", {"action": {"action": 0}, "x": 1}, ["body", "x"]),
            ("/step", {"action": {"action": 0}, "timeout_s": 0}, ["body", "timeout_s"]),
            ("/reset", {"sed": 1}, ["body", "sed"]),
            ("/reset", {"seed": -1}, ["body", "seed"]),
            ("/reset", {"envs": [0]}, ["body", "envs"]),
            ("/reset", {"include": ["nose"]}, ["body"]),
            ("/reset", [], ["body"]),
        ],
    )
    def test_bad_requests(self, cartpole, route, body, loc):
        answer = httpx.post(cartpole + route, json=body)
        assert answer.status_code == 422
        (entry,) = answer.json()["detail"]
        assert entry["loc"] == loc
        assert {"type", "msg", "input"} <= entry.keys()

    @pytest.mark.parametrize("body", [b'{"seed": NaN}', b'{"\\ud800": 1}', b"{", b"[" * 100_000], ids=range(4))
    def test_odd_json(self, cartpole, body):
        answer = httpx.post(f"{cartpole}/reset", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)
        assert strict(answer.text)["detail"]

    def test_what_an_env_raises(self, serve):
        def boom(env):
            raise ValueError("boom42")

        factory, envs = made(Count, special=boom)
        answer = serve(factory, max_workers=1).post("/step", json={"action": {"action": 1}})
        assert answer.status_code == 500
        assert answer.json()["detail"] == {"message": "boom42", "code": "EXECUTION_ERROR", "type": "ValueError"}
        assert envs[-1].calls[-1] == ("close",)

    def test_capacity(self, serve):
        factory, envs = made(Count)
        client = serve(factory, max_envs=1)
        with ws(client.base_url) as socket:
            ask(socket, reset())
            before = len(envs)
            for route, body in (("/reset", {}), ("/step", {"action": {"action": 0}})):
                answer = client.post(route, json=body)
                assert answer.status_code == 503
                assert answer.json()["detail"] == {
                    "message": "Server at capacity: 1/1 sessions active. Cannot accept new connections.",
                    "code": "CAPACITY_REACHED",
                    "active_sessions": 1,
                    "max_sessions": 1,
                }
            assert len(envs) == before
            ask_to_close(socket)
        assert client.post("/reset").status_code == 200

    def test_an_env_that_can_not_be_built(self, serve):
        made = []

        def flaky():
            made.append(1)
            if len(made) > 1:
                raise OSError("no licence")
            return Count()

        answer = serve(flaky).post("/reset")
        assert answer.status_code == 500
        assert answer.json()["detail"]["code"] == "FACTORY_ERROR"


def ask_to_close(socket):
    """Close a session as OpenEnv's clients do, and wait for the connection's end."""
    socket.send('{"type": "close"}')
    with pytest.raises(websockets.ConnectionClosedOK):
        socket.recv(timeout=30)


HEADERS = {"authorization": "Bearer s3cret"}


class TestAdmission:
    @pytest.mark.parametrize(
        "path", ["/metadata", "/schema", "/spaces", "/state", "/openapi.json", "/docs", "/nothing"]
    )
    def test_a_token_guards_all_but_health(self, serve, path):
        client = serve(Count, token="s3cret")
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"authorization": "Bearer other"}).status_code == 401
        assert client.get(path, headers=HEADERS).status_code == (404 if path == "/nothing" else 200)
        assert client.get("/health").status_code == 200

    def test_a_token_guards_posts_and_websockets(self, serve):
        client = serve(Count, token="s3cret")
        for path in ("/reset", "/step", "/mcp"):
            assert client.post(path, json={}).status_code == 401
        for headers in ({}, {"authorization": "Bearer other"}):
            with pytest.raises(websockets.InvalidStatus) as caught:
                ws(client.base_url, additional_headers=headers)
            assert caught.value.response.status_code == 401
        with ws(client.base_url, additional_headers=HEADERS) as socket:
            assert ask(socket, reset())["data"] == FIRST

    @pytest.mark.parametrize("token", [None, "s3cret"])
    def test_by_default_all_browsers_pages_are_strangers(self, serve, token):
        client = serve(Count, token=token)
        headers = HEADERS if token else {}
        with pytest.raises(websockets.InvalidStatus) as caught:
            ws(client.base_url, origin="https://evil.example", additional_headers=headers)
        assert caught.value.response.status_code == 403
        assert client.post("/reset", json={}, headers={**headers, "origin": "https://evil.example"}).status_code == 403
        assert client.get("/health").json()["active_envs"] == 0
        with ws(client.base_url, additional_headers=headers) as socket:  # a program, which sends no origin
            assert ask(socket, reset())["data"] == FIRST

    def test_browsers_of_strangers_stay_outside(self, serve):
        client = serve(Count, allowed_origins=("https://a.org",))
        with pytest.raises(websockets.InvalidStatus) as caught:
            ws(client.base_url, origin="https://b.org")
        assert caught.value.response.status_code == 403
        with ws(client.base_url, origin="https://a.org") as socket:
            assert ask(socket, reset())["data"] == FIRST

    def test_a_request_that_is_too_large(self, serve):
        client = serve(Count, max_message_size_mb=2000 / 2**20)
        body = json.dumps({"options": {"x": "y" * 3000}}).encode()
        headers = {"content-type": "application/json"}
        assert client.post("/reset", content=body, headers=headers).status_code == 413
        assert client.post("/reset", content=iter([body]), headers=headers).status_code == 413
        assert client.post("/reset", content=iter([b"{", b"}"]), headers=headers).json() == FIRST


class TestDialects:
    def test_our_subprotocol_is_the_batch_dialect(self, cartpole):
        with ws(cartpole, subprotocols=["other", SUBPROTOCOL]) as socket:
            assert socket.subprotocol == SUBPROTOCOL
            socket.send(codec.encode(Hello(version=PROTOCOL_VERSION, num_envs=1)))
            assert isinstance(codec.decode_answer(socket.recv(timeout=30)), Welcome)

    def test_text_in_the_batch_dialect(self, cartpole):
        with ws(cartpole, subprotocols=[SUBPROTOCOL]) as socket:
            socket.send("hello")
            with pytest.raises(websockets.ConnectionClosedError) as caught:
                socket.recv(timeout=30)
        assert caught.value.rcvd.code == 1003

    @pytest.mark.parametrize("offer", [None, ["other"], ["openenv-gym.v2"]])
    def test_anything_else_is_openenvs(self, serve, offer):
        client = serve(Count)
        with ws(client.base_url, subprotocols=offer) as socket:
            assert socket.subprotocol is None
            assert ask(socket, reset()) == {"type": "observation", "data": FIRST}
            socket.send(b"binary")
            assert strict(socket.recv(timeout=30))["data"]["code"] == "VALIDATION_ERROR"
            assert ask(socket, step()) == {"type": "observation", "data": SECOND}
            assert ask(socket, batch_step(0, 0, 0))["data"]["results"][-1]["done"] is True

    def test_options_of_the_url(self, serve):
        client = serve(Robot)
        with ws(client.base_url, path="/ws?num_envs=2&exclude=arm.a&exclude=camera&info_keys=lives") as socket:
            results = ask(socket, reset())["data"]["results"]
        assert [(result["observation"], result["metadata"]) for result in results] == [
            ({"arm": {"b": 4}}, {"lives": 3})
        ] * 2

    def test_close_makes_room(self, serve):
        client = serve(Count, max_envs=1)
        for _ in range(5):
            with ws(client.base_url) as socket:
                assert ask(socket, reset())["data"] == FIRST
                ask_to_close(socket)

    def test_a_full_server_says_so_and_closes(self, serve):
        client = serve(Count, max_envs=1)
        with ws(client.base_url) as first:
            ask(first, reset())
            with ws(client.base_url) as second:
                assert strict(second.recv(timeout=30))["data"]["code"] == "CAPACITY_REACHED"
                with pytest.raises(websockets.ConnectionClosedOK):
                    second.recv(timeout=30)
            assert ask(first, step())["data"] == SECOND

    def test_a_client_that_leaves_during_a_step(self, serve, caplog):
        stepping, go_on, closed = threading.Event(), threading.Event(), threading.Event()

        class Slow(Count):
            def close(self):
                closed.set()

        def wait(env):
            stepping.set()
            go_on.wait(30)

        client = serve(Slow, env_kwargs={"special": wait}, max_workers=1)
        closed.clear()
        with ws(client.base_url) as socket:
            ask(socket, reset())
            socket.send(json.dumps(step(1)))
            assert stepping.wait(30)
        assert client.get("/health").json()["active_envs"] == 1
        go_on.set()
        assert closed.wait(30)
        with ws(client.base_url) as again:
            ask(again, reset())
        assert [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []


class TestStockClients:
    def test_sync(self, cartpole):
        env = gym.make("CartPole-v1")
        expected, _ = env.reset(seed=3)
        with GenericEnvClient(base_url=cartpole).sync() as client:
            assert client.reset(seed=3).observation == {"observation": expected.tolist()}
            for count in range(1, 500):
                action = count % 2
                result = client.step({"action": action})
                value, reward, terminated, truncated, _ = env.step(action)
                assert result.observation == {"observation": value.tolist()}
                assert (result.reward, result.done) == (reward, terminated or truncated)
                assert client.state()["step_count"] == count
                if result.done:
                    break
            with pytest.raises(RuntimeError, match=r"call `reset` first \(code: EXECUTION_ERROR\)"):
                client.step({"action": 0})
            with pytest.raises(RuntimeError, match=r"5 is not in Discrete\(2\) \(code: VALIDATION_ERROR\)"):
                client.step({"action": 5})
            assert client.reset().done is False
        env.close()

    def test_async(self, cartpole):
        async def main():
            async with GenericEnvClient(base_url=cartpole) as client:
                first = await client.reset(seed=3, episode_id="mine")
                assert (first.reward, first.done) == (None, False)
                assert (await client.step({"action": 1})).reward == 1.0
                assert await client.state() == {"episode_id": "mine", "step_count": 1}

        asyncio.run(main())

    def test_metadata(self, serve):
        client = serve(Count, env_kwargs={"info": {"lives": 3}})
        with GenericEnvClient(base_url=str(client.base_url)).sync() as stock:
            assert stock.reset().metadata == {"lives": 3}

    def test_one_after_the_other_on_a_server_with_room_for_one(self, serve, monkeypatch):
        """Their `close` doesn't wait for the server's, so the next one comes while the old env is being closed."""
        monkeypatch.setattr("openenv_gym.server.capacity._PATIENCE_S", LIMIT_S)
        closing, never = threading.Event(), threading.Event()

        class SlowToClose(Count):
            def close(self):
                closing.set()
                never.wait(0.2)

        client = serve(SlowToClose, max_envs=1)
        for _ in range(3):
            closing.clear()
            with GenericEnvClient(base_url=str(client.base_url)).sync() as stock:
                stock.reset()
            assert closing.wait(30)

    def test_a_full_server(self, serve):
        client = serve(Count, max_envs=1)
        with (
            GenericEnvClient(base_url=str(client.base_url)).sync() as first,
            GenericEnvClient(base_url=str(client.base_url)).sync() as second,
        ):
            first.reset()
            with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
                second.reset()


class TestCreateApp:
    def test_an_instance_is_refused(self):
        with pytest.raises(TypeError, match="not an instance of Count"):
            create_app(Count())

    def test_unknown_options(self):
        with pytest.raises(OptionError, match="max_env: "):
            create_app(Count, max_env=3)

    def test_an_env_that_can_not_be_built(self):
        with pytest.raises(FactoryError, match="Nowhere-v0"):
            create_app("Nowhere-v0")
