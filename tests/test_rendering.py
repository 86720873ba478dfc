"""Frames from remote envs: as local ones, in videos and windows, and with clear words where there are none."""

import threading

import gymnasium as gym
import numpy as np
import pygame
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import AddRenderObservation, HumanRendering, RecordVideo
from gymnasium.wrappers.vector import RecordVideo as VectorRecordVideo
from helpers_envs import Factory, Meeting
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecVideoRecorder

from openenv_gym import LocalServer, RemoteEnv, RemoteVecEnv, errors
from openenv_gym.rendering import METADATA, metadata_here
from openenv_gym.sb3 import SB3VecEnv
from openenv_gym.server.drawing import drawing

REMOTE = "openenv_gym:openenv/Remote-v0"
# MoviePy leaves the pipe of its encoder to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file <_io.Buffered:ResourceWarning")


@pytest.fixture(scope="module")
def server():
    with LocalServer("CartPole-v1") as server:
        yield server


@pytest.fixture(autouse=True)
def environment(server, monkeypatch):
    """The token where everything finds it, and a screen that nobody sees."""
    monkeypatch.setenv("OPENENV_GYM_TOKEN", server.token)
    monkeypatch.setenv("OPENENV_BASE_URL", server.url)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


class Plain(gym.Env):
    """An env that can't be rendered."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}


class Alone(Plain):
    """An env that minds when another one of its process renders at the same time."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}
    busy = threading.Lock()

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        assert self.busy.acquire(blocking=False), "two at once"
        threading.Event().wait(0.02)
        self.busy.release()
        return np.zeros((2, 2, 3), np.uint8)


class Painter(Alone):
    """An env whose observations are drawn, as those of CarRacing are."""

    def reset(self, *, seed=None, options=None):
        self.render()
        self.surface = pygame.Surface((2, 2))
        return super().reset(seed=seed)

    def step(self, action):
        self.render()
        return super().step(action)


@pytest.mark.parametrize("options", [{}, {"connections": 2}], ids=str)
def test_frames_equal_those_of_local_envs(options):
    local = SyncVectorEnv([lambda: gym.make("CartPole-v1", render_mode="rgb_array")] * 2)
    with RemoteVecEnv(num_envs=2, render_mode="rgb_array", **options) as remote:
        assert remote.render_mode == local.render_mode == "rgb_array"
        for env in (remote, local):
            env.reset(seed=1)
            env.step([0, 1])
        ours, theirs = remote.render(), local.render()
    assert type(ours) is tuple
    assert len(ours) == 2
    for frame, other in zip(ours, theirs, strict=True):
        assert frame.dtype == np.uint8
        assert np.array_equal(frame, other)
    local.close()


def test_modes_that_are_not_pictures():
    with LocalServer("FrozenLake-v1") as server:
        env = RemoteEnv(server.url, token=server.token, render_mode="ansi")
        env.reset(seed=1)
        local = gym.make("FrozenLake-v1", render_mode="ansi")
        local.reset(seed=1)
        assert env.render() == local.render()
        env.close()


def test_lists_of_frames():
    env = gym.make(REMOTE, render_mode="rgb_array_list")
    env.reset(seed=1)
    env.step(0)
    assert [frame.shape for frame in env.render()] == [(400, 600, 3)] * 2
    env.close()


def test_videos_of_single_envs(tmp_path):
    env = RecordVideo(gym.make(REMOTE, render_mode="rgb_array"), str(tmp_path / "videos"), disable_logger=True)
    env.reset(seed=1)
    while not any(env.step(0)[2:4]):
        pass
    env.close()
    assert [path.stat().st_size > 0 for path in tmp_path.rglob("*.mp4")] == [True]


def test_videos_of_vector_envs(tmp_path):
    remote = gym.make_vec(REMOTE, num_envs=2, render_mode="rgb_array")
    env = VectorRecordVideo(
        remote, str(tmp_path / "videos"), episode_trigger=lambda episode: episode == 0, disable_logger=True
    )
    env.reset(seed=1)
    for _ in range(15):
        env.step([0, 0])
    env.close()
    assert [path.stat().st_size > 0 for path in tmp_path.rglob("*.mp4")] == [True]


def test_videos_of_sb3(tmp_path):
    remote = SB3VecEnv(RemoteVecEnv(num_envs=2, render_mode="rgb_array"))
    assert remote.metadata["render_fps"] == 50
    env = VecVideoRecorder(remote, str(tmp_path), lambda step: step == 0, video_length=5)
    env.reset()
    for _ in range(6):
        env.step([0, 0])
    env.close()
    assert [path.stat().st_size > 0 for path in tmp_path.rglob("*.mp4")] == [True]


def test_sb3s_own_helper_asks_for_frames():
    env = make_vec_env(REMOTE, n_envs=2, seed=1)
    env.reset()
    assert env.render_mode == "rgb_array"
    assert [image.shape for image in env.get_images()] == [(400, 600, 3)] * 2
    env.close()


def test_make_shows_a_window_here():
    with pytest.warns(UserWarning, match="The HumanRendering wrapper is being applied"):
        env = gym.make(REMOTE, render_mode="human")
    assert isinstance(env, HumanRendering)
    assert env.render_mode == "human"
    assert env.unwrapped.render_mode == "rgb_array"
    env.reset(seed=1)
    env.step(0)
    assert env.render() is None
    assert env.window is not None
    env.close()


@pytest.mark.parametrize(
    "make, wrapper",
    [
        (lambda: RemoteEnv(render_mode="human"), "gymnasium.wrappers.HumanRendering"),
        (lambda: gym.make_vec(REMOTE, num_envs=2, render_mode="human"), "gymnasium.wrappers.vector.HumanRendering"),
    ],
)
def test_no_window_opens_on_the_server(make, wrapper):
    with pytest.raises(errors.OptionError, match=f'take render_mode="rgb_array" and wrap the env in {wrapper}'):
        make()


@pytest.mark.parametrize("options", [{}, {"dialect": "openenv"}], ids=str)
def test_envs_without_frames(options):
    gym.register("test/Plain-v0", Plain)
    try:
        with (
            LocalServer(lambda: gym.make("test/Plain-v0")) as server,
            pytest.warns(UserWarning, match="renders in mode None, not rgb_array; its render modes are: none"),
            RemoteVecEnv(server.url, 2, token=server.token, render_mode="rgb_array", **options) as env,
        ):
            assert env.render_mode is None
            assert env.metadata["render_modes"] == []
            env.reset()
            env.step([0, 1])
    finally:
        del gym.registry["test/Plain-v0"]


def test_one_env_of_a_process_renders_at_a_time():
    with (
        LocalServer(Alone) as server,
        RemoteVecEnv(server.url, 4, token=server.token, connections=4, render_mode="rgb_array") as env,
    ):
        env.reset()
        assert len(env.render()) == len(env.call("render")) == 4


def test_a_render_that_hangs_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr("openenv_gym.server.drawing._PATIENCE_S", 0.1)
    with (
        LocalServer(Alone) as server,
        RemoteVecEnv(server.url, 1, token=server.token, render_mode="rgb_array") as env,
    ):
        env.reset()
        with (
            drawing,
            pytest.raises(errors.RemoteEnvError, match=r"another env of this process has been drawing for 0\.1 sec"),
        ):
            env.render()
        assert len(env.render()) == 1


@pytest.mark.parametrize("paints", [Painter, lambda: AddRenderObservation(Alone("rgb_array"))], ids=["own", "wrapper"])
def test_one_env_of_a_process_paints_its_observation_at_a_time(paints):
    with LocalServer(paints) as server, RemoteVecEnv(server.url, 4, token=server.token, connections=4) as env:
        for _ in range(2):
            env.reset()
            env.step([0] * 4)


def test_envs_that_only_could_draw_run_at_the_same_time():
    made = Factory(kwargs={"habits": {1: Meeting(2)}})
    with LocalServer(made, max_workers=2) as server, RemoteVecEnv(server.url, 2, token=server.token) as env:
        env.reset()
        env.step([1, 1])


def test_metadata_belongs_to_each_env():
    remote = {"render_modes": ("human", "rgb_array"), "render_fps": 9, "render_mode": "rgb_array"}
    metadata, mode = metadata_here(remote, "rgb_array", pytest.fail)
    assert metadata == {"render_modes": ["rgb_array"], "render_fps": 9}
    assert mode == "rgb_array"
    assert metadata_here({}, None, pytest.fail) == ({"render_modes": []}, None)
    with RemoteVecEnv(num_envs=1, autoreset_mode="SameStep") as one, RemoteVecEnv(num_envs=1) as other:
        assert one.metadata["autoreset_mode"] is gym.vector.AutoresetMode.SAME_STEP
        assert other.metadata["autoreset_mode"] is gym.vector.AutoresetMode.NEXT_STEP
    assert RemoteVecEnv.metadata == METADATA
    assert "autoreset_mode" not in METADATA
