"""Whatever happens between learner and server: no step lost, none taken twice, nothing silently wrong.

``FAULTS=long`` runs the long version: 200 cuts over 2,000 vector steps.
"""

import os
import random
import re
import signal
import subprocess
import sys
import warnings
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import psutil
import pytest
from gymnasium.error import NoAsyncCallError, ResetNeeded
from gymnasium.vector import SyncVectorEnv
from helpers_faults import DEAF, DOWN, FIN, RST, UP, FaultProxy
from helpers_server import running
from helpers_tally import Endless, Tally
from helpers_wait import wait_until

from openenv_gym import RemoteEnv, RemoteVecEnv
from openenv_gym.errors import ConnectFailed, RemoteEnvError, ReplyTimeout, SessionLost
from openenv_gym.server import create_app

STEPS, CUTS = (2000, 200) if os.environ.get("FAULTS") == "long" else (600, 60)
MODES = ("NextStep", "SameStep", "Disabled")
LOST = "connection_lost"


def assert_same(ours, theirs):
    """Equal to the last byte, with the same types and keys."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, tuple):
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(ours, np.ndarray) and ours.dtype != object:
        assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
    elif isinstance(ours, np.ndarray):
        assert_same(tuple(ours), tuple(theirs))
    else:
        assert ours == theirs


def transitions(env, steps, before_each=lambda: None, seed=7):
    """All that a rollout of random actions gives; with autoreset disabled, finished rows are reset by mask."""
    rng = np.random.default_rng(seed)
    yield env.reset(seed=seed)
    for _ in range(steps):
        before_each()
        step = env.step(rng.integers(0, 4, env.num_envs))
        yield step
        over = step[2] | step[3]
        if env.metadata["autoreset_mode"].value == "Disabled" and over.any():
            before_each()
            yield env.reset(options={"reset_mask": over})


def local(num_envs, mode="NextStep", env=Tally):
    return SyncVectorEnv([env] * num_envs, autoreset_mode=mode)


@contextmanager
def remote(num_envs, mode="NextStep", servers=1, app=None, **options):
    """A vector env over proxies before servers in this process: the env, the proxies, the servers' registries."""
    with ExitStack() as stack:
        apps = [app or create_app(Tally) for _ in range(servers)]
        proxies = [stack.enter_context(FaultProxy(stack.enter_context(running(app)))) for app in apps]
        env = stack.enter_context(
            RemoteVecEnv([p.url for p in proxies], num_envs, autoreset_mode=mode, **options),
        )
        yield env, proxies, [app.state.registry for app in apps]


def counters(env):
    """The sums of the links' counters."""
    links = env.rollout.pool.links
    return {name: sum(link.counters[name] for link in links) for name in ("reconnects", "sessions_lost")}


def lost_texts(told):
    """What was told, but for servers that are away: how long they are depends on the machine."""
    texts = [str(warning.message) for warning in told]
    return [text for text in texts if "can't be used now" not in text]


# ------------------------------------------------------------------------------------------- exactly once


class Scissors:
    """Cuts at random bytes, in random directions, in random ways."""

    def __init__(self, proxy, cuts, steps, seed):
        self.proxy, self.left, self.steps, self.random = proxy, cuts, steps, random.Random(seed)

    def __call__(self):
        self.steps -= 1
        if self.left and not self.proxy.lit and self.random.random() < self.left / max(0.5 * self.steps, 1):
            self.left -= 1
            how = self.random.choice([RST, FIN, DEAF])
            self.proxy.cut_after(self.random.randrange(1200), self.random.choice([UP, DOWN, None]), how)


@pytest.mark.parametrize("connections", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_every_step_is_taken_exactly_once(mode, connections):
    steps, cuts = (STEPS, CUTS) if mode == "NextStep" else (STEPS // 4, CUTS // 4)
    with remote(8, mode, connections=connections) as (env, [proxy], [registry]):
        scissors = Scissors(proxy, cuts, steps, seed=connections)
        expected = transitions(local(8, mode), steps)
        for ours, theirs in zip(transitions(env, steps, scissors), expected, strict=True):
            assert_same(ours, theirs)  # the count of steps that each env ever took is part of it
        assert (scissors.left, proxy.cuts + proxy.lit) == (0, cuts)
        assert 0 < counters(env)["reconnects"] <= cuts  # a cut may hit a connection that isn't open yet
        assert counters(env)["sessions_lost"] == 0
        assert sum(session.counts.steps for session in registry.sessions.values()) == 8 * steps


@pytest.mark.parametrize("how", [RST, FIN, DEAF])
def test_cuts_while_nothing_is_asked(how):
    with remote(4) as (env, [proxy], _):
        for turn, (ours, theirs) in enumerate(zip(transitions(env, 40), transitions(local(4), 40), strict=True)):
            assert_same(ours, theirs)
            proxy.cut(how)
            if turn % 2:  # half of the steps are sent while the connection is being resumed, the others after that
                wait_until(lambda turn=turn: counters(env)["reconnects"] > turn)
        wait_until(lambda: counters(env)["reconnects"] == 41)


def test_a_cut_connection_may_be_cut_again_while_it_is_resumed():
    with remote(2) as (env, [proxy], _):
        for n, (ours, theirs) in enumerate(zip(transitions(env, 60), transitions(local(2), 60), strict=True)):
            assert_same(ours, theirs)
            proxy.cut()
            proxy.cut_after(20 * n)  # first in the HTTP upgrade, later in the opening, at last in the replies
        proxy.put_out()


def test_a_connection_that_reaches_the_server_twice():
    """The second one takes the session over, and brings each request once more."""
    with remote(2) as (env, [proxy], [registry]):
        for turn, (ours, theirs) in enumerate(zip(transitions(env, 40), transitions(local(2), 40), strict=True)):
            assert_same(ours, theirs)
            if turn % 4 == 3:
                proxy.double()
                proxy.cut()
        assert counters(env)["sessions_lost"] == 0
        assert counters(env)["reconnects"] > 10  # once more where the session was taken over
        assert sum(session.counts.steps for session in registry.sessions.values()) == 2 * 40


@pytest.mark.parametrize("fault", [{"piece": 1}, {"delay_s": 0.003, "jitter_s": 0.01, "piece": 100}])
def test_slow_lines_change_nothing(fault):
    with remote(4, connections=4) as (env, [proxy], _):
        vars(proxy).update(fault)
        for ours, theirs in zip(transitions(env, 20), transitions(local(4), 20), strict=True):
            assert_same(ours, theirs)


@pytest.mark.parametrize("width", [5, 200_000])
def test_a_half_open_connection_costs_one_deadline(width):
    """Also where the server still tries to send something large on the connection that is dead."""
    app = create_app(Tally, env_kwargs={"width": width})
    with remote(2, app=app, reset_timeout_s=30) as (env, [proxy], _):
        env.reset(seed=1)
        proxy.hold(DOWN)
        proxy.stay_dead()
        env.step_async([0, 0])
        with pytest.raises(ReplyTimeout, match=r"`step` for env 0-1 .* within 1 second"):
            env.step_wait(timeout=1.0)
        with pytest.raises(ResetNeeded):
            env.step([0, 0])
        assert env.reset(seed=2)[0][:, 1].tolist() == [0, 0]
        assert env.step([1, 2])[0][:, 1:3].tolist() == [[1, 1], [1, 2]]


# --------------------------------------------------------------------------------------------- really gone


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_a_restarted_server_are_truncated_and_go_on(mode, process):
    with running(create_app(Endless)) as healthy, RemoteVecEnv([process.url, healthy], 4, autoreset_mode=mode) as env:
        ours, theirs = transitions(env, 8), transitions(local(4, mode, Endless), 8)
        for _ in range(4):
            assert_same(next(ours), next(theirs))
        last = env.step([0, 0, 0, 0])[0]
        process.restart()
        with pytest.warns(UserWarning, match="rows 0-1 are truncated") as told:
            observations, rewards, terminated, truncated, infos = env.step([1, 1, 1, 1])
        (text,) = lost_texts(told)
        assert "unknown session" in text
        assert rewards[:2].tolist() == [0, 0]
        assert terminated.tolist() == [False] * 4
        assert truncated.tolist() == [True, True, False, False]
        assert infos[LOST].tolist() == infos[f"_{LOST}"].tolist() == truncated.tolist()
        assert observations[2:, 2:4].tolist() == [[1, 5], [1, 5]]  # the others took their step
        if mode == "SameStep":
            assert_same(tuple(infos["final_obs"]), (last[0], last[1], None, None))
            assert infos["final_info"][LOST].tolist() == truncated.tolist()
        else:
            assert_same(observations[:2], last[:2])
            if mode == "NextStep":
                observations, rewards, terminated, truncated, infos = env.step([2, 2, 2, 2])
                assert not truncated.any()
                assert rewards[:2].tolist() == [0, 0]
            else:
                with pytest.raises(AssertionError, match=r"\[0, 1\]"):
                    env.step([2, 2, 2, 2])
                observations, infos = env.reset(options={"reset_mask": truncated})
            assert infos["_episode"].tolist() == [True, True, False, False]
        assert observations[:2, :4].tolist() == [[1, 0, -1, 0]] * 2  # a first episode that has just begun
        observations = env.step([3, 3, 3, 3])[0]
        assert observations[:2, :4].tolist() == [[1, 1, 3, 1]] * 2
        assert counters(env)["sessions_lost"] == 1


@pytest.mark.filterwarnings("ignore:.*between two episodes:UserWarning")  # if the reset is the first to find it out
def test_a_server_that_ends_in_order_and_comes_back(process):
    """It closes the connections with 1012; what its client held of them is given back."""
    with RemoteVecEnv(process.url, 4, connections=4) as env:
        env.reset(seed=1)
        env.step([0] * 4)
        descriptors = psutil.Process().num_fds()
        process.stop()
        process.start()
        assert env.reset(seed=1)[0][:, 1].tolist() == [0] * 4
        assert env.step([1] * 4)[0][:, :2].tolist() == [[1, 1]] * 4
        process.stop()
        process.start()
        with pytest.warns(UserWarning, match="unknown session, after close code 1012.*rows 0-3 are truncated"):
            rewards, terminated, truncated, infos = env.step([2] * 4)[1:]
        assert (rewards.tolist(), terminated.any(), truncated.all()) == ([0] * 4, False, True)
        assert infos[LOST].all()
        assert env.step([3] * 4)[0][:, :2].tolist() == [[1, 0]] * 4
        # Connections of a test before this one may have been closing yet when they were counted.
        wait_until(lambda: psutil.Process().num_fds() <= descriptors, "no more descriptors than before")


LEARNER = """
import sys, warnings
from openenv_gym import RemoteVecEnv
env = RemoteVecEnv(sys.argv[1], 2, dialect=sys.argv[2] or None)
env.reset()
for line in sys.stdin:
    with warnings.catch_warnings(record=True):
        print(env.step([0, 0])[3].tolist(), flush=True)
"""


@pytest.mark.parametrize("dialect", ["", "openenv"])
def test_a_learner_that_is_stopped_gives_its_room_back_and_learns_of_it_later(dialect):
    app = create_app(Endless, ping_interval_s=0.2, ping_timeout_s=5.0, grace_s=0.2)  # a busy learner is no stopped one
    with running(app) as url:
        command = [sys.executable, "-c", LEARNER, url, dialect]
        learner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with learner:

            def step():
                learner.stdin.write("\n")
                learner.stdin.flush()
                return learner.stdout.readline()

            assert step() == "[False, False]\n"
            learner.send_signal(signal.SIGSTOP)
            wait_until(lambda: app.state.registry.capacity.active == 0, "room where a stopped learner was")
            learner.send_signal(signal.SIGCONT)
            assert step() == "[True, True]\n"
            assert step() == "[False, False]\n"
            learner.kill()


def test_a_mask_may_reset_only_some_rows_of_a_lost_session(process):
    with RemoteVecEnv(process.url, 3, autoreset_mode="Disabled") as env:
        env.reset(seed=1)
        process.restart()
        with pytest.warns(UserWarning, match="rows 0-2 are truncated"):
            env.step([0, 0, 0])
        env.reset(options={"reset_mask": np.array([True, False, False])})
        with pytest.raises(ResetNeeded):
            env.step([0, 0, 0])
        env.reset(options={"reset_mask": np.array([False, True, True])})
        assert env.step([1, 1, 1])[0][:, 1].tolist() == [1, 1, 1]


WAYS = {"one connection": {"connections": 1}, "two": {"connections": 2}, "OpenEnv's dialect": {"dialect": "openenv"}}
"""Ways that four rows can go: all in one session, two in each of two, and each in one of its own."""


@contextmanager
def reset_in_part_once_all_were_truncated(process, **options):
    """A vector env of four rows whose sessions were lost, which was told, and of which the first was reset then."""
    with RemoteVecEnv(process.url, 4, **options) as env:
        env.reset(seed=1)
        process.restart()
        with pytest.warns(UserWarning, match="rows 0-3 are truncated"):
            env.step([0] * 4)
        env.reset(options={"reset_mask": np.array([True, False, False, False])})
        yield env


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_a_mask_leaves_out_start_anew_as_if_they_had_ended_otherwise(process, way):
    """As with ``SyncVectorEnv``: what is reset goes on, and the next step of the others is their reset."""
    with reset_in_part_once_all_were_truncated(process, **WAYS[way]) as env:
        observations, rewards, _, truncated, infos = env.step([1] * 4)
        assert observations[:, 1].tolist() == [1, 0, 0, 0]
        assert (rewards[1:].tolist(), truncated.any(), LOST in infos) == ([0] * 3, False, False)
        assert env.step([1] * 4)[0][:, 1].tolist() == [2, 1, 1, 1]


@pytest.mark.filterwarnings("ignore:.* (is|are) truncated:UserWarning")  # if its cause is another than the first one's
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_second_loss_is_told_of_those_rows_only_that_had_an_episode(process, way, known):
    with reset_in_part_once_all_were_truncated(process, **WAYS[way]) as env:
        before = env.stats().sessions_lost
        process.kill()
        if known:
            process.start()
            wait_until(lambda: env.stats().sessions_lost > before, "the session's end")
        env.step_async([1] * 4)
        if not known:
            process.start()
        observations, rewards, _, truncated, infos = env.step_wait()
        assert truncated.tolist() == infos[LOST].tolist() == [True, False, False, False]
        assert observations[:, 1].tolist() == [0] * 4
        assert rewards.tolist() == [0] * 4
        assert env.step([1] * 4)[0][:, 1].tolist() == [0, 1, 1, 1]
        assert env.step([1] * 4)[0][:, 1].tolist() == [1, 2, 2, 2]


@contextmanager
def reset_in_part_after_a_loss(process, *, known, **options):
    """Four envs whose server was restarted, and the first of which was reset since, in a session with new envs.

    The loss of the other sessions was noticed before that, or comes out in the reset.
    """
    with RemoteVecEnv(process.url, 4, **options) as env:
        env.reset(seed=1)
        env.step([0, 0, 0, 0])
        mask = {"reset_mask": np.array([True, False, False, False])}
        process.kill()
        if known:
            process.start()
            wait_until(lambda: counters(env)["sessions_lost"] == len(env.rollout.pool.links), "the sessions' end")
            env.reset(options=mask)
        else:
            env.reset_async(options=mask)
            process.start()
            env.reset_wait()
        yield env


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_rows_that_a_mask_leaves_out_learn_of_a_loss_that_nobody_noticed(process, mode, way, known):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if way == "OpenEnv's dialect" and not known:  # the first row's own session, if the reset finds its loss out
            warnings.filterwarnings("ignore", message=".*this happened between two episodes")
        with reset_in_part_after_a_loss(process, known=known, autoreset_mode=mode, **WAYS[way]) as env:
            observations, rewards, terminated, truncated, infos = env.step([1, 1, 1, 1])
            assert truncated.tolist() == infos[LOST].tolist() == [False, True, True, True]
            assert (terminated.any(), rewards[1:].tolist()) == (False, [0, 0, 0])
            begun = [1, 0, 0, 0]
            if mode == "SameStep":
                assert [final if final is None else final[1] for final in infos["final_obs"]] == [None, 1, 1, 1]
            else:
                assert observations[:, 1].tolist() == [1, 1, 1, 1]
                if mode == "NextStep":
                    observations = env.step([1, 1, 1, 1])[0]
                    begun = [2, 0, 0, 0]
                else:
                    observations = env.reset(options={"reset_mask": truncated})[0]
            assert observations[:, 1].tolist() == begun
            assert env.step([1, 1, 1, 1])[0][:, 1].tolist() == [t + 1 for t in begun]
    (text,) = lost_texts(told)
    assert re.search(r"is gone .*: rows? .* (is|are) truncated", text)


@pytest.mark.filterwarnings("ignore:.*this happened between two episodes:UserWarning")  # if the reset finds it out
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("way", ["one connection", "two"])
def test_rows_that_a_mask_leaves_out_are_not_stepped_after_a_loss_that_nobody_noticed(process, way, known):
    with reset_in_part_after_a_loss(process, known=known, on_lost="raise", **WAYS[way]) as env:
        with pytest.raises(ResetNeeded, match="env 1"):
            env.step([1, 1, 1, 1])
        env.reset(options={"reset_mask": np.array([False, True, True, True])})
        assert env.step([1, 1, 1, 1])[0][:, 1].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_a_mask_beside_steps_that_were_sent_finds_a_loss_out(process, mode):
    """The steps' rows learn of it, and so does the one that had nothing to do; what was reset goes on."""
    with RemoteVecEnv(process.url, 3, connections=1, autoreset_mode=mode) as env:
        env.reset(seed=1)
        env.step([0, 0, 0])
        process.kill()
        env.send([1], [2])
        env.reset_async(options={"reset_mask": np.array([True, False, False])})
        process.start()
        with pytest.warns(UserWarning, match="truncated") as told:
            assert env.reset_wait()[0][0, 1] == 0
            _, _, _, truncated, infos = env.recv()
            assert (truncated.tolist(), infos[LOST].tolist()) == ([True], [True])
            env.send([1, 1], [0, 1])
            observations, _, _, truncated, infos = env.recv(min_ready=2)
        assert truncated.tolist() == infos[LOST].tolist() == [False, True]
        assert observations[0, 1] == 1
        assert len(lost_texts(told)) == 1


def test_a_single_env_is_truncated_and_must_be_reset(process):
    with FaultProxy(process.url) as proxy:
        env = RemoteEnv(proxy.url)
        first, _ = env.reset(seed=1)
        process.restart()
        with pytest.warns(UserWarning, match="row 0 is truncated"):
            step = env.step(0)
        assert_same(step, (first, 0.0, False, True, {LOST: True}))
        with pytest.raises(ResetNeeded):
            env.step(0)
        env.reset(seed=1)
        assert env.step(1)[0][:4].tolist() == [1, 1, 1, 1]
        env.close()


def test_training_by_stable_baselines_goes_on(process):
    sb3 = pytest.importorskip("openenv_gym.sb3")
    env = sb3.SB3VecEnv(RemoteVecEnv(process.url, 2, autoreset_mode="SameStep"))
    env.reset()
    last = env.step(np.array([0, 0]))[0]
    process.restart()
    with pytest.warns(UserWarning, match="rows 0-1 are truncated"):
        observations, rewards, dones, infos = env.step(np.array([0, 0]))
    assert (observations[:, 1].tolist(), rewards.tolist(), dones.tolist()) == ([0, 0], [0, 0], [True, True])
    for row, info in enumerate(infos):
        assert info[LOST] is True
        assert info["TimeLimit.truncated"] is True
        assert_same(info["terminal_observation"], last[row])
    env.close()


def test_on_lost_raise(process):
    with RemoteVecEnv(process.url, 2, on_lost="raise") as env:
        env.reset(seed=1)
        env.step([0, 0])
        process.restart()
        with pytest.raises(SessionLost, match="unknown session"):
            env.step([0, 0])
        with pytest.raises(ResetNeeded):
            env.step([0, 0])
        env.reset(seed=2)
        assert env.step([1, 1])[0][:, 1].tolist() == [1, 1]


def test_a_server_that_is_away_for_a_while_is_waited_for(process):
    with RemoteVecEnv(process.url, 2, reconnect_timeout_s=60) as env:
        env.reset(seed=1)
        process.kill()
        env.step_async([0, 0])
        process.start()
        with pytest.warns(UserWarning, match="rows 0-1 are truncated"):
            assert env.step_wait()[3].all()
        assert env.step([0, 0])[0][:, 1].tolist() == [0, 0]


def insist_longer(env):
    """Let a server that is back have the time that it needs on a busy machine."""
    for link in env.rollout.pool.links:
        link._reconnect_timeout_s = 30.0


@pytest.mark.parametrize("dialect", [None, "openenv"])
@pytest.mark.parametrize("take", ["step", "recv"])
def test_who_waits_for_a_server_is_told(process, take, dialect, monkeypatch):
    """Once for each wait: for the session, and after that is given up, for a new one."""
    monkeypatch.setattr("openenv_gym.pool._LOOK_S", 0.1)  # often, for a wait that is over is told of no more

    def step(env):
        if take == "step":
            return env.step([0, 0])
        env.send([0, 0])
        return env.recv()

    options = {"reconnect_timeout_s": 5.0, "dialect": dialect}
    with FaultProxy(process.url) as proxy, RemoteVecEnv(proxy.url, 2, **options) as env:
        env.reset(seed=1)
        proxy.refuse()
        proxy.cut()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert step(env)[3].all()
            with pytest.raises(SessionLost, match="connection refused"):
                step(env)
            if take == "recv":  # it raises what there is, and the other env's session may fail a moment later
                with suppress(NoAsyncCallError), pytest.raises(SessionLost, match="connection refused"):
                    env.recv()
        texts = [str(warning.message) for warning in told if "can't be used now" in str(warning.message)]
        # In OpenEnv's dialect a session ends with its connection, so there is nothing to be waited for at first.
        waits = ["reconnecting", "waiting for a new session"] if dialect is None else ["waiting for a new session"]
        assert len(texts) == len(waits)
        for text, wait in zip(texts, waits, strict=True):
            assert re.search(rf"/ws can't be used now \(connection refused\): {wait} for up to 5 second", text)
        insist_longer(env)
        proxy.accept()
        assert step(env)[0][:, 1].tolist() == [0, 0]


def test_a_server_that_stays_away_is_given_up_in_time(process):
    with FaultProxy(process.url) as proxy, RemoteVecEnv(proxy.url, 2, reconnect_timeout_s=1.5) as env:
        env.reset(seed=1)
        proxy.refuse()
        proxy.cut()
        with pytest.warns(UserWarning, match=r"not reconnected within 1\.5 second\(s\): connection refused"):
            assert env.step([0, 0])[3].all()
        with pytest.raises(SessionLost, match="connection refused"):
            env.step([0, 0])
        insist_longer(env)
        proxy.accept()
        assert env.step([0, 0])[0][:, 1].tolist() == [0, 0]
        assert env.step([1, 1])[0][:, 1].tolist() == [1, 1]


def test_a_session_ends_with_its_grace_time():
    app = create_app(Tally, grace_s=0.2)
    with remote(2, app=app) as (env, [proxy], [registry]):
        env.reset(seed=1)
        proxy.refuse()
        proxy.cut()
        wait_until(lambda: not registry.sessions)
        proxy.accept()
        with pytest.warns(UserWarning, match=r"rows 0-1 are truncated"):
            assert env.step([0, 0])[3].all()
        assert env.step([0, 0])[0][:, 1].tolist() == [0, 0]
        wait_until(lambda: registry.capacity.active == 2)


def test_a_session_is_resumed_with_its_secret_only():
    with remote(2) as (env, [proxy], [registry]):
        env.reset(seed=1)
        (session,) = registry.sessions.values()
        session.secret = "another"
        proxy.cut()
        with pytest.warns(UserWarning, match="unknown session"):
            assert env.step([0, 0])[3].all()


def test_another_kind_of_server_is_no_place_to_resume():
    with remote(2) as (env, [proxy], _), running(create_app("CartPole-v1")) as other:
        env.reset(seed=1)
        first, proxy.upstream = proxy.upstream, int(other.rpartition(":")[2])
        proxy.cut()
        with pytest.warns(UserWarning, match="unknown session"):
            assert env.step([0, 0])[3].all()
        with pytest.raises((SessionLost, ConnectFailed), match="other spaces"):
            env.step([0, 0])
        proxy.upstream = first
        assert env.step([0, 0])[0][:, 1].tolist() == [0, 0]
        assert env.single_observation_space == Tally().observation_space


def test_a_session_that_was_idle_for_too_long_is_reported_with_that_cause():
    with remote(2, app=create_app(Tally, idle_timeout_s=10.0)) as (env, _, [registry]):
        env.reset(seed=1)
        (session,) = registry.sessions.values()
        session.last_active -= 20.0  # rather than to wait, or to call a busy learner an idle one
        wait_until(lambda: not registry.sessions)
        with pytest.warns(UserWarning, match="idle for too long"):
            assert env.step([0, 0])[3].all()
        assert env.step([0, 0])[0][:, 1].tolist() == [0, 0]


# -------------------------------------------------------------------------------------- OpenEnv's own server


@pytest.fixture(scope="module")
def openenv():
    """The module that needs OpenEnv, whose import takes long."""
    return pytest.importorskip("helpers_openenv")


@contextmanager
def stock(openenv, env, num_envs, *, lasting=True, max_envs=8, idle_s=None, **options):
    """A vector env on a real OpenEnv server, and the proxy between the two."""
    server = openenv.stock_server(env, max_envs, idle_s=idle_s)
    with pytest.MonkeyPatch.context() as patch, server as url, FaultProxy(url) as proxy:
        if not lasting:  # as on a server before 0.10

            async def no(target):
                return False

            patch.setattr("openenv_gym.openenv_sessions.can_create", no)
        with RemoteVecEnv(proxy.url, num_envs, **openenv.COUNT_SPACES, **options) as vec:
            yield vec, proxy
    assert not env.live


def now(rows):
    return {"sleep": np.zeros(rows)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", [RST, FIN])
def test_a_cut_ends_an_episode_of_an_old_openenv_server(openenv, mode, how):
    with stock(openenv, openenv.Count, 2, lasting=False, autoreset_mode=mode) as (env, proxy):
        env.reset(options={"mark": 7})
        env.step(now(2))
        proxy.cut(how)
        with pytest.warns(UserWarning, match="rows 0-1 are truncated") as told:
            observations, rewards, terminated, truncated, infos = env.step(now(2))
        assert len(lost_texts(told)) == 1
        assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([0, 0], [False] * 2, [True] * 2)
        assert infos[LOST].tolist() == [True, True]
        if mode == "SameStep":
            assert [final["count"] for final in infos["final_obs"]] == [1, 1]
        else:
            assert_same(observations, {"count": np.array([1, 1]), "mark": np.array([7, 7])})
            if mode == "NextStep":
                observations = env.step(now(2))[0]
            else:
                observations = env.reset(options={"reset_mask": truncated})[0]
        assert_same(observations, {"count": np.array([0, 0]), "mark": np.array([0, 0])})
        assert env.step(now(2))[0]["count"].tolist() == [1, 1]
        assert openenv.Count.log == [(what, n) for what, n in [("reset", 0), ("step", 1)] * 2 for _ in range(2)]


def test_a_cut_keeps_the_episode_of_a_new_openenv_server(openenv):
    with stock(openenv, openenv.Count, 2) as (env, proxy):
        env.reset(options={"mark": 7})
        env.step(now(2))  # or nobody would know that this env counts, if a step were the first to find a cut out
        for count in range(2, 9):
            proxy.cut()
            observations, rewards, _, truncated, infos = env.step(now(2))
            assert_same(observations, {"count": np.array([count] * 2), "mark": np.array([7, 7])})
            assert (rewards.tolist(), truncated.tolist(), infos) == ([1, 1], [False, False], {})
        assert counters(env) == {"reconnects": 14, "sessions_lost": 0}


def test_an_openenv_session_may_end_with_its_connection(openenv):
    """Else a learner that is killed leaves it on the server, which has no limit for idle ones by default."""
    with stock(openenv, openenv.Count, 1, openenv_sessions=False) as (env, proxy):
        env.reset()
        proxy.refuse()
        proxy.cut()
        wait_until(lambda: not openenv.Count.live)
        proxy.accept()
        with pytest.warns(UserWarning, match="row 0 is truncated"):
            assert env.step(now(1))[3].all()


def test_an_openenv_step_that_was_not_heard_is_sent_again(openenv):
    with stock(openenv, openenv.Count, 1) as (env, proxy):
        env.reset()
        env.step(now(1))
        proxy.cut_after(10, UP)
        assert env.step(now(1))[0]["count"] == [2]
        assert openenv.Count.log == [("reset", 0), ("step", 1), ("step", 2)]


@pytest.mark.parametrize("name", ["Count", "Forgetful"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_openenv_step_whose_reply_was_lost_is_reported_and_not_repeated(openenv, name, mode):
    with stock(openenv, getattr(openenv, name), 1, autoreset_mode=mode) as (env, proxy):
        env.reset(options={"mark": 7})
        env.step(now(1))
        proxy.cut_after(10, DOWN)
        with pytest.warns(UserWarning, match="its episode is truncated"):
            observations, rewards, terminated, truncated, infos = env.step(now(1))
        assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([0], [False], [True])
        if mode == "NextStep":
            assert infos["lost_reply"].tolist() == [True]
            assert_same(observations, {"count": np.array([1]), "mark": np.array([7])})
            observations = env.step(now(1))[0]
        else:
            assert infos["final_info"]["lost_reply"].tolist() == [True]
            assert infos["final_obs"][0]["count"] == 1
        assert observations["count"] == [0]
        assert env.step(now(1))[0]["count"] == [1]
        assert openenv.Count.log == [("reset", 0), ("step", 1), ("step", 2), ("reset", 0), ("step", 1)]


def test_an_openenv_env_that_counts_no_steps_leaves_it_open_whether_one_was_heard(openenv):
    with stock(openenv, openenv.Forgetful, 1) as (env, proxy):
        env.reset()
        proxy.cut_after(10, UP)
        with pytest.warns(UserWarning, match="its episode is truncated"):
            assert env.step(now(1))[4]["lost_reply"].all()
        assert openenv.Count.log == [("reset", 0)]


def test_random_cuts_on_an_openenv_server(openenv):
    """Each row's episode goes on, or is reported; no step is taken twice, and none in an env that wasn't reset."""
    rng = random.Random(3)
    with stock(openenv, openenv.Count, 3) as (env, proxy):
        counts = env.reset()[0]["count"].tolist()
        for _ in range(100):
            if not proxy.lit and rng.random() < 0.4:
                proxy.cut_after(rng.randrange(600), rng.choice([UP, DOWN, None]), rng.choice([RST, FIN]))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the same in other words each time
                observations, _, _, truncated, infos = env.step(now(3))
            lost = infos.get("lost_reply", np.zeros(3, bool)) | infos.get(LOST, np.zeros(3, bool))
            assert lost.tolist() == truncated.tolist()
            for row, before in enumerate(counts):
                counts[row] = before if lost[row] else 0 if before == -1 else before + 1
                assert observations["count"][row] == counts[row]
                if lost[row]:
                    counts[row] = -1  # the autoreset comes
        proxy.put_out()
        assert proxy.cuts > 15
        taken = Counter(what for what, _ in openenv.Count.log)
        assert "step without an episode" not in taken


def test_openenv_sessions_are_closed_whatever_happens(openenv):
    with openenv.stock_server(openenv.Count, 2) as url, FaultProxy(url) as proxy:
        env = RemoteVecEnv(proxy.url, 2, **openenv.COUNT_SPACES)
        env.reset()
        env.step_async({"sleep": np.array([0, 3.0])})
        with pytest.raises(ReplyTimeout):
            env.step_wait(timeout=0.3)
        env.reset()  # waits for the room of the session that was given up
        env.step(now(2))
        proxy.cut()
        env.close()
        wait_until(lambda: not openenv.Count.live)


@pytest.mark.parametrize("call", ["step", "reset"])
def test_a_session_that_an_openenv_server_forgot(openenv, call):
    with (
        openenv.stock_server(openenv.Count, 2) as first,
        FaultProxy(first) as proxy,
        openenv.stock_server(openenv.Count, 2) as second,
    ):
        env = RemoteVecEnv(proxy.url, 1, **openenv.COUNT_SPACES)
        env.reset()
        proxy.upstream = int(second.rpartition(":")[2])
        proxy.cut()
        with pytest.warns(UserWarning, match="Unknown session_id"):
            if call == "step":
                assert env.step(now(1))[3].all()
                assert env.step(now(1))[0]["count"] == [0]
            else:
                assert env.reset()[0]["count"] == [0]
        assert env.step(now(1))[0]["count"] == [1]
        env.close()


def test_an_openenv_server_that_closes_idle_sessions_never_steps_a_closed_env_for_us(openenv, monkeypatch):
    """Of a session that a WebSocket owns it closes the env, leaves the socket open, and steps the closed env."""
    monkeypatch.setattr("openenv.core.env_server.http_server.max", min, raising=False)  # it looks every 5 s at most
    with stock(openenv, openenv.Count, 1, idle_s=3.0) as (env, proxy):
        env.reset()
        env.step(now(1))
        with openenv.filled(f"http://127.0.0.1:{proxy.upstream}"):  # such a session
            wait_until(lambda: len(openenv.Count.live) == 1, "the end of an idle session")
        assert env.step(now(1))[0]["count"] == [2]  # the one with ours isn't regarded as idle
        proxy.refuse()
        proxy.cut()
        wait_until(lambda: not openenv.Count.live, "the end of a session without a connection")
        proxy.accept()
        with pytest.warns(UserWarning, match="Unknown session_id"):
            assert env.step(now(1))[3].all()
        assert env.step(now(1))[0]["count"] == [0]
        assert env.step(now(1))[0]["count"] == [1]
        assert [what for what, _ in openenv.Count.log] == ["reset", "step", "step", "reset", "step"]


def test_an_openenv_step_that_was_taken_and_could_not_be_told_is_not_repeated(openenv):
    models = openenv.EveryAction, openenv.EveryObservation
    with openenv.stock_server(openenv.Every, models=models) as url:
        with RemoteVecEnv(url, 2, obs_key="count", action_key="order") as env:
            env.reset()
            with pytest.raises(RemoteEnvError, match=r"^env 1 reported .*serialize"):
                env.step(["", "unsendable"])
            assert env.step(["", ""])[0].tolist() == [2, 2]
            assert counters(env) == {"reconnects": 0, "sessions_lost": 0}


@pytest.mark.parametrize("options", [{}, {"openenv_sessions": False}], ids=str)
def test_an_openenv_session_that_a_bad_action_ended_is_lost_alone(openenv, options):
    """Its server closes the connection where a validator raises; that row's next step says that it is lost."""

    class Careful(openenv.CountAction):
        @openenv.field_validator("sleep")
        @classmethod
        def _lucky(cls, sleep):
            if sleep == 13:
                raise ValueError("unlucky")
            return sleep

    with openenv.stock_server(models=(Careful, openenv.CountObservation)) as url:
        with RemoteVecEnv(url, 2, **openenv.COUNT_SPACES, **options) as env:
            env.reset()
            with pytest.raises(RemoteEnvError, match=r"^env 1 reported") as told:
                env.step({"sleep": np.array([0.0, 13.0])})
            assert told.value.code == "SESSION_ERROR"
            with pytest.warns(UserWarning, match=": row 1 is truncated"):
                observations, _, terminated, truncated, infos = env.step(now(2))
            assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])
            assert infos[LOST].tolist() == [False, True]
            assert observations["count"].tolist() == [2, 0]
            assert env.step(now(2))[0]["count"].tolist() == [3, 0]
            assert env.step(now(2))[0]["count"].tolist() == [4, 1]
            assert counters(env) == {"reconnects": 0, "sessions_lost": 1}
        assert "step without an episode" not in {what for what, _ in openenv.Count.log}


def test_a_session_lost_between_two_episodes_costs_no_episode(openenv):
    with stock(openenv, openenv.Short, 1, lasting=False) as (env, proxy):
        env.reset()
        for _ in range(3):
            *_, terminated, truncated, _ = env.step(now(1))
        assert terminated
        proxy.cut()
        with pytest.warns(UserWarning, match="between two episodes"):
            observations, _, _, truncated, infos = env.step(now(1))
        assert (observations["count"], truncated, LOST in infos) == ([0], [False], False)
