"""One env and its episode."""

import gymnasium as gym
import pytest
from helpers_envs import Count, Factory, raiser

from openenv_gym.server.adapters import EnvSource
from openenv_gym.server.slot import DISABLED, NEXT_STEP, SAME_STEP, Slot


@pytest.fixture
def factory():
    return Factory(Count)


@pytest.fixture
def slot(factory):
    slot = Slot(EnvSource(factory).make)
    slot.build()
    return slot


def over(slot):
    """Play an episode to its end."""
    slot.reset()
    while not slot.over:
        slot.over = slot.step(0, None)[2]


def test_an_episode(slot):
    assert slot.reset(seed=3, options={"a": 1}) == (0.0, {"r": 1})
    assert slot.step(5, NEXT_STEP) == (1.0, 1.0, False, False, {"i": 1})
    names = [(call.name, *call.arguments) for call in slot.env.env.calls]
    assert names == [("init",), ("reset", 3, {"a": 1}), ("step", 5)]


def test_steps_and_episode_id(slot):
    assert (slot.steps, slot.episode_id) == (0, None)
    slot.reset()
    first = slot.episode_id
    slot.step(0, None)
    assert (slot.steps, slot.episode_id) == (1, first)
    slot.reset()
    assert slot.steps == 0
    assert first != slot.episode_id


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP, DISABLED, None])
def test_no_step_before_a_reset(slot, mode):
    with pytest.raises(gym.error.ResetNeeded, match="before calling `reset`"):
        slot.step(0, mode)
    assert slot.env.env.count("step") == 0


def test_next_step_resets_without_arguments(slot):
    slot.reset(seed=3, options={"a": 1})
    over(slot)
    slot.env.env.calls.clear()
    assert slot.step(0, NEXT_STEP) == (0.0, 0.0, False, False, {"r": 1})
    assert [(call.name, *call.arguments) for call in slot.env.env.calls] == [("reset", None, None)]
    assert (slot.over, slot.steps) == (False, 0)


@pytest.mark.parametrize("mode", [SAME_STEP, DISABLED])
def test_a_finished_env_is_not_stepped(slot, mode):
    over(slot)
    with pytest.raises(gym.error.ResetNeeded, match=f"autoreset mode {mode}, call `reset` first"):
        slot.step(0, mode)
    assert slot.env.env.count("step") == 3


def test_without_a_mode_the_env_decides(slot):
    over(slot)
    assert slot.step(0, None) == (4.0, 1.0, True, False, {"i": 4})


def test_a_manual_reset_forgets_the_end(slot):
    over(slot)
    slot.reset()
    assert slot.step(0, NEXT_STEP)[0] == 1.0


@pytest.mark.parametrize("length, flags", [(10, (False, True)), (2, (True, True))])
def test_a_limit_truncates(factory, length, flags):
    factory.kwargs["length"] = length
    slot = Slot(EnvSource(factory).make, max_episode_steps=2)
    slot.reset()
    assert slot.step(0, None)[2:4] == (False, False)
    assert slot.step(0, None)[2:4] == flags


def test_a_step_that_raises_is_no_step(factory, slot):
    factory.all[0].habits[1] = raiser(ValueError("oops"))
    slot.reset()
    with pytest.raises(ValueError, match="oops"):
        slot.step(1, None)
    assert slot.steps == 0
    slot.step(0, None)
    assert slot.steps == 1


class TestRebuilding:
    @pytest.mark.parametrize("error", [ValueError("oops"), SystemExit(3)])
    def test_an_env_whose_reset_raised(self, factory, slot, error):
        factory.all[0].on["reset"] = raiser(error)
        with pytest.raises(type(error)):
            slot.reset(seed=1)
        with pytest.raises(gym.error.ResetNeeded):  # half a reset is no episode
            slot.step(0, None)
        slot.reset(seed=2)
        first, second = factory.all
        assert first.count("close") == 1
        assert [call.arguments for call in second.calls if call.name == "reset"] == [(2, None)]
        slot.reset()
        assert len(factory.all) == 2

    def test_a_broken_env_need_not_be_closable(self, factory, slot, caplog):
        factory.all[0].on.update(reset=raiser(ValueError("oops")), close=raiser(SystemExit(3)))
        with pytest.raises(ValueError, match="oops"):
            slot.reset()
        slot.reset()
        assert slot.env.env is factory.all[1]
        assert "SystemExit" in caplog.text

    def test_a_stale_env(self, factory, slot):
        slot.reset()
        slot.stale = True
        assert slot.step(0, None)[0] == 1.0  # until then it goes on
        slot.reset()
        assert [env.count("close") for env in factory.all] == [1, 0]

    def test_what_can_not_be_built_now_can_be_later(self, factory):
        factory.failing = (0,)
        slot = Slot(EnvSource(factory).make)
        with pytest.raises(Exception, match="no licence"):
            slot.reset()
        with pytest.raises(gym.error.ResetNeeded):
            slot.step(0, None)
        slot.reset()
        assert slot.step(0, None)[0] == 1.0


class TestClosing:
    def test_once(self, factory, slot):
        slot.close()
        slot.close()
        assert factory.all[0].count("close") == 1
        with pytest.raises(gym.error.ResetNeeded, match="gone"):
            slot.present()

    def test_once_though_it_raises(self, factory, slot):
        factory.all[0].on["close"] = raiser(ValueError("oops"))
        with pytest.raises(ValueError, match="oops"):
            slot.close()
        slot.close()
        assert factory.all[0].count("close") == 1

    def test_present(self, factory, slot):
        assert slot.present().env is factory.all[0]


def test_metadata_is_read_when_it_is_built(slot):
    assert slot.metadata["render_fps"] == 4


class OfOldGym(gym.Env):
    """An env as before Gymnasium: no info at the reset, and one end."""

    observation_space, action_space = gym.spaces.Discrete(3), gym.spaces.Discrete(2)
    first, later = (1, {}), (1, 0.0, False, {})

    def reset(self, *, seed=None, options=None):
        return self.first

    def step(self, action):
        return self.later


@pytest.mark.parametrize("first, told", [(1, "a int"), ([0.0, 1.0], "a list"), ((1, {}, 3), "3 values")], ids=str)
def test_a_reset_without_an_info(first, told):
    class Mine(OfOldGym):
        pass

    Mine.first = first
    with pytest.raises(TypeError, match=rf"reset\(\) must return \(observation, info\), not {told}"):
        Slot(EnvSource(Mine).make).reset()


@pytest.mark.parametrize("later, told", [((1, 0.0, False, {}), "4 values"), (None, "a NoneType")], ids=str)
def test_a_step_of_four_values(later, told):
    class Mine(OfOldGym):
        pass

    Mine.later = later
    slot = Slot(EnvSource(Mine).make)
    slot.reset()
    with pytest.raises(TypeError, match=rf"terminated, truncated, info\), not {told}"):
        slot.step(0, None)
