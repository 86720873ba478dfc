"""What is learned from one env before a server starts."""

import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete, Text
from helpers_envs import Busy, Count, Factory, Sleeper, raiser

from openenv_gym.errors import FactoryError, SpaceError
from openenv_gym.server import probe as module
from openenv_gym.server.adapters import EnvSource
from openenv_gym.server.probe import probe
from openenv_gym.spaces import Json


def look(env, *, calibrate=True, **kwargs):
    return probe(EnvSource(env, kwargs), calibrate=calibrate)


class TestFacts:
    def test_spaces_and_metadata(self):
        found = look(Count)
        assert (found.observation_space, found.action_space) == (Count.observation_space, Count.action_space)
        assert found.metadata == {"render_modes": ["rgb_array"], "render_fps": 4, "render_mode": None}

    def test_description_and_version(self):
        found = look("CartPole-v1", calibrate=False)
        assert found.version == "1"
        assert found.description.startswith("This environment corresponds to the version of the cart-pole problem")
        assert look(lambda: gym.Wrapper(Count())).version is None

    def test_an_env_without_a_word(self):
        class Silent(Count):
            pass

        assert look(Silent).description == ""


class TestThreads:
    @pytest.mark.parametrize("calibrate", [True, False])
    def test_one_thread_of_its_own(self, calibrate):
        factory = Factory(Count)
        look(factory, calibrate=calibrate)
        (env,) = factory.all
        assert len(env.threads) == 1
        assert env.threads != {threading.get_ident()}
        assert env.count("close") == 1
        assert (env.count("step") > 0) is calibrate


class TestWaiting:
    def test_an_env_that_waits(self):
        assert look(Sleeper, seconds=0.02).waits is True

    def test_an_env_that_computes(self):
        assert look(Busy, seconds=0.01).waits is False

    @pytest.mark.parametrize("space", [Text(3), Json(), Dict({"a": Discrete(2), "text": Text(3)})])
    def test_text_is_not_tried(self, space):
        class Spoken(Busy):
            action_space = space

        factory = Factory(Spoken)
        assert look(factory).waits is True
        assert factory.all[0].count("step") == 0

    def test_an_env_that_is_over_at_once(self):
        assert look(Busy, seconds=0.001, length=1).waits is False

    def test_without_calibration_nothing_is_said(self):
        assert look(Sleeper, calibrate=False).waits is False

    def test_one_slow_step_says_nothing(self):
        class Loading(Busy):
            def step(self, action):
                if self.t == 0:
                    threading.Event().wait(0.05)
                return super().step(action)

        assert look(Loading, seconds=0.002).waits is False

    @pytest.mark.skipif(module.getrusage is None, reason="the system doesn't count pauses")
    def test_an_env_that_computes_on_a_busy_machine(self, monkeypatch):
        """There its thread gets the processor half of the time only."""
        clock = module.time.thread_time
        monkeypatch.setattr(module.time, "thread_time", lambda: clock() / 3)
        assert look(Busy, seconds=0.01).waits is False
        assert look(Sleeper, seconds=0.02).waits is True

    @pytest.mark.parametrize("count", [None, lambda who: type("Usage", (), {"ru_nvcsw": 0})])
    def test_a_system_that_counts_no_pauses(self, monkeypatch, count):
        monkeypatch.setattr(module, "getrusage", count)
        assert look(Sleeper, seconds=0.02).waits is True

    def test_a_slow_reset_does_not_use_up_the_time(self, monkeypatch):
        """Without a single step the env would be taken for one that computes."""

        class Slow(Sleeper):
            def reset(self, **kwargs):
                self.clock.now += 1000
                return super().reset(**kwargs)

        class Clock:
            now = 0

            def __call__(self):
                return self.now

        Slow.clock = Clock()
        monkeypatch.setattr(module.time, "monotonic", Slow.clock)
        assert look(Slow, seconds=0.02).waits is True

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
    @pytest.mark.parametrize("name", ["reset", "step"])
    def test_an_env_that_can_not_be_tried_out(self, name, error):
        found = look(Count, on={name: raiser(error)})
        assert found.waits is True
        assert found.observation_space == Count.observation_space


class TestErrors:
    def test_a_factory_that_raises(self):
        with pytest.raises(FactoryError, match="no licence"):
            look("helpers_envs:make_nothing")

    def test_a_factory_that_exits(self):
        with pytest.raises(FactoryError, match="SystemExit: 3"):
            look("helpers_envs:exits")

    def test_a_space_that_can_not_be_described(self):
        class Odd(gym.spaces.Space):
            pass

        class Env(Count):
            observation_space = gym.spaces.Dict({"a": gym.spaces.Dict({"odd": Odd((), np.float32)})})

        factory = Factory(Env)
        with pytest.raises(SpaceError, match=r"a\.odd"):
            look(factory)
        assert factory.all[0].count("close") == 1

    def test_an_env_that_can_not_be_closed_can_be_served(self, caplog):
        assert look(Count, on={"close": raiser(RuntimeError("stuck"))}).waits is False
        assert "RuntimeError: stuck" in caplog.text
