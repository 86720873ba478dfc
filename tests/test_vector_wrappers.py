"""Gymnasium's vector wrappers around a `RemoteVecEnv` give what they give around a ``SyncVectorEnv``."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector as wrappers
from helpers_envs import Count

from openenv_gym import LocalServer, RemoteVecEnv

OBSERVATION_WRAPPERS = {
    "flatten": wrappers.FlattenObservation,
    "dtype": lambda env: wrappers.DtypeObservation(env, np.float64),
    "in place": lambda env: wrappers.DtypeObservation(env, np.float32),
    "normalize": wrappers.NormalizeObservation,
}
"""They refuse SameStep, and the last one Disabled too."""
OTHER_WRAPPERS = {
    "statistics": wrappers.RecordEpisodeStatistics,
    "infos": wrappers.DictInfoToList,
    "statistics as lists": lambda env: wrappers.DictInfoToList(wrappers.RecordEpisodeStatistics(env)),
    "normalize reward": wrappers.NormalizeReward,
    "clip reward": lambda env: wrappers.ClipReward(env, 0, 0.5),
}


@pytest.fixture(scope="module")
def server():
    with LocalServer("CartPole-v1") as server:
        yield server


def same(ours, theirs):
    """Equal but for the seconds that an episode took."""
    for infos in (ours[-1], theirs[-1]):
        episodes = [info.get("episode", {}) for info in (infos if isinstance(infos, list) else [infos])]
        for episode in episodes:
            episode.pop("t", None)
    return data_equivalence(ours, theirs, exact=True)


def assert_same(wrap, remote, local):
    remote, local = wrap(remote), wrap(local)
    assert same(remote.reset(seed=1), local.reset(seed=1))
    local.action_space.seed(1)
    for _ in range(60):
        actions = local.action_space.sample()
        assert same(remote.step(actions.copy()), local.step(actions))
    remote.close()
    local.close()


def pair(server, mode):
    remote = RemoteVecEnv(server.url, 3, token=server.token, autoreset_mode=mode, connections=2)
    return remote, SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=mode)


@pytest.mark.parametrize("name", OTHER_WRAPPERS)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_wrappers_of_any_mode(server, mode, name):
    assert_same(OTHER_WRAPPERS[name], *pair(server, mode))


@pytest.mark.parametrize("name", OBSERVATION_WRAPPERS)
def test_observation_wrappers(server, name):
    assert_same(OBSERVATION_WRAPPERS[name], *pair(server, "NextStep"))
    remote, local = pair(server, "SameStep")
    for env in (remote, local):
        with pytest.raises(ValueError, match="SAME_STEP"):
            OBSERVATION_WRAPPERS[name](env)
        env.close()


def test_several_around_each_other(server):
    def wrap(env):
        env = wrappers.RecordEpisodeStatistics(env)
        env = wrappers.NormalizeReward(wrappers.NormalizeObservation(env))
        return wrappers.TransformAction(env, lambda actions: 1 - actions, None)

    assert_same(wrap, *pair(server, "NextStep"))


@pytest.mark.parametrize("mode, at", [("NextStep", [2, 6, 10]), ("SameStep", [2, 5, 8, 11])])
def test_episodes_have_their_real_lengths(mode, at):
    with LocalServer(Count) as server:
        env = wrappers.RecordEpisodeStatistics(RemoteVecEnv(server.url, 1, token=server.token, autoreset_mode=mode))
        env.reset()
        steps = [env.step([0])[4] for _ in range(12)]
        env.close()
    found = {}
    for step, infos in enumerate(steps):
        if "episode" in infos:
            found[step] = (infos["episode"]["r"][0], infos["episode"]["l"][0])
    assert found == dict.fromkeys(at, (3.0, 3))


def test_a_reset_of_some_envs_leaves_the_others_statistics():
    with LocalServer(lambda: Count(5)) as server:
        env = wrappers.RecordEpisodeStatistics(RemoteVecEnv(server.url, 2, token=server.token))
        env.reset()
        env.step([0, 0])
        for _ in range(2):
            env.reset(options={"reset_mask": np.array([True, False])})
            env.step([0, 0])
        env.step([0, 0])
        infos = env.step([0, 0])[4]
        env.close()
    assert infos["_episode"].tolist() == [False, True]
    assert infos["episode"]["l"][1] == 5


def test_windows_of_vector_envs(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with RemoteVecEnv.local("CartPole-v1", 2, render_mode="rgb_array") as remote:
        env = wrappers.HumanRendering(remote)
        env.reset(seed=1)
        env.step([0, 1])
        assert env.render_mode == "human"
        assert env.window is not None
        env.close()
    assert remote.closed
