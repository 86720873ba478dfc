"""Calls over links: limits, interrupts, threads and ends."""

import asyncio
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded
from helpers_envs import Count, Factory, Gate
from helpers_faults import FaultProxy, ScriptedServer, free_port
from helpers_server import running
from helpers_tally import Endless, Gated, Sleeper, Tally
from helpers_wait import LIMIT_S, wait_until

from openenv_gym import RemoteVecEnv
from openenv_gym.errors import ConnectFailed, ConnectionLost, LocalProtocolError, ReplyTimeout
from openenv_gym.messages import WINDOW, Reset
from openenv_gym.server import create_app

DIALECTS = pytest.mark.parametrize("dialect", [None, "openenv"])


@contextmanager
def sleepers(num_envs, **options):
    """A vector env of `Sleeper`s, one connection for each."""
    with (
        running(create_app(Sleeper, max_workers=num_envs)) as url,
        RemoteVecEnv(url, num_envs, connections=num_envs, **options) as env,
    ):
        yield env


@contextmanager
def gated(num_envs, *, resets=False, server=None, **options):
    """A vector env of `Count`s, one connection for each: action 1 waits for the gate; so do resets, if wanted."""
    gate = Gate()
    factory = Factory(Count, {"habits": {1: gate}, "on": {"reset": gate} if resets else {}, "length": 1000})
    app = create_app(factory, max_workers=2 * num_envs, **(server or {}))
    try:
        with (
            running(app) as url,
            FaultProxy(url) as proxy,
            RemoteVecEnv(proxy.url, num_envs, connections=num_envs, **options) as env,
        ):
            try:
                yield env, gate, proxy
            finally:
                gate.open()
    finally:
        gate.open()


@pytest.fixture(scope="module")
def openenv():
    return pytest.importorskip("helpers_openenv")


# ------------------------------------------------------------------------------------------------- limits


def test_a_step_has_its_limit_and_a_reset_another():
    with gated(2, message_timeout_s=0.3, reset_timeout_s=30) as (env, _, proxy):
        proxy.delay_s = 0.3
        env.reset()  # which takes longer than a step may
        proxy.delay_s = 0.0
        env.step_async([0, 1])
        call = env._turns.pending.call
        wait_until(lambda: call.results[0] is not None, "the step that isn't late")
        started = time.monotonic()
        with pytest.raises(ReplyTimeout) as late:
            env.step_wait()
        assert time.monotonic() - started < 20
        url = env.rollout.pool.links[1].url
        assert (late.value.phase, late.value.url, late.value.limit_s, late.value.envs) == ("step", url, 0.3, (1,))
        assert str(late.value) == f"no reply to `step` for env 1 from {url} within 0.3 second(s)"
        assert isinstance(late.value, multiprocessing.TimeoutError | TimeoutError)


@DIALECTS
def test_a_late_env_is_late_however_soon_the_loop_thread_gives_it_up(dialect, monkeypatch):
    """It isn't lost, though giving it up ends its session in OpenEnv's dialect."""

    async def settle():
        for _ in range(10):
            await asyncio.sleep(0)

    with gated(1, dialect=dialect) as (env, gate, _):
        env.reset()
        env.step_async([1])
        assert gate.reached.wait(LIMIT_S)
        loop = env.rollout.pool._loop
        call_soon = loop.call_soon
        monkeypatch.setattr(loop, "call_soon", lambda callback: (call_soon(callback), loop.run(settle())))
        with pytest.raises(ReplyTimeout, match="`step` for env 0"):
            env.step_wait(timeout=0.1)
        monkeypatch.undo()


def test_a_reset_has_a_limit():
    with gated(2, resets=True, reset_timeout_s=0.3) as (env, *_):
        with pytest.raises(ReplyTimeout, match=r"`reset` for env 0-1 .* 0\.3 "):
            env.reset()


def test_the_limit_is_for_all_envs_together():
    """Eight envs on one thread take four seconds; each alone would be in time."""
    with running(create_app(Sleeper, max_workers=1)) as url, RemoteVecEnv(url, 8, reset_timeout_s=30) as env:
        env.reset()
        env.step_async([0.5] * 8)
        with pytest.raises(ReplyTimeout, match="for env 0-7 "):
            env.step_wait(timeout=1.0)


def test_connecting_has_a_limit():
    started = time.monotonic()
    with (
        running(create_app(Sleeper, env_kwargs={"built_within_s": 0.8}, max_workers=1)) as url,
        pytest.raises(ReplyTimeout, match=r"`connect` for env 0-9 .* within 4\.1 second"),
    ):
        RemoteVecEnv(url, 10, connect_timeout_s=4.0, reset_timeout_s=0.1)
    assert time.monotonic() - started < 30


def test_connecting_names_the_server_that_is_late():
    def deaf(connection):
        return connection.wait_closed()

    with (
        running(create_app(Tally)) as url,
        ScriptedServer(deaf, "openenv-gym.v1") as late,
        pytest.raises(ReplyTimeout, match=f"`connect` for env 3-4 from {late.url.replace('http', 'ws')}"),
    ):
        RemoteVecEnv([url, late.url], 5, connect_timeout_s=5.0, reset_timeout_s=0.1)


def test_a_closed_port_is_told_at_once():
    with FaultProxy(1) as proxy:
        proxy.refuse()
        with pytest.raises(ConnectFailed, match="connection refused"):
            RemoteVecEnv(proxy.url, 2)


@pytest.mark.parametrize("limit", [float("inf"), 1e12])
def test_there_may_be_no_limit(limit):
    with sleepers(1, message_timeout_s=limit) as env:
        env.reset()
        env.step([0.0])


def test_what_cannot_be_sent_is_told_at_once():
    with sleepers(1, reset_timeout_s=60) as env:
        started = time.monotonic()
        (error,) = env.rollout.pool.call([(0, Reset(0, None, [object()], None))], "reset", 60)
        assert isinstance(error, LocalProtocolError)
        assert "can't be sent" in str(error)
        assert time.monotonic() - started < 10
        env.reset(seed=2**62)


# ---------------------------------------------------------------------------------------- no stale replies


def stale_frames(env, act, turns=100):
    """Step with random delays around the limit, and count what came back that isn't of the last reset and step."""
    rng = random.Random(1)
    late = stale = 0
    for mark in range(turns):
        observation = env.reset(options={"mark": mark})[0]
        stale += not same(observation, mark, 0)
        for t in (1, 2, 3):
            try:
                observation = env.step(act(rng.choice([0.0, 0.0, 0.004, 0.008, 0.012, 0.03])))[0]
                stale += not same(observation, mark, t)
            except ReplyTimeout:
                late += 1
                with pytest.raises(ResetNeeded):
                    env.step(act(0.0))
                break
    return late, stale


def same(observation, mark, t):
    if isinstance(observation, dict):
        return observation["mark"].tolist() == [mark] and observation["count"].tolist() == [t]
    return observation.tolist() == [[mark, t]]


def test_late_replies_are_never_taken_for_others():
    with sleepers(1, message_timeout_s=0.01, reset_timeout_s=20) as env:
        late, stale = stale_frames(env, lambda s: np.array([s]))
        assert late > 20
        assert stale == 0


def test_late_replies_of_openenv_servers_are_never_taken_for_others(openenv):
    with openenv.stock_server(max_envs=2) as url:
        options = {"message_timeout_s": 0.01, "reset_timeout_s": 20}
        with RemoteVecEnv(url, 1, **openenv.COUNT_SPACES, **options) as env:
            late, stale = stale_frames(env, lambda s: {"sleep": np.array([s])}, turns=40)
        assert late > 10
        assert stale == 0
        wait_until(lambda: not openenv.Count.live)


def test_after_many_late_replies_a_reset_opens_another_session():
    with gated(1, server={"max_envs": 2}) as (env, gate, _):
        env.reset()
        env.step_async([1])
        with pytest.raises(ReplyTimeout):
            env.step_wait(timeout=0.05)
        for _ in range(WINDOW - 1):
            env.reset_async()
            with pytest.raises(ReplyTimeout):
                env.reset_wait(timeout=0.05)
        assert env.reset()[0].tolist() == [[0]]  # while the old env still waits for the gate
        assert not gate.passed.is_set()
        assert env.rollout.pool.links[0].counters["sessions_lost"] == 1


# -------------------------------------------------------------------------------------------------- pings


def pinged(proxy):
    """Whether many pings and pongs went in both directions since this was made; a step's messages are much shorter."""
    before = proxy.bytes_up, proxy.bytes_down
    return lambda: proxy.bytes_up > before[0] + 1000 and proxy.bytes_down > before[1] + 1000


@DIALECTS
def test_pings_are_answered_while_the_learner_computes(dialect):
    app = create_app(Endless, ping_interval_s=0.01)
    with running(app) as url, FaultProxy(url) as proxy, RemoteVecEnv(proxy.url, 2, dialect=dialect) as env:
        env.reset(seed=1)
        enough, end = pinged(proxy), time.monotonic() + LIMIT_S
        while not enough():
            sum(range(1000))
            assert time.monotonic() < end
        assert env.step([0, 0])[0][:, 1].tolist() == [1, 1]
        assert env.rollout.pool.links[0].counters == {"reconnects": 0, "sessions_lost": 0}
        assert len(app.state.registry.sessions) == len(env.rollout.pool.links)


@DIALECTS
@pytest.mark.parametrize("side", ["client", "server"])
def test_pings_are_answered_while_an_env_computes(side, dialect):
    pings = {"ping_interval_s": 0.01}
    options = {"server": pings} if side == "server" else pings
    with gated(2, dialect=dialect, **options) as (env, gate, proxy):
        env.reset()
        env.step_async([1, 0])
        assert gate.reached.wait(LIMIT_S)
        wait_until(pinged(proxy), "pings and their answers")
        gate.open()
        assert env.step_wait()[0].tolist() == [[1], [1]]
        assert env.rollout.pool.links[0].counters == {"reconnects": 0, "sessions_lost": 0}


@pytest.mark.parametrize("interval", [None, 0.1])
def test_pings_can_be_switched_off(interval):
    app = create_app(Tally, ping_interval_s=interval)
    with running(app) as url, FaultProxy(url) as proxy, RemoteVecEnv(proxy.url, 2, ping_interval_s=interval) as env:
        env.reset(seed=1)
        env.step([0, 0])
        if interval is None:
            wait_until(lambda: proxy.settled)
        before = proxy.bytes_up, proxy.bytes_down
        if interval is None:
            threading.Event().wait(1.0)
            assert (proxy.bytes_up, proxy.bytes_down) == before
        else:
            wait_until(lambda: proxy.bytes_up > before[0] + 10 and proxy.bytes_down > before[1] + 10)


def test_a_peer_that_answers_no_pings_is_left_and_found_again():
    with (
        running(create_app(Tally)) as url,
        FaultProxy(url) as proxy,
        RemoteVecEnv(proxy.url, 2, ping_interval_s=0.1, ping_timeout_s=0.5) as env,
    ):
        env.reset(seed=1)
        counters = env.rollout.pool.links[0].counters
        before = counters["reconnects"]  # a busy server may have been too late as well
        proxy.hold()
        proxy.stay_dead()
        wait_until(lambda: counters["reconnects"] > before)
        assert env.step([0, 0])[0][:, 1].tolist() == [1, 1]


# ------------------------------------------------------------------------------------------ close, several


@pytest.mark.parametrize("options", [{"connections": 32}, {"dialect": "openenv"}], ids=str)
def test_closing_is_bounded_and_parallel_where_the_server_is_frozen(process, options, monkeypatch):
    env = RemoteVecEnv(process.url, 32, **options)
    env.reset(seed=1)
    process.freeze()
    try:
        started = time.monotonic()
        env.close()
        assert time.monotonic() - started < 20  # one after the other would take a minute
        monkeypatch.delattr("openenv_gym.pool.close_links")  # there is nothing left to be closed
        env.close()
    finally:
        process.thaw()


def test_closing_frees_the_room():
    app = create_app(Tally, max_envs=4)
    with running(app) as url:
        for _ in range(3):
            RemoteVecEnv(url, 4, connections=2, close_timeout_s=30).close()
            assert app.state.registry.capacity.active == 0


def test_closing_while_a_connection_is_resumed_frees_the_room_too():
    app = create_app(Tally, max_envs=4)
    with running(app) as url, FaultProxy(url) as proxy:
        env = RemoteVecEnv(proxy.url, 4, close_timeout_s=30)
        env.reset(seed=1)
        proxy.cut()
        env.close()
        assert app.state.registry.capacity.active == 0


def test_closing_during_a_step():
    gate, entered = threading.Event(), threading.Semaphore(0)
    app = create_app(lambda: Gated(gate, entered), max_workers=2)
    with running(app) as url:
        env = RemoteVecEnv(url, 2, close_timeout_s=60)
        env.reset(seed=1)
        env.step_async([0, 0])
        assert entered.acquire(timeout=20)
        started = time.monotonic()
        with pytest.warns(UserWarning, match="pending call to `step`"):
            env.close(timeout=0.2)
        assert time.monotonic() - started < 30
        gate.set()
        wait_until(lambda: app.state.registry.capacity.active == 0)


def test_several_envs_live_side_by_side():
    app = create_app(Tally)
    with running(app) as url:
        envs = [RemoteVecEnv(url, n) for n in (1, 2, 3)]
        for env in envs:
            env.reset(seed=1)
        envs[1].close()
        for env in (envs[0], envs[2]):
            assert env.step([0] * env.num_envs)[0][:, 1].tolist() == [1] * env.num_envs
            env.close()


def test_an_env_that_nobody_keeps_is_closed():
    app = create_app(Tally)
    with running(app) as url:
        env = RemoteVecEnv(url, 2)
        env.reset(seed=1)
        del env
        wait_until(lambda: app.state.registry.capacity.active == 0)


# ------------------------------------------------------------------------------- threads, interrupts, forks


def test_a_second_thread_is_refused_and_nothing_is_mixed_up():
    with running(create_app(Tally)) as url, RemoteVecEnv(url, 4) as env:
        env.reset(seed=1)
        outcomes = Counter()
        start = threading.Barrier(4)
        lock = threading.Lock()
        seen = []

        def hammer(number):
            start.wait()
            for _ in range(100):
                try:
                    observations = env.step(np.full(4, number))[0]
                except AlreadyPendingCallError:
                    outcome = "refused"
                else:
                    outcome = "stepped"
                    with lock:
                        seen.append(int(observations[0, 3]))
                    assert set(observations[:, 2]) <= {number, -1}
                with lock:
                    outcomes[outcome] += 1

        errors = []

        def guarded(number):
            try:
                hammer(number)
            except BaseException as error:
                errors.append(error)

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=guarded, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        assert not errors
        assert outcomes["stepped"] > 0
        assert outcomes["refused"] > 0
        assert outcomes["stepped"] + outcomes["refused"] == 400


@DIALECTS
def test_an_env_that_is_made_in_one_loop_is_used_after_it_and_on_any_thread(dialect):
    app = create_app(Endless, max_envs=4)
    with running(app) as url, FaultProxy(url) as proxy:

        async def make():
            return RemoteVecEnv(proxy.url, 4, connections=4, dialect=dialect)

        env = asyncio.run(make())
        before, seen = proxy.accepted, []
        env.reset(seed=1)
        thread = threading.Thread(target=lambda: seen.append(env.step([0] * 4)[0][:, 1].tolist()))
        thread.start()
        thread.join()
        assert seen == [[1] * 4]
        assert (proxy.accepted, len(app.state.registry.sessions)) == (before, 4)
        assert dialect or before == 4
        env.close()


def step_until_ctrl_c(env, gate):
    """A step that is interrupted while its first env waits for the gate."""

    def interrupt():
        if gate.reached.wait(LIMIT_S):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        env.step([1, 0])
    thread.join()


@DIALECTS
def test_ctrl_c_ends_the_episode(dialect):
    with gated(2, dialect=dialect) as (env, gate, _):
        env.reset()
        step_until_ctrl_c(env, gate)
        with pytest.raises(ResetNeeded):
            env.step([0, 0])


@DIALECTS
def test_ctrl_c_drops_the_reply_that_comes_later(dialect):
    with gated(2, dialect=dialect) as (env, gate, _):
        env.reset()
        env.step([0, 0])
        step_until_ctrl_c(env, gate)
        gate.open()
        assert env.reset()[0].tolist() == [[0], [0]]
        assert env.step([0, 0])[0].tolist() == [[1], [1]]  # the step before was the second one


@pytest.mark.parametrize("call", ["step", "reset"])
def test_an_interrupt_just_after_a_request_was_sent_is_one_too(call, monkeypatch):
    """What was sent is done, but nobody waits for it: going on as if it hadn't been would be silently wrong."""
    with running(create_app(Endless)) as url, RemoteVecEnv(url, 2) as env:
        env.reset(seed=1)
        pool = env.rollout.pool
        start = pool.start

        def interrupted(requests):
            start(requests)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(pool, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                env.step([0, 0]) if call == "step" else env.reset()
        with pytest.raises(ResetNeeded):
            env.step([0, 0])
        env.reset(seed=1)
        assert env.step([0, 0])[0][:, 1].tolist() == [1, 1]


def test_a_fork_is_told_from_its_parent():
    with running(create_app(Tally)) as url, RemoteVecEnv(url, 2) as env:
        env.reset(seed=1)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                env.step([0, 0])
            except LocalProtocolError as error:
                os.write(writer, str(error).encode())
            env.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        os.close(writer)
        with os.fdopen(reader) as told:
            assert "before a fork" in told.read()
        assert env.step([0, 0])[0][:, 1].tolist() == [1, 1]  # the child has closed nothing of ours


def test_a_server_that_breaks_the_protocol_loses_the_session_only():
    async def babble(connection):
        await connection.recv()
        await connection.send(b"\x00babble")

    with ScriptedServer(babble, "openenv-gym.v1") as server, pytest.raises((RuntimeError, ConnectionLost)):
        RemoteVecEnv(server.url, 1, connect_timeout_s=5)


def test_a_failure_to_connect_has_a_short_traceback():
    with pytest.raises(ConnectFailed) as caught:
        RemoteVecEnv(f"http://127.0.0.1:{free_port()}")
    assert len("".join(traceback.format_exception(caught.value)).splitlines()) < 25
    assert "connection refused" in str(caught.value)
