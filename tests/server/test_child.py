"""The process behind a `LocalServer`: what it says, and when it ends."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path

import gymnasium as gym
import pytest
from helpers_wait import LIMIT_S, wait_until

from openenv_gym.interpreter import command

TESTS = Path(__file__).resolve().parents[1]
TOKEN = "hush-hush-hush"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and /proc")


class Child:
    """A child process; a context manager.

    Attributes:
        process: the process.
        answer: the line that it answered with.
    """

    def __init__(self, env, *, spec=None, wait=True, **options):
        self.configuration = {"env": env, "spec": spec, "options": {"token": TOKEN, **options}}
        self.wait = wait

    def __enter__(self):
        self.process = subprocess.Popen(
            command("openenv_gym.server.child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            text=True,
        )
        self.process.stdin.write(json.dumps(self.configuration) + "\n")
        self.process.stdin.flush()
        self.answer = json.loads(self.process.stdout.readline()) if self.wait else None
        return self

    def __exit__(self, *exc_info):
        self.process.kill()
        self.process.__exit__(*exc_info)

    def ended(self):
        """Wait for its end; give the exit code and what it wrote to standard error."""
        self.process.stdin.close()
        code = self.process.wait(LIMIT_S)
        return code, self.process.stderr.read()

    def get(self, path):
        request = urllib.request.Request(f"http://127.0.0.1:{self.answer['port']}{path}")
        request.add_header("Authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
            return json.load(response)


def test_it_serves_until_standard_input_ends():
    with Child("helpers_envs:make_count") as child:
        assert list(child.answer) == ["port"]
        assert child.get("/metadata")["name"] == "helpers_envs:make_count"
        assert child.ended() == (0, "")
        assert child.process.stdout.read() == ""


@pytest.mark.parametrize(
    "env, options, text",
    [
        ("CartPool-v1", {}, "Environment `CartPool` doesn't exist"),
        (
            "helpers_envs:make_nothing",
            {},
            "can't create the environment 'helpers_envs:make_nothing': OSError: no licence",
        ),
        ("helpers_envs:exits", {}, "SystemExit: 3"),
        ("no_such_module:make", {}, "importing no_such_module raised ModuleNotFoundError"),
        ("CartPole-v1", {"max_env": 3}, "max_env: Extra inputs are not permitted"),
    ],
)
def test_what_it_can_not_serve_is_said(env, options, text):
    with Child(env, **options) as child:
        assert list(child.answer) == ["error"]
        assert text in child.answer["error"]
        assert TOKEN not in child.answer["error"]
        code, errors = child.ended()
        assert code == 2
        assert "Traceback" not in errors


def test_what_envs_print_does_not_disturb_the_answer():
    with Child("helpers_envs:make_printing") as child:
        assert "port" in child.answer
        code, errors = child.ended()
        assert (code, child.process.stdout.read()) == (0, "")
        assert errors.count("hello from print") == errors.count("hello from below") == 1


def test_an_id_that_only_the_parent_knows():
    spec = gym.envs.registration.EnvSpec("Mine-v3", entry_point="helpers_envs:make_count", kwargs={"length": 5})
    with Child("Mine-v3", spec=spec.to_json()) as child:
        assert child.get("/metadata")["name"] == "Mine-v3"


def test_a_parent_that_ends_before_it_asks():
    child = command("openenv_gym.server.child")
    ended = subprocess.run(child, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_an_interrupt_is_for_the_parent():
    """Ctrl-C reaches all processes of a terminal; the server must outlive it, for the parent's own orderly end."""
    with Child("helpers_envs:make_count") as child:
        child.process.send_signal(signal.SIGINT)
        assert child.get("/health")["status"] == "healthy"
        child.process.send_signal(signal.SIGINT)
        assert child.get("/health")["status"] == "healthy"
        assert child.ended() == (0, "")


def test_an_env_that_leaves_a_thread_behind():
    """A thread that isn't a daemon keeps a process alive; but not one whose parent is gone."""
    with Child("helpers_envs:make_clinging", shutdown_s=0) as child:
        assert child.ended()[0] == 1


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
def test_the_token_is_in_no_argument_and_no_environment():
    with Child("helpers_envs:make_count") as child:
        here = Path(f"/proc/{child.process.pid}")
        assert b"child" in (here / "cmdline").read_bytes()
        assert TOKEN.encode() not in (here / "cmdline").read_bytes() + (here / "environ").read_bytes()


PARENT = """
    import time
    from openenv_gym import LocalServer

    server = LocalServer("helpers_envs:make_count")
    print(server.pid, flush=True)
    time.sleep(3600)
"""


def test_it_ends_with_a_parent_that_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        text=True,
    ) as parent:
        try:
            pid = int(parent.stdout.readline())
            assert alive(pid)
        finally:
            parent.send_signal(signal.SIGKILL)
        wait_until(lambda: not alive(pid))


def alive(pid):
    """Whether a process runs; one that has ended but that nobody asked about doesn't."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
