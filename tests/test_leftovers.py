"""The calls that a process owes when it ends, even if it is killed."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from helpers_wait import wait_until

ENDINGS = {
    "no exit": ("os._exit(4)", 4),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "fork": ("os.fork() and os.kill(os.getpid(), signal.SIGKILL); sys.stdin.read(); os._exit(0)", -signal.SIGKILL),
}
"""How a process can end without another word; the last one leaves a fork of it alive."""


def script(body, *arguments):
    """A running script, and with it whatever it starts."""
    code = "import os, signal, sys\nfrom openenv_gym import RemoteVecEnv\n" + textwrap.dedent(body)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_learner_that_is_killed_leaves_no_session_on_an_openenv_server(ending):
    openenv = pytest.importorskip("helpers_openenv")
    how, expected = ENDINGS[ending]
    body = f"vec = RemoteVecEnv(sys.argv[1], 2); vec.reset(); print(flush=True); sys.stdin.readline(); {how}"
    with openenv.stock_server(max_envs=2) as url, script(body, url) as process:
        process.stdout.readline()
        assert len(openenv.Count.live) == 2
        (watcher,) = psutil.Process(process.pid).children()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(60) == expected
        wait_until(lambda: not watcher.is_running(), "the end of what waited for it")
        process.stdin.close()  # and with it a fork, which has kept the connection
        wait_until(lambda: not openenv.Count.live, "the end of its sessions")


def test_a_call_that_was_made_is_not_owed():
    """And the process that would have made it is gone before this one is."""
    body = """
        from openenv_gym import leftovers
        from openenv_gym.leftovers import owe, settled
        leftovers._EXIT_S = 30  # for a listener that is busy otherwise
        address = ("127.0.0.1", int(sys.argv[1]))
        owe("a", address, None, b"a")
        owe("b", address, None, b"b")
        settled("a")
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        with script(body, str(listener.getsockname()[1])) as process:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(10) == b"b"
            output, complaints = process.communicate(timeout=60)
        listener.settimeout(0)
        assert (process.returncode, output, complaints) == (0, "", "")
        with pytest.raises(BlockingIOError):
            listener.accept()
