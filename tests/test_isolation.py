"""One env that fails harms no other row: over a whole server, in both dialects, on one connection and on several."""

import asyncio
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from helpers_envs import Count, Factory, Meeting
from helpers_server import running
from helpers_wait import LIMIT_S

from openenv_gym import EnvClient, RemoteVecEnv
from openenv_gym.errors import BatchError, RemoteEnvError
from openenv_gym.server import create_app

FAIL, HANG, LOOP, NONSENSE = 1, 2, 3, 4


class Wayward(gym.Env):
    """Counts its steps, and does what the action says."""

    observation_space = Box(-1, 1000, (1,), np.float64)
    action_space = Discrete(5)
    way_out = threading.Event()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if options:
            raise ValueError("no luck")
        self.t = 0
        return np.array([0.0]), {}

    def step(self, action):
        self.t += 1
        if action == FAIL:
            raise ValueError("boom42")
        if action == HANG:
            self.way_out.wait(LIMIT_S)
        if action == LOOP:
            asyncio.run(asyncio.sleep(0))
        return (1, 2) if action == NONSENSE else (np.array([float(self.t)]), 1.0, False, False, {})


def serve(**settings):
    """A server that is told how many threads its envs need, and so doesn't find out with random actions."""
    return create_app(Wayward, **(settings or {"max_workers": 3}))


@pytest.fixture
def no_way_out():
    Wayward.way_out.clear()


@pytest.mark.parametrize("options", [{"connections": 1}, {"connections": 3}, {"dialect": "openenv"}], ids=str)
@pytest.mark.parametrize(
    "action, kind, text",
    [
        (FAIL, RemoteEnvError, "env 1 reported ValueError: boom42"),
        (HANG, RemoteEnvError, r"env 1 reported .*didn't return from 'step' within 5 second"),
        (NONSENSE, RemoteEnvError, r"env 1 reported .*not 2 values"),
    ],
    ids=["raises", "hangs", "returns nonsense"],
)
def test_it_is_named_and_the_others_made_their_step(options, action, kind, text, no_way_out):
    app = serve(max_step_s=5.0) if action == HANG else serve()
    with running(app) as url, RemoteVecEnv(url, 3, **options) as env:
        env.reset(seed=1)
        env.step([0, 0, 0])
        with pytest.raises(kind, match=text):
            env.step([0, action, 0])
        Wayward.way_out.set()
        assert env.reset(options={"reset_mask": np.array([False, True, False])})[0].tolist() == [[2], [0], [2]]
        assert env.step([0, 0, 0])[0].tolist() == [[3], [1], [3]]
        assert env.reset(seed=1)[0].tolist() == [[0]] * 3
        assert env.step([0, 0, 0])[0].tolist() == [[1]] * 3


@pytest.mark.parametrize("dialect", [None, "openenv"])
def test_an_env_may_run_an_event_loop_of_its_own(dialect):
    with running(serve()) as url, RemoteVecEnv(url, 2, dialect=dialect) as env:
        env.reset(seed=1)
        assert env.step([LOOP, LOOP])[0].tolist() == [[1], [1]]


def test_it_may_in_a_batch_of_steps_too():
    with running(serve()) as url, EnvClient(url).sync() as client:
        client.reset()
        results = client.batch_step([{"action": LOOP}, {"action": LOOP}])
        assert [result.observation for result in results] == [{"observation": [1.0]}, {"observation": [2.0]}]


@pytest.mark.parametrize("num_envs, who", [("1", "the server"), ("2", "env 1")])
def test_a_batch_of_steps_tells_what_an_env_raised(num_envs, who):
    """In place of an empty result."""
    with running(serve()) as url, EnvClient(url, query={"num_envs": num_envs}).sync() as client:
        client.batch_reset()
        with pytest.raises(RemoteEnvError, match=f"^{who} reported ValueError: boom42"):
            client.batch_step([{"action": 0}, {"action": FAIL}])
        results = client.batch_step([{"action": 0}] * 2)
        counts = [result.observation["observation"] for result in results]
        assert counts == ([[3], [4]] if num_envs == "1" else [[2], [2]])


def test_a_batch_of_resets_does_too():
    with running(serve()) as url, EnvClient(url, query={"num_envs": "2"}).sync() as client:
        with pytest.raises(BatchError, match=r"2 envs failed: env 0-1 reported ValueError: no luck"):
            client.batch_reset(options={"fail": True})
        client.batch_reset()


@pytest.mark.parametrize(
    "options", [{"connections": 1}, {"connections": 3}, {"connections": 8}, {"dialect": "openenv"}], ids=str
)
def test_envs_that_wait_do_so_at_the_same_time(options):
    """Eight steps, or resets, each of which ends only when all have begun."""
    factory = Factory(Count, {"on": {"reset": Meeting(8)}, "habits": {1: Meeting(8)}})
    with running(create_app(factory, max_step_s=LIMIT_S)) as url, RemoteVecEnv(url, 8, **options) as env:
        env.reset(seed=1)
        assert env.step([1] * 8)[0].tolist() == [[1]] * 8
        env.send([1] * 8)
        assert env.recv()[0].tolist() == [[2]] * 8


def test_envs_of_one_json_session_do_too():
    factory = Factory(Count, {"on": {"reset": Meeting(8)}, "habits": {1: Meeting(8)}})
    with (
        running(create_app(factory, max_step_s=LIMIT_S)) as url,
        EnvClient(url, query={"num_envs": "8"}).sync() as client,
    ):
        client.batch_reset()
        results = client.batch_step([{"action": 1}] * 8)
        assert [result.observation["observation"] for result in results] == [[1.0]] * 8


def test_envs_of_a_stock_server_do_too():
    openenv = pytest.importorskip("helpers_openenv")
    meeting = Meeting(4)

    class Met(openenv.Count):
        def step(self, action, timeout_s=None, **kwargs):
            meeting()
            return super().step(action)

    with openenv.stock_server(Met) as url, RemoteVecEnv(url, 4, **openenv.COUNT_SPACES) as env:
        env.reset()
        assert env.step({"sleep": np.zeros(4)})[0]["count"].tolist() == [1] * 4
