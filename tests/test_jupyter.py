"""Notebooks: a real kernel, whose event loop runs while cells do; and the same under ``asyncio.run``."""

import asyncio

import nbformat
import psutil
import pytest
from helpers_wait import wait_until
from nbclient import NotebookClient
from traitlets.config import Config

from openenv_gym import LocalServer, RemoteVecEnv

# nbclient and its relatives leave sockets and loops to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SETUP = "import asyncio, os, sys\nfrom openenv_gym import LocalServer, RemoteVecEnv"


class Notebook:
    """Runs cells, each in the same kernel."""

    def __init__(self, client):
        self.client = client

    def run(self, source):
        """What a cell printed, and the HTML that it showed."""
        self.client.nb.cells.append(nbformat.v4.new_code_cell(source))
        outputs = self.client.execute_cell(self.client.nb.cells[-1], len(self.client.nb.cells) - 1).outputs
        printed = "".join(output.get("text", "") for output in outputs)
        return printed, "".join(output.get("data", {}).get("text/html", "") for output in outputs)


@pytest.fixture
def client(tmp_path):
    """A client for kernels; what a test starts ends with it."""
    # Not over ports: one that is free may be taken before the kernel has it.
    sockets = Config({"KernelManager": {"transport": "ipc", "ip": str(tmp_path / "kernel")}})
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=60, kernel_name="python3", config=sockets)
    yield client
    if client.km is not None and client.km.has_kernel:
        client._cleanup_kernel()


def is_gone(pid):
    """Whether a process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_two_envs_in_a_running_loop(client):
    with client.setup_kernel():
        notebook = Notebook(client)
        notebook.run(SETUP)
        printed, _ = notebook.run(
            "assert asyncio.get_running_loop().is_running()\n"
            "one, two = RemoteVecEnv.local('CartPole-v1', 2), RemoteVecEnv.local('Pendulum-v1', 3)\n"
            "for env in (one, two):\n"
            "    env.reset(seed=1)\n"
            "for _ in range(5):\n"
            "    for env in (one, two):\n"
            "        env.step(env.action_space.sample())\n"
            "print(one.single_observation_space.shape, two.observation_space.shape, 'nest_asyncio' in sys.modules)"
        )
        assert printed == "(4,) (3, 3) False\n"
        _, html = notebook.run("one")
        for part in ("num_envs=2)", "Box(", "Discrete(2)", "ws://127.0.0.1", "steps/s", "NextStep"):
            assert part in html
        notebook.run("one.close(); two.close()")
        _, html = notebook.run("one")
        assert ">closed<" in html


def test_interrupt_and_go_on(client):
    with client.setup_kernel():
        notebook = Notebook(client)
        notebook.run(SETUP)
        printed, _ = notebook.run(
            "import signal, threading, gymnasium as gym\n"
            "armed = False  # the server tries an env out\n"
            "waits, free = threading.Event(), threading.Event()\n"
            "class Slow(gym.Env):\n"
            "    observation_space = action_space = gym.spaces.Discrete(3)\n"
            "    def reset(self, *, seed=None, options=None):\n"
            "        super().reset(seed=seed)\n"
            "        return 0, {}\n"
            "    def step(self, action):\n"
            "        if action == 2 and armed:\n"
            "            waits.set()\n"
            "            free.wait(20)\n"
            "        return action, 1.0, False, False, {}\n"
            "env = RemoteVecEnv.local(Slow, 1)\n"
            "env.reset()\n"
            "def interrupt():\n"
            "    waits.wait(20)\n"
            "    os.kill(os.getpid(), signal.SIGINT)\n"  # what the interrupt button does
            "threading.Thread(target=interrupt).start()\n"
            "armed = True\n"
            "try:\n"
            "    env.step([2])\n"
            "except KeyboardInterrupt:\n"
            "    print('interrupted')\n"
            "free.set()\n"
        )
        assert printed == "interrupted\n"
        printed, _ = notebook.run("env.reset()\nprint(env.step([1])[0])")
        assert printed == "[1]\n"


def test_restarting_the_kernel_leaves_no_server(client):
    with client.setup_kernel():
        notebook = Notebook(client)
        notebook.run(SETUP)
        printed, html = notebook.run(
            "server = LocalServer('CartPole-v1')\nenv = RemoteVecEnv(server.url, 2, token=server.token)\n"
            "env.reset()\nprint(server.pid)\nserver"
        )
        for part in ("CartPole-v1", "http://127.0.0.1", "running", "sessions", "active envs"):
            assert part in html
        pid = int(printed)
        assert psutil.pid_exists(pid)
        asyncio.run(client.km.restart_kernel(now=True))
        wait_until(lambda: is_gone(pid), "the end of the server")


@pytest.mark.parametrize("loops", ["asyncio", "uvloop"])
def test_under_a_loop(loops):
    ticks, run = [], pytest.importorskip(loops).run

    async def main():
        async def tick():
            while True:
                ticks.append(len(ticks))
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        with RemoteVecEnv.local("CartPole-v1", 2) as env:
            env.reset(seed=1)
            for _ in range(5):
                before = len(ticks)
                await asyncio.to_thread(env.step, [0, 1])
                assert len(ticks) > before
        ticking.cancel()
        return env

    assert run(main()).closed


def test_made_in_one_loop_and_used_without_it():
    with LocalServer("CartPole-v1", max_envs=2) as server:

        async def make():
            return RemoteVecEnv(server.url, 2, token=server.token)

        env = asyncio.run(make())
        env.reset(seed=1)
        env.step([0, 1])
        env.close()
