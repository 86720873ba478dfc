"""Making envs through Gymnasium's registry, their specs, and what must never be in them."""

import copy
import json
import logging
import pickle
import subprocess
import sys
import traceback

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from openenv_gym import LocalServer, RemoteEnv, RemoteVecEnv, errors

REMOTE = "openenv/Remote-v0"
TOKEN = "hush-hush-7f3a"
MAKE = pytest.mark.parametrize(
    "make",
    [lambda **options: gym.make(REMOTE, **options), lambda **options: gym.make_vec(REMOTE, num_envs=2, **options)],
    ids=["make", "make_vec"],
)


@pytest.fixture(scope="module")
def server():
    with LocalServer("CartPole-v1", max_envs=8) as server:
        yield server


@pytest.fixture(autouse=True)
def token(server, monkeypatch):
    monkeypatch.setenv("OPENENV_GYM_TOKEN", server.token)


@pytest.mark.parametrize(
    "mode, kind", [(None, RemoteVecEnv), ("vector_entry_point", RemoteVecEnv), ("sync", SyncVectorEnv)]
)
def test_make_vec(server, mode, kind):
    env = gym.make_vec(REMOTE, num_envs=2, vectorization_mode=mode, base_url=server.url)
    local = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    assert type(env) is kind
    assert env.single_observation_space == local.single_observation_space
    assert env.observation_space == local.observation_space
    for one, other in zip(
        (*env.reset(seed=3), *env.step([0, 1])), (*local.reset(seed=3), *local.step([0, 1])), strict=True
    ):
        assert np.array_equal(one, other)
    again = gym.make_vec(env.spec)
    assert type(again) is kind
    assert again.spec == env.spec
    assert again.num_envs == 2
    for made in (env, local, again):
        made.close()


def test_async_mode_opens_one_session_more(server):
    env = gym.make_vec(REMOTE, num_envs=2, vectorization_mode="async", base_url=server.url)
    assert isinstance(env, AsyncVectorEnv)
    local = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    assert np.array_equal(env.reset(seed=3)[0], local.reset(seed=3)[0])
    env.close()
    local.close()


def test_a_full_server_fails_at_once():
    with LocalServer("CartPole-v1", max_envs=1) as server:
        env = RemoteEnv(server.url, token=server.token)
        with pytest.raises(errors.CapacityError):
            RemoteEnv(server.url, token=server.token)
        env.close()


def test_options_are_plain_kwargs(server):
    env = gym.make_vec(
        REMOTE,
        num_envs=2,
        base_url=server.url,
        autoreset_mode="SameStep",
        max_episode_steps=3,
        disable_env_checker=True,
    )
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    env.reset(seed=1)
    ends = [env.step([0, 1])[3].tolist() for _ in range(6)]
    assert ends == [[False] * 2, [False] * 2, [True] * 2] * 2
    json.loads(env.spec.to_json())
    env.close()
    with pytest.raises(gym.error.Error, match="`vector_kwargs` is not empty"):
        gym.make_vec(REMOTE, num_envs=2, base_url=server.url, vector_kwargs={"copy": False})


@pytest.mark.parametrize("limit", [None, -1])
def test_no_time_limit(server, limit):
    env = gym.make_vec(REMOTE, num_envs=1, base_url=server.url, max_episode_steps=limit)
    env.reset(seed=1)
    assert not env.step([0])[3].any()
    env.close()


def test_specs_of_single_envs_travel(server):
    env = gym.make(REMOTE, base_url=server.url, message_timeout_s=9.0)
    spec = env.spec
    for other in (EnvSpec.from_json(spec.to_json()), pickle.loads(pickle.dumps(spec)), copy.deepcopy(spec)):
        assert other == spec
        made = gym.make(other)
        assert made.unwrapped.options.message_timeout_s == 9.0
        assert np.array_equal(made.reset(seed=1)[0], env.reset(seed=1)[0])
        assert made.spec == spec
        made.close()
    env.close()


def test_specs_of_vector_envs_travel(server):
    env = gym.make_vec(REMOTE, num_envs=3, base_url=server.url, connections=2)
    for spec in (env.spec, pickle.loads(pickle.dumps(env.spec)), copy.deepcopy(env.spec)):
        made = gym.make_vec(spec)
        assert made.spec == env.spec
        assert (made.num_envs, made.options.connections) == (3, 2)
        made.close()
    env.close()


def test_importing_twice_does_not_warn():
    import importlib

    import openenv_gym

    importlib.reload(openenv_gym)
    assert gym.spec(REMOTE).vector_entry_point == "openenv_gym.vector_env:RemoteVecEnv"


def test_sb3_makes_it_by_its_id(server, monkeypatch):
    env = make_vec_env(REMOTE, n_envs=2, env_kwargs={"base_url": server.url})
    assert env.reset().shape == (2, 4)
    env.close()
    monkeypatch.setenv("OPENENV_BASE_URL", server.url)
    model = PPO("MlpPolicy", REMOTE, n_steps=8, batch_size=8, device="cpu").learn(8)
    assert model.get_env().render_mode == "rgb_array"
    model.get_env().close()


def test_without_a_version_it_is_the_latest(server):
    with pytest.warns(UserWarning, match="Using the latest versioned environment `openenv/Remote-v0`"):
        gym.make_vec("openenv/Remote", base_url=server.url).close()


def test_processes_that_have_not_imported_it_name_its_module(server):
    script = (
        "import sys, gymnasium as gym\n"
        "id = 'openenv_gym:openenv/Remote-v0'\n"
        "assert 'openenv_gym' not in sys.modules\n"
        "for env in (gym.make(id, base_url=sys.argv[1]), gym.make_vec(id, base_url=sys.argv[1])):\n"
        "    env.reset(seed=1)\n"
        "    print(env.unwrapped.spec.id)\n"
        "    env.close()\n"
        "spawned = gym.make_vec(id, 1, 'async', {'context': 'spawn'}, base_url=sys.argv[1])\n"
        "spawned.reset(seed=1)\n"
        "spawned.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, server.url], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, f"{REMOTE}\n" * 2), done.stderr


class TestSecrets:
    """With the token given as a keyword argument, which is what one shouldn't do."""

    @MAKE
    @pytest.mark.parametrize("hosted", ["CartPole-v1", lambda: gym.make("CartPole-v1")], ids=["process", "thread"])
    def test_not_in_what_an_env_says_of_itself(self, make, hosted, caplog):
        caplog.set_level(logging.DEBUG)
        with LocalServer(hosted) as server:
            env = make(base_url=server.url, token=server.token, headers={"X-Key": TOKEN})
            env.reset(seed=1)
            inner = env.unwrapped
            said = [repr(env), str(env), repr(env.spec), env.spec.to_json(), repr(inner.options), str(vars(inner.spec))]
            said += [server._repr_html_(), repr(server)]
            if isinstance(inner, RemoteVecEnv):
                said.append(inner._repr_html_())
            env.close()
            for text in (*said, caplog.text):
                assert server.token not in text
                assert TOKEN not in text

    @pytest.mark.parametrize(
        "options",
        [
            {"tokn": 1},
            {"connections": "many"},
            {"base_url": 3},
            {"include": ["missing"]},
            {"render_mode": "human_"},
            {"on_lost": "x"},
            {"base_url": "http://127.0.0.1:1"},
            {"local": "CartPole-v1"},
            {"local": 3, "base_url": None},
            {"env_kwargs": {}},
        ],
        ids=str,
    )
    @pytest.mark.filterwarnings("ignore:.*render")
    @MAKE
    def test_not_in_an_error(self, server, make, options):
        try:
            make(**{"base_url": server.url, "token": server.token, **options}).close()
        except Exception as error:
            assert server.token not in "".join(traceback.format_exception(error))  # noqa: PT017 - of any kind

    def test_not_in_a_refusal(self, server):
        with pytest.raises(errors.Unauthorized) as caught:
            gym.make(REMOTE, base_url=server.url, token=TOKEN)
        assert TOKEN not in "".join(traceback.format_exception(caught.value))

    def test_envs_keep_theirs_to_themselves(self, server):
        env = RemoteEnv(server.url)
        for copies in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError) as caught:
                copies(env)
            assert server.token not in str(caught.value)
        env.close()
