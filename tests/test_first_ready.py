"""`send` and `recv`: each env gives what it gives in lock-step, whichever is ready first and whatever is cut."""

import contextlib
import random
import threading

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import SyncVectorEnv
from helpers_envs import Count, Factory, Gate, raiser
from helpers_faults import DEAF, DOWN, FIN, RST, UP, FaultProxy
from helpers_server import running
from helpers_tally import Dawdler, Endless, Tally
from helpers_wait import wait_until

from openenv_gym import RemoteVecEnv
from openenv_gym.errors import BatchError, RemoteEnvError, ReplyTimeout, SessionLost
from openenv_gym.server import create_app

MODES = ("NextStep", "SameStep", "Disabled")
LOST = "connection_lost"
N, STEPS = 6, 40


@pytest.fixture(scope="module")
def dawdlers():
    app = create_app(Dawdler, max_envs=200)
    with running(app) as url:
        yield url


# --------------------------------------------------------------------------------- the same as in lock-step


def exact(value):
    """A value as something that is equal only for the same bits and types."""
    if isinstance(value, dict):
        return {key: exact(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray) and value.dtype != object:
        return (value.dtype.str, value.shape, value.tobytes())
    return (type(value).__name__, value)


def row_of(infos, at):
    """One env's part of merged infos."""
    row = {}
    for key, value in infos.items():
        if not key.startswith("_") and infos.get(f"_{key}", [False] * (at + 1))[at]:
            row[key] = row_of(value, at) if isinstance(value, dict) else exact(value[at])
    return row


def transition(step, at):
    """One env's part of a step, or of a reset."""
    observations, *numbers, infos = step
    return (exact(observations[at]), *(exact(number[at : at + 1]) for number in numbers), row_of(infos, at))


def actions_of(env, steps):
    return np.random.default_rng(5).integers(0, env.single_action_space.n, (steps, env.num_envs))


def in_lock_step(env, steps=STEPS, seed=7):
    """Each env's transitions when all are stepped together."""
    first = env.reset(seed=seed)
    found = [[transition(first, row)] for row in range(env.num_envs)]
    for actions in actions_of(env, steps):
        step = env.step(actions)
        over = step[2] | step[3]
        for row in range(env.num_envs):
            found[row].append(transition(step, row))
        if env.metadata["autoreset_mode"].value == "Disabled" and over.any():
            reset = env.reset(options={"reset_mask": over})
            for row in np.flatnonzero(over):
                found[row].append(transition(reset, row))
    return found


def first_ready(env, steps=STEPS, seed=7, before_each=lambda: None, chance=random.Random(3)):
    """The same, when those that are ready are sent on; how many are waited for is left to chance."""
    first, actions = env.reset(seed=seed), actions_of(env, steps)
    found = [[transition(first, row)] for row in range(env.num_envs)]
    taken, idle, flying = [0] * env.num_envs, set(range(env.num_envs)), 0
    while idle or flying:
        before_each()
        chosen = chance.sample(sorted(idle), chance.randint(0 if flying else 1, len(idle)))
        for rows in (chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]):
            if rows:
                env.send([actions[taken[row], row] for row in rows], rows)
        idle -= set(chosen)
        flying += len(chosen)
        step = env.recv(chance.randint(1, flying))
        ids = step[4]["env_id"].tolist()
        assert ids == sorted(ids)
        flying -= len(ids)
        over = np.zeros(env.num_envs, np.bool_)
        for at, row in enumerate(ids):
            found[row].append(transition(step, at))
            taken[row] += 1
            over[row] = step[2][at] or step[3][at]
            if taken[row] < steps:
                idle.add(row)
        if env.metadata["autoreset_mode"].value == "Disabled" and over.any():
            reset = env.reset(options={"reset_mask": over})  # while others are in flight
            for row in np.flatnonzero(over):
                found[row].append(transition(reset, row))
    return found


class Scissors:
    """Cuts the proxy's connections after random numbers of bytes, in random ways."""

    def __init__(self, proxy, seed):
        self.proxy, self.random = proxy, random.Random(seed)

    def __call__(self):
        if not self.proxy.lit and self.random.random() < 0.3:
            how = self.random.choice([RST, FIN, DEAF])
            self.proxy.cut_after(self.random.randrange(1500), self.random.choice([UP, DOWN, None]), how)


@pytest.mark.parametrize("connections", [1, 2, N])
@pytest.mark.parametrize("mode", MODES)
def test_every_env_gives_what_it_gives_in_lock_step(mode, connections, dawdlers):
    with FaultProxy(dawdlers) as proxy:
        proxy.jitter_s = 0.002
        with RemoteVecEnv(proxy.url, N, autoreset_mode=mode, connections=connections) as env:
            found = first_ready(env, before_each=Scissors(proxy, connections))
            proxy.put_out()
            assert proxy.cuts > 3
            links = env.rollout.pool.links
            assert sum(link.counters["sessions_lost"] for link in links) == 0
            local = SyncVectorEnv([Tally] * N, autoreset_mode=mode)
            assert found == in_lock_step(local)
            assert in_lock_step(env) == in_lock_step(local)  # `step` goes on where that ended


@pytest.fixture(scope="module")
def openenv():
    """Real OpenEnv servers, one for each environment."""
    return pytest.importorskip("helpers_openenv", reason="needs openenv")


@pytest.mark.parametrize("mode", MODES)
def test_the_same_on_an_openenv_server(mode, openenv):
    with openenv.stock_server(openenv.CartPole, max_envs=2 * N) as url, FaultProxy(url) as proxy:
        proxy.jitter_s = 0.004
        spaces = {**openenv.CARTPOLE_SPACES, "max_episode_steps": 9}
        with RemoteVecEnv(proxy.url, N, autoreset_mode=mode, **spaces) as env:
            found = first_ready(env)
        with RemoteVecEnv(url, N, autoreset_mode=mode, **spaces) as env:
            assert found == in_lock_step(env)
        assert all(sum(b"\1" in step[3][2] for step in rows if len(step) == 5) > 3 for rows in found)


def test_a_step_of_an_openenv_server_is_never_taken_twice(openenv):
    """Where its reply is lost, the row is truncated; all others count on."""
    with openenv.stock_server(openenv.Count, max_envs=8) as url, FaultProxy(url) as proxy:
        with RemoteVecEnv(proxy.url, 4, **openenv.COUNT_SPACES) as env, pytest.warns(match="its episode is truncated"):
            env.reset()
            scissors, counts, turn, lost = Scissors(proxy, 1), [0] * 4, 0, False
            env.send({"sleep": np.zeros(4)})
            while (turn := turn + 1) <= 40 or proxy.cuts < 3 or not lost:
                scissors()
                observations, _, _, truncated, infos = env.recv(1)
                lost |= "lost_reply" in infos
                for at, row in enumerate(infos["env_id"]):
                    counts[row] = -1 if truncated[at] else counts[row] + 1
                    assert truncated[at] or observations["count"][at] == counts[row]
                env.send({"sleep": np.zeros(len(truncated))}, infos["env_id"])
            proxy.put_out()
            env.recv()


# ------------------------------------------------------------------------------------------- what recv gives


@pytest.mark.parametrize("connections", [1, 3])
def test_all_at_once_is_a_step(connections):
    with running(create_app(Tally)) as url, RemoteVecEnv(url, 3, connections=connections) as env:
        local = SyncVectorEnv([Tally] * 3)
        env.reset(seed=1), local.reset(seed=1)
        for actions in actions_of(env, 30):
            env.send(actions)
            ours, theirs = env.recv(), local.step(actions)
            assert ours[4].pop("env_id").tolist() == [0, 1, 2]
            assert [exact(value) for value in ours] == [exact(value) for value in theirs]


@contextlib.contextmanager
def gated(count=4, length=1000, habits=None, resets=False, **options):
    """A vector env of `Count`s on threads of their own: action 1 waits for the gate; so do later resets, if wanted."""
    gate = Gate()
    on = {"reset": lambda env: gate() if env.count("reset") > 1 else None} if resets else {}
    factory = Factory(Count, {"length": length, "habits": {1: gate, **(habits or {})}, "on": on})
    with running(create_app(factory, max_workers=64)) as url, RemoteVecEnv(url, count, **options) as env:
        env.reset(seed=0)
        try:
            yield env, gate
        finally:
            gate.open()


@pytest.mark.parametrize("connections", [1, 2, 4])
def test_a_slow_env_holds_up_nobody(connections):
    with gated(connections=connections) as (env, gate):
        env.send([0, 1, 0, 0])
        for turn in range(1, 10):
            observations, *_, infos = env.recv(3)
            assert infos["env_id"].tolist() == [0, 2, 3]
            assert (infos["env_id"].dtype, observations.dtype) == (np.int32, np.float64)
            assert observations.tolist() == [[turn]] * 3
            assert infos["i"].tolist() == [turn] * 3
            env.send([0, 0, 0], [3, 0, 2])
        gate.open()
        assert env.recv()[0].ravel().tolist() == [10, 1, 10, 10]
        assert env.step([0] * 4)[0].ravel().tolist() == [11, 2, 11, 11]


@pytest.mark.parametrize(
    "options", [{"connections": 1}, {"connections": 2}, {"connections": 4}, {"dialect": "openenv"}], ids=str
)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_slow_reset_holds_up_nobody(mode, options):
    """Action 5 makes an env's next one wait; each episode has one step."""
    gate = Gate()
    on = {"reset": lambda env: gate() if env.__dict__.pop("slow", False) else None}
    factory = Factory(Count, {"length": 1, "habits": {5: lambda env: setattr(env, "slow", True)}, "on": on})
    with running(create_app(factory, max_workers=64)) as url:
        with RemoteVecEnv(url, 4, autoreset_mode=mode, **options) as env:
            env.reset(seed=0)
            if mode == "NextStep":
                env.step([0, 5, 0, 0])
            env.send([0, 5, 0, 0])
            assert gate.reached.wait(30)
            for _ in range(9):
                assert env.recv(3)[4]["env_id"].tolist() == [0, 2, 3]
                env.send([0, 0, 0], [0, 2, 3])
            gate.open()
            assert env.recv()[0].ravel().tolist() == ([0] * 4 if mode == "SameStep" else [1, 0, 1, 1])


def test_actions_belong_to_their_ids():
    with running(create_app(Tally)) as url, RemoteVecEnv(url, 4, connections=2) as env:
        env.reset(seed=0)
        env.send(np.array([3, 1, 2]), np.array([2, 0, 3], np.int32))
        assert env.recv()[0][:, 2].tolist() == [1, 3, 2]


def test_observations_are_the_callers(dawdlers):
    with RemoteVecEnv(dawdlers, 2, copy=False) as env:
        env.reset(seed=0)
        env.send([0, 0])
        first = env.recv()[0]
        kept = first.copy()
        env.send([1, 1])
        env.recv()
        assert np.array_equal(first, kept)
        first[:] = 0


# ------------------------------------------------------------------------------------------------- misuse


def test_misuse_is_refused_and_changes_nothing():
    with gated() as (env, gate):
        with pytest.raises(NoAsyncCallError, match="Calling `recv` without any prior call to `send`"):
            env.recv()
        for ids, error, text in (
            ([4], ValueError, r"unknown env_ids \[4\]: there are 4 envs"),
            ([-1, 0], ValueError, r"unknown env_ids \[-1\]"),
            ([2, 2], ValueError, r"\[2\] are named more than once"),
            ([], ValueError, "env_ids is empty"),
            ([0.0], TypeError, "sequence of integers"),
            ([True], TypeError, "sequence of integers"),
            ([[0]], TypeError, "sequence of integers"),
            (2, TypeError, "sequence of integers"),
        ):
            with pytest.raises(error, match=text):
                env.send([0] * len(np.ravel(ids)), ids)
        with pytest.raises(ValueError, match="1 actions for 2 envs"):
            env.send([0], [0, 1])
        env.send([0, 1], [2, 1])
        with pytest.raises(AlreadyPendingCallError, match=r"env\(s\) \[1\], which are in flight") as caught:
            env.send([0, 0], [0, 1])
        assert caught.value.name == "send"
        for count, error in ((3, ValueError), (0, ValueError), (-1, ValueError), (1.5, TypeError)):
            with pytest.raises(error):
                env.recv(count)
        for call in (
            lambda: env.step([0] * 4),
            lambda: env.reset(),
            lambda: env.reset(options={"reset_mask": np.array([0, 1, 0, 0], bool)}),
            lambda: env.get_attr("t"),
            lambda: env.call("add", 1),
            lambda: env.render(),
        ):
            with pytest.raises(AlreadyPendingCallError):
                call()
        observations, *_, infos = env.recv(1)
        assert (observations.tolist(), infos["env_id"].tolist()) == ([[1]], [2])
        gate.open()
        assert env.recv()[4]["env_id"].tolist() == [1]
        assert env.get_attr("t") == (0, 1, 1, 0)
    with pytest.raises(ClosedEnvironmentError):
        env.send([0] * 4)
    with pytest.raises(ClosedEnvironmentError):
        env.recv()


def test_only_envs_with_an_episode_are_sent_on():
    with running(create_app(lambda: Count(1), max_workers=4)) as url:
        with RemoteVecEnv(url, 2, autoreset_mode="Disabled") as env:
            with pytest.raises(ResetNeeded, match="env 1 has no episode"):
                env.send([0], [1])
            env.reset(seed=0)
            env.send([0], [1])
            assert env.recv()[2].tolist() == [True]
            with pytest.raises(AssertionError, match=r"\[1\] are over"):
                env.send([0, 0])
            env.send([0], [0])
            env.reset(options={"reset_mask": np.array([False, True])})
            env.send([0], [1])
            assert env.recv()[4]["env_id"].tolist() == [0, 1]


@pytest.mark.parametrize("connections", [1, 3])
def test_an_error_concerns_its_env_only(connections):
    with gated(3, habits={5: raiser(KeyError("oops"))}, connections=connections) as (env, gate):
        env.send([0, 5, 1])
        with pytest.raises(RemoteEnvError, match="oops") as caught:
            env.recv(2)
        assert caught.value.env_index == 1
        env.send([0], [1])
        assert env.recv(2)[4]["env_id"].tolist() == [0, 1]
        env.send([5, 5], [0, 1])
        with pytest.raises((BatchError, RemoteEnvError), match="oops"):
            env.recv(2)
        gate.open()
        with pytest.raises(NoAsyncCallError):  # once nothing is in flight any more
            while True:
                with contextlib.suppress(RemoteEnvError):  # the second, if it came later
                    env.recv()
        assert env.step([0, 0, 0])[0].ravel().tolist() == [3, 4, 2]


# ------------------------------------------------------------------------------------------- limits and ends


@pytest.mark.parametrize("connections", [1, 4])
def test_late_envs_are_given_up_and_the_others_go_on(connections):
    with gated(connections=connections) as (env, gate):
        env.send([0, 1, 0, 0])
        env.recv(3)
        if connections == 4:
            env.send([0, 0], [2, 3])
            streams = env._first_ready._flights._streams
            wait_until(lambda: [len(stream.under_way) for stream in streams] == [0, 1, 0, 0], "those that aren't late")
        with pytest.raises(ReplyTimeout, match=r"`recv` for env 1 from .* within 0\.5 second"):
            env.recv(timeout=0.5)
        if connections == 1:
            env.send([0, 0], [2, 3])
        observations, *_, infos = env.recv()
        assert (infos["env_id"].tolist(), observations.ravel().tolist()) == ([2, 3], [2, 2])
        with pytest.raises(ResetNeeded, match="env 1"):
            env.send([0], [1])
        env.send([0], [0])
        gate.open()
        env.reset(options={"reset_mask": np.array([False, True, False, False])})  # beside one in flight
        env.send([0], [1])
        observations, *_, infos = env.recv()
        assert (infos["env_id"].tolist(), observations.ravel().tolist()) == ([0, 1], [2, 1])


def test_an_interrupt_loses_nothing(monkeypatch):
    with gated() as (env, gate):
        env.send([0, 1, 0, 0])
        wait, flights = env._first_ready._flights.wait, env._first_ready._flights

        def interrupted(count, timeout_s):
            wait(3, timeout_s)
            raise KeyboardInterrupt

        monkeypatch.setattr(flights, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.recv()
        monkeypatch.undo()
        assert env.recv(3)[4]["env_id"].tolist() == [0, 2, 3]
        gate.open()
        assert env.recv()[4]["env_id"].tolist() == [1]


def test_a_reset_that_fails_takes_those_in_flight_along():
    with gated(2, length=1, resets=True, autoreset_mode="Disabled") as (env, gate):
        env.send([0, 1])
        env.recv(1)
        mask = {"reset_mask": np.array([True, False])}
        env.reset_async(options=mask)
        with pytest.raises(ReplyTimeout):
            env.reset_wait(timeout=0)
        gate.open()
        with pytest.raises(NoAsyncCallError):
            env.recv()
        with pytest.raises(ResetNeeded):
            env.send([0], [1])
        env.reset()
        env.send([0, 0])
        assert env.recv()[0].tolist() == [[1], [1]]


def test_closing_while_envs_are_in_flight():
    with gated() as (env, gate):
        env.send([1, 1, 0, 0])
        env.recv(2)
        threading.Timer(0.1, gate.open).start()
        env.close()
        env.close()
    with pytest.raises(ClosedEnvironmentError):
        env.recv()


# ------------------------------------------------------------------------------------------- lost sessions


@pytest.mark.parametrize("connections", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_each_row_of_a_lost_session_is_truncated_once(mode, connections, process):
    with running(create_app(Endless)) as healthy:
        options = {"autoreset_mode": mode, "connections": 2 * connections}
        with RemoteVecEnv([process.url, healthy], 4, **options) as env:
            env.reset(seed=3)
            env.send([0] * 4)
            last = env.recv()[0]
            process.restart()
            env.send([1, 1, 1], [0, 2, 3])  # row 1 isn't in flight when its session is lost
            with pytest.warns(UserWarning, match=r"row 0 is truncated"):
                observations, rewards, terminated, truncated, infos = env.recv()
            assert infos["env_id"].tolist() == [0, 2, 3]
            assert (rewards[0], terminated.any(), truncated.tolist()) == (0, False, [True, False, False])
            assert infos[LOST].tolist() == infos[f"_{LOST}"].tolist() == truncated.tolist()
            assert observations[1:, 1].tolist() == [2, 2]  # the others took their step
            env.send([1], [1])
            one = env.recv()
            assert (one[3].tolist(), one[4][LOST].tolist(), one[4]["env_id"].tolist()) == ([True], [True], [1])
            if mode == "SameStep":
                assert exact(infos["final_obs"][0]) == exact(last[0])
                assert exact(one[4]["final_obs"][0]) == exact(last[1])
            elif mode == "NextStep":
                assert exact(one[0][0]) == exact(last[1])
                env.send([0, 0], [0, 1])
                observations, rewards, _, truncated, infos = env.recv()
                assert not truncated.any()
                assert rewards.tolist() == [0, 0]
                assert infos["_episode"].tolist() == [True, True]
            else:
                with pytest.raises(AssertionError, match=r"\[0, 1\]"):
                    env.send([0, 0], [1, 0])
                env.reset(options={"reset_mask": np.array([True, True, False, False])})
            env.send([2] * 4)
            observations = env.recv()[0]
            assert observations[:, :4].tolist() == [[1, 1, 2, 1]] * 2 + [[1, 3, 2, 3]] * 2
            assert env.step([3] * 4)[0][:, 1].tolist() == [2, 2, 4, 4]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_lock_step_after_a_loss_in_flight(mode, process):
    """`step` brings rows together again that the loss has left in different states."""
    with RemoteVecEnv(process.url, 3, autoreset_mode=mode) as env:
        env.reset(seed=3)
        process.restart()
        env.send([0, 0], [0, 2])
        with pytest.warns(UserWarning, match="are truncated"):
            assert env.recv()[3].tolist() == [True, True]
        observations, _, _, truncated, infos = env.step([1, 1, 1])
        assert truncated.tolist() == [False, True, False]
        assert infos[LOST].tolist() == [False, True, False]
        assert observations[:, 1].tolist() == ([0, 0, 0] if mode == "NextStep" else [1, 0, 1])
        observations = env.step([2, 2, 2])[0]
        assert observations[:, 1].tolist() == ([1, 0, 1] if mode == "NextStep" else [2, 1, 2])
        assert env.step([2, 2, 2])[0][:, 1].tolist() == ([2, 1, 2] if mode == "NextStep" else [3, 2, 3])


def test_a_loss_in_lock_step_goes_on_first_ready(process):
    with RemoteVecEnv(process.url, 3) as env:
        env.reset(seed=3)
        process.restart()
        with pytest.warns(UserWarning, match="rows 0-2 are truncated"):
            env.step([0, 0, 0])
        env.send([1], [1])
        assert env.recv()[0][:, :3].tolist() == [[1, 0, -1]]
        env.send([1, 1, 1])
        assert env.recv()[0][:, :3].tolist() == [[1, 0, -1], [1, 1, 1], [1, 0, -1]]


def test_a_server_that_stays_away_is_tried_again_with_the_next_send(process):
    with FaultProxy(process.url) as proxy:
        with RemoteVecEnv(proxy.url, 2, autoreset_mode="SameStep", reconnect_timeout_s=1.5) as env:
            env.reset(seed=1)
            proxy.refuse()
            proxy.cut()
            env.send([0, 0])
            with pytest.warns(match="rows 0-1 are truncated"), pytest.raises(SessionLost, match="connection refused"):
                env.recv()
            env.rollout.pool.links[0]._reconnect_timeout_s = 30.0  # for a server that is back, and busy
            proxy.accept()
            env.send([0, 0])
            assert env.recv()[3].tolist() == [True, True]
            env.send([0, 0])
            assert env.recv()[0][:, 1].tolist() == [1, 1]


def test_on_lost_raise(process):
    with RemoteVecEnv(process.url, 2, on_lost="raise") as env:
        env.reset(seed=1)
        process.restart()
        env.send([0], [0])
        with pytest.raises(SessionLost, match="unknown session"):
            env.recv()
        with pytest.raises(ResetNeeded):
            env.send([0], [1])
        env.reset(seed=2)
        env.send([1], [1])
        assert env.recv()[0][:, 1].tolist() == [1]


@pytest.mark.parametrize("begun", [True, False])
def test_a_session_that_was_lost_unnoticed(begun, process):
    """It is lost while one env is in flight, and a reset of another one is the first to notice."""
    with FaultProxy(process.url) as proxy, RemoteVecEnv(proxy.url, 2, autoreset_mode="Disabled") as env:
        env.reset(seed=1)
        proxy.hold(DOWN) if not begun else None  # then it waits for an answer that never comes
        env.send([0], [0])
        if begun:
            (stream,) = env._first_ready._flights._streams
            wait_until(lambda: stream._launched and not stream._unanswered)
        process.restart()
        proxy.release()
        wait_until(lambda: env.rollout.pool.links[0].counters["sessions_lost"])
        with pytest.warns(UserWarning, match="row 0 is truncated"):
            env.reset(options={"reset_mask": np.array([False, True])})
            env.send([0], [1])
            observations, _, _, truncated, _ = env.recv()
        assert (truncated.tolist(), observations[1, :2].tolist()) == ([True, False], [1, 1])
