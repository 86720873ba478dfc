"""`Rollout` over a pool that isn't connected: what is sent for which rows, and what becomes of each kind of reply."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from openenv_gym import errors
from openenv_gym.messages import Array, EnvFailure, Get, Observed, Reset, Returned, Step, Stepped
from openenv_gym.notices import warn
from openenv_gym.rollout import CONNECTION_LOST, EpisodeOver, Rollout

SPACE = gym.spaces.Box(-1, 1, (1,), np.float32)
ACTIONS = [np.zeros(3, np.int64)]
LOST = errors.SessionLost("ws://there", "gone")


class Pool:
    """Two links, with rows 0-1 and row 2, that answer with what a test gives them."""

    def __init__(self):
        self.rows = [range(2), range(2, 3)]
        self.links = [
            SimpleNamespace(observation_space=SPACE, url=f"ws://{i}", env_name="Env", notes=[], loss=None)
            for i in range(2)
        ]
        self.sent, self.replies = [], []

    def start(self, requests):
        self.sent.append(requests)
        return requests

    def wait(self, call, requests, phase, timeout_s):
        return [self.replies.pop(0) for _ in requests]

    def call(self, requests, phase, timeout_s):
        return self.wait(self.start(requests), requests, phase, timeout_s)


def observed(*values, failures=(), infos=None, unseeded=False):
    return Observed(1, [Array.of(np.array(values, np.float32)[:, None])], infos or {}, list(failures), unseeded)


def stepped(*values, terminated=None, failures=()):
    flags = np.zeros(len(values), np.bool_) if terminated is None else np.array(terminated)
    rewards, no = np.ones(len(values)), np.zeros(len(values), np.bool_)
    batch = [Array.of(np.array(values, np.float32)[:, None])]
    return Stepped(1, batch, Array.of(rewards), Array.of(flags), Array.of(no), {}, None, list(failures))


@pytest.fixture(autouse=True, params=[2, 3], ids=["joined", "one by one"])
def many(request, monkeypatch):
    monkeypatch.setattr("openenv_gym.outcomes._MANY", request.param)


@pytest.fixture
def pool():
    return Pool()


@pytest.fixture
def told():
    return []


@pytest.fixture
def rollout(pool, told):
    return Rollout(pool, on_lost="truncate", warn=told.append)


def reset(rollout, pool, rows=None):
    pool.replies += [observed(0.1, 0.2), observed(0.3)] if rows is None else [observed(*[0.5] * len(rows))]
    result = rollout.finish_reset(rollout.start_reset([None] * 3, [None] * 3, rows), 1.0)
    rollout.reader.keep(result.parts)
    return result


def step(rollout, pool, *replies, mode=AutoresetMode.NEXT_STEP):
    pool.replies += replies
    result = rollout.finish_step(rollout.start_step(ACTIONS, mode), 1.0)
    rollout.reader.keep(result.parts)
    return result


def test_a_reset_goes_to_the_links_of_its_rows(rollout, pool):
    reset(rollout, pool)
    reset(rollout, pool, [1])
    assert [(i, request.slots) for i, request in pool.sent[0]] == [(0, None), (1, None)]
    assert [(i, request.slots) for i, request in pool.sent[1]] == [(0, [1])]


def test_a_first_reset_must_leave_no_row_out(rollout, pool):
    with pytest.raises(gym.error.ResetNeeded, match="env 0 was never reset"):
        rollout.start_reset([None] * 3, [None] * 3, [1, 2])
    assert not pool.sent


def test_a_step_needs_a_reset(rollout, pool):
    with pytest.raises(gym.error.ResetNeeded, match="env 0 has no episode"):
        rollout.start_step(ACTIONS, AutoresetMode.NEXT_STEP)
    assert not pool.sent


def test_without_autoreset_a_finished_env_is_not_stepped(rollout, pool):
    reset(rollout, pool)
    step(rollout, pool, stepped(0, 0, terminated=[False, True]), stepped(0), mode=AutoresetMode.DISABLED)
    sent = len(pool.sent)
    with pytest.raises(EpisodeOver, match=r"env\(s\) \[1\]"):
        rollout.start_step(ACTIONS, AutoresetMode.DISABLED)
    assert len(pool.sent) == sent
    reset(rollout, pool, [1])
    step(rollout, pool, stepped(0, 0), stepped(0), mode=AutoresetMode.DISABLED)


def test_a_timeout_asks_for_a_reset(rollout, pool):
    reset(rollout, pool)
    with pytest.raises(errors.ReplyTimeout):
        step(rollout, pool, errors.ReplyTimeout("step", "ws://0", 1.0, (0, 1)), stepped(0))
    with pytest.raises(gym.error.ResetNeeded):
        rollout.start_step(ACTIONS, AutoresetMode.NEXT_STEP)
    reset(rollout, pool)
    step(rollout, pool, stepped(0, 0), stepped(0))


def test_an_interrupt_asks_for_a_reset(rollout, pool, monkeypatch):
    reset(rollout, pool)
    pending = rollout.start_step(ACTIONS, AutoresetMode.NEXT_STEP)
    monkeypatch.setattr(pool, "wait", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        rollout.finish_step(pending, 1.0)
    with pytest.raises(gym.error.ResetNeeded):
        rollout.start_step(ACTIONS, AutoresetMode.NEXT_STEP)


def test_a_lost_session_truncates_its_rows_and_starts_anew(rollout, pool, told):
    reset(rollout, pool)
    result = step(rollout, pool, LOST, stepped(0.9))
    assert result.truncated.tolist() == [True, True, False]
    assert result.terminated.tolist() == [False] * 3
    assert result.rewards.tolist() == [0, 0, 1]
    assert result.infos == [(0, {CONNECTION_LOST: True}), (1, {CONNECTION_LOST: True})]
    assert rollout.reader.last(0) == np.float32(0.1)  # the last that was real
    assert len(told) == 1
    assert "gone" in told[0]
    following = step(rollout, pool, observed(0.6, 0.7), stepped(0.8))
    assert [type(request) for _, request in pool.sent[-1]] == [Reset, Step]
    assert following.rewards.tolist() == [0, 0, 1]
    assert rollout.reader.last(1) == np.float32(0.7)
    step(rollout, pool, stepped(0, 0), stepped(0))
    assert [type(request) for _, request in pool.sent[-1]] == [Step, Step]


def test_a_lost_session_under_same_step_is_reset_at_once(rollout, pool):
    reset(rollout, pool)
    result = step(rollout, pool, LOST, stepped(0.9), observed(0.6, 0.7), mode=AutoresetMode.SAME_STEP)
    assert [(e.row, float(e.observation[0]), e.info) for e in result.endings] == [
        (0, pytest.approx(0.1), {CONNECTION_LOST: True}),
        (1, pytest.approx(0.2), {CONNECTION_LOST: True}),
    ]
    assert rollout.reader.last(0) == np.float32(0.6)
    assert result.truncated.tolist() == [True, True, False]


def test_a_lost_session_can_be_an_error(pool, told):
    rollout = Rollout(pool, on_lost="raise", warn=told.append)
    reset(rollout, pool)
    with pytest.raises(errors.SessionLost):
        step(rollout, pool, LOST, stepped(0.9))
    with pytest.raises(gym.error.ResetNeeded, match="env 0"):
        rollout.start_step(ACTIONS, AutoresetMode.NEXT_STEP)
    reset(rollout, pool)


def test_failures_name_the_row(rollout, pool):
    reset(rollout, pool)
    failure = EnvFailure(0, "EXECUTION_ERROR", "ValueError", "boom42")
    with pytest.raises(ValueError, match="env 2 reported ValueError: boom42"):
        step(rollout, pool, stepped(0, 0), stepped(0, failures=[failure]))
    with pytest.raises(errors.BatchError) as caught:
        step(rollout, pool, stepped(0, 0, failures=[failure]), stepped(0, failures=[failure]))
    assert sorted(caught.value.failures) == [0, 2]
    step(rollout, pool, stepped(0, 0), stepped(0))


def test_an_ignored_seed_is_told_once(rollout, pool, told):
    for _ in range(2):
        pool.replies += [observed(0, 0, unseeded=True), observed(0)]
        rollout.finish_reset(rollout.start_reset([1, 2, 3], [None] * 3), 1.0)
    assert told == ["Env ignores seeds: its reset() takes none"]
    assert pool.sent[0][0][1].seeds == [1, 2]


def test_answers_come_in_the_order_of_the_rows(rollout, pool):
    pool.replies += [Returned(1, ["a"], []), Returned(1, ["c"], [])]
    assert rollout.ask(lambda slots, rows: Get(0, slots, "x"), "get_attr", 1.0, [2, 0]) == ["c", "a"]
    assert [request.slots for _, request in pool.sent[0]] == [[0], None]


def test_an_unexpected_reply_is_an_error(rollout, pool):
    reset(rollout, pool)
    with pytest.raises(errors.RemoteProtocolError, match="unexpected Returned"):
        step(rollout, pool, Returned(1, [], []), stepped(0))


def test_warnings_may_hold_percent_signs():  # which Gymnasium's logger takes for places to fill in
    with pytest.warns(UserWarning, match="no server at http://a%20b, 50 % gone"):
        warn("no server at http://a%20b, 50 % gone")
