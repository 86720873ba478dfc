"""Vector envs on the server: what a client gets is what the vector env gives."""

import contextlib

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from helpers_faults import FaultProxy
from helpers_server import running
from helpers_vector import Noting, cartpole, parts, tallies
from helpers_wait import LIMIT_S, wait_until

from openenv_gym import EnvClient, RemoteEnv, RemoteVecEnv, errors
from openenv_gym.sb3 import SB3VecEnv
from openenv_gym.server import create_app
from openenv_gym.server.vector_slots import _one_seed


def assert_same(remote, local):
    """Values, types and dtypes are the same, through dicts, tuples and arrays of objects."""
    assert type(remote) is type(local)
    if isinstance(remote, dict):
        assert list(remote) == list(local)
        remote, local = tuple(remote.values()), tuple(local.values())
    if isinstance(remote, np.ndarray) and remote.dtype != object:
        assert remote.dtype == local.dtype
        np.testing.assert_array_equal(remote, local)
    elif isinstance(remote, (tuple, np.ndarray)):
        assert len(remote) == len(local)
        for a, b in zip(remote, local, strict=True):
            assert_same(a, b)
    else:
        assert remote == local


def play(remote, local, steps=120, cut=None):
    """Drive both with the same actions; with autoreset disabled reset what is over, by a mask."""
    assert_same(remote.reset(seed=5), local.reset(seed=5))
    local.action_space.seed(1)
    ends = 0
    for i in range(steps):
        if cut is not None and i % 10 == 9:
            cut()
        actions = local.action_space.sample()
        got, expected = remote.step(actions), local.step(actions)
        assert_same(got, expected)
        over = expected[2] | expected[3]
        ends += over.sum()
        if over.any() and local.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            assert_same(*(env.reset(options={"reset_mask": over.copy()}) for env in (remote, local)))
    assert ends > 2
    assert remote.metadata["autoreset_mode"] is local.metadata["autoreset_mode"]


@pytest.fixture(scope="module")
def serve():
    """Serve a factory, once in this module."""
    with contextlib.ExitStack() as servers:
        urls = {}

        def serve(factory, **options):
            key = (factory, *options.items())
            if key not in urls:
                urls[key] = servers.enter_context(running(create_app(factory, **options)))
            return urls[key]

        yield serve


MODES = [mode.value for mode in AutoresetMode]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("factory", [tallies, parts])
def test_it_equals_the_local_one_in_each_mode_that_it_offers(serve, factory, mode):
    with RemoteVecEnv(serve(factory), 5, autoreset_mode=mode) as remote:
        assert len(remote._backend.pool.links) == 1
        play(remote, factory(5, AutoresetMode(mode)))


@pytest.mark.parametrize("mode", MODES)
def test_shared_out_over_connections_it_does_too(serve, mode):
    with RemoteVecEnv(serve(tallies), 5, autoreset_mode=mode, connections=2) as remote:
        play(remote, tallies(5, AutoresetMode(mode)))


def test_gymnasiums_vector_cartpole(serve):
    with RemoteVecEnv(serve(cartpole), 6, render_mode="rgb_array") as remote:
        local = cartpole(6, "rgb_array")
        play(remote, local, 150)
        assert_same(remote.render(), tuple(local.render()))
        assert remote.get_attr("gravity") == (9.8,) * 6
        local.close()


def test_it_is_resumed_after_cuts(serve):
    with FaultProxy(serve(tallies)) as proxy, RemoteVecEnv(proxy.url, 5, autoreset_mode="SameStep") as remote:
        play(remote, tallies(5, AutoresetMode.SAME_STEP), cut=proxy.cut)
        assert proxy.cuts > 9


def test_what_a_client_left_out_stays_there(serve):
    chosen = {"include": ["tally"], "obs_dtype": "float32", "info_keys": ["executed"], "autoreset_mode": "SameStep"}
    with RemoteVecEnv(serve(parts), 4, **chosen) as remote:
        local = parts(4, AutoresetMode.SAME_STEP)
        remote.reset(seed=5)
        local.reset(seed=5)
        ends = 0
        for _ in range(60):
            actions = local.action_space.sample()
            got, expected = remote.step(actions), local.step(actions)
            assert_same(got[0], {"tally": expected[0]["tally"].astype(np.float32)})
            assert_same(got[4]["executed"], expected[4]["executed"])
            assert got[4].keys() <= {"executed", "_executed", "final_obs", "_final_obs", "final_info", "_final_info"}
            for row in np.flatnonzero(expected[4].get("_final_obs", [])):
                ends += 1
                tally = expected[4]["final_obs"][row]["tally"].astype(np.float32)
                assert_same(got[4]["final_obs"][row], {"tally": tally})
                assert got[4]["final_info"].keys() == {"executed", "_executed"}
        assert ends


# ------------------------------------------------------------------------------------------ as it is asked


@pytest.fixture
def noting():
    """Remote envs over a `Noting`, and that one."""
    made = []

    def make(num_envs):
        made.append(Noting(num_envs))
        return made[-1]

    with running(create_app(make, allow_call=None, allow_set=None, max_envs=4, max_step_s=20)) as url:
        remote = RemoteVecEnv(url, 3, autoreset_mode="SameStep")
        yield remote, made[-1], url
        remote.close()
    wait_until(lambda: all(env.closed_once.is_set() for env in made))


def test_it_lives_on_one_thread_and_its_results_are_its_own(noting):
    remote, env, _ = noting
    _, infos = remote.reset(seed=9)
    assert (env.given, infos["given"].tolist()) == ((9, None), [1, 1, 1])
    remote.reset(options={"x": 1, "reset_mask": np.array([True, False, True])})
    seed, options = env.given
    assert (seed, options["x"], options["reset_mask"].tolist()) == (None, 1, [True, False, True])
    observations, rewards, _, _, infos = remote.step([0, 1, 0])
    assert (observations.dtype, rewards.dtype, infos) == (np.float32, np.float32, {"once": "for all"})
    assert observations.tolist() == [[0, 0], [1, 1], [0, 0]]
    assert remote.call("raise_level", 2) == (9, 9, 9)
    remote.set_attr("level", 4)
    assert (env.level, remote.get_attr("level")) == (4, (4, 4, 4))
    with pytest.raises(ValueError, match="has one value for all of its envs"):
        remote.set_attr("level", [1, 2, 3])
    remote.close()
    assert env.closed_once.wait(20)
    assert len(set(env.threads)) == 1


def test_where_one_env_fails_all_do(noting):
    remote, _, _ = noting
    remote.reset(seed=1)
    with pytest.raises(errors.BatchError, match="no step") as caught:
        remote.step([0, 3, 0])
    assert sorted(caught.value.failures) == [0, 1, 2]
    with pytest.raises(errors.BatchError, match=r"rewards of shape \(2,\) for 3 envs"):
        remote.step([0, 2, 0])
    remote.step([0, 1, 0])  # it goes on
    with pytest.raises(errors.BatchError, match="no reset"):
        remote.reset(options={"fail": True})
    with pytest.raises(gym.error.ResetNeeded):
        remote.step([0, 1, 0])
    remote.reset()
    remote.step([0, 1, 0])


def test_one_that_takes_too_long_is_given_up():
    made = []

    def make(num_envs):
        made.append(Noting(num_envs))
        return made[-1]

    app = create_app(make, max_step_s=LIMIT_S)
    with running(app) as url, RemoteVecEnv(url, 3, autoreset_mode="SameStep") as remote:
        remote.reset()
        (session,) = app.state.registry.sessions.values()
        session.crew._limit_s = 0.5  # for this step alone
        with pytest.raises(errors.BatchError, match="didn't return from 'step'"):
            remote.step([0, 4, 0])
        session.crew._limit_s = LIMIT_S
        remote.reset()
        remote.step([0, 1, 0])
        assert len(made) == 3  # one was looked at, one is given up
        made[1].gate.set()
        assert made[1].closed_once.wait(20)


def test_all_of_its_envs_count(noting):
    _, _, url = noting
    with pytest.raises(errors.CapacityError) as caught:
        RemoteVecEnv(url, 2, autoreset_mode="SameStep")
    assert (caught.value.active, caught.value.maximum) == (3, 4)


# ------------------------------------------------------------------------------------- what it can't be asked


def fixed():
    return Noting(3)


@pytest.mark.parametrize(
    "factory, num_envs, options, text",
    [
        (Noting, 3, {}, 'in the mode SameStep, and NextStep was asked for: pass autoreset_mode="SameStep"'),
        (fixed, 2, {"autoreset_mode": "SameStep"}, "a vector env of 3 envs, and 2 were asked for .*: ask for 3"),
        (Noting, 3, {"autoreset_mode": "SameStep", "max_episode_steps": 5}, "leave out max_episode_steps"),
    ],
)
def test_what_it_is_not_is_said(serve, factory, num_envs, options, text):
    with pytest.raises(errors.RemoteEnvError, match=text):
        RemoteVecEnv(serve(factory), num_envs, **options)


def test_it_is_for_vector_clients(serve):
    url = serve(fixed)
    with pytest.raises(errors.RemoteEnvError, match="it needs a RemoteVecEnv"):
        RemoteEnv(url)
    with pytest.raises(errors.RemoteEnvError, match="it needs a RemoteVecEnv"), EnvClient(url) as client:
        client.reset()
    with RemoteVecEnv(url, 3, autoreset_mode="SameStep") as remote:
        with pytest.raises(errors.OptionError, match="SB3VecEnv needs single envs"):
            SB3VecEnv(remote).reset()
        remote.reset()
        with pytest.raises(ValueError, match="steps all of its envs at once: use `step`"):
            remote.send([0], [0])
            remote.recv()


@pytest.mark.parametrize(
    "seeds, numbers, seed",
    [
        ([5, 6, 7], [0, 1, 2], 5),
        ([6, 8], [1, 3], 5),
        ([None, None], [0, 1], None),
        ([5, 5, 7], [0, 1, 2], [5, 5, 7, None]),
        ([None, 6], [0, 1], [None, 6, None, None]),
        ([0, 1], [1, 2], [None, 0, 1, None]),  # -1 is no seed
    ],
)
def test_seeds_are_one_where_they_can_be(seeds, numbers, seed):
    assert _one_seed(seeds, numbers, 4) == seed
