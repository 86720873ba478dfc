"""What is learned from one env before a server starts."""

import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete, Text
from helpers_envs import Busy, Count, Factory, Gate, Sleeper, raiser
from helpers_wait import LIMIT_S, wait_until

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

    def test_one_slow_step_says_nothing(self, monkeypatch):
        monkeypatch.setattr(module, "_SECONDS", LIMIT_S)  # it isn't the only one, however slow

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

    @pytest.mark.parametrize(
        "error, text",
        [
            (ValueError("no"), "ValueError: no"),
            (SystemExit(3), "SystemExit: 3"),
            (ValueError("\ud800"), "ValueError: ?"),
        ],
        ids=["error", "exit", "no text"],
    )
    @pytest.mark.parametrize("name", ["reset", "step"])
    def test_an_env_that_can_not_be_tried_out(self, caplog, name, error, text):
        with caplog.at_level("WARNING"):
            found = look(Count, on={name: raiser(error)})
        assert found.waits is True
        assert f"an env of Count failed when it was tried out: {text}" in caplog.messages
        assert found.observation_space == Count.observation_space

    @pytest.mark.parametrize("name, result", [("reset", 0), ("step", (0, 0.0, False, {}))])
    def test_an_env_of_another_api_is_told_as_clients_will_be(self, caplog, name, result):
        class Old(Busy):
            pass

        setattr(Old, name, lambda self, *args, **kwargs: result)
        with caplog.at_level("WARNING"):
            look(Old)
        assert f"an env of Old failed when it was tried out: TypeError: the env's {name}() must return" in caplog.text


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

    @pytest.mark.parametrize("space, what", [(None, "isn't set"), (3, "is of int, which is no gymnasium.Space")])
    @pytest.mark.parametrize("name", ["observation_space", "action_space"])
    def test_a_space_that_is_none(self, name, space, what):
        class Bare(Count):
            pass

        setattr(Bare, name, space)
        with pytest.raises(SpaceError, match=f"the env's {name} {what}"):
            probe(EnvSource(Bare), calibrate=False)

    def test_an_env_that_can_not_be_closed_can_be_served(self, caplog):
        assert look(Count, on={"close": raiser(RuntimeError("stuck"))}).waits is False
        assert "RuntimeError: stuck" in caplog.text


class TestPatience:
    """With an env that takes longer than anybody waits."""

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch):
        monkeypatch.setattr(module, "_PATIENCE_S", 0.1)

    @pytest.mark.parametrize("name", ["reset", "step", "close"])
    def test_it_is_served_if_it_hangs_when_it_is_tried_out(self, name, caplog):
        gate = Gate()
        factory = Factory(Count, {"on": {name: gate}})
        found = look(factory)
        assert found.waits or name == "close"
        assert found.observation_space == Count.observation_space
        assert "doesn't come back from its reset, a step or its close within 0.1 seconds" in caplog.text
        assert "max_step_s" in caplog.text
        gate.open()
        (env,) = factory.all
        wait_until(lambda: env.count("close") == 1, "its end")

    def test_building_it_is_waited_for_with_a_word(self, caplog):
        gate = Gate()
        thread = threading.Thread(target=lambda: found.append(look(lambda: gate() or Count(), calibrate=False)))
        found = []
        thread.start()
        wait_until(lambda: "is being built for more than 0.1 seconds" in caplog.text, "a word")
        assert not found
        gate.open()
        thread.join()
        assert found[0].observation_space == Count.observation_space
