"""Where a vector step's time goes: first by the rules alone, on a clock of the test's, then against real servers."""

import json
import threading
import time
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from helpers_faults import DOWN, FaultProxy
from helpers_server import running
from helpers_tally import Endless, Gated, Sleeper
from helpers_wait import LIMIT_S, wait_until

from openenv_gym import RemoteVecEnv, stats
from openenv_gym.messages import Timings
from openenv_gym.server import batch_dialect, create_app
from openenv_gym.stats import MEANINGS, PARTS, SERVER_AND_NETWORK, WHOLE, Recorder, Stats, Trip

SERVER = Timings(0.001, 0.002, 0.003, 0.004, 0.005)
UNKNOWN = ["hand_over", "encode", SERVER_AND_NETWORK, "decode", "hand_back"]
NEAR = 1e-9  # a clock's readings are some thousand seconds, as floats


def assert_they_add_up(samples):
    """In each step the parts are the whole, and none of them is less than nothing."""
    parts = np.stack([seconds for name, seconds in samples.items() if name != WHOLE])
    np.testing.assert_allclose(parts.sum(axis=0), samples[WHOLE], rtol=0, atol=NEAR)
    assert parts.min() >= -NEAR


# ---------------------------------------------------------------------------------------------- by the rules


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(stats, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def record(recorder, clock, *, start=100.0, server=SERVER, waiting=1.0, trip=True):
    """A step of 10 seconds, begun at ``start``: each point is so many seconds later."""
    for moment, what in (
        (0.0, recorder.begin),
        (waiting, recorder.wait),
        (9.0, lambda: recorder.take(Trip(*(start + t for t in (0.5, 1.0, 2.0, 7.0, 8.0)), server) if trip else None)),
        (10.0, recorder.end),
    ):
        clock.now = start + moment
        what()


def test_the_parts_of_a_step(clock):
    recorder = Recorder()
    recorder.collect(True)
    record(recorder, clock)
    samples = recorder.samples()
    assert list(samples) == [*PARTS, WHOLE]
    expected = [0.5, 1.5, 5 - 0.015, 0.001, 0.002, 0.003, 0.004, 0.005, 2.0, 1.0, 10.0]
    np.testing.assert_allclose([seconds[0] for seconds in samples.values()], expected)


def test_time_that_the_caller_spends_elsewhere_is_not_the_steps(clock):
    recorder = Recorder()
    recorder.collect(True)
    record(recorder, clock, waiting=8.75)  # the reply was there at 8.0
    samples = recorder.samples()
    assert (samples["hand_back"][0], samples[WHOLE][0]) == (0.25, 9.25)
    assert_they_add_up(samples)


def test_a_server_that_says_nothing_is_one_with_the_network(clock):
    recorder = Recorder()
    recorder.collect(True)
    record(recorder, clock)
    record(recorder, clock, server=None)
    samples = recorder.samples()
    assert list(samples) == [*UNKNOWN, WHOLE]
    assert samples[SERVER_AND_NETWORK].tolist() == pytest.approx([5.0, 5.0])
    assert_they_add_up(samples)
    recorder.collect(True)  # anew
    record(recorder, clock)
    assert list(recorder.samples()) == [*PARTS, WHOLE]


def test_nothing_is_collected_unasked(clock):
    recorder = Recorder()
    record(recorder, clock, trip=False)
    assert recorder.stats(Stats(3)) == Stats(3, vector_steps=1)


def test_a_step_that_failed_leaves_nothing_to_the_next(clock):
    recorder = Recorder()
    recorder.collect(True)
    recorder.begin()
    recorder.take(Trip(0.5, 1.0, 2.0, 7.0, 8.0, SERVER))
    record(recorder, clock, trip=False)
    assert recorder.stats(Stats(1)).collected == 0


def test_the_latest_are_kept(clock, monkeypatch):
    monkeypatch.setattr(stats, "_KEPT", 4)
    recorder = Recorder()
    recorder.collect(True)
    for n in range(6):
        record(recorder, clock, waiting=8.0 + n / 8)
        assert recorder.samples()[WHOLE].tolist() == [10 - i / 8 for i in range(max(0, n - 3), n + 1)]
    recorder.collect(False)
    assert recorder.stats(Stats(1)).collected == 4


def test_what_is_shown(clock):
    recorder = Recorder()
    recorder.collect(True)
    record(recorder, clock)
    shown = recorder.stats(Stats(2, reconnects=1, bytes_up=12345))
    text = str(shown)
    assert "bytes up                    12,345" in text
    assert "hand_over             500,000.0    5.0%  500,000.0  500,000.0  500,000.0" in text
    assert "server_decode           1,000.0    0.0%    1,000.0    1,000.0    1,000.0" in text
    assert text.splitlines()[-1].startswith("whole                10,000,000.0  100.0%")
    assert text.endswith("   what the caller waits for")
    assert set(MEANINGS) == {*PARTS, SERVER_AND_NETWORK, WHOLE}
    assert "5.0%: mean 500,000.0 µs" in shown._repr_html_()
    assert "whole" not in str(Stats(2)) + Stats(2)._repr_html_()


def test_the_schema_is_stable(clock):
    """Programs read it: a name is only ever added."""
    recorder = Recorder()
    recorder.collect(True)
    record(recorder, clock)
    data = json.loads(json.dumps(recorder.stats(Stats(2)).to_dict()))
    whole = {"name": "whole", "mean_us": 1e7, "p50_us": 1e7, "p95_us": 1e7, "p99_us": 1e7}
    assert data.pop("whole") == pytest.approx(whole)
    server = ["server_decode", "queue", "hop", "env", "server_encode"]
    names = ["hand_over", "encode", "network", *server, "decode", "hand_back"]
    assert [part["name"] for part in data["parts"]] == names
    assert {tuple(part) for part in data.pop("parts")} == {tuple(whole)}
    assert data.pop("steps_per_s") == pytest.approx(0.2)
    assert data == {
        "num_envs": 2,
        "vector_steps": 1,
        "env_steps": 0,
        "reconnects": 0,
        "sessions_lost": 0,
        "bytes_up": 0,
        "bytes_down": 0,
        "collected": 1,
    }


# ------------------------------------------------------------------------------------------------ real servers


def pause():
    """Let some time pass, and say how much."""
    begun = time.perf_counter()
    threading.Event().wait(0.05)
    return time.perf_counter() - begun


@pytest.fixture(scope="module")
def app():
    return create_app(Sleeper, max_workers=4)


@pytest.fixture(scope="module")
def url(app):
    with running(app) as url:
        yield url


def test_counters_cost_no_asking(app, url):
    with RemoteVecEnv(url, 3) as envs:
        assert envs.stats() == Stats(3)
        envs.reset()
        for _ in range(4):
            envs.step(np.zeros(3))
        (session,) = app.state.registry.sessions.values()
        frames = session.protocol.replies.values()
        shown = envs.stats()
        assert (shown.vector_steps, shown.env_steps, shown.reconnects, shown.sessions_lost) == (4, 12, 0, 0)
        assert shown.bytes_down == sum(map(len, frames))
        assert shown.bytes_up > 4 * 3 * 8
        assert (shown.collected, shown.parts, shown.whole, shown.steps_per_s) == (0, (), None, None)
    assert envs.stats().env_steps == 12  # closed


@pytest.mark.parametrize("connections", [1, 3])
def test_the_parts_add_up_to_the_whole(url, connections):
    with RemoteVecEnv(url, 3, connections=connections) as envs:
        envs.reset()
        envs.stats(collect=True)
        begun = time.perf_counter()
        for _ in range(30):
            envs.step(np.zeros(3))
        took = time.perf_counter() - begun
        samples, shown = envs.rollout.recorder.samples(), envs.stats(collect=False)
        assert list(samples) == [*PARTS, WHOLE]
        assert_they_add_up(samples)
        assert samples[WHOLE].sum() <= took
        assert sum(part.mean_us for part in shown.parts) == pytest.approx(shown.whole.mean_us)
        assert (shown.collected, shown.env_steps) == (30, 90)
        envs.step(np.zeros(3))
        assert (envs.stats().collected, envs.stats().env_steps) == (30, 93)


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("row", [0, 2])
def test_an_env_that_takes_long_shows_in_env(row, connections):
    """On whichever connection: the slowest is what the caller waits for."""
    gate, entered = threading.Event(), threading.Semaphore(0)

    class Slow(Sleeper):
        def step(self, action):
            entered.release()
            assert not action or gate.wait(LIMIT_S)
            return super().step(0.0)

    app = create_app(Slow, max_workers=4)
    with running(app) as url, RemoteVecEnv(url, 3, connections=connections) as envs:
        envs.reset()
        envs.stats(collect=True)
        before = [(link.traffic, link.traffic.bytes_down) for link in envs.rollout.pool.links]
        envs.step_async(np.where(np.arange(3) == row, 1.0, 0.0))
        assert all(entered.acquire(timeout=LIMIT_S) for _ in range(3))
        wait_until(lambda: sum(t.bytes_down > n for t, n in before) == connections - 1, "the replies of the others")
        waited = pause()
        gate.set()
        envs.step_wait()
        samples = envs.rollout.recorder.samples()
        assert samples["env"][0] >= waited
        assert samples["queue"][0] <= samples[WHOLE][0] - waited
        assert_they_add_up(samples)


def test_a_busy_server_thread_shows_in_queue():
    gate, entered = threading.Event(), threading.Semaphore(0)
    app = create_app(lambda: Gated(gate, entered), max_workers=1)
    with running(app) as url, RemoteVecEnv(url) as first, RemoteVecEnv(url) as second:
        first.reset()
        second.reset()
        second.stats(collect=True)
        first.step_async([0])
        assert entered.acquire(timeout=LIMIT_S)
        second.step_async([0])
        (worker,) = app.state.registry._executor._workers
        wait_until(lambda: worker._queue.qsize() == 1)
        waited = pause()
        gate.set()
        first.step_wait()
        second.step_wait()
        samples = second.rollout.recorder.samples()
        assert samples["queue"][0] >= waited
        assert samples["env"][0] <= samples[WHOLE][0] - waited
        assert_they_add_up(samples)


def test_a_cut_connection_shows_in_network():
    app = create_app(Sleeper, max_workers=1)
    with running(app) as url, FaultProxy(url) as proxy, RemoteVecEnv(proxy.url, 2) as envs:
        envs.reset()
        envs.stats(collect=True)
        envs.step(np.zeros(2))
        proxy.hold(DOWN)
        envs.step_async(np.zeros(2))
        (session,) = app.state.registry.sessions.values()
        wait_until(lambda: len(session.protocol.replies) == 3)  # the server's part is over
        waited = pause()
        proxy.cut()
        proxy.release()
        envs.step_wait()
        samples = envs.rollout.recorder.samples()
        assert samples["network"][1] >= waited
        assert_they_add_up(samples)
        assert envs.stats().collected == 2
        wait_until(lambda: envs.stats().reconnects == 1)  # which is counted after what a resume brings


def test_a_server_that_knows_nothing_of_it(url, monkeypatch):
    """As one of an earlier version, which ignores the field in the request."""
    monkeypatch.setattr(batch_dialect, "Laps", lambda arrived: None)
    with RemoteVecEnv(url, 2) as envs:
        envs.reset()
        envs.stats(collect=True)
        envs.step(np.zeros(2))
        assert [part.name for part in envs.stats().parts] == UNKNOWN
        assert_they_add_up(envs.rollout.recorder.samples())


def test_a_stock_openenv_server():
    openenv = pytest.importorskip("helpers_openenv")
    options = {"autoreset_mode": "SameStep", "action_space": gym.spaces.Dict(push=gym.spaces.Discrete(2))}
    with openenv.stock_server(openenv.CartPole) as url, RemoteVecEnv(url, 3, **options) as envs:
        envs.reset()
        envs.stats(collect=True)
        for _ in range(60):  # long enough for episodes to end, whose envs are reset by messages of their own
            envs.step(envs.action_space.sample())
        shown = envs.stats()
        assert [part.name for part in shown.parts] == UNKNOWN
        assert (shown.collected, shown.env_steps) == (60, 180)
        assert shown.bytes_up > 0 < shown.bytes_down
        assert_they_add_up(envs.rollout.recorder.samples())


def test_rows_of_a_lost_session_are_no_steps(app):
    with running(create_app(Endless, grace_s=0)) as url, FaultProxy(url) as proxy, RemoteVecEnv(proxy.url, 2) as envs:
        envs.reset()
        envs.stats(collect=True)
        envs.step(np.zeros(2, np.int64))
        proxy.cut()
        with pytest.warns(UserWarning, match="truncated"):
            assert envs.step(np.zeros(2, np.int64))[3].all()
        shown = envs.stats()
        assert (shown.sessions_lost, shown.vector_steps, shown.env_steps, shown.collected) == (1, 2, 2, 1)
