"""`RemoteVecEnv` against the oracle: a ``SyncVectorEnv`` of the same envs, with the same seeds and actions."""

import pickle
import random
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from helpers_oracle import INFOS, SCALARS, Fleet, Script, ScriptedEnv
from helpers_spaces import NAMED
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from openenv_gym import LocalServer, RemoteVecEnv, errors

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
EMPTY = {"box without elements", "dict empty", "tuple empty"}
"""Action spaces that ``gymnasium.vector.utils.iterate`` itself can't iterate over."""
MODES = [mode.value for mode in AutoresetMode]
BATCH = [{"connections": 1}, {"connections": 2}, {"connections": 3}]


def pair(scripts, mode, options, action_space=None):
    """A remote and a local vector env of the same envs."""
    fleet = Fleet(scripts, action_space)
    server = LocalServer(fleet)
    remote = RemoteVecEnv(server.url, len(scripts), token=server.token, autoreset_mode=mode, **options)
    local = SyncVectorEnv([lambda: ScriptedEnv(scripts, action_space)] * len(scripts), autoreset_mode=mode)
    return server, remote, local, fleet


def assert_same(ours, theirs, path="result"):
    """Equal in value, type, dtype, shape and key order; infos may have their keys in another order."""
    assert data_equivalence(ours, theirs, exact=True), f"{path}: {ours!r} != {theirs!r}"


def arrays(value):
    """All arrays inside a value."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from arrays(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from arrays(part)


def assert_owned(result, before):
    """What is handed out is writable, and shares no memory with what was handed out before."""
    for array in arrays(result):
        assert array.flags.writeable
        assert array.flags.owndata or array.base.flags.owndata
        assert not any(np.shares_memory(array, old) for old in before if array.size)


def run(scripts, mode, options, *, steps, seed=3, action_space=None, masks=()):
    """Drive both through the same resets and steps, and compare everything."""
    server, remote, local, fleet = pair(scripts, mode, options, action_space)
    with server, remote:
        assert remote.observation_space == local.observation_space
        assert remote.action_space == local.action_space
        assert_same(remote.reset(seed=seed), local.reset(seed=seed))
        local.action_space.seed(7)
        before = []
        for step in range(steps):
            actions = local.action_space.sample()
            ours, theirs = remote.step(actions), local.step(actions)
            assert_same(ours, theirs, f"step {step}")
            assert_owned(ours, before)
            before = [*arrays(ours)]
            over = theirs[2] | theirs[3]
            if mode == "Disabled" and over.any():
                mask = over
            elif step in masks:
                mask = np.arange(len(scripts)) % 2 == step % 2
            else:
                continue
            options_given = {"reset_mask": mask.copy(), "level": 2}
            assert_same(remote.reset(options=options_given), local.reset(options={"reset_mask": mask, "level": 2}))
            assert "reset_mask" in options_given
    assert fleet.heard() == [env.unwrapped.heard for env in local.envs]


def some_scripts(mode, infos):
    """Three scripts. Under SameStep a local env that reuses its buffers overwrites its own final observation."""
    return st.lists(
        st.builds(
            Script,
            space=st.just(BOX),
            lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
            endings=st.lists(st.sampled_from(["terminated", "truncated", "both"]), min_size=1, max_size=3).map(tuple),
            infos=st.lists(st.sampled_from(infos), min_size=1, max_size=4).map(tuple),
            reward=st.sampled_from(sorted(SCALARS)),
            reuse=st.just(False) if mode == "SameStep" else st.booleans(),
            salt=st.integers(0, 100),
        ),
        min_size=3,
        max_size=3,
    )


# Shrinking would start a server for each try; the failing example says enough.
few = settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
JSON_INFOS = ["none", "int", "float", "string", "bool"]
"""Infos whose types survive JSON."""


@pytest.mark.parametrize("options", BATCH, ids=str)
@pytest.mark.parametrize("mode", MODES)
@few
@given(data=st.data())
def test_equals_a_local_vector_env(mode, options, data):
    scripts = data.draw(some_scripts(mode, sorted(INFOS)))
    run(scripts, mode, options, steps=12, masks=data.draw(st.sets(st.integers(0, 11), max_size=3)))


@pytest.mark.parametrize("mode", MODES)
@few
@given(data=st.data())
def test_equals_a_local_vector_env_in_the_openenv_dialect(mode, data):
    run(data.draw(some_scripts(mode, JSON_INFOS)), mode, {"dialect": "openenv"}, steps=10)


@pytest.mark.parametrize("mode", MODES)
def test_a_thousand_steps_of_cartpole(mode):
    local = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 4, autoreset_mode=mode)
    with RemoteVecEnv.local("CartPole-v1", num_envs=4, autoreset_mode=mode) as remote:
        assert remote.autoreset_mode is local.autoreset_mode
        assert_same(remote.reset(seed=1), local.reset(seed=1))
        local.action_space.seed(1)
        for step in range(1000):
            actions = local.action_space.sample()
            theirs = local.step(actions)
            assert_same(remote.step(actions), theirs, f"step {step}")
            over = theirs[2] | theirs[3]
            if mode == "Disabled" and over.any():
                mask = {"reset_mask": over}
                assert_same(remote.reset(options=mask), local.reset(options=dict(mask)))


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_space_kind_as_observation(name):
    run([Script(NAMED[name], salt=i) for i in range(3)], "SameStep", {"connections": 2}, steps=5)


@pytest.mark.parametrize("name", sorted(set(NAMED) - EMPTY))
def test_every_space_kind_as_action(name):
    run([Script(BOX, salt=i) for i in range(3)], "NextStep", {"connections": 2}, steps=4, action_space=NAMED[name])


@pytest.mark.parametrize("name", ["Taxi-v4", "Blackjack-v1"])
def test_final_observations_are_as_the_env_made_them(name):
    with LocalServer(lambda: gym.make(name)) as server:
        remote = RemoteVecEnv(server.url, 2, token=server.token, autoreset_mode="SameStep", max_episode_steps=4)
        local = SyncVectorEnv(
            [lambda: gym.wrappers.TimeLimit(gym.make(name), 4)] * 2, autoreset_mode=AutoresetMode.SAME_STEP
        )
        assert_same(remote.reset(seed=3), local.reset(seed=3))
        local.action_space.seed(1)
        for _ in range(9):
            actions = local.action_space.sample()
            assert_same(remote.step(actions), local.step(actions))
        remote.close()
        local.close()


class Late(ScriptedEnv):
    """Steps take a while that is never the same."""

    def step(self, action):
        threading.Event().wait(random.random() * 0.01)
        return super().step(action)


def test_two_runs_are_equal_whichever_reply_is_first():
    scripts = [Script(BOX, infos=("array", "nested"), salt=i) for i in range(4)]
    runs = []
    with LocalServer(lambda: Late(scripts), max_workers=4) as server:
        for connections in (4, 2):
            with RemoteVecEnv(server.url, 4, token=server.token, connections=connections) as env:
                run = [env.reset(seed=5)]
                env.action_space.seed(5)
                run += [env.step(env.action_space.sample()) for _ in range(12)]  # three episodes and their resets
                runs.append(pickle.dumps(run))
    assert runs[0] == runs[1]


FLOATS = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
ODD = [np.nan, np.inf, -np.inf, 1.5]


class Odd(gym.Env):
    """Observes what its action names."""

    action_space = gym.spaces.Discrete(3)

    def __init__(self, space, values):
        self.observation_space, self.values = space, values

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action):
        return self.values, -np.inf if action == 1 else 0.0, False, False, {}


def test_numbers_that_are_not_finite_arrive():
    with (
        LocalServer(lambda: Odd(FLOATS, np.array(ODD, np.float32))) as server,
        RemoteVecEnv(server.url, 2, token=server.token) as env,
    ):
        env.reset()
        observations, rewards, *_ = env.step([1, 0])
    assert observations.dtype == np.float32
    assert np.array_equal(observations, [ODD, ODD], equal_nan=True)
    assert rewards.tolist() == [-np.inf, 0.0]


def test_json_makes_them_nan_and_says_so_once():
    with (
        LocalServer(lambda: Odd(FLOATS, np.array(ODD, np.float32))) as server,
        RemoteVecEnv(server.url, 2, token=server.token, dialect="openenv") as env,
    ):
        env.reset()
        with pytest.warns(UserWarning, match="null in an observation of floats became nan") as caught:
            observations = [env.step([0, 0])[0] for _ in range(3)]
    assert len(caught) == 1
    assert np.array_equal(observations[2], [[np.nan] * 3 + [1.5]] * 2, equal_nan=True)


@pytest.mark.parametrize("options", [{}, {"dialect": "openenv"}], ids=str)
@pytest.mark.parametrize("value", [300, 1.5, None])
def test_what_the_space_can_not_hold_is_an_error(options, value):
    space = gym.spaces.Dict(pixels=gym.spaces.Box(0, 255, (), np.uint8))
    with (
        LocalServer(lambda: Held(space, value)) as server,
        RemoteVecEnv(server.url, 2, token=server.token, **options) as env,
    ):
        env.reset()
        with pytest.raises(Exception, match=r"(?s)env [01].*pixels.*uint8") as caught:
            env.step([0, 0])
        assert str(value) in str(caught.value)
        assert isinstance(caught.value, (errors.RemoteEnvError, errors.BatchError))


class Held(gym.Env):
    """Observes a value that its space may not hold."""

    action_space = gym.spaces.Discrete(3)

    def __init__(self, space, value):
        self.observation_space, self.value = space, value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"pixels": np.uint8(0)}, {}

    def step(self, action):
        return {"pixels": self.value}, 0.0, False, False, {}


def test_seeds_that_the_envs_chose():
    with LocalServer("CartPole-v1") as server, RemoteVecEnv(server.url, 3, token=server.token) as env:
        env.reset()
        chosen = env.np_random_seed
        assert len(set(chosen)) == 3
        env.reset()
        assert env.np_random_seed == chosen
        env.reset(seed=[5, None, 7])
        assert env.np_random_seed == (5, chosen[1], 7)


def test_the_generator_of_the_action_space_is_left_to_the_caller():
    with LocalServer("CartPole-v1") as server, RemoteVecEnv(server.url, 2, token=server.token) as env:
        env.action_space.seed(3)
        before = env.action_space.np_random.bit_generator.state
        env.reset(seed=3)
        env.step([0, 1])
        env.reset()
        assert env.action_space.np_random.bit_generator.state == before
