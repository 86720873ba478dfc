"""Several processes behind one address: real ones, with real clients."""

import contextlib
import json
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from gymnasium.vector import SyncVectorEnv
from helpers_cli import DEADLINE_S, Running
from helpers_faults import FaultProxy
from helpers_tally import Placed, Tally
from helpers_wait import LIMIT_S, wait_until
from test_cli import write_certificate

from openenv_gym import LocalServer, RemoteVecEnv
from openenv_gym.errors import CapacityError, FactoryError, OptionError

TESTS = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="connections are handed over on Unix systems only"),
    pytest.mark.filterwarnings("ignore:.*truncated"),
]


@pytest.fixture(scope="module")
def server():
    with LocalServer("helpers_tally:Placed", workers=2, max_envs=40, start_timeout_s=DEADLINE_S) as server:
        yield server


@pytest.fixture
def connect(server):
    """Make envs of the server; they are closed at the end."""
    with contextlib.ExitStack() as opened:

        def connect(num_envs, url=server.url, **options):
            envs = RemoteVecEnv(url, num_envs, token=server.token, close_timeout_s=LIMIT_S, **options)
            return opened.enter_context(contextlib.closing(envs))

        yield connect


def pids(envs, **reset):
    """The process of each env."""
    return envs.reset(**reset)[1]["pid"].tolist()


def health(server):
    with urllib.request.urlopen(f"{server.url}/health", timeout=20) as answer:
        return json.load(answer)


def has(server, **numbers):
    """Whether the server says so of itself. A process that is slow to answer is left out, for once."""
    return numbers.items() <= health(server).items()


def processes_of(pid):
    return [child for child in psutil.Process(pid).children(recursive=True) if "server.process" in str(child.cmdline())]


# ---------------------------------------------------------------------------------------------- spreading


def test_envs_are_spread_evenly_over_the_processes(server, connect):
    found = pids(connect(5))
    assert sorted(found.count(pid) for pid in set(found)) == [2, 3]
    assert set(found) == {process.pid for process in processes_of(server.pid)}
    wait_until(lambda: has(server, status="healthy", active_envs=5, max_envs=40, sessions=2, processes=2))


@pytest.mark.parametrize("connections, most", [(1, 6), (2, 3), (3, 4), (6, 3)])
def test_a_chosen_number_of_connections_too(connect, connections, most):
    found = pids(connect(6, connections=connections))
    assert max(found.count(pid) for pid in set(found)) == most


def test_clients_that_connect_at_the_same_time_are_each_spread_evenly(connect):
    with ThreadPoolExecutor(6) as threads:
        for found in threads.map(lambda _: pids(connect(4)), range(6)):
            assert sorted(found.count(pid) for pid in set(found)) == [2, 2]


def test_connections_in_openenvs_dialect_are_taken_in_turn(connect):
    found = pids(connect(4, dialect="openenv"))
    assert len(set(found)) == 2


def test_sessions_over_http_are_refused_by_name(server):
    body = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
    request = urllib.request.Request(f"{server.url}/mcp", json.dumps(body).encode(), method="POST")
    request.add_header("Authorization", f"Bearer {server.token}")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert "this server has several processes" in json.load(answer)["error"]["message"]


# ----------------------------------------------------------------------------------------------- capacity


def test_there_is_one_capacity_for_all(server, connect):
    connect(39)
    with pytest.raises(CapacityError) as caught:
        connect(2, connections=1)
    assert (caught.value.active, caught.value.maximum, caught.value.requested) == (39, 40, 2)
    wait_until(lambda: has(server, active_envs=39, processes=2))
    connect(1)


def test_room_that_is_given_back_is_there_for_all_at_once(server):
    for connections in (1, 2, 3, 2, 1):
        RemoteVecEnv(server.url, 40, connections=connections, token=server.token).close(timeout=LIMIT_S)
    wait_until(lambda: has(server, active_envs=0, processes=2))


# ----------------------------------------------------------------------------------------------- resuming


def test_a_session_is_resumed_by_the_process_that_has_it(server, connect):
    with FaultProxy(server.url) as proxy:
        envs = connect(5, url=proxy.url, connections=4)
        before = pids(envs, seed=3)
        local = SyncVectorEnv([Placed] * 5)
        local.reset(seed=3)
        for i in range(30):
            if i % 5 == 4:
                proxy.cut()
            actions = np.arange(i, i + 5) % 4
            for a, b in zip(envs.step(actions)[:4], local.step(actions)[:4], strict=True):
                np.testing.assert_equal(a, b)
        assert proxy.cuts > 20
        assert pids(envs) == before
        envs.close()
    local.close()


def test_a_process_that_dies_takes_only_its_own_rows(server, connect):
    envs, other = connect(6), connect(4)
    before = pids(envs, seed=[1, 2, 3, 4, 13, 5])
    died = before[4]
    lost = [pid == died for pid in before]
    others = [pid == died for pid in pids(other)]
    _, _, terminated, truncated, infos = envs.step([0] * 6)
    assert (terminated.any(), truncated.tolist(), infos["connection_lost"].tolist()) == (False, lost, lost)
    observations, _, _, truncated, _ = other.step([0] * 4)
    assert truncated.tolist() == others
    assert observations[~np.array(others), 1].tolist() == [1, 1]  # their episode goes on
    after = pids(envs)  # in the one that lives, and in a new one with the old one's number
    assert [a == b for a, b in zip(before, after, strict=True)] == [not row for row in lost]
    assert sorted(after.count(pid) for pid in set(after)) == [3, 3]
    assert not envs.step([0] * 6)[3].any()
    pids(other)
    wait_until(lambda: has(server, active_envs=10, processes=2))


# ------------------------------------------------------------------------------------------------- the page


@contextlib.contextmanager
def looks(client):
    """What the page is told, once a second."""
    with client.stream("GET", "/web/events") as stream:
        yield (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line)


def first_of(seen, steps):
    """The first look after so many steps in which both processes have answered."""
    end = time.monotonic() + LIMIT_S
    for look in seen:
        if (look["answering"], look["steps"]) == (2, steps):
            return look
        assert time.monotonic() < end, look
    raise AssertionError("the stream has ended")


def test_the_page_shows_the_sessions_of_all_processes(server, connect):
    envs, other = connect(4), connect(3, connections=1)
    envs.reset(), other.reset()
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=20) as client:
        assert 'data-processes="2"' in client.get("/web").text
        with looks(client) as seen:
            first = next(look for look in seen if look["answering"] == 2)
            envs.step([0] * 4)
            last = first_of(seen, first["steps"] + 4)
    assert (first["processes"], first["sessions"], first["envs"]) == (2, 3, 7)
    assert sorted(session["envs"] for session in last["list"]) == [2, 2, 3]
    assert {session["process"] for session in last["list"]} == {0, 1}
    assert last["memory_bytes"] > sum(process.memory_info().rss for process in processes_of(server.pid)) / 2


def test_a_frame_comes_from_the_process_that_has_the_session():
    with (
        LocalServer("CartPole-v1", workers=2, start_timeout_s=DEADLINE_S) as server,
        RemoteVecEnv(server.url, 2, token=server.token, render_mode="rgb_array") as envs,
        httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}, timeout=20) as client,
    ):
        envs.reset()
        with looks(client) as seen:
            names = [session["name"] for session in first_of(seen, 0)["list"]]
        assert {name.partition(".")[0] for name in names} == {"0", "1"}
        for name in names:
            for _ in range(2):  # each process is asked, for connections are taken in turn
                answer = client.get(f"/web/frames/{name}/0", headers={"Connection": "close"})
                assert answer.content.startswith(b"\x89PNG")
        process, _, rest = names[0].partition(".")
        for gone in (f"{process}.{rest}x", f"{process}.1.abc", "7.0.abc", "-1.0.abc", "abc"):
            assert client.get(f"/web/frames/{gone}/0").status_code == 204
        killed = processes_of(server.pid)[0]
        killed.kill()
        wait_until(lambda: not killed.is_running())
        wait_until(lambda: has(server, processes=2))
        answers = [client.get(f"/web/frames/{name}/0").status_code for name in names]
        assert sorted(answers) == [200, 204]


# -------------------------------------------------------------------------------------------------- ends


def test_tls_and_the_end(tmp_path):
    certificate, key = write_certificate(tmp_path)
    tls = ["--tls-cert", certificate, "--tls-key", key]
    with (
        Running("serve", "helpers_tally:Placed", "--port", 0, "--workers", 2, *tls, cwd=TESTS) as serving,
        FaultProxy(serving.url()) as proxy,
    ):
        processes = processes_of(serving.process.pid)
        assert "capacity      1024 envs, in 2 processes" in serving.output
        assert serving.errors.startswith("starting 2 processes …\n")  # which may take long
        context = ssl.create_default_context(cafile=str(certificate))
        envs = RemoteVecEnv(proxy.url.replace("http", "https"), 4, ssl=context)
        before = pids(envs)
        assert len(set(before)) == 2
        for _ in range(4):
            proxy.cut()
            assert not envs.step([0] * 4)[3].any()
        assert proxy.cuts >= 8  # more if one was just being sent to the other process
        envs.step_async([0] * 4)
        counted = "openenv_gym_steps_total 20.0"
        wait_until(lambda: counted in httpx.get(f"{serving.url()}/metrics", verify=context, timeout=LIMIT_S).text)
        assert serving.end(signal.SIGTERM) == 0
        wait_until(lambda: not any(process.is_running() for process in processes))
        envs.step_wait()
        envs.close(timeout=1)
        assert "Traceback" not in serving.errors


def test_what_they_compute_and_that_nothing_outlives_a_killed_supervisor():
    remote, local = RemoteVecEnv.local("helpers_tally:Tally", 5, workers=2), SyncVectorEnv([Tally] * 5)
    for a, b in zip(remote.reset(seed=7), local.reset(seed=7), strict=True):
        np.testing.assert_equal(a, b)
    for i in range(60):
        actions = np.arange(i, i + 5) % 4
        for a, b in zip(remote.step(actions), local.step(actions), strict=True):
            np.testing.assert_equal(a, b)
    supervisor = psutil.Process(remote._backend.server.pid)
    processes = processes_of(supervisor.pid)
    assert len(processes) == 2
    supervisor.kill()
    wait_until(lambda: not any(process.is_running() for process in processes))
    remote.close(timeout=0)


def test_nothing_outlives_a_parent_that_is_killed():
    program = (
        "import sys; from openenv_gym import LocalServer; server = LocalServer('helpers_tally:Tally', workers=2);"
        "print(server.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=TESTS, text=True
    )
    with parent:
        supervisor = psutil.Process(int(parent.stdout.readline()))
        processes = [supervisor, *processes_of(supervisor.pid)]
        parent.kill()
        wait_until(lambda: not any(process.is_running() for process in processes))


def test_a_process_that_never_serves_is_said():
    with pytest.raises(FactoryError, match="a server process ended with exit code 1"):
        LocalServer("helpers_tally:make_in_one_process_only", workers=2)


def test_a_callable_can_not_be_shared_out():
    with pytest.raises(OptionError, match="workers=2 needs an id or"):
        LocalServer(Tally, workers=2)
    with pytest.raises(OptionError, match="at least 1, not 0"):
        LocalServer("CartPole-v1", workers=0)
    with pytest.raises(OptionError, match="they need `local`"):
        RemoteVecEnv("http://localhost:1", workers=2)
