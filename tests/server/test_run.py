"""Shutdown of a whole server: bounded, in order, and with every env closed."""

import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers_envs import Count, Factory, Gate
from helpers_raw import BINARY, TEXT, Raw, frame
from helpers_tally import Tally
from helpers_wait import LIMIT_S, wait_until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from openenv_gym import codec
from openenv_gym.messages import PROTOCOL_VERSION, SUBPROTOCOL, Array, Failed, Hello, Observed, Reset, Step, Stepped
from openenv_gym.server import create_app
from openenv_gym.server.run import make_server

TESTS = Path(__file__).resolve().parents[1]
RESET = Reset(1, None, None, None)


@contextmanager
def running(app):
    """A server in a thread; gives it and its URL."""
    started = threading.Event()
    server = make_server(app, app.state.registry.settings, on_started=started.set)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(LIMIT_S)
        yield server, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def change(app, **settings):
    """Change settings of a server that runs, such as limits that hold only from now on."""
    registry = app.state.registry
    registry.settings = registry.settings.model_copy(update=settings)


class Client:
    """A client of the batch dialect; a context manager."""

    def __init__(self, url):
        self._connecting = connect(url.replace("http", "ws") + "/ws", subprotocols=[SUBPROTOCOL])

    def __enter__(self):
        self.socket = self._connecting.__enter__()
        self.answer = self.ask(Hello(version=PROTOCOL_VERSION, num_envs=1), codec.decode_answer)
        return self

    def __exit__(self, *exc_info):
        self._connecting.__exit__(*exc_info)

    def ask(self, message, decode=codec.decode_reply):
        self.write(message)
        return decode(self.socket.recv(LIMIT_S))

    def write(self, message):
        self.socket.send(codec.encode(message))

    def ended(self):
        """Replies that still came, and the code that the connection was closed with."""
        replies = []
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                replies.append(codec.decode_reply(self.socket.recv(LIMIT_S)))
        return replies, caught.value.rcvd.code


def a_step(action):
    return Step(2, None, [Array.of(np.array([action]))], "NextStep")


def test_a_step_that_runs_ends_and_its_reply_arrives():
    gate = Gate()
    factory = Factory(Count, {"habits": {1: gate}})
    app = create_app(factory, max_workers=4, shutdown_s=LIMIT_S)
    with running(app) as (server, url), Client(url) as stepping, Client(url) as idle:
        stepping.ask(RESET)
        stepping.write(a_step(1))
        assert gate.reached.wait(LIMIT_S)
        server.should_exit = True
        assert idle.ended() == ([], 1012)
        with Client(url) as late:  # the door is still open, for a clear answer
            assert isinstance(late.answer, Failed)
            assert late.answer.code == "GOING_AWAY"
        gate.open()
        (reply,), code = stepping.ended()
        assert (type(reply), reply.failures, code) == (Stepped, [], 1012)
    assert [env.count("close") for env in factory.envs] == [1, 1]


def test_an_env_that_hangs_delays_it_by_the_limit_and_no_more(capsys):
    gate = Gate()
    factory = Factory(Count, {"habits": {1: gate}})
    app = create_app(factory, max_workers=4, shutdown_s=0.2)
    with running(app) as (server, url), Client(url) as stepping:
        stepping.ask(RESET)
        stepping.write(a_step(1))
        assert gate.reached.wait(LIMIT_S)
        server.should_exit = True
        assert stepping.ended() == ([], 1012)
    assert "Traceback" not in capsys.readouterr().err
    gate.open()
    wait_until(lambda: factory.envs[0].count("close") == 1)


@pytest.mark.parametrize(
    "said", [b"", b"GET /ws HTTP/1.1\r\nHost: x\r\n", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /hea"]
)
def test_who_never_ends_a_request_is_dropped(said):
    """Else each would hold a descriptor for ever, before it has shown a token."""
    app = create_app(Count)
    with running(app) as (_, url), Client(url) as client:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as silent:
            silent.sendall(said)
            change(app, opening_timeout_s=0.5)
            with contextlib.suppress(ConnectionResetError):
                while silent.recv(65536):
                    pass
        assert isinstance(client.ask(RESET), Observed)  # a WebSocket may be silent for as long as it likes


@contextmanager
def given_much(dialect, **settings):
    """A server, and a client that is sent eight million bytes or more, of which it has read nothing."""
    app = create_app(lambda: Tally(width=10**6), ping_interval_s=None, **settings)
    with running(app) as (server, url), Raw(url, room=4096) as client:
        client.shake_hands(subprotocol=dialect)
        if dialect == SUBPROTOCOL:
            client.send(frame(BINARY, codec.encode(Hello(version=PROTOCOL_VERSION, num_envs=1))))
            client.next(BINARY)
            client.send(frame(BINARY, codec.encode(RESET)))
        else:
            client.send(frame(TEXT, b'{"type": "reset"}'))
        wait_until(lambda: app.state.registry.total().resets == 1)
        yield server, app.state.registry, client


@pytest.mark.parametrize("dialect", [SUBPROTOCOL, None])
def test_who_takes_nothing_of_what_it_is_sent_is_dropped(dialect):
    """Such as a process that was stopped: as long as something is left to send, its connection can't be closed."""
    with given_much(dialect, grace_s=0, ping_timeout_s=0.5) as (server, registry, _):
        wait_until(lambda: registry.capacity.active == 0, "room where a deaf client was")
        wait_until(lambda: not server.server_state.connections, "the end of its connection")


@pytest.mark.parametrize("dialect", [SUBPROTOCOL, None])
def test_who_takes_it_slowly_is_not(dialect):
    with given_much(dialect, ping_timeout_s=5) as (_, registry, client):
        for _ in range(90):
            client.take(5_000)  # the kernel asks for more after seconds only
            threading.Event().wait(0.1)
        client.take(3_000_000)
        assert [session.connected for session in registry.sessions.values()] == [True]


@pytest.mark.parametrize("limit_s", [None, 0.3])
@pytest.mark.parametrize("vanishes", [True, False])
@pytest.mark.parametrize("dialect", [SUBPROTOCOL, None])
def test_who_leaves_during_a_step_leaves_nothing(dialect, vanishes, limit_s, caplog, capsys):
    """Its env is closed once, after the step; its room is free then, or once the step has taken too long."""
    gate = Gate()
    factory = Factory(Count, {"habits": {1: gate}})
    app = create_app(factory, grace_s=0, **({"max_workers": 4} if limit_s is None else {"max_step_s": LIMIT_S}))
    registry = app.state.registry
    with running(app) as (server, url):
        with Raw(url) as client:
            client.shake_hands(subprotocol=dialect)
            if dialect == SUBPROTOCOL:
                messages = (Hello(version=PROTOCOL_VERSION, num_envs=1), RESET, a_step(1))
                *first, last = (frame(BINARY, codec.encode(message)) for message in messages)
            else:
                messages = (b'{"type": "reset"}', b'{"type": "step", "data": {"action": 1}}')
                *first, last = (frame(TEXT, message) for message in messages)
            client.send(b"".join(first))
            wait_until(lambda: registry.total().resets == 1)
            for session in registry.sessions.values():
                session.crew._limit_s = limit_s  # for the step alone
            client.send(last)
            assert gate.reached.wait(LIMIT_S)
            if vanishes:
                client.vanish()
        wait_until(lambda: not server.server_state.connections, "the end of its connection")
        if limit_s is None:
            assert registry.capacity.active == 1
            gate.open()
        wait_until(lambda: registry.capacity.active == 0, "room where a client was")
        gate.open()
        (env,) = factory.envs
        wait_until(lambda: env.count("close"))
    assert [call.name for call in env.calls] == ["init", "reset", "step", "close"]
    assert len(env.threads) == 1
    assert "Traceback" not in caplog.text + "".join(capsys.readouterr())


def test_it_says_that_it_has_started_when_it_answers():
    with running(create_app(Count)) as (server, url), Client(url) as client:
        assert server.started
        assert isinstance(client.ask(RESET), Observed)


def test_a_server_that_can_not_start_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        app, started = create_app(Count), []
        port = taken.getsockname()[1]
        server = make_server(app, app.state.registry.settings, port=port, on_started=lambda: started.append(1))
        with pytest.raises(SystemExit):
            server.run()
    assert started == []


@pytest.mark.parametrize("interruptible", [True, False])
def test_interrupts(interruptible):
    app = create_app(Count)
    server = make_server(app, app.state.registry.settings, interruptible=interruptible)
    server.handle_exit(signal.SIGINT, None)
    assert server.should_exit is interruptible
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit is True


SERVE = """
    import sys
    from openenv_gym.server import create_app
    from openenv_gym.server.run import make_server

    app = create_app("helpers_envs:make_logged", shutdown_s=float(sys.argv[1]), max_workers=20)
    server = make_server(
        app, app.state.registry.settings,
        on_started=lambda: print(server.servers[0].sockets[0].getsockname()[1], flush=True),
    )
    server.run()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
@pytest.mark.parametrize("stepping, shutdown_s", [(False, LIMIT_S), (True, 5)])
def test_sigterm(stepping, shutdown_s, tmp_path, monkeypatch):
    """Eight idle sessions, and one whose step would take an hour."""
    log = tmp_path / "log"
    monkeypatch.setenv("LOGGED", str(log))
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    command = [sys.executable, "-c", textwrap.dedent(SERVE), str(shutdown_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = f"http://127.0.0.1:{int(process.stdout.readline())}"
            clients = [Client(url).__enter__() for _ in range(9)]
            assert all(isinstance(client.ask(RESET), Observed) for client in clients)
            if stepping:
                clients[0].write(a_step(1))
                wait_until(lambda: "step" in log.read_text())
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == -signal.SIGTERM
            assert [client.ended() for client in clients] == [([], 1012)] * 9
            for client in clients:
                client.__exit__(None, None, None)
        finally:
            process.kill()
    lines = log.read_text().split()
    assert (lines.count("init"), lines.count("close")) == (10, 9 if stepping else 10)
