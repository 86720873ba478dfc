"""openenv_gym.action_masks: which actions an observation allows. On whole servers: tests/test_readings.py."""

import numpy as np
import pytest
from gymnasium.spaces import Discrete, MultiDiscrete
from helpers_spaces import identical

from openenv_gym.action_masks import ActionMask
from openenv_gym.errors import SpaceError


def mask(listed, space=None, labels=()):
    return ActionMask("legal", space or Discrete(3), labels).read({"at": 1, "legal": listed})


@pytest.mark.parametrize(
    "listed, expected",
    [
        ([0, 2], [1, 0, 1]),
        ([], [0, 0, 0]),
        ([2, 1, 0], [1, 1, 1]),  # three actions, not three flags
        ([1, 0, 1], [1, 0, 1]),  # an action can't be allowed twice: flags
        ([0, 0, 0], [0, 0, 0]),
        ([1, 1], [0, 1, 0]),
        ([True, False, True], [1, 0, 1]),
    ],
    ids=str,
)
def test_is_read_from_actions_or_flags(listed, expected):
    assert identical(mask(listed), np.array(expected, np.int8))


def test_lists_both_of_two_actions():
    assert mask([0, 1], Discrete(2)).tolist() == mask([1, 0], Discrete(2)).tolist() == [1, 1]


def test_knows_labels_and_starts():
    assert mask(["up"], labels=("down", "up", "left")).tolist() == [0, 1, 0]
    assert mask([5, 7], Discrete(3, start=5)).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "listed", [None, 3, "ab", {}, [3], [-1], [0.5], ["up"], [[1]], [None], [{}], [True], [True] * 4]
)
def test_something_else_is_refused(listed):
    with pytest.raises(SpaceError, match=r"^legal: "):
        mask(listed)


def test_needs_a_discrete():
    with pytest.raises(SpaceError, match=r"^legal: mask_key needs a Discrete action space, not MultiDiscrete"):
        ActionMask("legal", MultiDiscrete([2, 2]))
