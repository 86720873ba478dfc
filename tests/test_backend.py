"""What a remote env stands on, and how a process with one ends."""

import copy
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from gymnasium.error import ClosedEnvironmentError
from helpers_faults import ServerProcess
from helpers_server import running
from helpers_tally import Tally
from helpers_wait import wait_until

from openenv_gym import RemoteEnv, RemoteVecEnv
from openenv_gym.backend import Backend
from openenv_gym.errors import ConnectFailed, FactoryError, OptionError
from openenv_gym.options import RemoteOptions
from openenv_gym.sb3 import SB3VecEnv
from openenv_gym.server import create_app

NOWHERE = "http://127.0.0.1:1"


def active(url):
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/health", timeout=10) as answer:
        return json.loads(answer.read())["active_envs"]


# ---------------------------------------------------------------------------------------------- building


@pytest.mark.parametrize(
    "options, arguments, text",
    [
        ({"base_url": NOWHERE}, {"local": "CartPole-v1"}, "leave out `base_url`, or `local`"),
        ({"base_url": NOWHERE}, {"env_kwargs": {"x": 1}}, "they need `local`"),
        ({"base_url": NOWHERE}, {"num_envs": 0}, "at least 1, not 0"),
        ({"base_url": NOWHERE}, {"num_envs": "4"}, "num_envs must be an integer, not '4'"),
        ({"base_url": NOWHERE}, {"num_envs": 2.0}, "num_envs must be an integer, not 2.0"),
    ],
)
def test_what_makes_no_sense_is_refused(options, arguments, text):
    with pytest.raises(OptionError, match=text):
        Backend(RemoteOptions(**options), **{"num_envs": 1, **arguments})


def test_an_embedded_server_ends_with_its_env():
    backend = Backend(RemoteOptions(), 2, local=Tally)
    assert backend.server.alive
    backend.close()
    assert not backend.server.alive
    backend.close()


def test_an_embedded_server_ends_if_there_is_no_connection_to_it(monkeypatch):
    servers = []

    def fail(settings):
        raise ConnectFailed(NOWHERE, "as the test wants it")

    class Noted(sys.modules["openenv_gym.backend"].LocalServer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            servers.append(self)

    monkeypatch.setattr("openenv_gym.backend.Pool", fail)
    monkeypatch.setattr("openenv_gym.backend.LocalServer", Noted)
    with pytest.raises(ConnectFailed):
        Backend(RemoteOptions(), 1, local=Tally)
    assert [server.alive for server in servers] == [False]


def test_an_env_that_cannot_be_built_leaves_nothing():
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(FactoryError, match="NoSuchEnv"):
        Backend(RemoteOptions(), 1, local="NoSuchEnv-v0")
    assert set(psutil.Process().children(recursive=True)) <= before


def test_an_env_that_is_dropped_is_closed():
    app = create_app(Tally)
    with running(app) as url:
        backend = Backend(RemoteOptions(base_url=url), 3)
        assert app.state.registry.capacity.active == 3
        del backend
        gc.collect()
        wait_until(lambda: app.state.registry.capacity.active == 0)


@pytest.mark.parametrize("kind", [RemoteEnv, RemoteVecEnv])
def test_an_env_ends_with_its_block_also_by_an_exception(kind):
    app = create_app(Tally)
    with running(app) as url:
        with pytest.raises(KeyError, match="the user's own"), kind(url) as env:
            env.reset()
            raise KeyError("the user's own")
        wait_until(lambda: app.state.registry.capacity.active == 0)
        with pytest.raises(ClosedEnvironmentError):
            env.reset()


# ------------------------------------------------------------------------------------------------ at exit


@pytest.fixture(scope="module")
def server():
    with ServerProcess("helpers_tally:Endless") as process:
        yield process


def script(body, *args):
    """Run a script to its end: exit code, what it printed, what it complained of, and how long that took."""
    process = start(body, *args)
    started = time.monotonic()
    try:
        out, complaints = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, complaints, time.monotonic() - started


def start(body, *args):
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    code = "import sys\nfrom openenv_gym import EnvClient, RemoteEnv, RemoteVecEnv\n" + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_a_script_that_never_closes_ends_in_peace_and_frees_the_envs(server):
    body = """
        vec = RemoteVecEnv(sys.argv[1], 4, connections=2)
        vec.reset(seed=1)
        vec.step([0] * 4)
        other = RemoteEnv(sys.argv[1])
        other.reset()
        client = EnvClient(sys.argv[1]).sync()
        client.reset()
    """
    code, _, complaints, seconds = script(body, server.url)
    assert (code, complaints) == (0, "")
    assert seconds < 20
    wait_until(lambda: active(server.url) == 0)  # long before the grace time of a minute


def test_a_script_that_fails_ends_with_its_own_error_only(server):
    body = """
        vec = RemoteVecEnv(sys.argv[1], 2)
        vec.reset(seed=1)
        raise ValueError("mine")
    """
    code, _, complaints, seconds = script(body, server.url)
    assert code == 1
    assert complaints.startswith("Traceback")
    assert complaints.endswith("ValueError: mine\n")
    assert complaints.count("Traceback") == 1
    assert seconds < 20
    wait_until(lambda: active(server.url) == 0)


def test_a_script_that_fails_while_it_connects_ends():
    code, _, complaints, seconds = script("RemoteVecEnv('http://127.0.0.1:1', 2)")
    assert code == 1
    assert complaints.splitlines()[-1].startswith("openenv_gym.errors.ConnectFailed: no server at ws://127.0.0.1:1/ws")
    assert "ignored" not in complaints
    assert seconds < 20


def test_a_script_ends_though_its_server_is_frozen(server):
    body = """
        import os, signal
        envs = [RemoteVecEnv(sys.argv[1], 2) for _ in range(3)]
        for env in envs:
            env.reset(seed=1)
        os.kill(int(sys.argv[2]), signal.SIGSTOP)
    """
    try:
        code, _, complaints, seconds = script(body, server.url, str(server.pid))
    finally:
        server.thaw()
    assert (code, complaints) == (0, "")
    assert seconds < 20


@pytest.mark.parametrize("ending, expected", [("", 0), ("raise SystemExit(3)", 3), ("os._exit(4)", 4)])
def test_an_embedded_server_ends_with_the_process(ending, expected):
    body = f"""
        import os
        vec = RemoteVecEnv.local("CartPole-v1", 2)
        vec.reset(seed=1)
        print(vec._backend.server.pid, flush=True)
        {ending}
    """
    code, out, complaints, seconds = script(body)
    assert (code, complaints) == (expected, "")
    wait_until(lambda: not psutil.pid_exists(int(out)), "the end of the server")
    assert seconds < 30


@pytest.mark.parametrize("forks", [False, True])
def test_an_embedded_server_ends_with_a_process_that_is_killed(forks):
    """Also if that has forked: the fork has copies of its descriptors, and lives on."""
    body = f"""
        import os, time
        vec = RemoteVecEnv.local("CartPole-v1", 2)
        vec.reset(seed=1)
        fork = os.fork() if {forks} else 0
        if fork or not {forks}:
            print(vec._backend.server.pid, fork, flush=True)
        time.sleep(60)
    """
    process, fork = start(body), 0
    try:
        pid, fork = map(int, process.stdout.readline().split())
        assert psutil.pid_exists(pid)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        wait_until(lambda: not psutil.pid_exists(pid), "the end of the server")
        assert not fork or psutil.pid_exists(fork)
    finally:
        process.kill()
        if fork:
            os.kill(fork, signal.SIGKILL)
        process.communicate()


def test_a_script_that_is_interrupted_ends(server):
    body = """
        vec = RemoteVecEnv(sys.argv[1], 2)
        vec.reset(seed=1)
        print("ready", flush=True)
        while True:
            vec.step([0, 0])
    """
    process = start(body, server.url)
    try:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode in (1, -signal.SIGINT, 130)
    assert complaints.splitlines()[-1] == "KeyboardInterrupt"
    assert "ignored" not in complaints
    wait_until(lambda: active(server.url) == 0)


# ------------------------------------------------------------------------------ at exit, on an OpenEnv server


@pytest.fixture(scope="module")
def openenv():
    """The module that needs OpenEnv, whose import takes long."""
    return pytest.importorskip("helpers_openenv")


ENDINGS = {
    "kept": "vec = RemoteVecEnv(sys.argv[1], 2)",
    "dropped": "RemoteVecEnv(sys.argv[1], 2)",
    "failed": "vec = RemoteVecEnv(sys.argv[1], 2); vec.reset(); sys.exit('failed')",
    "told to end": """
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        vec = RemoteVecEnv(sys.argv[1], 2)
        os.kill(os.getpid(), signal.SIGTERM)
    """,
    "refused by its wrapper": """
        import gymnasium as gym
        from openenv_gym.errors import SpaceError
        from openenv_gym.sb3 import SB3VecEnv
        spaces = {"observation_space": gym.spaces.Dict(count=gym.spaces.Text(9))}
        try:
            SB3VecEnv(RemoteVecEnv(sys.argv[1], 2, **spaces))
        except SpaceError as error:
            sys.exit(str(error))
    """,
}
SLOWLY = """
import asyncio
from openenv_gym import openenv_sessions
destroy = openenv_sessions.destroy
async def slowly(*args):
    await asyncio.sleep(0.3)
    await destroy(*args)
openenv_sessions.destroy = slowly
"""
"""Or the loop thread might have done it before the interpreter has ended, though nobody waited for it."""
PLAIN = "sys.modules['uvloop'] = None; sys.argv[1] = sys.argv[1].replace('127.0.0.1', 'localhost')"
"""The loop of asyncio, and a name to look up: it does so in a thread."""


@pytest.mark.parametrize("loop", ["", PLAIN], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_leaves_no_session_on_an_openenv_server(openenv, ending, loop):
    """There a session outlives its connection, by default for ever."""
    with openenv.stock_server(max_envs=2) as url:
        code, _, complaints, _ = script(f"{loop}\n{SLOWLY}\n{textwrap.dedent(ENDINGS[ending])}", url)
        assert (code, "Traceback" in complaints) == (int(ending not in {"kept", "dropped"}), False), complaints
        wait_until(lambda: not openenv.Count.live, "the end of its sessions")


def test_a_script_that_is_interrupted_while_its_envs_are_built_leaves_none(openenv):
    built, building, interrupted = [], threading.Event(), threading.Event()

    class Slow(openenv.Count):
        def __init__(self):
            built.append(self)
            if len(built) > 1:  # the first is that of the connection that asks for spaces
                building.set()
                assert interrupted.wait(60)
            super().__init__()

    with openenv.stock_server(Slow, max_envs=2) as url:
        process = start(f"{SLOWLY}\nRemoteVecEnv(sys.argv[1], 2)", url)
        try:
            assert building.wait(60)
            process.send_signal(signal.SIGINT)
            interrupted.set()
            _, complaints = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert complaints.splitlines()[-1] == "KeyboardInterrupt"
        wait_until(lambda: not openenv.Count.live, "the end of its sessions")


# ------------------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize(
    "make",
    [RemoteEnv, RemoteVecEnv, lambda url: SB3VecEnv(RemoteVecEnv(url))],
    ids=["RemoteEnv", "RemoteVecEnv", "SB3VecEnv"],
)
def test_a_connection_cannot_be_pickled_and_that_is_said(make):
    with running(create_app(Tally)) as url:
        env = make(url)
        for copied in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="make a new one"):
                copied(env)
        for part in (env.observation_space, env.action_space, env.metadata):
            assert copy.deepcopy(part) == pickle.loads(pickle.dumps(part)) == part
        env.reset()
        env.close()
