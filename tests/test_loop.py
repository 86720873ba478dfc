"""The client's event-loop thread, one for each process."""

import asyncio
import concurrent.futures
import os
import subprocess
import sys
import threading

import pytest

from openenv_gym.loop import LoopThread, _new_loop, client_loop, settle

DEADLINE_S = 30


def python(script):
    """What a script in a process of its own prints."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.split()


class Endless:
    """A coroutine function that ends only when it is cancelled, and events that tell."""

    def __init__(self):
        self.started, self.cancelled = threading.Event(), threading.Event()

    async def __call__(self):
        self.started.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def where():
    return asyncio.get_running_loop(), threading.current_thread()


def test_run_returns():
    loop, thread = client_loop().run(where())
    assert loop is client_loop().loop
    assert thread is not threading.current_thread()
    assert (thread.name, thread.daemon) == ("openenv-gym-client", True)


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("the coroutine's own"), KeyError(1)], ids=repr)
@pytest.mark.parametrize("timeout_s", [None, DEADLINE_S])
def test_run_raises(error, timeout_s):
    async def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        client_loop().run(fail(), timeout_s)
    assert caught.value.args == error.args


def test_a_time_out_cancels_the_coroutine():
    endless = Endless()
    with pytest.raises(TimeoutError, match=r"^not done within 0\.2 second\(s\)$"):
        client_loop().run(endless(), 0.2)
    assert not endless.started.is_set() or endless.cancelled.wait(DEADLINE_S)
    assert client_loop().run(where())[0] is client_loop().loop


def test_an_interrupt_cancels_the_coroutine(monkeypatch):
    def interrupted(future, timeout_s=None):
        assert endless.started.wait(DEADLINE_S)
        raise KeyboardInterrupt

    endless = Endless()
    monkeypatch.setattr(concurrent.futures.Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client_loop().run(endless())
    assert endless.cancelled.wait(DEADLINE_S)


def test_what_was_cancelled_is_waited_for_until_it_has_cleared_up():
    steps, last, started, cancelled = [], asyncio.Event(), threading.Event(), threading.Event()

    async def tidy():
        started.set()
        try:
            await last.wait()
        except asyncio.CancelledError:
            steps.append("cancelled")
            cancelled.set()
            await last.wait()
            steps.append("clear")

    future = client_loop().spawn(tidy())
    assert started.wait(DEADLINE_S)
    future.cancel()
    assert cancelled.wait(DEADLINE_S)
    settle(0.1)
    assert steps == ["cancelled"]
    client_loop().call_soon(last.set)
    settle(DEADLINE_S)
    assert steps == ["cancelled", "clear"]


def test_a_process_without_a_loop_has_nothing_to_wait_for():
    script = """
import threading
from openenv_gym.loop import settle
settle(20)
print(threading.active_count())
"""
    assert python(script) == ["1"]


def test_it_works_inside_a_running_loop():
    async def main():
        return client_loop().run(where())[0], asyncio.get_running_loop()

    inner, outer = asyncio.run(main())
    assert inner is client_loop().loop
    assert inner is not outer


def test_call_soon_runs_on_the_loop():
    done, seen = threading.Event(), []

    def callback(*args):
        seen.append((args, threading.current_thread().name))
        done.set()

    client_loop().call_soon(callback, 1, 2)
    assert done.wait(DEADLINE_S)
    assert seen == [((1, 2), "openenv-gym-client")]


def test_all_callers_and_threads_share_one_loop():
    script = """
import threading
from openenv_gym.loop import client_loop
barrier, found = threading.Barrier(8), []
def find():
    barrier.wait(20)
    found.append(client_loop())
threads = [threading.Thread(target=find) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
names = [t.name for t in threading.enumerate()]
print(len(found), len(set(map(id, found))), found[0] is client_loop(), names.count("openenv-gym-client"))
"""
    assert python(script) == ["8", "1", "True", "1"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
def test_a_fork_gets_a_loop_of_its_own():
    script = """
import os, warnings
from openenv_gym.loop import client_loop
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
async def pid():
    return os.getpid()
before = client_loop()
assert before.run(pid(), 20) == before.pid == os.getpid()
child = os.fork()
if child == 0:
    after = client_loop()
    works = after is not before and after is client_loop() and after.run(pid(), 20) == after.pid == os.getpid()
    os._exit(42 if works else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), client_loop() is before, before.run(pid(), 20) == os.getpid())
"""
    assert python(script) == ["42", "True", "True"]


def test_the_thread_does_not_keep_the_process_alive():
    script = """
import asyncio
from openenv_gym.loop import client_loop
async def busy():
    client_loop().keep = asyncio.ensure_future(asyncio.Event().wait())
client_loop().run(busy())
print("end")
"""
    assert python(script) == ["end"]


def test_it_works_without_uvloop(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = _new_loop()
    assert isinstance(loop, asyncio.BaseEventLoop)
    loop.close()


def test_each_loop_thread_has_its_own_loop():
    other = LoopThread()
    try:
        loop, thread = other.run(where(), DEADLINE_S)
        assert loop is other.loop is not client_loop().loop
    finally:
        other.call_soon(other.loop.stop)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    other.loop.close()
