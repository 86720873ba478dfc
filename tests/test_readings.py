"""What users say about the fields of an OpenEnv environment: on OpenEnv's servers, old and new, and on ours.

The oracle is Gymnasium: the same environment, wrapped by hand for a `SyncVectorEnv`.
"""

from contextlib import ExitStack, closing

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import SyncVectorEnv
from helpers_conversation import OldRelease
from helpers_server import running
from helpers_spaces import identical

from openenv_gym import RemoteVecEnv
from openenv_gym.errors import BatchError, SpaceError
from openenv_gym.server import create_app

N = 3
MODES = pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
IMAGE = Box(0, 255, (2, 2, 3), np.uint8)


@pytest.fixture(scope="module")
def envs():
    return pytest.importorskip("helpers_openenv")


@pytest.fixture(scope="module")
def urls(envs):
    models = envs.DropAction, envs.BoardObservation
    with ExitStack() as stack:
        yield {
            "stock": stack.enter_context(envs.stock_server(envs.Columns, models=models)),
            "ours": stack.enter_context(running(create_app(envs.Columns, *models, max_concurrent_envs=8))),
            "old": stack.enter_context(OldRelease()).columns,
        }


@pytest.fixture(params=["stock", "ours", "old"])
def kind(request):
    return request.param


@pytest.fixture
def url(urls, kind):
    return urls[kind]


@pytest.fixture
def local(envs, kind):
    """Makes a `SyncVectorEnv` of the same environment, of which it shows what a function makes of an observation."""

    class Local(gym.Env):
        action_space = Discrete(4)

        def __init__(self, space, show, mask):
            self.observation_space, self.show, self.mask, self.env = space, show, mask, envs.Columns()

        def reset(self, *, seed=None, options=None):
            seen = self.env.reset(seed=seed)
            return self.show(seen), self._info(seen)

        def step(self, action):
            seen = self.env.step(envs.DropAction(column=int(action)))
            seen.metadata = {} if kind == "old" else seen.metadata  # which the older release doesn't send
            cut = bool(seen.metadata.get("truncated"))
            return self.show(seen), seen.reward, seen.done and not cut, cut, self._info(seen)

        def _info(self, seen):
            mask = np.array([column in seen.legal for column in range(4)], np.int8)
            return {**seen.metadata, **({"action_mask": mask} if self.mask else {})}

    def make(space, show, mode, *, mask=False, limit=None):
        def one():
            env = Local(space, show, mask)
            return env if limit is None else gym.wrappers.TimeLimit(env, limit)

        return SyncVectorEnv([one] * N, autoreset_mode=mode)

    return make


def play(remote, local, steps=30):
    """Play both alike, with columns that aren't full, and see that they show the same."""
    rng = np.random.default_rng(0)
    with remote, closing(local):
        assert identical(remote.reset(seed=7), local.reset(seed=7))
        discs, over = np.zeros((N, 4), int), np.zeros(N, bool)
        for _ in range(steps):
            actions = np.array([rng.choice(np.flatnonzero(row < 2)) for row in discs])
            step = local.step(actions)
            *shown, infos = remote.step(actions)
            assert identical(shown, list(step[:4]))
            assert identical(_sorted(infos), _sorted(step[4]))
            ended = step[2] | step[3]
            if local.metadata["autoreset_mode"] == gym.vector.AutoresetMode.NEXT_STEP:
                discs[~over, actions[~over]] += 1
                discs[over] = 0
                over = ended
                continue
            discs[np.arange(N), actions] += 1
            discs[ended] = 0
            if ended.any() and local.metadata["autoreset_mode"] == gym.vector.AutoresetMode.DISABLED:
                options = {"reset_mask": ended}
                assert identical(remote.reset(options=dict(options)), local.reset(options=dict(options)))


def _sorted(infos):
    """With keys in one order: which comes first depends on the row that had it first."""
    return {key: _sorted(infos[key]) for key in sorted(infos)} if isinstance(infos, dict) else infos


GIVEN = {"action_key": "column", "action_space": Discrete(4)}
BOARD = Box(-(2**63), 2**63 - 2, (2, 4), np.int64)


@MODES
def test_keys_and_a_mask_of_what_is_listed(url, local, mode):
    remote = RemoteVecEnv(url, N, obs_key="board", mask_key="legal", autoreset_mode=mode, **GIVEN)
    assert remote.single_observation_space == BOARD
    play(remote, local(BOARD, lambda seen: np.array(seen.board), mode, mask=True))


def test_a_mask_of_flags(url, local):
    remote = RemoteVecEnv(url, N, obs_key="board", mask_key="free", **GIVEN)
    play(remote, local(BOARD, lambda seen: np.array(seen.board), "NextStep", mask=True))


def test_a_mask_goes_to_a_sampler(url):
    with RemoteVecEnv(url, N, obs_key="board", mask_key="legal", **GIVEN) as env:
        env.reset()
        _, *_, infos = env.step(np.array([1, 1, 2]))
        _, *_, infos = env.step(np.array([1, 0, 2]))
        masks = infos["action_mask"]
        assert masks.tolist() == [[1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 0, 1]]
        assert {int(env.single_action_space.sample(mask=masks[0])) for _ in range(50)} == {0, 2, 3}


@MODES
def test_functions_of_the_user(url, local, mode):
    """The user's columns count from one, and the observation is the board's sum by column."""
    space = Box(0, 9, (4,), np.float32)

    def decode(fields):
        return np.array(fields["board"], np.float32).sum(0)

    remote = RemoteVecEnv(
        url,
        N,
        action_space=Discrete(4),
        observation_space=space,
        encode_action=lambda action: {"column": int(action), "note": None},
        decode_observation=decode,
        autoreset_mode=mode,
    )
    play(remote, local(space, lambda seen: np.array(seen.board, np.float32).sum(0), mode))


@MODES
def test_a_limit_of_steps_on_the_client(url, local, mode):
    remote = RemoteVecEnv(url, N, obs_key="board", max_episode_steps=2, autoreset_mode=mode, **GIVEN)
    play(remote, local(BOARD, lambda seen: np.array(seen.board), mode, limit=2))


@MODES
def test_pixels_in_one_list_beside_their_shape(url, local, mode):
    space = Dict({"pixels": IMAGE, "pixels_shape": Box(0, 99, (3,), np.int64)})
    remote = RemoteVecEnv(url, N, observation_space=space, autoreset_mode=mode, **GIVEN)

    def show(seen):
        return {"pixels": np.array(seen.pixels, np.uint8).reshape(2, 2, 3), "pixels_shape": np.array([2, 2, 3])}

    play(remote, local(space, show, mode))
    remote = RemoteVecEnv(url, N, obs_key="pixels", observation_space=IMAGE, autoreset_mode=mode, **GIVEN)
    play(remote, local(IMAGE, lambda seen: show(seen)["pixels"], mode))


@pytest.mark.parametrize(
    "given, field, advice",
    [
        ({}, r"note: an optional field, which may be null", "action_key=, or pass action_space=, with encode_action="),
        (
            GIVEN,
            r"hint: an optional field, which may be null",
            "obs_key=, or pass observation_space=, with decode_observation=",
        ),
        ({**GIVEN, "obs_key": "history"}, "history: the list was empty", "observation_space="),
        ({**GIVEN, "mask_key": "hint"}, "history: the list was empty", "obs_key="),
        ({**GIVEN, "obs_key": "bord"}, r"no field 'bord', only \['board', 'legal'", ""),
        ({"obs_key": "board", "action_key": "colum"}, r"no field 'colum', only \['column', 'note'\]", ""),
        ({**GIVEN, "decode_observation": dict}, "decode_observation= needs observation_space=", "only you know"),
        ({"obs_key": "board", "encode_action": dict}, "encode_action= needs action_space=", "only you know"),
    ],
    ids=str,
)
def test_what_cannot_be_inferred_is_asked_for_by_name(url, given, field, advice):
    with pytest.raises(SpaceError, match=field) as told:
        RemoteVecEnv(url, N, **given)
    assert advice in str(told.value)


def test_a_list_that_changes_its_length_is_told_by_its_name(url):
    """The spaces are right for the first observation only."""
    with RemoteVecEnv(url, N, obs_key="history", observation_space=Box(0, 9, (0,), np.int64), **GIVEN) as env:
        env.reset()
        with pytest.raises(Exception, match=r"history: the shape is \(1,\)"):
            env.step(np.array([0, 1, 2]))


def test_a_mask_that_is_none(url):
    with RemoteVecEnv(url, N, obs_key="board", mask_key="hint", **GIVEN) as env:
        with pytest.raises(BatchError, match="hint: the observation has no list 'hint'"):
            env.reset()
