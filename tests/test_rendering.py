"""Frames from remote envs: as local ones, in videos and windows, and with clear words where there are none."""

import contextlib
import os
import sys
import threading
from functools import partial

import gymnasium as gym
import numpy as np
import pygame
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import AddRenderObservation, HumanRendering, RecordVideo
from gymnasium.wrappers.vector import RecordVideo as VectorRecordVideo
from helpers_cli import Running
from helpers_envs import Count, Factory, Meeting
from helpers_server import running
from helpers_wait import LIMIT_S
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecVideoRecorder

from openenv_gym import LocalServer, RemoteEnv, RemoteVecEnv, errors
from openenv_gym.rendering import METADATA, frame_from_json, metadata_here
from openenv_gym.sb3 import SB3VecEnv
from openenv_gym.server import create_app
from openenv_gym.server.drawing import draw_unseen, drawing, may_draw

REMOTE = "openenv_gym:openenv/Remote-v0"
MODES = [None, "rgb_array", "human", "rgb_array_list"]
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


class Deep(Plain):
    """An env whose frames are distances."""

    metadata = {"render_modes": ["depth_array"], "render_fps": 4}
    render_mode = "depth_array"

    def render(self):
        return np.full((2, 2), 0.5, np.float32)


class Painter(Alone):
    """An env whose observations are drawn, as those of CarRacing are."""

    def reset(self, *, seed=None, options=None):
        self.render()
        self.surface = pygame.Surface((2, 2))
        return super().reset(seed=seed)

    def step(self, action):
        self.render()
        return super().step(action)


@pytest.mark.parametrize("options", [{}, {"connections": 2}, {"dialect": "openenv"}], ids=str)
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


@pytest.mark.parametrize("options", [{}, {"connections": 2}], ids=str)
def test_frames_as_png_are_the_same_and_smaller(options):
    frames, sizes = [], []
    for way in ("raw", "png"):
        with RemoteVecEnv(num_envs=2, render_mode="rgb_array", frames=way, **options) as envs:
            envs.reset(seed=1)
            before = envs.stats().bytes_down
            frames.append(envs.render())
            sizes.append(envs.stats().bytes_down - before)
            assert SB3VecEnv(envs).get_images()[1].tobytes() == frames[-1][1].tobytes()
    for raw, png in zip(*frames, strict=True):
        assert (png.dtype, png.shape, png.tobytes()) == (raw.dtype, raw.shape, raw.tobytes())
        assert png.flags.writeable
    assert sizes[1] * 20 < sizes[0]
    single = gym.make(REMOTE, render_mode="rgb_array", frames="png")
    single.reset(seed=1)
    assert np.array_equal(single.render(), frames[0][0])
    single.close()


def test_what_is_no_picture_for_png_stays_as_it_is():
    with RemoteVecEnv.local("FrozenLake-v1", render_mode="ansi", frames="png") as envs:
        envs.reset(seed=1)
        assert isinstance(envs.render()[0], str)
    with LocalServer(Deep) as server, RemoteVecEnv(server.url, 1, token=server.token, frames="png") as envs:
        envs.reset()
        assert envs.render()[0].dtype == np.float32


def test_frames_of_a_hosted_vector_env_as_png(server):
    with (
        RemoteVecEnv.local(partial(gym.make_vec, "CartPole-v1"), 2, render_mode="rgb_array", frames="png") as whole,
        RemoteVecEnv(num_envs=2, render_mode="rgb_array") as envs,
    ):
        for env in (whole, envs):
            env.reset(seed=1)
        assert [frame.shape for frame in whole.render()] == [frame.shape for frame in envs.render()]


def test_a_frame_over_the_limit_is_refused_before_it_is_unpacked():
    options = {"render_mode": "rgb_array", "max_message_size_mb": 0.5}  # the frame has 720,000 bytes
    with RemoteVecEnv(frames="png", **options) as envs:
        envs.reset()
        with pytest.raises(errors.RemoteProtocolError, match=r"a frame of shape .* is over the limit of 524,288 bytes"):
            envs.render()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_frames_in_the_openenv_dialect_step_by_step(mode):
    options = {"max_episode_steps": 3, "render_mode": "rgb_array"}
    local = gym.make_vec("CartPole-v1", 2, "sync", {"autoreset_mode": mode}, **options)
    with RemoteVecEnv(num_envs=2, autoreset_mode=mode, dialect="openenv", **options) as remote:
        assert remote.metadata == local.metadata | {"render_modes": ["rgb_array"]}
        with pytest.raises(gym.error.ResetNeeded):
            remote.render()
        for env in (remote, local):
            env.reset(seed=1)
        for _ in range(5):
            assert all(map(np.array_equal, remote.render(), local.render()))
            remote.step([0, 1]), local.step([0, 1])
    local.close()


def test_one_env_renders_in_the_openenv_dialect(tmp_path):
    env = gym.make(REMOTE, render_mode="rgb_array", dialect="openenv")
    local = gym.make("CartPole-v1", render_mode="rgb_array")
    for one in (env, local):
        one.reset(seed=4)
        one.step(1)
    assert np.array_equal(env.render(), local.render())
    env.close()
    with RemoteVecEnv(render_mode="rgb_array", dialect="openenv") as envs:
        video = VectorRecordVideo(envs, str(tmp_path / "videos"), episode_trigger=lambda _: True)
        video.reset(seed=1)
        video.step([0])
        video.close()
    assert len(list(tmp_path.glob("videos/*.mp4"))) == 1


def test_an_openenv_server_sends_no_frames():
    openenv = pytest.importorskip("helpers_openenv")
    with (
        openenv.stock_server() as url,
        pytest.warns(UserWarning, match="renders in mode None, not rgb_array; its render modes are: none"),
        RemoteVecEnv(url, render_mode="rgb_array", **openenv.COUNT_SPACES) as envs,
    ):
        envs.reset()
        with pytest.raises(errors.RemoteProtocolError, match=r"sends no frames: .* only servers of this package do"):
            envs.render()


@pytest.mark.parametrize(
    "frame, text",
    [
        ({"dtype": "object", "shape": [1], "base64": "AA=="}, "malformed: 'object'"),
        ({"dtype": "uint8", "shape": [2], "base64": "AA=="}, "cannot reshape"),
        ({"dtype": "uint8", "shape": [1], "base64": "A*=="}, "malformed"),
        ({"dtype": "uint8", "shape": "x", "base64": "AA=="}, "malformed"),
        ({"dtype": "uint8"}, "malformed"),
    ],
)
def test_malformed_frames_in_json(frame, text):
    with pytest.raises(errors.RemoteProtocolError, match=text):
        frame_from_json([frame])


@pytest.mark.parametrize("dialect", [None, "openenv"])
def test_modes_that_are_not_pictures(dialect):
    with LocalServer("FrozenLake-v1") as server:
        env = RemoteEnv(server.url, token=server.token, render_mode="ansi", dialect=dialect)
        env.reset(seed=1)
        local = gym.make("FrozenLake-v1", render_mode="ansi")
        local.reset(seed=1)
        assert env.render() == local.render()
        env.close()


def kinds(frames):
    """What frames are, in types and shapes."""
    return [kinds(frame) for frame in frames] if isinstance(frames, list) else (type(frames), np.shape(frames))


@pytest.mark.filterwarnings("ignore:.*native:UserWarning")
@pytest.mark.parametrize(
    "number, mode", [*[(1, mode) for mode in MODES], *[(2, mode) for mode in MODES if mode != "human"]]
)
def test_modes_give_what_they_give_locally(number, mode):
    if number == 1:
        envs = [gym.make(id, render_mode=mode) for id in (REMOTE, "CartPole-v1")]
    else:
        envs = [gym.make_vec(REMOTE, 2, render_mode=mode), gym.make_vec("CartPole-v1", 2, "sync", render_mode=mode)]
    shown = []
    for env in envs:
        env.reset(seed=1)
        env.step([0, 1] if number == 2 else 1)
        told = pytest.warns(UserWarning, match="without.* render mode") if mode is None else contextlib.nullcontext()
        with told:
            frames = env.render()
        assert env.render_mode == mode
        shown.append((type(frames), kinds(list(frames) if number == 2 else frames)))
        env.close()
    assert shown[0] == shown[1]


@pytest.mark.parametrize("mode", ["ansi", "depth_array", "nonsense", "nonsense_list"])
def test_modes_that_the_env_has_not_are_told_and_fail_as_locally(mode):
    for id in (REMOTE, "CartPole-v1"):
        with pytest.warns(UserWarning, match=rf"render.?mode.* ?'?{mode}'?.*render.?modes.*'?rgb_array'?"):
            env = gym.make(id, render_mode=mode)
        assert env.render_mode == mode
        env.reset(seed=1)
        with pytest.raises(AssertionError, match=f"unsupported render mode. Render mode: {mode}"):
            env.render()
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


@pytest.mark.filterwarnings("ignore:.*autoreset mode is same-step")
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_videos_of_vector_envs(tmp_path, mode):
    remote = gym.make_vec(REMOTE, num_envs=2, render_mode="rgb_array", autoreset_mode=mode)
    env = VectorRecordVideo(
        remote, str(tmp_path / "videos"), episode_trigger=lambda episode: episode == 0, disable_logger=True
    )
    env.reset(seed=1)
    for _ in range(15):
        over = np.logical_or(*env.step([0, 0])[2:4])
        if mode == "Disabled" and over.any():
            env.reset(options={"reset_mask": over})
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


class TestWithoutAScreen:
    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is always one")
    @pytest.mark.parametrize(
        "given, driver",
        [
            ({}, "dummy"),
            ({"DISPLAY": ":0"}, None),
            ({"WAYLAND_DISPLAY": "wayland-0"}, None),
            ({"SDL_VIDEODRIVER": "offscreen"}, "offscreen"),
        ],
    )
    def test_what_the_user_has_counts(self, given, driver):
        draw_unseen(given)
        assert given.get("SDL_VIDEODRIVER") == driver

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is always one")
    @pytest.mark.parametrize("serve", ["the command", "a child", "several processes"])
    def test_servers_do_not_complain(self, serve, monkeypatch, capfd):
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER"):
            monkeypatch.delenv(name, raising=False)
        if serve == "the command":
            with Running("serve", "CartPole-v1", "--port", 0, "--log-level", "error") as serving:
                self.draw(serving.url())
                serving.process.terminate()
                serving.wait()
                assert serving.errors == ""
        else:
            with LocalServer("CartPole-v1", workers=1 if serve == "a child" else 2) as server:
                self.draw(server.url, token=server.token)
        assert "XDG_RUNTIME_DIR" not in capfd.readouterr().err
        assert "SDL_VIDEODRIVER" not in os.environ  # nothing is changed in the learner's process

    def draw(self, url, **options):
        with RemoteVecEnv(url, 2, render_mode="rgb_array", **options) as envs:
            envs.reset()
            assert np.shape(envs.render()) == (2, 400, 600, 3)


def test_a_mode_that_the_env_does_not_list_is_told():
    with pytest.warns(UserWarning, match="took the render mode foo, but says that its render modes are: rgb_array"):
        RemoteVecEnv.local(Alone, render_mode="foo").close()


@pytest.mark.parametrize(
    "name, may", [("CarRacing-v3", True), ("CartPole-v1", True), ("Taxi-v4", True), ("Ant-v5", False)]
)
def test_envs_that_name_pygame_may_draw_in_their_first_reset(name, may):
    with contextlib.closing(gym.make(name)) as env:
        assert may_draw(env) is may


def test_first_resets_of_envs_without_pygame_do_not_wait_for_each_other(server):
    """Not even where pygame is loaded, as here: a first reset may be the start of a simulator."""
    factory = Factory(Count, {"on": {"reset": Meeting(4)}})
    with running(create_app(factory, max_step_s=LIMIT_S)) as url, RemoteVecEnv(url, 4) as envs:
        assert envs.reset(seed=1)[0].shape == (4, 1)
