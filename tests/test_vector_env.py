"""`RemoteVecEnv` against the oracle: a ``SyncVectorEnv`` of the same envs, with the same seeds and actions."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from helpers_oracle import INFOS, SCALARS, Fleet, Script, ScriptedEnv
from helpers_spaces import NAMED
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from openenv_gym import LocalServer, RemoteVecEnv

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


def test_seeds_that_the_envs_chose():
    with LocalServer("CartPole-v1") as server, RemoteVecEnv(server.url, 3, token=server.token) as env:
        env.reset()
        chosen = env.np_random_seed
        assert len(set(chosen)) == 3
        env.reset()
        assert env.np_random_seed == chosen
        env.reset(seed=[5, None, 7])
        assert env.np_random_seed == (5, chosen[1], 7)


def test_seeds_are_integers_of_any_size():
    seeds = [2**70, None, 2**64 - 1]
    with LocalServer(lambda: gym.make("CartPole-v1")) as server, RemoteVecEnv(server.url, 3, token=server.token) as env:
        local = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3)
        ours, theirs = (vec.reset(seed=seeds)[0] for vec in (env, local))
        assert_same(ours[::2], theirs[::2])
        assert_same(env.reset(seed=10**30), local.reset(seed=10**30))
