"""`RemoteVecEnv` against the oracle: a ``SyncVectorEnv`` of the same envs, with the same seeds and actions."""

import contextlib
import pickle
import random
import threading
import warnings
from copy import deepcopy
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from helpers_launcher import Listed
from helpers_oracle import INFOS, SCALARS, Fleet, Script, ScriptedEnv
from helpers_server import running
from helpers_spaces import NAMED
from helpers_wait import wait_until
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from openenv_gym import LocalServer, RemoteEnv, RemoteVecEnv, errors, resharding
from openenv_gym.launcher import ServerAddress
from openenv_gym.sb3 import SB3VecEnv
from openenv_gym.server import create_app

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
EMPTY = {"box without elements", "dict empty", "tuple empty"}
"""Action spaces that ``gymnasium.vector.utils.iterate`` itself can't iterate over."""
MODES = [mode.value for mode in AutoresetMode]
BATCH = [{"connections": 1}, {"connections": 2}, {"connections": 3}]
SERVERS = ["two servers", "a second server that comes later"]


@contextlib.contextmanager
def pair(scripts, mode, options, action_space=None):
    """A remote and a local vector env of the same envs, and these envs.

    The local ones don't reuse their buffers: Gymnasium would let a reset overwrite the last observation.
    """
    fleet, count = Fleet(scripts, action_space), len(scripts)
    local = SyncVectorEnv([lambda: local_env(scripts, action_space, options)] * count, autoreset_mode=mode)
    if options in SERVERS:
        with on_two_servers(fleet, count, mode, come_later=options != SERVERS[0]) as remote:
            yield remote, local, fleet
        return
    with (
        pytest.MonkeyPatch.context() as patched,
        LocalServer(fleet) as server,
        RemoteVecEnv(server.url, count, token=server.token, autoreset_mode=mode, **options) as remote,
    ):
        if options.get("connections", count) == count:  # so few replies are joined here, as else many are
            patched.setattr("openenv_gym.outcomes._MANY", count)
        yield remote, local, fleet


def local_env(scripts, action_space, options):
    env = ScriptedEnv([replace(script, reuse=False) for script in scripts], action_space)
    limit = None if options in SERVERS else options.get("max_episode_steps")
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


@contextlib.contextmanager
def on_two_servers(fleet, count, mode, *, come_later):
    """Envs on two servers of a launcher; when one came later, some move there with their first reset."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(resharding, "WATCH_S", 0.02)
        fleet.servers = 2
        with running(create_app(fleet)) as first, running(create_app(fleet)) as second:
            launcher = Listed(a=first) if come_later else Listed(a=first, b=second)
            with RemoteVecEnv(launcher, count, autoreset_mode=mode) as remote:
                if come_later:
                    launcher.listed.update(b=ServerAddress(second))
                    (link,) = remote.rollout.pool.links
                    wait_until(lambda: len(link.legs.bound) == count // 2, "envs on the second server")
                yield remote


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
    with pair(scripts, mode, options, action_space) as (remote, local, fleet):
        assert remote.observation_space == local.observation_space
        assert remote.action_space == local.action_space
        given = [remote.reset(seed=seed)]
        kept = [deepcopy(given[0])]
        assert_same(given[0], local.reset(seed=seed))
        assert_owned(given[0], [])
        local.action_space.seed(7)
        before = [*arrays(given[0])]
        for step in range(steps):
            actions = local.action_space.sample()
            ours, theirs = remote.step(actions), local.step(actions)
            assert_same(ours, theirs, f"step {step}")
            assert_owned(ours, before)
            before = [*arrays(ours)]
            given.append(ours)
            kept.append(deepcopy(ours))
            over = theirs[2] | theirs[3]
            if mode == "Disabled" and over.any():
                mask = over
            elif step in masks:
                mask = np.arange(len(scripts)) % 2 == step % 2
            else:
                continue
            more = {"level": 2} if step % 2 else {}
            options_given = {"reset_mask": mask.copy(), **more}
            ours = remote.reset(options=options_given)
            assert_same(ours, local.reset(options={"reset_mask": mask, **more}))
            assert_owned(ours, before)
            assert "reset_mask" in options_given
        assert_same(given, kept, "what was given before")
    assert fleet.heard() == [env.unwrapped.heard for env in local.envs]


def some_scripts(infos):
    """Three scripts."""
    return st.lists(
        st.builds(
            Script,
            space=st.just(BOX),
            lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
            endings=st.lists(st.sampled_from(["terminated", "truncated", "both"]), min_size=1, max_size=3).map(tuple),
            infos=st.lists(st.sampled_from(infos), min_size=1, max_size=4).map(tuple),
            reward=st.sampled_from(sorted(SCALARS)),
            reuse=st.booleans(),
            salt=st.integers(0, 100),
        ),
        min_size=3,
        max_size=3,
    )


# Shrinking would start a server for each try; the failing example says enough.
few = settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
MASKS = st.sets(st.integers(0, 11), max_size=3)
"""After which steps some envs are reset."""
JSON_INFOS = ["none", "int", "float", "string", "bool"]
"""Infos whose types survive JSON."""


@pytest.mark.parametrize("options", [*BATCH, *SERVERS], ids=str)
@pytest.mark.parametrize("mode", MODES)
@few
@given(data=st.data())
def test_equals_a_local_vector_env(mode, options, data):
    run(data.draw(some_scripts(sorted(INFOS))), mode, options, steps=12, masks=data.draw(MASKS))


@pytest.mark.parametrize("mode", MODES)
@few
@given(data=st.data())
def test_equals_a_local_vector_env_in_the_openenv_dialect(mode, data):
    run(data.draw(some_scripts(JSON_INFOS)), mode, {"dialect": "openenv"}, steps=12, masks=data.draw(MASKS))


@pytest.mark.parametrize("options", [*BATCH, {"dialect": "openenv"}], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_a_limit_of_steps_equals_gymnasiums_wrapper(mode, options):
    scripts = [Script(BOX, lengths=(length, 9), infos=("int",)) for length in (3, 4, 2)]
    run(scripts, mode, {**options, "max_episode_steps": 3}, steps=20, masks={1, 5, 6, 11})


@pytest.mark.parametrize("options", [*BATCH, {"dialect": "openenv"}], ids=str)
@pytest.mark.parametrize("mask", [None, [True, False, False], [True, True, False]], ids=str)
def test_a_reset_takes_the_place_of_the_autoreset(mask, options):
    scripts = [Script(BOX, lengths=(length,)) for length in (3, 3, 9)]
    with pair(scripts, "NextStep", options) as (remote, local, _):
        for env in (remote, local):
            env.reset(seed=0)
        for _ in range(3):
            theirs = local.step([0, 0, 0])
            assert_same(remote.step([0, 0, 0]), theirs)
        assert theirs[2].tolist() == [True, True, False]
        given = [None if mask is None else {"reset_mask": np.array(mask)} for _ in range(2)]
        assert_same(remote.reset(options=given[0]), local.reset(options=given[1]))
        ours = remote.step([0, 0, 0])
        assert ours[1].tolist() == [1.5, 0.0 if mask == [True, False, False] else 1.5, 1.5]
        assert_same(ours, local.step([0, 0, 0]))


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("dialect", [None, "openenv"])
@pytest.mark.parametrize("env", ["Blackjack-v1", "CliffWalking-v1"])
def test_integers_have_the_types_of_a_local_vector_env(env, dialect, mode):
    local = gym.make_vec(env, 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, max_episode_steps=5)
    with RemoteVecEnv.local(env, 3, autoreset_mode=mode, dialect=dialect, max_episode_steps=5) as remote:
        assert_same(remote.reset(seed=3), local.reset(seed=3))
        local.action_space.seed(1)
        ended = 0
        for step in range(12):
            actions = local.action_space.sample()
            ours, theirs = remote.step(actions), local.step(actions)
            assert_same(ours, theirs, f"step {step}")
            ended += (theirs[2] | theirs[3]).sum()
    assert ended > 0


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


@pytest.mark.parametrize("mode", MODES)
def test_an_openenv_server_equals_a_local_vector_env(mode):
    openenv = pytest.importorskip("helpers_openenv")
    local = SyncVectorEnv([lambda: gym.wrappers.TimeLimit(gym.make("CartPole-v1"), 14)] * 3, autoreset_mode=mode)
    spaces = {"observation_space": local.single_observation_space, "action_space": local.single_action_space}
    options = {"autoreset_mode": mode, "max_episode_steps": 14, "on_lost": "raise"}
    with openenv.stock_server(openenv.CartPole) as url, RemoteVecEnv(url, 3, **spaces, **options) as remote:
        assert_same(remote.reset(seed=1), local.reset(seed=1))
        local.action_space.seed(1)
        ends = np.zeros(2, int)
        for step in range(80):
            actions = local.action_space.sample()
            theirs = local.step(actions)
            assert_same(remote.step(actions), theirs, f"step {step}")
            ends += theirs[2].sum(), theirs[3].sum()
            mask = theirs[2] | theirs[3] if mode == "Disabled" else np.array([step % 9 == 8, False, False])
            if mask.any():
                assert_same(*(env.reset(options={"reset_mask": mask.copy()}) for env in (remote, local)))
    assert ends.all()


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


class Deaf(gym.Env):
    """Takes no seed."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, True, False, {}


@pytest.mark.parametrize("dialect", [None, "openenv"])
def test_a_seed_that_the_env_does_not_take_is_told_once(dialect):
    with LocalServer(Deaf) as server, RemoteVecEnv(server.url, 2, token=server.token, dialect=dialect) as env:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            env.reset()
        with pytest.warns(UserWarning, match=r"(Deaf|ws://[^ ]*) ignores seeds: its reset\(\) takes none") as told:
            env.reset(seed=1)
            env.reset(seed=2)
        assert len(told) == 1


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
        with pytest.warns(UserWarning, match="ws://[^ ]*: null in an observation of floats became nan") as caught:
            observations = [env.step([0, 0])[0] for _ in range(3)]
        assert len(caught) == 1
        with pytest.warns(UserWarning, match="ws://[^ ]*: null as a reward became nan") as caught:
            rewards = [env.step([0, 1])[1] for _ in range(3)]
        assert len(caught) == 1
    assert np.array_equal(observations[2], [[np.nan] * 3 + [1.5]] * 2, equal_nan=True)
    assert np.array_equal(rewards[2], [0.0, np.nan], equal_nan=True)


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


def test_how_it_writes_itself():
    with running(create_app("CartPole-v1")) as one, running(create_app("CartPole-v1")) as other:
        urls = [f"{url.replace('http', 'ws')}/ws" for url in (one, other)]
        with RemoteVecEnv(one, 2, connections=2) as envs:
            assert repr(envs) == f"RemoteVecEnv({urls[0]!r}, num_envs=2)"
        assert repr(envs) == f"RemoteVecEnv({urls[0]!r}, num_envs=2)"  # closed, too
        with RemoteVecEnv([one, other], 2) as envs:
            assert repr(envs) == f"RemoteVecEnv({urls!r}, num_envs=2)"


def test_an_address_with_percent_signs_breaks_no_warning():
    with running(create_app("CartPole-v1")) as url, RemoteVecEnv(f"{url}?by=%7Ex%20d", 2) as envs:
        assert r"/ws?by=\x7Ex\x20d" in repr(envs)
        with pytest.warns(UserWarning, match="For RemoteVecEnv.* space don't match") as told:
            gym.wrappers.vector.TransformObservation(envs, lambda given: given, observation_space=BOX)
        assert len(told) == 1
        assert repr(envs) in str(told[0].message)


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


@pytest.mark.parametrize("options", BATCH)
def test_the_action_space_samples_as_the_first_envs_does(options):
    def make():
        env = ScriptedEnv([Script(BOX)], gym.spaces.Dict({"a": gym.spaces.Discrete(9), "b": BOX}))
        env.action_space.seed(5)
        return env

    local = SyncVectorEnv([make] * 3)
    with LocalServer(make) as server, RemoteVecEnv(server.url, 3, token=server.token, **options) as remote:
        state = remote.single_action_space.np_random.bit_generator.state
        assert remote.action_space.np_random.bit_generator.state == state
        assert state == local.single_action_space.np_random.bit_generator.state
        for space, theirs in (
            (remote.action_space, local.action_space),
            (remote.single_action_space, make().action_space),
        ):
            assert [data_equivalence(space.sample(), theirs.sample(), exact=True) for _ in range(5)] == [True] * 5
        assert data_equivalence(remote.action_space.sample(), local.action_space.sample(), exact=True)


class Shared(Odd):
    """Its action space is one object for all of its envs."""

    def __init__(self):
        super().__init__(BOX, np.zeros(3, np.float32))


@pytest.mark.parametrize("env", ["CartPole-v1", Shared], ids=["own", "shared"])
def test_an_action_space_that_no_env_seeded_is_seeded_anew_by_each_learner(env):
    with LocalServer(env) as server:
        learners = [RemoteVecEnv(server.url, 1, token=server.token) for _ in range(2)]
        one, other = (learner.action_space.np_random.bit_generator.state for learner in learners)
        for learner in learners:
            learner.close()
    assert one != other


def test_attributes_and_methods_are_those_of_a_local_vector_env():
    with pair([Script(BOX)] * 3, "NextStep", {"connections": 2}) as (remote, local, _):
        for env in (remote, local):
            env.reset(seed=1)
            assert env.call("t") == (0, 0, 0)
            env.set_attr("t", [1, 2, 3])
            assert env.get_attr("t") == (1, 2, 3)
            env.set_attr("note", {"a": 1})
            assert env.get_attr("note") == ({"a": 1},) * 3
            env.set_attr("mark", np.array([1, 2]))
            assert [mark.tolist() for mark in env.get_attr("mark")] == [[1, 2]] * 3
            assert type(env.call("render")) is tuple
            with pytest.raises(AttributeError):
                env.get_attr("missing")
            with pytest.raises(AttributeError):
                env.np_random = np.random.default_rng()
            with pytest.raises(AttributeError):
                env.np_random_seed = (1, 2, 3)
            for name in ("t", "gravity", "missing", "_private"):
                assert not hasattr(env, name)
        with pytest.raises(AttributeError, match="live on the server"):
            _ = remote.np_random


def test_there_are_no_attributes_in_the_openenv_dialect():
    """Whoever looks for one, such as a wrapper, is told so in the usual way."""
    with running(create_app("CartPole-v1")) as url:
        with RemoteVecEnv(url, 2, dialect="openenv") as envs:
            with pytest.raises(AttributeError, match=r"env 0-1 reported .*no get message"):
                envs.get_attr("gravity")
            assert not SB3VecEnv(envs).has_attr("action_masks")
        with RemoteEnv(url, dialect="openenv") as env:
            assert not env.has_wrapper_attr("action_masks")
            assert env.has_wrapper_attr("render_mode")


def test_seeds_of_envs_outside_the_mask_do_not_count():
    with pair([Script(BOX)] * 3, "Disabled", {"connections": 2}) as (remote, local, _):
        for env in (remote, local):
            env.reset(seed=[0, 1, 2])
        mask = np.array([True, False, False])
        ours, theirs = (env.reset(seed=[5, 6, 7], options={"reset_mask": mask.copy()}) for env in (remote, local))
        assert_same(ours, theirs)
        assert remote.np_random_seed == local.np_random_seed == (5, 1, 2)


@pytest.mark.parametrize("copy", [True, False])
def test_what_the_caller_writes_into_observations_changes_nothing(copy):
    with pair([Script(BOX)] * 3, "Disabled", {"copy": copy}) as (remote, local, _):
        assert_same(remote.reset(seed=1), local.reset(seed=1))
        ours, theirs = remote.step([0, 1, 2]), local.step([0, 1, 2])
        assert_same(ours, theirs)
        ours[0][...] = 9
        mask = np.array([False, True, False])
        assert_same(*(env.reset(seed=4, options={"reset_mask": mask.copy()}) for env in (remote, local)))


def stepped_alone(url, actions, **options):
    """Step each env by itself; for `test_actions_out_of_bounds_are_the_envs_own_affair`, like the next two."""
    for number, action in enumerate(actions):
        with RemoteEnv(url, **options) as env:
            env.reset(seed=number)
            env.step(action)


def stepped_together(url, actions, **options):
    with RemoteVecEnv(url, len(actions), **options) as env:
        env.reset(seed=0)
        env.step(actions)


def stepped_by_sb3(url, actions, **options):
    env = SB3VecEnv(RemoteVecEnv(url, len(actions), **options))
    env.seed(0)
    env.reset()
    env.step(actions)
    env.close()


EVERY_WAY = pytest.mark.parametrize("step", [stepped_alone, stepped_together, stepped_by_sb3])
EVERY_DIALECT = pytest.mark.parametrize("dialect", [None, "openenv"])


@EVERY_WAY
@EVERY_DIALECT
@pytest.mark.parametrize("given", [np.array, list], ids=["array", "list"])
def test_actions_out_of_bounds_are_the_envs_own_affair(step, dialect, given):
    fleet = Fleet([Script(BOX)] * 2, gym.spaces.Box(-1, 1, (1,), np.float32))
    actions = given([np.array([value], np.float32) for value in (1.38, -9)])
    with running(create_app(fleet)) as url:
        step(url, actions, dialect=dialect)
    assert [heard[1] for heard in fleet.heard()] == [("step", "ndarray", "[1.38]"), ("step", "ndarray", "[-9.]")]


@EVERY_WAY
@EVERY_DIALECT
def test_an_action_with_nan_is_refused_before_anything_is_sent(step, dialect):
    fleet = Fleet([Script(BOX)], gym.spaces.Box(-1, 1, (1,), np.float32))
    with running(create_app(fleet)) as url:
        with pytest.raises(errors.ActionError, match="the action of env 0 holds NaN"):
            step(url, np.array([[np.nan]], np.float32), dialect=dialect)
        assert [[call for call, *_ in heard] for heard in fleet.heard()] == [["reset"]]


class Boom(gym.Env):
    """Raises once, at its second step or in its reset, if its seed says so."""

    observation_space, action_space = gym.spaces.Box(0, 9, (1,), np.float32), gym.spaces.Discrete(2)
    boomed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        if seed == 11:
            raise ValueError("boom in reset")
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.t == 2 and self.np_random_seed == 1 and not self.boomed:
            self.boomed = True
            raise ValueError("boom 42%s")
        return np.full(1, self.t, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("options", BATCH)
def test_one_env_that_raises_leaves_the_others_in_step(options):
    with LocalServer(Boom) as server, RemoteVecEnv(server.url, 3, token=server.token, **options) as env:
        env.reset(seed=0)
        env.step([0, 0, 0])
        with pytest.raises(ValueError, match="env 1 reported ValueError: boom 42%s") as caught:
            env.step([0, 0, 0])
        assert (caught.value.env_index, caught.value.type) == (1, "ValueError")
        assert env.call("t") == (2, 2, 2)
        env.reset(options={"reset_mask": np.array([False, True, False])})
        assert env.step([0, 0, 0])[0].tolist() == [[3], [1], [3]]


@pytest.mark.parametrize("options", BATCH)
def test_a_reset_that_fails_concerns_its_env_only(options):
    with LocalServer(Boom) as server, RemoteVecEnv(server.url, 3, token=server.token, **options) as env:
        with pytest.raises(ValueError, match="env 1 reported ValueError: boom in reset"):
            env.reset(seed=10)
        with pytest.raises(gym.error.ResetNeeded, match="env 1 has no episode"):
            env.step([0, 0, 0])
        env.reset(seed=4, options={"reset_mask": np.array([False, True, False])})
        assert env.step([0, 0, 0])[0].tolist() == [[1], [1], [1]]


@EVERY_DIALECT
@pytest.mark.parametrize("connections", [1, 3])
def test_each_env_starts_as_it_would_alone(dialect, connections):
    with running(create_app("CartPole-v1")) as url:
        with RemoteVecEnv(url, 8, dialect=dialect, connections=connections) as env:
            together = env.reset(seed=42)[0]
        with RemoteEnv(url, dialect=dialect) as env:
            alone = [env.reset(seed=42 + row)[0] for row in range(8)]
    assert np.array_equal(together, alone)
    assert np.array_equal(together[:2], [gym.make("CartPole-v1").reset(seed=seed)[0] for seed in (42, 43)])
    assert len(np.unique(together, axis=0)) == 8


@pytest.mark.parametrize("ours", [False, True], ids=["stock", "ours"])
def test_metadata_of_openenv_environments_are_infos_with_masks(ours):
    openenv = pytest.importorskip("helpers_openenv")

    class Telling(openenv.CartPole):
        def reset(self, seed=None, episode_id=None, **kwargs):
            self.seed = seed
            return super().reset(seed)

        def step(self, action, timeout_s=None, **kwargs):
            observation = super().step(action)
            observation.metadata = {"k": self.seed, "word": "x"} if self.seed else {}
            return observation

    models = (openenv.PoleAction, openenv.PoleObservation)
    serving = running(create_app(Telling, *models)) if ours else openenv.stock_server(Telling, models=models)
    spaces = {"observation_space": gym.spaces.Box(-9, 9, (4,)), "action_space": gym.spaces.Discrete(2)}
    with serving as url, RemoteVecEnv(url, 2, **spaces) as env:
        assert env.reset(seed=0)[1] == {}
        infos = env.step([0, 0])[4]
        env.reset(seed=[0, 0])
        assert env.step([0, 0])[4] == {}
    assert (infos["k"].tolist(), infos["k"].dtype, infos["_k"].tolist()) == ([0, 1], np.int64, [False, True])
    assert (infos["word"].tolist(), infos["_word"].tolist(), len(infos)) == ([None, "x"], [False, True], 4)
