"""Seeds and masks: Gymnasium's own checks, in its order and words."""

import gymnasium as gym
import numpy as np
import pytest
from helpers_server import running

from openenv_gym import RemoteEnv, RemoteVecEnv
from openenv_gym.pool import Pool
from openenv_gym.reset_arguments import each_seed, split_mask
from openenv_gym.sb3 import SB3VecEnv
from openenv_gym.server import create_app


@pytest.mark.parametrize(
    "seed, seeds",
    [
        (None, [None, None, None]),
        (7, [7, 8, 9]),
        (0, [0, 1, 2]),
        (np.int64(7), [7, 8, 9]),
        ([1, None, 3], [1, None, 3]),
        ((4, 5, 6), [4, 5, 6]),
        (np.array([4, 5, 6], np.uint8), [4, 5, 6]),
    ],
)
def test_seeds(seed, seeds):
    given = each_seed(seed, 3)
    assert given == seeds
    assert {type(one) for one in given} <= {int, type(None)}


@pytest.mark.parametrize(
    "seed, error, text",
    [
        ([1, 2], ValueError, "If seeds are passed as a list the length must match num_envs=3 but got length=2."),
        (-1, gym.error.Error, "Seed must be greater or equal to zero, actual value: -1"),
        ([1, -5, 2], gym.error.Error, "actual value: -5"),
        ([1, 2.5, 3], gym.error.Error, "Seed must be a python integer, actual type: <class 'float'>"),
    ],
)
def test_bad_seeds(seed, error, text):
    with pytest.raises(error) as caught:
        each_seed(seed, 3)
    assert text in str(caught.value)


@pytest.fixture(scope="module")
def url():
    with running(create_app("CartPole-v1")) as url:
        yield url


def reset(env, seed):
    """The first observations of an env of any kind."""
    if isinstance(env, SB3VecEnv):
        env.seed(seed)
        return env.reset()
    return env.reset(seed=seed)[0]


def sb3(url, **options):
    return SB3VecEnv(RemoteVecEnv(url, 2, **options))


@pytest.mark.parametrize("dialect", [None, "openenv"])
@pytest.mark.parametrize("make", [RemoteEnv, RemoteVecEnv, sb3])
def test_negative_seeds_are_refused_before_anything_is_sent(make, dialect, url, monkeypatch):
    env = make(url, dialect=dialect)
    before = reset(env, 3)
    with monkeypatch.context() as silent:
        silent.setattr(Pool, "start", lambda *_: pytest.fail("something was sent"))
        with pytest.raises(gym.error.Error, match="Seed must be greater or equal to zero, actual value: -1"):
            reset(env, -1)
    assert np.array_equal(before, reset(env, 3))
    env.close()


def test_masks_are_taken_out_and_left_in():
    options = {"reset_mask": np.array([True, False, True]), "level": 2}
    assert split_mask(options, 3) == ([0, 2], {"level": 2})
    assert list(options) == ["reset_mask", "level"]
    assert split_mask({"level": 2}, 3) == (None, {"level": 2})
    assert split_mask(None, 3) == (None, None)


@pytest.mark.parametrize(
    "mask, error, text",
    [
        ([True, False, True], TypeError, "must be a numpy array, got <class 'list'>"),
        (np.array([True]), ValueError, "must have shape `(3,)`, got (1,)"),
        (np.array([1, 0, 1]), TypeError, "must have `dtype=np.bool_`, got int64"),
        (np.zeros(3, bool), ValueError, "at least one True value, got reset_mask=[False False False]"),
        (np.zeros(2), ValueError, "must have shape"),
    ],
)
def test_bad_masks(mask, error, text):
    with pytest.raises(error) as caught:
        split_mask({"reset_mask": mask}, 3)
    assert str(caught.value).startswith("`options['reset_mask']`")
    assert text in str(caught.value)
