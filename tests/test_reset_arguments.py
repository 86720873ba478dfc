"""Seeds and masks: Gymnasium's own checks, in its order and words."""

import gymnasium as gym
import numpy as np
import pytest

from openenv_gym.reset_arguments import each_seed, split_mask


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
