"""Gymnasium's vector wrappers around a `RemoteVecEnv` give what they give around a ``SyncVectorEnv``."""

import contextlib
from copy import deepcopy

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector as wrappers
from helpers_envs import Count
from helpers_oracle import Fleet, Script, ScriptedEnv

from openenv_gym import LocalServer, RemoteVecEnv

MODES = ["NextStep", "SameStep", "Disabled"]
SPACES = {
    "numbers": (Box(-1, 1, (4,)), Box(-1, 1, (2,))),
    "image": (Box(0, 255, (8, 8, 3), np.uint8), Discrete(5)),
    "dict": (Dict(a=Box(0, 1, (2,)), b=Discrete(3)), Discrete(5)),
}
"""Observation and action spaces of the envs."""
WRAPPERS = {
    "flatten": ("dict", wrappers.FlattenObservation),
    "filter": ("dict", lambda env: wrappers.FilterObservation(env, ["a"])),
    "dtype": ("image", lambda env: wrappers.DtypeObservation(env, np.float32)),
    "in place": ("numbers", lambda env: wrappers.DtypeObservation(env, np.float32)),
    "rescale": ("numbers", lambda env: wrappers.RescaleObservation(env, np.float32(0), np.float32(1))),
    "reshape": ("image", lambda env: wrappers.ReshapeObservation(env, (64, 3))),
    "resize": ("image", lambda env: wrappers.ResizeObservation(env, (4, 4))),
    "grayscale": ("image", wrappers.GrayscaleObservation),
    "transform": ("numbers", lambda env: wrappers.TransformObservation(env, lambda given: -given)),
    "normalize": ("numbers", wrappers.NormalizeObservation),
    "normalize reward": ("image", wrappers.NormalizeReward),
    "clip reward": ("dict", lambda env: wrappers.ClipReward(env, 0, 0.5)),
    "transform reward": ("dict", lambda env: wrappers.TransformReward(env, lambda given: 2 * given)),
    "clip action": ("numbers", wrappers.ClipAction),
    "rescale action": ("numbers", lambda env: wrappers.RescaleAction(env, np.float32(-3), np.float32(3))),
    "transform action": ("numbers", lambda env: wrappers.TransformAction(env, lambda given: -given)),
    "statistics": ("numbers", wrappers.RecordEpisodeStatistics),
    "infos": ("dict", wrappers.DictInfoToList),
    "statistics as lists": ("image", lambda env: wrappers.DictInfoToList(wrappers.RecordEpisodeStatistics(env))),
    "several": (
        "numbers",
        lambda env: wrappers.NormalizeReward(
            wrappers.NormalizeObservation(wrappers.RecordEpisodeStatistics(wrappers.ClipAction(env)))
        ),
    ),
}
NOT_SAME_STEP = {"flatten", "filter", "dtype", "in place", "rescale", "reshape", "resize", "grayscale", "transform"}
REFUSED = {
    "SameStep": {*NOT_SAME_STEP, "normalize", "several"},
    "Disabled": {"normalize", "several"},
    "NextStep": set(),
}
"""The observation wrappers that refuse a mode."""


class Unchanging(SyncVectorEnv):
    """Leaves ``reset_mask`` in the options, where a wrapper looks for it afterwards; Gymnasium's own takes it out."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options and dict(options))


def same(ours, theirs):
    """Equal but for the seconds that an episode took."""
    for infos in (ours[-1], theirs[-1]):
        for info in infos if isinstance(infos, list) else [infos]:
            for episode in (info.get("episode", {}), info.get("final_info", {}).get("episode", {})):
                episode.pop("t", None)
    return data_equivalence(ours, theirs, exact=True)


@contextlib.contextmanager
def pair(mode, spaces, connections=1, wrap=lambda env: env):
    """A remote and a local vector env of the same three envs, each wrapped."""
    space, action_space = SPACES[spaces]
    scripts = [Script(space, lengths=(n,), infos=("int",), salt=n) for n in (3, 4, 6)]
    with LocalServer(Fleet(scripts, action_space)) as server:
        remote = RemoteVecEnv(server.url, 3, token=server.token, autoreset_mode=mode, connections=connections)
        local = Unchanging([lambda: ScriptedEnv(scripts, action_space)] * 3, autoreset_mode=mode)
        with contextlib.closing(remote), contextlib.closing(local):
            yield wrap(remote), wrap(local)


def masked(env, mask):
    return env.reset(options={"reset_mask": mask})


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("mode", MODES)
def test_wrappers_give_what_they_give_locally(mode, name):
    spaces, wrap = WRAPPERS[name]
    if name in REFUSED[mode]:
        with pair(mode, spaces) as envs:
            for env in envs:
                with pytest.raises(ValueError, match="autoreset_mode"):
                    wrap(env)
        return
    with pair(mode, spaces, connections=2, wrap=wrap) as (remote, local):
        assert remote.observation_space == local.observation_space
        assert same(remote.reset(seed=0), local.reset(seed=0))
        local.action_space.seed(1)
        for _ in range(20):
            actions = local.action_space.sample()
            ours, theirs = remote.step(deepcopy(actions)), local.step(actions)
            assert same(ours, theirs)
            over = theirs[2] | theirs[3]
            if mode == "Disabled" and over.any():
                assert same(masked(remote, over), masked(local, over))


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


@pytest.mark.parametrize("connections", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_statistics_of_envs_that_are_reset_by_mask(mode, connections):
    chance, ended = np.random.default_rng(3), np.zeros(3, int)
    with pair(mode, "image", connections, wrappers.RecordEpisodeStatistics) as (remote, local):
        assert same(remote.reset(seed=0), local.reset(seed=0))
        for step in range(60):
            ours, theirs = remote.step([0, 1, 2]), local.step([0, 1, 2])
            assert same(ours, theirs)
            over = theirs[2] | theirs[3]
            ended += over
            mask = over if mode == "Disabled" else chance.random(3) < 0.5
            if mask.any() and (mode == "Disabled" or step % 4 == 3):
                mask = mask | (chance.random(3) < 0.2)
                assert same(masked(remote, mask), masked(local, mask))
    assert ended.all()


@pytest.mark.parametrize("mode", MODES)
def test_wrappers_take_a_lost_session(mode, process):
    with RemoteVecEnv(process.url, 2, autoreset_mode=mode) as remote:
        env = wrappers.DictInfoToList(wrappers.RecordEpisodeStatistics(remote, stats_key="sum"))
        env.reset(seed=1)
        rewards = env.step([0, 0])[1]
        process.restart()
        with pytest.warns(UserWarning, match="rows 0-1 are truncated"):
            *_, truncated, infos = env.step([0, 0])
        assert truncated.tolist() == [True, True]
        for info, reward in zip(infos, rewards, strict=True):
            ended = info["final_info"] if mode == "SameStep" else info
            assert (info["connection_lost"], ended["connection_lost"]) == (True, True)
            assert (info["sum"]["r"], info["sum"]["l"]) == (reward, 2)  # the lost step has none
        if mode == "Disabled":
            masked(env, truncated)
        later = env.step([0, 0])
        assert not later[3].any()
        assert all("connection_lost" not in info for info in later[4])


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


@pytest.mark.parametrize("mode", MODES)
def test_tensors(mode):
    """Under ``SameStep`` the wrapper itself can't convert the last observations, which are an array of objects."""
    with pair(mode, "numbers", wrap=wrappers.NumpyToTorch) as (remote, local):
        actions = torch.full((3, 2), 0.5)
        for seed in (0, None):
            assert same_tensors(remote.reset(seed=seed), local.reset(seed=seed))
            for _ in range(2):
                assert same_tensors(remote.step(actions), local.step(actions))
        if mode == "SameStep":
            for env in (remote, local):
                with pytest.raises(BufferError):
                    env.step(actions)
        elif mode == "NextStep":
            for _ in range(10):
                assert same_tensors(remote.step(actions), local.step(actions))


def same_tensors(ours, theirs):
    """Equal in structure, and in values and dtypes of tensors."""
    if isinstance(theirs, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(theirs, dict):
        return [*ours] == [*theirs] and all(same_tensors(ours[key], theirs[key]) for key in theirs)
    return len(ours) == len(theirs) and all(map(same_tensors, ours, theirs))
