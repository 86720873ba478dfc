"""One observation space for all envs, in ``SyncVectorEnv``'s modes."""

import re
from itertools import count

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import SyncVectorEnv
from helpers_oracle import Script, ScriptedEnv

from openenv_gym import RemoteVecEnv
from openenv_gym.observation_mode import check_observation_mode

HIGHS = [1, 2, 3]
BOXES = [Box(0, high, (2,), np.float32) for high in HIGHS]
DICTS = [Dict({"x": box, "n": Discrete(high)}) for box, high in zip(BOXES, HIGHS, strict=True)]
CHOSEN = (Box(0, 9, (3, 2), np.float32), Box(0, 9, (2,), np.float32))


def envs(spaces):
    """One env for each space."""
    return [lambda space=space: ScriptedEnv([Script(space)]) for space in spaces]


def in_turn(spaces):
    """A factory that makes them in the order of the rows, after the one that a server looks at."""
    numbers = count(-1)
    return lambda: envs(spaces)[max(next(numbers), 0) % len(spaces)]()


@pytest.mark.parametrize(
    "spaces, mode",
    [(BOXES, "different"), (DICTS, "different"), (BOXES, CHOSEN), ([BOXES[0]] * 3, "same")],
    ids=["boxes", "dicts", "chosen", "same"],
)
def test_as_a_sync_vector_env(spaces, mode):
    local = SyncVectorEnv(envs(spaces), observation_mode=mode)
    with RemoteVecEnv.local(in_turn(spaces), 3, observation_mode=mode) as remote:
        assert remote.observation_space == local.observation_space
        assert remote.single_observation_space == local.single_observation_space
        assert data_equivalence(remote.reset(seed=0), local.reset(seed=0), exact=True)
        for _ in range(4):
            ours, theirs = remote.step([0, 1, 2]), local.step([0, 1, 2])
            assert data_equivalence(ours, theirs, exact=True)


def test_each_space_is_trimmed():
    options = {"include": ["x"], "obs_dtype": "float64"}
    with RemoteVecEnv.local(in_turn(DICTS), 3, observation_mode="different", **options) as remote:
        assert list(remote.observation_space) == ["x"]
        assert remote.observation_space["x"].high.tolist() == [[high] * 2 for high in HIGHS]
        assert remote.reset(seed=0)[0]["x"].dtype == np.float64


@pytest.mark.parametrize(
    "spaces, mode, text",
    [
        (BOXES, "same", "observation spaces are not equivalent. .*If this is intentional, use `observation_mode='diff"),
        ([BOXES[0], Box(0, 1, (3,), np.float32)], "different", "not just other bounds"),
        ([BOXES[0], Box(0, 1, (2,), np.float64)], "different", "not just other bounds"),
        ([BOXES[0], Discrete(3)], "different", "not just other bounds"),
        ([Box(0, 1, (5,), np.float32)] * 3, CHOSEN, "and not of the form of Box"),
    ],
    ids=["same", "shape", "dtype", "kind", "chosen"],
)
def test_spaces_that_do_not_go_together(spaces, mode, text):
    for make in (
        lambda: SyncVectorEnv(envs(spaces), observation_mode=mode),
        lambda: RemoteVecEnv.local(in_turn(spaces), len(spaces), observation_mode=mode),
    ):
        with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
            make()
    assert isinstance(caught.value, RuntimeError)
    assert re.search(text, str(caught.value))


@pytest.mark.parametrize("mode", ["invalid", None, 3, (BOXES[0],), (1, 2)])
def test_unknown_modes(mode):
    with pytest.raises(ValueError, match=re.escape("Invalid `observation_mode`, expected: 'same' or 'different' or ")):
        check_observation_mode(mode)
    with pytest.raises(ValueError, match="Invalid `observation_mode`"):
        RemoteVecEnv.local("CartPole-v1", observation_mode=mode)


def test_action_spaces_are_the_same_in_every_mode():
    made = count()
    with pytest.raises(RuntimeError, match=r"Discrete\(3\), but this server's are .* and Discrete\(2\)"):
        RemoteVecEnv.local(
            lambda: ScriptedEnv([Script(BOXES[0])], Discrete(2 + (next(made) > 1))), 2, observation_mode="different"
        )
