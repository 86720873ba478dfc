"""`RemoteEnv` against a local env, and against Gymnasium's and SB3's own checkers."""

import pickle
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.env_checker as sb3_checker
from gymnasium.utils import env_checker
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import SyncVectorEnv
from helpers_oracle import Fleet, Script, ScriptedEnv
from helpers_spaces import NAMED

from openenv_gym import LocalServer, RemoteEnv, RemoteVecEnv, errors
from openenv_gym.pool import Pool

IDS = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "Taxi-v4", "FrozenLake-v1", "Blackjack-v1"]
FAMILIES = {"box2d", "classic_control", "mujoco", "toy_text"}


@pytest.fixture(scope="module")
def server_of():
    """Servers by env id, one for each for the whole module."""
    servers = {}

    def get(name):
        if name not in servers:
            servers[name] = LocalServer(name)
        return servers[name]

    yield get
    for server in servers.values():
        server.close()


@pytest.fixture
def remote(server_of):
    """Makes remote envs, and closes them."""
    made = []

    def make(name, **options):
        server = server_of(name)
        made.append(RemoteEnv(server.url, token=server.token, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


def assert_same(ours, theirs):
    """Equal values and types; only a reward may be an int or np.float64 locally, where it is a float here."""
    assert data_equivalence((ours[0], ours[-1]), (theirs[0], theirs[-1]), exact=True)
    assert ours[1:-1] == theirs[1:-1]


@pytest.mark.parametrize("name", IDS)
def test_equals_a_local_env(remote, name):
    ours, theirs = remote(name), gym.make(name)
    assert_same(ours.reset(seed=5), theirs.reset(seed=5))
    theirs.action_space.seed(2)
    for _ in range(300):
        action = theirs.action_space.sample()
        mine, other = ours.step(action), theirs.step(action)
        assert_same(mine, other)
        assert mine[0] in theirs.observation_space
        assert [type(part) for part in mine[1:4]] == [float, bool, bool]
        if other[2] or other[3]:
            assert_same(ours.reset(), theirs.reset())
    theirs.close()


def all_envs():
    """The newest versions of Gymnasium's own envs."""
    newest = {}
    for spec in gym.registry.values():
        folder = str(spec.entry_point).split(".")[2:3]
        if folder and folder[0] in FAMILIES and spec.version >= newest.get(spec.name, spec).version:
            newest[spec.name] = spec
    return sorted(spec.id for spec in newest.values())


@pytest.mark.parametrize("name", all_envs())
def test_all_of_gymnasiums_envs_equal_local_ones(name):
    try:
        theirs = gym.make(name)
    except gym.error.DependencyNotInstalled as error:
        pytest.skip(str(error))
    with LocalServer(lambda: gym.make(name)) as server:
        ours = RemoteVecEnv(server.url, 1, token=server.token, autoreset_mode="Disabled")
        local = SyncVectorEnv([lambda: theirs], autoreset_mode="Disabled")
        assert data_equivalence(ours.reset(seed=5), local.reset(seed=5), exact=True)
        local.action_space.seed(2)
        for step in range(300):
            actions = local.action_space.sample()
            mine, other = ours.step(actions), local.step(actions)
            assert data_equivalence(mine, other, exact=True), f"step {step}: {mine} != {other}"
            if other[2] or other[3]:
                assert data_equivalence(ours.reset(), local.reset(), exact=True)
        ours.close()
        local.close()


def warnings_of(check, env):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(env)
    return {str(warning.message) for warning in caught}


@pytest.mark.parametrize("name", IDS)
def test_the_checkers_warn_of_nothing_but_the_env_itself(remote, name):
    gymnasiums = partial(check_env, skip_render_check=True)
    for check in (gymnasiums, sb3_checker.check_env):
        assert warnings_of(check, remote(name)) <= warnings_of(check, gym.make(name).unwrapped)


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1"])
def test_the_checker_renders_in_each_mode_without_a_warning(server_of, name, monkeypatch):
    server = server_of(name)
    monkeypatch.setenv("OPENENV_GYM_TOKEN", server.token)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    made = [
        gym.make("openenv_gym:openenv/Remote-v0", base_url=server.url, render_mode="rgb_array"),
        gym.make(name, render_mode="rgb_array"),
    ]
    ours, theirs = (warnings_of(check_env, env.unwrapped) for env in made)
    assert ours <= theirs
    for env in made:
        env.close()


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_space_kind(name):
    scripts = [Script(NAMED[name], infos=("nested", "array", "none"))]
    local = ScriptedEnv(scripts)
    with LocalServer(Fleet(scripts)) as server, RemoteEnv(server.url, token=server.token) as env:
        for seed in (1, None):
            assert_same(env.reset(seed=seed), local.reset(seed=seed))
            for action in range(3):
                ours, theirs = env.step(action), local.step(action)
                assert_same(ours, theirs)
                assert ours[0] in env.observation_space
        if hasattr(env_checker, "check_returned_data_not_reused"):  # came with gymnasium 1.4
            env_checker.check_returned_data_not_reused(env)


def test_make_gives_the_usual_wrappers(server_of, monkeypatch):
    server = server_of("CartPole-v1")
    monkeypatch.setenv("OPENENV_GYM_TOKEN", server.token)
    with gym.make("openenv_gym:openenv/Remote-v0", base_url=server.url, max_episode_steps=5) as env:
        env.reset(seed=1)
        assert [env.step(0)[3] for _ in range(5)] == [False] * 4 + [True]
        copied = pickle.loads(pickle.dumps(env.spec))
        assert copied == env.spec
        assert server.token not in repr(env) + env.spec.to_json()


def test_attributes(remote):
    env = remote("CartPole-v1")
    assert env.get_wrapper_attr("gravity") == 9.8
    assert env.has_wrapper_attr("masscart")
    assert not env.has_wrapper_attr("missing")
    assert env.set_wrapper_attr("gravity", 1.5)
    assert env.get_wrapper_attr("gravity") == 1.5
    assert not hasattr(env, "gravity")
    env.reset()
    assert env.call("render") is None


def test_attributes_that_stay_here(remote, monkeypatch):
    env = remote("CartPole-v1")
    assert not env.set_wrapper_attr("missing", 1, force=False)
    assert not env.has_wrapper_attr("missing")
    assert env.set_wrapper_attr("gravity", 2.5, force=False)
    assert env.get_wrapper_attr("gravity") == 2.5
    with monkeypatch.context() as silent:
        silent.setattr(Pool, "start", lambda *_: pytest.fail("something was sent"))
        assert env.get_wrapper_attr("action_space") is env.action_space
        assert env.set_wrapper_attr("spec", None)
        for name in ("_private", "__array__"):
            assert not env.has_wrapper_attr(name)
        assert env.set_wrapper_attr("_private", 3)
        assert env._private == env.get_wrapper_attr("_private") == 3
        assert not any(hasattr(env, name) for name in ("gravity", "missing", "compute_reward"))


def test_frames(remote):
    env = remote("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=1)
    local = gym.make("CartPole-v1", render_mode="rgb_array")
    local.reset(seed=1)
    assert np.array_equal(env.render(), local.render())
    local.close()


def test_misuse(remote):
    env = remote("CartPole-v1")
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    env.reset()
    with pytest.raises(errors.RemoteEnvError, match="AssertionError") as caught:
        env.step(7)
    assert isinstance(caught.value, AssertionError)
    assert env.step(0)[1] == 1.0
    env.close()
    env.close()
    with pytest.raises(gym.error.ClosedEnvironmentError):
        env.step(0)
    with pytest.raises(errors.OptionError, match="unknown option 'tokn'"):
        RemoteEnv("http://127.0.0.1:1", tokn="x")
    with pytest.raises(errors.OptionError, match="leave out `base_url`"):
        RemoteEnv("http://127.0.0.1:1", local="CartPole-v1")


def test_bad_actions_are_refused_before_anything_is_sent(remote):
    env = remote("Pendulum-v1")
    env.reset()
    with pytest.raises(errors.ActionError, match=r"has shape \(2,\), not \(1,\)"):
        env.step(np.zeros(2, np.float32))
    with pytest.raises(errors.ActionError, match="NaN"):
        env.step(np.array([np.nan], np.float32))


@pytest.mark.parametrize("dialect", [None, "openenv"])
@pytest.mark.parametrize("id", ["Blackjack-v1", "CliffWalking-v1"])
def test_integers_have_the_types_of_the_local_env(id, dialect):
    local, remote = gym.make(id), RemoteEnv(local=id, dialect=dialect)
    assert data_equivalence(remote.reset(seed=1)[0], local.reset(seed=1)[0], exact=True)
    assert data_equivalence(remote.step(0)[0], local.step(0)[0], exact=True)
    remote.close()
