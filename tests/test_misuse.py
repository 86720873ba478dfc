"""Misuse raises what Gymnasium raises, in its words, and the env goes on; and every end is a quiet one."""

import multiprocessing
import os
import re
import subprocess
import sys
import threading
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from helpers_envs import Count, Factory, Gate
from helpers_oracle import Fleet, Script
from helpers_server import running
from helpers_wait import LIMIT_S, wait_until

from openenv_gym import LocalServer, RemoteVecEnv
from openenv_gym.codec import PackError
from openenv_gym.server import create_app

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
ZEROS = [0, 0, 0]
CALLS = {"reset": (), "step": (ZEROS,), "call": ("render",)}
"""What can be sent without waiting, and its arguments."""


@pytest.fixture
def over():
    """Makes a vector env over a server of scripted envs, and closes both."""
    opened = []

    def make(**options):
        fleet = Fleet([Script(BOX, salt=i) for i in range(3)])
        server = LocalServer(fleet)
        opened.append(server)
        opened.insert(0, RemoteVecEnv(server.url, 3, token=server.token, **options))
        return opened[0], fleet

    yield make
    for one in opened:
        one.close()


def begin(env, name):
    getattr(env, f"{name}_async")(*CALLS[name])


@pytest.mark.parametrize("second", ["reset", "step", "call"])
@pytest.mark.parametrize("first", sorted(CALLS))
def test_another_call_while_one_is_pending(over, first, second):
    env, _ = over()
    env.reset(seed=0)
    begin(env, first)
    with pytest.raises(AlreadyPendingCallError) as caught:
        begin(env, second)
    text = f"Calling `{second}_async` while waiting for a pending call to `{first}` to complete"
    assert str(caught.value) == text
    assert caught.value.name == first
    getattr(env, f"{first}_wait")()
    env.step(ZEROS)


def test_asking_while_a_step_is_pending(over):
    env, _ = over()
    env.reset(seed=0)
    env.step_async(ZEROS)
    for ask in (lambda: env.get_attr("t"), lambda: env.set_attr("t", 1), env.render):
        with pytest.raises(AlreadyPendingCallError, match="pending call to `step` to complete"):
            ask()
    assert env.np_random_seed == (0, 1, 2)
    env.step_wait()
    assert env.get_attr("t") == (1, 1, 1)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_waiting_for_nothing(over, name):
    env, _ = over()
    with pytest.raises(NoAsyncCallError) as caught:
        getattr(env, f"{name}_wait")()
    assert str(caught.value) == f"Calling `{name}_wait` without any prior call to `{name}_async`."
    assert caught.value.name == name
    env.reset()
    other = "step" if name != "step" else "reset"
    begin(env, other)
    with pytest.raises(NoAsyncCallError):
        getattr(env, f"{name}_wait")()
    getattr(env, f"{other}_wait")()


@pytest.mark.parametrize("name", ["reset", "step", "call", "get_attr", "set_attr", "render", "reset_wait", "step_wait"])
def test_after_the_end(over, name):
    env, _ = over()
    env.close()
    arguments = {**CALLS, "get_attr": ("t",), "set_attr": ("t", 1)}.get(name, ())
    with pytest.raises(ClosedEnvironmentError) as caught:
        getattr(env, name)(*arguments)
    assert str(caught.value) == "Trying to operate on `RemoteVecEnv`, after a call to `close()`."
    assert env.np_random_seed == (None, None, None)


def test_steps_need_a_reset(over):
    env, fleet = over()
    with pytest.raises(ResetNeeded):
        env.step(ZEROS)
    with pytest.raises(ResetNeeded, match="env 1 was never reset"):
        env.reset(seed=0, options={"reset_mask": np.array([True, False, True])})
    assert [made.heard for made in fleet.made[1:]] == [[]] * 3  # the first is the one that the server looked at
    env.reset(seed=0, options={"reset_mask": np.ones(3, bool)})
    env.step(ZEROS)


def test_finished_envs_without_autoreset(over):
    env, fleet = over(autoreset_mode="Disabled")
    env.reset(seed=0)
    for _ in range(3):
        env.step(ZEROS)
    with pytest.raises(AssertionError, match=r"the episodes of env\(s\) \[0, 1, 2\] are over") as caught:
        env.step(ZEROS)
    assert isinstance(caught.value, ResetNeeded)
    assert {len(heard) for heard in fleet.heard()} == {4}  # one reset and three steps
    env.reset(options={"reset_mask": np.array([True, False, True])})
    with pytest.raises(AssertionError, match=r"the episodes of env\(s\) \[1\] are over"):
        env.step(ZEROS)
    assert [len(heard) for heard in fleet.heard()] == [5, 4, 5]
    env.reset(options={"reset_mask": np.array([False, True, False])})
    env.step(ZEROS)


def test_arguments_are_checked_in_gymnasiums_order(over):
    """The number of seeds, then whether something is pending, then the mask."""
    env, _ = over()
    env.reset(seed=0)
    env.step_async(ZEROS)
    with pytest.raises(ValueError, match="the length must match num_envs=3 but got length=2"):
        env.reset_async(seed=[1, 2], options={"reset_mask": [True]})
    with pytest.raises(AlreadyPendingCallError):
        env.reset_async(options={"reset_mask": [True]})
    with pytest.raises(AlreadyPendingCallError):
        env.step_async([0])
    env.step_wait()
    env.close()
    with pytest.raises(ClosedEnvironmentError):
        env.reset_async(seed=[1, 2])


@pytest.mark.parametrize("name", ["reset", "step", "close", "_setattr", "_check_spaces"])
def test_what_is_not_to_be_called_so(over, name):
    env, fleet = over()
    text = f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
    for call in (env.call, env.call_async):
        with pytest.raises(ValueError, match=re.escape(text)):
            call(name)
    env.reset(seed=0)
    assert {len(heard) for heard in fleet.heard()} == {1}


@pytest.mark.parametrize(
    "actions, error, text",
    [
        ([0, 0], ValueError, "2 actions for 3 envs"),
        ([0] * 4, ValueError, "4 actions for 3 envs"),
        (3, TypeError, "Unable to iterate over the following elements"),
        (None, TypeError, "Unable to iterate over the following elements"),
    ],
)
def test_bad_actions_leave_all_as_it_was(over, actions, error, text):
    env, fleet = over()
    env.reset(seed=0)
    with pytest.raises(error, match=text):
        env.step(actions)
    assert {len(heard) for heard in fleet.heard()} == {1}
    env.step(ZEROS)


def test_bad_arguments_leave_all_as_it_was(over):
    env, fleet = over()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="got length=2"):
        env.reset(seed=[1, 2])
    with pytest.raises(TypeError, match="must be a numpy array"):
        env.reset(options={"reset_mask": [True] * 3})
    with pytest.raises(ValueError, match="Got `2` values for 3 environments"):
        env.set_attr("t", [1, 2])
    with pytest.raises(PackError):
        env.reset(options={"what": object()})
    assert {len(heard) for heard in fleet.heard()} == {1}
    assert env.np_random_seed == (0, 1, 2)
    env.step(ZEROS)


@pytest.mark.parametrize("connections", [1, 2])
@pytest.mark.parametrize("name", sorted(CALLS))
def test_time_runs_out(name, connections):
    gate = Gate()
    on = {"reset": lambda env: gate() if env.level == 2 else None}
    factory = Factory(Count, {"habits": {1: gate}, "on": on})
    with (
        running(create_app(factory, allow_set={"level"}, allow_call={"wait"}, max_workers=2)) as url,
        RemoteVecEnv(url, 2, connections=connections) as env,
    ):
        for made in factory.envs:
            made.wait = gate
        env.reset(seed=0)
        env.step([0, 0])
        env.set_attr("level", [1, 2])
        env.reset_async() if name == "reset" else env.step_async([0, 1]) if name == "step" else env.call_async("wait")
        with pytest.raises(multiprocessing.TimeoutError, match=f"`{name}` for env .* within 0.1 second") as caught:
            getattr(env, f"{name}_wait")(timeout=0.1)
        assert isinstance(caught.value, TimeoutError)
        with pytest.raises(NoAsyncCallError):
            getattr(env, f"{name}_wait")()
        gate.open()
        if name == "call":  # which changes nothing of an episode
            assert env.step([0, 0])[0].tolist() == [[2], [2]]
        else:
            with pytest.raises(ResetNeeded):
                env.step([0, 0])
        assert env.reset(seed=0)[0].tolist() == [[0], [0]]
        assert env.step([0, 0])[0].tolist() == [[1], [1]]


@pytest.mark.parametrize("arguments", [{}, {"timeout": 1}, {"terminate": True}, {"unknown": 3}], ids=str)
@pytest.mark.parametrize("name", sorted(CALLS))
def test_closing_while_pending(over, name, arguments):
    env, _ = over()
    env.reset(seed=0)
    begin(env, name)
    text = f"Calling `close` while waiting for a pending call to `{name}` to complete."
    with pytest.warns(UserWarning, match=text):
        env.close(**arguments)
    assert env.closed
    env.close()
    with pytest.raises(ClosedEnvironmentError):
        env.step_wait()


@pytest.mark.parametrize("options", [{}, {"connections": 2}, {"dialect": "openenv"}], ids=str)
@pytest.mark.parametrize("way", ["waits", "timeout", "terminate"])
@pytest.mark.parametrize("sends", [False, True], ids=["step_async", "send"])
def test_closing_waits_for_steps_within_its_limit(options, way, sends):
    gate = Gate()
    app = create_app(Factory(Count, {"habits": {1: gate}}), max_workers=2)
    with running(app) as url, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Calling `close` while waiting")
        env = RemoteVecEnv(url, 2, close_timeout_s=3600, **options)
        env.reset()
        (env.send if sends else env.step_async)([1, 1])
        assert gate.reached.wait(LIMIT_S)
        if way == "waits":
            threading.Timer(0.1, gate.open).start()
        env.close(**{"waits": {}, "timeout": {"timeout": 0.1}, "terminate": {"terminate": True}}[way])
        assert gate.passed.is_set() == (way == "waits")
        gate.open()
        wait_until(lambda: app.state.registry.capacity.active == 0)


def test_closing_when_the_server_is_gone():
    server = LocalServer("CartPole-v1")
    env = RemoteVecEnv(server.url, 2, token=server.token)
    env.reset()
    server.close()
    env.close()
    env.close()
    assert env.closed


def test_threads_that_call_at_once(over):
    env, _ = over()
    env.reset(seed=0)
    barrier, outcomes = threading.Barrier(4), []

    def step():
        barrier.wait()
        try:
            outcomes.append(env.step(ZEROS)[1].tolist())
        except AlreadyPendingCallError:
            outcomes.append("pending")

    threads = [threading.Thread(target=step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stepped = [outcome for outcome in outcomes if outcome != "pending"]
    assert stepped
    assert all(len(rewards) == 3 for rewards in stepped)
    assert env.get_attr("t") == (len(stepped) % 4,) * 3  # the fourth is an autoreset


ENDS = {
    "never closed": ("", 0),
    "raises": ("raise SystemExit(3)", 3),
    "pending": ("env.step_async([0, 0])", 0),
    "never closed, in a global": ("import builtins; builtins.kept = env", 0),
    "fails in the constructor": (
        (
            "try: RemoteVecEnv(server.url, 2, token=server.token, include=['missing'])\n"
            "except Exception: raise SystemExit(4)"
        ),
        4,
    ),
    "unknown option": ("RemoteVecEnv(server.url, tokn=1)", 1),
}


@pytest.mark.parametrize("name", sorted(ENDS))
def test_every_end_is_quiet(name):
    code, status = ENDS[name]
    script = (
        "from openenv_gym import LocalServer, RemoteVecEnv\n"
        "server = LocalServer('CartPole-v1')\n"
        "print(server.pid, flush=True)\n"
        "env = RemoteVecEnv(server.url, 2, token=server.token)\n"
        f"env.reset(seed=0)\n{code}\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    assert "Exception ignored" not in done.stderr
    assert status == 1 or done.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


@pytest.mark.parametrize("dialect", [None, "openenv"])
def test_a_factory_that_returns_the_same_env_twice_is_told(dialect):
    env = Fleet([Script(BOX)])()
    with pytest.raises(RuntimeError, match="the factory returned the same env twice; it must make a new one") as caught:
        RemoteVecEnv.local(lambda: env, num_envs=2, dialect=dialect)
    assert dialect or isinstance(caught.value, ValueError)
    with RemoteVecEnv.local(lambda: env, dialect=dialect) as alone:
        alone.reset()
