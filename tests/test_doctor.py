"""Planted problems on real servers, and what the doctor says of them."""

import contextlib
import json
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from helpers_cli import run
from helpers_server import nobody, running
from helpers_wait import LIMIT_S
from test_cli import write_certificate
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.sync.server import serve as serve_websockets

from openenv_gym import RemoteVecEnv, codec, doctor, examination
from openenv_gym.doctor import diagnose
from openenv_gym.messages import SUBPROTOCOL, Failed
from openenv_gym.server import create_app

CHECKS = {
    *("reachable", "token", "TLS", "protocol", "capacity", "round trip", "keepalive", "proxy", "spaces"),
    *("observation size", "seed", "deterministic", "ends", "step time"),
}


@pytest.fixture(autouse=True)
def _quick_enough(monkeypatch, patient):
    """A machine that is busy is no finding here."""
    monkeypatch.setattr(examination, "_SLOW_S", LIMIT_S)
    monkeypatch.setattr(doctor, "_PONG_S", LIMIT_S)


def examined(url, **options):
    """Each check -> its finding."""
    found = list(diagnose(url, **{"idle_s": 0.1, **options}))
    assert len({finding.check for finding in found}) == len(found)
    assert all(finding.fix for finding in found if finding.level != "ok")
    return {finding.check: finding for finding in found}


def problems(url, **options):
    """The findings that aren't ok, as (check, level)."""
    return [(f.check, f.level) for f in examined(url, **options).values() if f.level != "ok"]


class Walk(gym.Env):
    """Healthy: seeded, deterministic, and truncated after ten steps."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.normal(size=2), 0
        return self.place, {}

    def step(self, action):
        self.steps += 1
        self.place = self.place + self.np_random.normal(size=2) + action
        return self.place, 1.0, False, self.steps >= 10, {}


class Unseeded(Walk):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None, options=options)


class SeedLess(Walk):
    def reset(self, **kwargs):
        kwargs.pop("seed", None)
        return super().reset()


class Drifting(Walk):
    def step(self, action):
        result = super().step(action)
        self.place = self.place + np.random.default_rng().normal(size=2)
        return result


class Endless(Walk):
    def step(self, action):
        return *super().step(action)[:3], False, {}


class Camera(Walk):
    observation_space = Dict({"state": Walk.observation_space, "camera": Box(0, 255, (600, 600, 3), np.uint8)})

    def _with_camera(self, place):
        return {"state": place, "camera": np.zeros((600, 600, 3), np.uint8)}

    def reset(self, **kwargs):
        place, info = super().reset(**kwargs)
        return self._with_camera(place), info

    def step(self, action):
        place, *rest = super().step(action)
        return self._with_camera(place), *rest


class Broken(Walk):
    def reset(self, **kwargs):
        raise ValueError("no map42")


class DeafToPings(socketserver.BaseRequestHandler):
    """Shakes hands as a WebSocket server does, reads on, and answers nothing."""

    def handle(self):
        protocol = ServerProtocol()
        while data := self.request.recv(4096):
            protocol.receive_data(data)
            for event in protocol.events_received():
                if isinstance(event, Request):
                    protocol.send_response(protocol.accept(event))
                    self.request.sendall(b"".join(protocol.data_to_send()))


@contextlib.contextmanager
def tcp_server(server):
    """Run a server of the standard library."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def websocket_server(handler, **options):
    """A WebSocket server of another kind."""
    with serve_websockets(handler, "127.0.0.1", 0, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_healthy_server():
    with running(create_app(Walk, token="s3cret", max_envs=3)) as url:
        found = examined(url, token="s3cret")
        assert found.keys() == CHECKS
        assert {finding.level for finding in found.values()} == {"ok"}
        assert "refused without it" in found["token"].text
        assert "2 of 3 envs are free" in found["capacity"].text
        assert "truncated after 10 steps" in found["ends"].text
        assert "openenv-gym.v1" in found["protocol"].text
        assert "Walk" in found["protocol"].text


def test_spaces_are_named_without_the_characters_of_a_text():
    class Named(Walk):
        observation_space = Dict({"at": Tuple([Discrete(3), Text(4)]), "name": Text(9, charset="abc")})

        def reset(self, **kwargs):
            self.steps = 0
            return {"at": (0, "a"), "name": "a"}, {}

        def step(self, action):
            return self.reset()[0], 0.0, False, True, {}

    with running(create_app(Named)) as url:
        text = examined(url)["spaces"].text
    named = "Dict('at': Tuple(Discrete(3), Text(1, 4)), 'name': Text(1, 9))"
    assert text == f"observation {named}, action Discrete(2); as the server says them"


class TestPlanted:
    def test_nothing_listens(self):
        with nobody() as url:
            found = examined(url)
        assert list(found) == ["reachable"]
        assert found["reachable"].text.endswith("(connection refused)")  # what to do is said once
        assert "--host 0.0.0.0" in found["reachable"].fix

    def test_a_name_that_nobody_knows(self):
        found = examined("http://nohost.invalid")
        assert list(found) == ["reachable"]
        assert found["reachable"].fix == "check the host's name"

    def test_no_url(self):
        found = examined("localhost:8000")
        assert list(found) == ["address"]
        assert "write it like" in found["address"].fix
        assert "write it like" not in found["address"].text

    def test_only_http(self):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.send_error(404)

            def log_message(self, *args):
                pass

        with tcp_server(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
            found = examined(url)
        assert list(found) == ["WebSocket"]
        assert "HTTP 404" in found["WebSocket"].text
        assert "proxy_http_version" in found["WebSocket"].fix

    def test_a_wrong_token(self):
        with running(create_app(Walk, token="s3cret")) as url:
            for token in ("wrong", None):
                found = examined(url, token=token)
                assert list(found) == ["token"]
                assert "--token-env" in found["token"].fix
                assert "s3cret" not in str(found)

    def test_a_path_that_is_too_long(self):
        with running(create_app(Walk)) as url:
            found = examined(f"{url}/web")
        assert list(found) == ["WebSocket"]
        assert "no WebSocket endpoint at /web/ws" in found["WebSocket"].text
        assert "without a path" in found["WebSocket"].fix

    def test_tls_where_there_is_none(self):
        with running(create_app(Walk)) as url:
            found = examined(url.replace("http", "https", 1))
        assert list(found) == ["TLS"]
        assert "speaks no TLS" in found["TLS"].text
        assert "http://" in found["TLS"].fix
        assert "--ca-file" not in found["TLS"].fix

    def test_a_certificate_that_nobody_vouches_for(self, tmp_path):
        certificate, key = write_certificate(tmp_path)
        with running(create_app(Walk), ssl_certfile=certificate, ssl_keyfile=key) as address:
            url = address.replace("http", "https", 1)
            found = examined(url)
            assert list(found) == ["TLS"]
            assert "certificate" in found["TLS"].text
            assert "--ca-file" in found["TLS"].fix
            assert "is encrypted" in examined(url, ca_file=certificate)["TLS"].text
            assert problems(url, ca_file=tmp_path / "nothing") == [("TLS", "error")]

    def test_a_full_server(self):
        with running(create_app(Walk, max_envs=1)) as url, RemoteVecEnv(url, 1):
            found = examined(url)
        assert found["capacity"].level == "error"
        assert "1 of 1" in found["capacity"].text
        assert "--max-envs" in found["capacity"].fix
        assert "spaces" not in found

    def test_the_last_env(self):
        with running(create_app(Walk, max_envs=1)) as url:
            found = examined(url)
        assert found["capacity"].level == "warning"
        assert found.keys() == CHECKS

    @pytest.mark.parametrize("env", [Unseeded, SeedLess])
    def test_a_seed_that_is_ignored(self, env):
        with running(create_app(env)) as url:
            found = examined(url)
        assert found["seed"].level == "error"
        assert "super().reset(seed=seed)" in found["seed"].fix

    def test_an_env_that_is_not_deterministic(self):
        with running(create_app(Drifting)) as url:
            found = examined(url)
        assert [c for c, f in found.items() if f.level != "ok"] == ["deterministic"]
        assert "in step 2" in found["deterministic"].text
        assert "self.np_random" in found["deterministic"].fix

    def test_an_env_that_never_ends(self):
        with running(create_app(Endless)) as url:
            found = examined(url)
        assert [c for c, f in found.items() if f.level != "ok"] == ["ends"]
        assert "max_episode_steps" in found["ends"].fix

    def test_a_megabyte_that_is_worth_trimming(self):
        with running(create_app(Camera)) as url:
            found = examined(url)
        assert [c for c, f in found.items() if f.level != "ok"] == ["observation size"]
        assert "camera: 1,080,000" in found["observation size"].text
        assert "exclude=('camera',)" in found["observation size"].fix

    def test_an_env_that_raises_in_reset(self):
        with running(create_app(Broken)) as url:
            found = examined(url)
        assert found["env"].level == "error"
        assert "no map42" in found["env"].text
        assert "log" in found["env"].fix

    def test_another_version(self):
        def refuse(socket):
            socket.recv()
            socket.send(codec.encode(Failed(0, "VERSION_MISMATCH", "", "no", {"version": 99})))
            for _ in socket:
                pass

        with websocket_server(refuse, subprotocols=[SUBPROTOCOL]) as url:
            found = examined(url)
        assert found["version"].level == "error"
        assert "99" in found["version"].text
        assert "pip install --upgrade" in found["version"].fix

    def test_a_server_that_never_answers(self):
        def be_silent(socket):
            for _ in socket:
                pass

        began = time.monotonic()
        with websocket_server(be_silent, subprotocols=[SUBPROTOCOL]) as url:
            found = examined(url, limit_s=5)  # within which it has to be connected
        assert found["env"].level == "error"
        assert "no reply to `hello`" in found["env"].text
        assert time.monotonic() - began < 60  # bounded, however slow the machine

    def test_a_server_that_never_pongs(self, monkeypatch):
        for limit in ("_PONG_S", "_CLOSE_S"):
            monkeypatch.setattr(doctor, limit, 0.2)
        with tcp_server(socketserver.ThreadingTCPServer(("127.0.0.1", 0), DeafToPings)) as url:
            found = examined(url)
        assert found["keepalive"].level == "error"
        assert "ping_timeout_s=None" in found["keepalive"].fix
        assert "spaces" not in found

    @pytest.mark.parametrize(
        "headers, name", [({"Server": "nginx"}, "nginx"), ({"Via": "1.1 edge"}, "a proxy")], ids=str
    )
    def test_a_proxy_that_may_cut_connections(self, headers, name):
        def say_goodbye(socket):
            assert json.loads(socket.recv()) == {"type": "close"}

        def sign(connection, request, response):
            del response.headers["Server"]
            response.headers.update(headers)

        with websocket_server(say_goodbye, process_response=sign) as url:
            found = next(finding for finding in diagnose(url, idle_s=0.1) if finding.check == "proxy")
        assert found.level == "warning"
        assert found.text.startswith(f"{name} stands before the server")
        assert "ping_interval_s" in found.fix

    def test_a_server_that_cuts_idle_connections(self):
        with running(create_app(Walk, idle_timeout_s=5)) as url:  # what comes before that check takes less
            found = examined(url, idle_s=60)
        assert found["keepalive"].level == "error"
        assert "proxy_read_timeout" in found["keepalive"].fix


@pytest.fixture(scope="module")
def peer():
    return pytest.importorskip("helpers_openenv")


class TestStockServers:
    def test_one_that_does_not_know_truncation(self, peer):
        with peer.stock_server(peer.CartPole) as url:
            found = examined(url)
        assert "OpenEnv's" in found["protocol"].text
        assert found["ends"].level == "ok"  # most episodes end for another reason
        assert "done" in found["ends"].text
        assert found["ends"].fix.startswith("if that was a time limit, ")
        assert 'metadata["truncated"]' in found["ends"].fix
        assert "max_episode_steps=" in found["ends"].fix
        assert found["capacity"].text == "a second client is admitted"
        assert found["seed"].level == "ok"
        assert found["spaces"].level == "warning"  # its schema says that an action is any integer
        assert "action_space=" in found["spaces"].fix

    def test_one_that_drops_seeds(self, peer):
        class Dropping(peer.CartPole):
            def reset(self, **kwargs):
                return super().reset()

        with peer.stock_server(Dropping, models=(peer.PoleAction, peer.PoleObservation)) as url:
            found = examined(url)
        assert found["seed"].level == "error"

    def test_a_full_one(self, peer):
        with peer.stock_server(peer.CartPole, max_envs=1) as url, peer.filled(url):
            found = examined(url)
        assert found["capacity"].level == "error"
        assert "max_concurrent_envs" in found["capacity"].fix
        assert "session_timeout" in found["capacity"].fix

    def test_one_with_room_for_one(self, peer):
        with peer.stock_server(peer.CartPole, max_envs=1) as url:
            found = examined(url)
        assert (found["capacity"].level, "admits one client" in found["capacity"].text) == ("warning", True)
        assert found["capacity"].fix.startswith("raise max_concurrent_envs")
        assert "step time" in found

    def test_an_observation_that_is_worth_trimming(self, peer):
        class Board(peer.PoleObservation):
            board: list[list[int]]

        class Wide(peer.CartPole):
            def reset(self, **kwargs):
                return Board(state=[0.0], board=[[0] * 2000] * 10)

            def step(self, action, **kwargs):
                return self.reset()

        with peer.stock_server(Wide, models=(peer.PoleAction, Board)) as url:
            size = examined(url)["observation size"]
            with RemoteVecEnv(url, 1, exclude=("board",)) as envs:  # as it says
                assert "board" not in envs.reset()[0]
        assert size.level == "warning"
        assert "board: 160,000" in size.text
        assert "exclude=('board',)" in size.fix
        assert "only one of openenv-gym saves the traffic" in size.fix

    def test_spaces_that_can_not_be_inferred(self, peer):
        class Empty(peer.CartPole):
            def reset(self, **kwargs):
                return peer.PoleObservation(state=[])

        with peer.stock_server(Empty, models=(peer.PoleAction, peer.PoleObservation)) as url:
            found = examined(url)
        assert found["spaces"].level == "error"
        assert "can't be inferred" in found["spaces"].text
        assert "observation_space=" in found["spaces"].fix


class TestCommand:
    def test_lines_for_people(self):
        with running(create_app(Drifting)) as url:
            result = run("doctor", url, "--idle-s", 0.1)
        assert result.returncode == 1, result.stderr
        assert "✓ reachable" in result.stdout
        assert "! deterministic" in result.stdout
        assert "→ draw all that is random" in result.stdout

    def test_json_and_an_error(self):
        with nobody() as url:
            result = run("doctor", url, "--json")
        assert result.returncode == 2, result.stderr
        found = json.loads(result.stdout)
        assert found["level"] == "error"
        assert found["findings"][0].keys() == {"check", "level", "text", "fix"}
