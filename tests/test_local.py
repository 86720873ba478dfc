"""`LocalServer`: a server of one's own, in a child process or a thread."""

import os
import sys
import threading
import time
import urllib.error
import urllib.request

import gymnasium as gym
import psutil
import pytest
from helpers_tally import Tally
from helpers_wait import wait_until

from openenv_gym import EnvClient, LocalServer, RemoteVecEnv, local
from openenv_gym.errors import FactoryError, OptionError, ReplyTimeout, Unauthorized


def status(server, token=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{server.url}/metadata", headers=headers)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture(params=["child", "thread"])
def server(request):
    with LocalServer("helpers_tally:Tally" if request.param == "child" else Tally, max_envs=3) as server:
        yield server


def test_a_token_of_ones_own():
    with LocalServer(Tally, token="of-ones-own") as server:
        assert server.token == "of-ones-own"
        assert (status(server), status(server, "of-ones-own")) == (401, 200)


def test_it_serves_who_has_the_token(server):
    assert server.alive
    assert server.url.startswith("http://127.0.0.1:")
    assert (status(server), status(server, "wrong"), status(server, server.token)) == (401, 401, 200)
    with RemoteVecEnv(server.url, 3, token=server.token) as env:
        env.reset(seed=1)
        assert env.step([0, 0, 0])[0][:, 1].tolist() == [1, 1, 1]
    with EnvClient(server.url, token=server.token) as client:
        client.reset()
    with pytest.raises(Unauthorized):
        RemoteVecEnv(server.url, 3)
    assert server.token not in repr(server)


@pytest.mark.parametrize("env", ["helpers_tally:Tally", Tally], ids=["child", "thread"])
def test_to_refuse_somebody_is_no_error(env, capfd):
    with LocalServer(env) as server, pytest.raises(Unauthorized):
        RemoteVecEnv(server.url, 3)
    assert capfd.readouterr().err == ""


def test_it_is_gone_when_it_is_closed(server):
    assert repr(server) == f"LocalServer('{server.url}', running)"
    server.close()
    assert not server.alive
    assert repr(server) == f"LocalServer('{server.url}', closed)"
    with pytest.raises(OSError, match="refused"):
        status(server)
    server.close()


def test_it_is_gone_though_a_client_is_connected(server):
    env = RemoteVecEnv(server.url, 2, token=server.token, reconnect_timeout_s=0.2)
    env.reset(seed=1)
    started = time.monotonic()
    server.close()
    assert time.monotonic() - started < 9
    with pytest.warns(UserWarning, match="rows 0-1 are truncated"):
        assert env.step([0, 0])[3].all()
    env.close()


def test_a_child_is_a_process_and_a_callable_a_thread():
    with LocalServer(lambda: Tally(width=6)) as server:
        assert server.pid == os.getpid()
        assert "local-server" in {thread.name for thread in threading.enumerate()}
        with RemoteVecEnv(server.url, 1, token=server.token) as env:
            assert env.single_observation_space.shape == (6,)
    assert "local-server" not in {thread.name for thread in threading.enumerate()}
    with LocalServer("helpers_tally:Tally", env_kwargs={"width": 7}) as server:
        assert server.pid != os.getpid()
        assert server.token not in " ".join(psutil.Process(server.pid).cmdline())
        assert server.token not in str(psutil.Process(server.pid).environ())
        with RemoteVecEnv(server.url, 1, token=server.token) as env:
            assert env.single_observation_space.shape == (7,)
    assert not psutil.pid_exists(server.pid)


def test_it_ends_with_its_last_reference():
    server = LocalServer(Tally)
    thread = server._host._thread
    del server
    wait_until(lambda: not thread.is_alive())


def test_an_id_that_this_process_registered_is_known_to_the_child():
    gym.register("helpers/Tally-v0", "helpers_tally:Tally", kwargs={"width": 8}, max_episode_steps=2)
    try:
        with LocalServer("helpers/Tally-v0") as server, RemoteVecEnv(server.url, 1, token=server.token) as env:
            assert env.single_observation_space.shape == (8,)
            env.reset(seed=1)
            env.step([0])
            assert env.step([0])[3].all()
    finally:
        del gym.registry["helpers/Tally-v0"]


def test_a_child_that_dies_is_noticed():
    with LocalServer("helpers_tally:Tally") as server:
        psutil.Process(server.pid).kill()
        wait_until(lambda: not server.alive)


# ------------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize("env", ["NoSuchEnv-v0", "no_such_module:Env", "helpers_tally:Missing"])
def test_an_env_that_cannot_be_built_is_told(env):
    before = set(psutil.Process().children())
    with pytest.raises(FactoryError, match=env):
        LocalServer(env)
    assert set(psutil.Process().children()) <= before


def test_a_callable_that_fails_is_told():
    def broken():
        raise OSError("no display")

    with pytest.raises(FactoryError, match="no display"):
        LocalServer(broken)
    assert "local-server" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("env", ["helpers_tally:Tally", Tally])
def test_an_unknown_option_is_told(env):
    with pytest.raises((OptionError, FactoryError), match="max_evns"):
        LocalServer(env, max_evns=3)


def test_options_for_a_child_are_plain_data():
    with pytest.raises(OptionError, match="plain data"):
        LocalServer("helpers_tally:Tally", env_kwargs={"width": object()})
    with LocalServer("helpers_tally:Tally", allow_call={"render"}, allowed_origins=("https://here",)) as server:
        assert server.alive


def test_a_child_that_does_not_start_in_time_is_ended():
    before = set(psutil.Process().children())
    with pytest.raises(ReplyTimeout, match=r"`start` from the local server within 0\.1 second"):
        LocalServer("helpers_tally:Tally", start_timeout_s=0.1)
    assert set(psutil.Process().children()) <= before


@pytest.mark.parametrize("reads", [True, False])
def test_a_child_that_dies_at_once_is_told(monkeypatch, tmp_path, reads):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{'read line' if reads else ''}\necho hello\nexit 7\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    for _ in range(5):
        with pytest.raises(FactoryError, match="ended with exit code 7"):
            LocalServer("helpers_tally:Tally")


def test_what_is_printed_while_a_child_starts_is_no_answer(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "Hello from a library"\necho 3\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    with LocalServer("helpers_tally:Tally") as server:
        assert status(server, server.token) == 200


def test_an_interrupted_start_leaves_nothing(monkeypatch):
    before = set(psutil.Process().children())

    def interrupt(self, configuration):
        raise KeyboardInterrupt

    monkeypatch.setattr(local._ChildProcess, "_ask", interrupt)
    with pytest.raises(KeyboardInterrupt):
        LocalServer("helpers_tally:Tally")
    assert set(psutil.Process().children()) <= before


def test_the_servers_packages_are_asked_for(monkeypatch):
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"packages: install openenv-gym\[server\]; "):
        LocalServer("CartPole-v1")
