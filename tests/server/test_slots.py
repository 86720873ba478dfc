"""The step loop against its oracle, ``SyncVectorEnv``, without threads and without a network."""

import copy

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from helpers_envs import Count, Factory, Reusing, Trimmed, Varied, raiser

from openenv_gym.actions import check_actions, to_batch
from openenv_gym.batching import BatchReader
from openenv_gym.codec import unpack
from openenv_gym.errors import FactoryError, SpaceError
from openenv_gym.messages import Step
from openenv_gym.server.adapters import EnvSource
from openenv_gym.server.encoding import BatchEncoding
from openenv_gym.server.slots import Slots
from openenv_gym.spaces import trim

MODES = [mode.value for mode in AutoresetMode]


def make_slots(make, count, *, spaces=None, encoding=None, **kwargs):
    """Slots with their envs built."""
    if spaces is None:
        env = make()
        spaces = env.observation_space, env.action_space
    slots = Slots(EnvSource(make), count, spaces, encoding or BatchEncoding(*spaces), **kwargs)
    for slot in slots.slots:
        slot.build()
    return slots


def reset(slots, numbers=None, seeds=None, options=None):
    """Reset some or all envs; give the reply."""
    numbers = range(slots.count) if numbers is None else numbers
    count = len(numbers)
    page = slots.begin()
    slots.reset(page, list(enumerate(numbers)), seeds or [None] * count, options or [None] * count, sticky=False)
    slots.end(page)
    return page.observed(1, count)


def step(slots, actions, mode=None, numbers=None):
    """Step some or all envs; give the reply."""
    numbers = range(slots.count) if numbers is None else numbers
    page = slots.begin()
    slots.step(page, list(enumerate(numbers)), actions, mode)
    slots.end(page)
    return page.stepped(1, len(numbers))


def observations(reply, space, count):
    """A reply's observations, batched."""
    return BatchReader(space, count).read([(slice(0, count), reply.observations)])


def infos_of(reply, space, count, numbers=None):
    """A reply's infos as Gymnasium itself would merge them, in the places `numbers`."""
    merger = gym.vector.VectorEnv()
    merger.num_envs = count
    final = getattr(reply, "final", None)
    last = {}
    if final is not None:
        rows = BatchReader(space, len(final.positions)).rows(final.observations, len(final.positions))
        last = {p: (row, unpack(info)) for p, row, info in zip(final.positions, rows, final.infos, strict=True)}
    infos = {}
    for position, number in enumerate(range(count) if numbers is None else numbers):
        if position in last:
            observation, info = last[position]
            infos = merger._add_info(infos, {"final_obs": observation, "final_info": info}, number)
        infos = merger._add_info(infos, unpack(reply.infos.get(position, {})), number)
    return infos


def results(reply, space, count):
    """A `Stepped` as ``VectorEnv.step`` would return it."""
    columns = [array.numpy() for array in (reply.rewards, reply.terminated, reply.truncated)]
    assert reply.failures == []
    return observations(reply, space, count), *columns, infos_of(reply, space, count)


def assert_same(ours, theirs):
    assert data_equivalence(ours, theirs, exact=True), f"{ours!r} != {theirs!r}"


class TestOracle:
    def compare(self, makes, mode, steps=14, served=None):
        """Drive both through the same resets, steps and partial resets."""
        count = len(makes)
        local = SyncVectorEnv(makes, autoreset_mode=mode)
        space, action_space = local.single_observation_space, local.single_action_space
        waiting = iter(served or makes)
        slots = make_slots(lambda: next(waiting)(), count, spaces=(space, action_space))
        reply = reset(slots, seeds=[3 + n for n in range(count)], options=[{"x": 1}] * count)
        assert_same(
            (observations(reply, space, count), infos_of(reply, space, count)), local.reset(seed=3, options={"x": 1})
        )
        local.action_space.seed(3)
        over = np.zeros(count, np.bool_)
        for _ in range(steps):
            if mode == "Disabled" and over.any():
                self.compare_partial(slots, local, over)
            actions = local.action_space.sample()
            batch = to_batch(check_actions(action_space, actions, count), slice(0, count))
            reply = step(slots, slots.actions(Step(1, None, batch, mode), count), mode)
            theirs = local.step(actions)
            assert_same(results(reply, space, count), theirs)
            over = theirs[2] | theirs[3]
        local.close()

    def compare_partial(self, slots, local, mask):
        numbers, space = np.flatnonzero(mask).tolist(), local.single_observation_space
        reply = reset(slots, numbers)
        batch, infos = local.reset(options={"reset_mask": mask})
        rows = list(gym.vector.utils.iterate(local.observation_space, batch))
        assert_same(BatchReader(space, len(numbers)).rows(reply.observations, len(numbers)), [rows[n] for n in numbers])
        assert_same(infos_of(reply, space, slots.count, numbers), infos)

    @pytest.mark.parametrize("mode", MODES)
    def test_counting(self, mode):
        self.compare([lambda: Count(3), lambda: Count(5), lambda: Count(1), lambda: Count(100)], mode)

    @pytest.mark.parametrize("mode", MODES)
    def test_an_env_that_uses_its_memory_again(self, mode):
        """Last observations and infos are written down before the reset overwrites them: it equals one that copies."""
        self.compare([lambda: Copying(2), lambda: Copying(3)], mode, served=[lambda: Reusing(2), lambda: Reusing(3)])

    @pytest.mark.parametrize("mode", MODES)
    def test_rewards_of_any_type(self, mode):
        rewards = 1.5, 3, True, np.float32(0.25), np.int8(-7), np.bool_(True), np.array(0.75), np.inf, 2**60
        self.compare([lambda: Varied(rewards=rewards), lambda: Varied(rewards=rewards[3:])], mode, 20)

    @pytest.mark.parametrize("mode", MODES)
    def test_endings_and_infos(self, mode):
        endings = (True, False), (False, True), (True, True)
        infos = (
            {},
            {"int": 3, "float": 2.5, "bool": True},
            {"text": "naïve", "none": None, "list": [1, (2, "a")]},
            {"array": np.array([1, 0], np.int8), "nested": {"x": 1, "y": {"z": 2.0}}, "empty": {}},
            {"f": np.float32(1.25), "i": np.int16(4), "b": np.bool_(False)},
        )
        self.compare(
            [lambda: Varied(endings=endings, infos=infos), lambda: Varied(lengths=(3,), infos=infos)], mode, 40
        )

    @pytest.mark.parametrize("mode", MODES)
    def test_gymnasiums_own(self, mode):
        self.compare([lambda: gym.make("CartPole-v1")] * 3, mode, 60)


class Copying(Reusing):
    """Does as `Reusing`, with memory of its own for each observation and info."""

    def _look(self, value):
        return copy.deepcopy(super()._look(value))


class TestMemory:
    def test_nothing_of_the_envs_is_kept(self):
        """What `SyncVectorEnv` gives for copying envs, ours gives for one that uses its memory again."""
        slots = make_slots(Reusing, 2)
        reset(slots)
        step(slots, [0, 0], "SameStep")
        reply = step(slots, [0, 0], "SameStep")
        assert reply.observations[0].numpy().tolist() == [[-1.0, -1.0]] * 2
        assert reply.final.observations[0].numpy().tolist() == [[2.0, 2.0]] * 2
        assert unpack(reply.final.infos[0])["nested"] == {"t": 2}
        assert unpack(reply.infos[0])["nested"] == {"t": -1}
        assert unpack(reply.final.infos[0])["array"].tolist() == [2.0, 2.0]
        assert unpack(reply.infos[0])["array"].tolist() == [-1.0, -1.0]

    def test_a_page_is_used_again(self):
        slots = make_slots(Count, 2)
        first = slots.begin()
        slots.end(first)
        assert slots.begin() is first

    def test_a_page_that_is_not_given_back_is_not(self):
        slots = make_slots(Count, 2)
        slots.end(slots.begin())
        first = slots.begin()
        assert slots.begin() is not first

    def test_another_encoding_needs_another_page(self):
        slots = make_slots(Count, 2)
        first = slots.begin()
        slots.end(first)
        narrow = trim(Count.observation_space, dtype="float16")
        slots.use(BatchEncoding(narrow, Count.action_space))
        assert reset(slots).observations[0].dtype == "<f2"


class TestRewards:
    @pytest.mark.parametrize(
        "reward, expected",
        [
            (1, 1.0),
            (True, 1.0),
            (np.float32(0.5), 0.5),
            (np.int8(-3), -3.0),
            (np.array(0.5), 0.5),
            (np.array([0.5]), 0.5),
            (np.array([[2]]), 2.0),
            (-np.inf, -np.inf),
        ],
    )
    def test_any_number(self, reward, expected):
        slots = make_slots(lambda: Count(habits={1: lambda env: ([1.0], reward, False, False, {})}), 1)
        reset(slots)
        reply = step(slots, [1])
        assert (reply.failures, reply.rewards.numpy().tolist()) == ([], [expected])

    @pytest.mark.parametrize("reward", [np.zeros(2), "x", {}])
    def test_no_number(self, reward):
        slots = make_slots(lambda: Count(habits={1: lambda env: ([1.0], reward, True, False, {})}), 1)
        reset(slots)
        (failure,) = step(slots, [1], "NextStep").failures
        assert failure.code == "EXECUTION_ERROR"
        assert slots.state(0)["step_count"] == 1
        assert step(slots, [0], "NextStep").infos == {0: {"r": 1}}  # the episode was over, so it was reset

    @pytest.mark.parametrize("flag", [1, np.bool_(True), np.array(True), np.array([True])])
    def test_flags_of_any_type(self, flag):
        slots = make_slots(lambda: Count(habits={1: lambda env: ([1.0], 0, flag, False, {})}), 1)
        reset(slots)
        assert step(slots, [1], "NextStep").terminated.numpy().tolist() == [True]
        assert step(slots, [0], "NextStep").infos == {0: {"r": 1}}


class TestSubsets:
    def test_some_envs_in_any_order(self):
        factory = Factory(Count, {"length": 100})
        slots = make_slots(factory, 4)
        reset(slots)
        step(slots, [0, 0], numbers=[3, 1])
        reply = step(slots, [5, 6, 7], numbers=[3, 0, 2])
        assert reply.observations[0].numpy().ravel().tolist() == [2.0, 1.0, 1.0]
        assert {p: unpack(info) for p, info in reply.infos.items()} == {0: {"i": 2}, 1: {"i": 1}, 2: {"i": 1}}
        last = [[call.arguments for call in env.calls if call.name == "step"][-1:] for env in factory.envs]
        assert last == [[(6,)], [(0,)], [(7,)], [(5,)]]

    def test_final_rows_of_some(self):
        lengths = iter([1, 1, 100, 1])
        slots = make_slots(lambda: Count(next(lengths)), 3)
        reset(slots)
        reply = step(slots, [0, 0, 0], "SameStep", numbers=[2, 1, 0])
        assert reply.final.positions == [0, 2]
        assert reply.terminated.numpy().tolist() == [True, False, True]

    def test_reset_some_with_seeds_and_options(self):
        factory = Factory(Count)
        slots = make_slots(factory, 3)
        reset(slots, numbers=[2, 0], seeds=[5, None], options=[None, {"a": 1}])
        heard = [[call.arguments for call in env.calls if call.name == "reset"] for env in factory.envs]
        assert heard == [[(None, {"a": 1})], [], [(5, None)]]


class TestAutoreset:
    @pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
    def test_it_passes_no_seed_and_no_options(self, mode):
        factory = Factory(Count, {"length": 1})
        slots = make_slots(factory, 1)
        reset(slots, seeds=[3], options=[{"a": 1}])
        for _ in range(4):
            step(slots, [0], mode)
        first, *later = [call.arguments for call in factory.envs[0].calls if call.name == "reset"]
        assert first == (3, {"a": 1})
        assert set(later) == {(None, None)}

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
    def test_defaults_of_an_envs_own(self, mode):
        """As with Gymnasium, an autoreset has no arguments at all, where a reset has them all."""
        heard = []

        class Own(Count):
            def reset(self, *, seed=7, options=("mine",)):
                heard.append((seed, options))
                return super().reset()

        slots = make_slots(lambda: Own(1), 1)
        reset(slots)
        for _ in range(2 if mode == "NextStep" else 1):
            step(slots, [0], mode)
        assert heard == [(None, None), (7, ("mine",))]

    def test_a_manual_reset_forgets_a_pending_one(self):
        slots = make_slots(lambda: Count(1), 1)
        reset(slots)
        step(slots, [0], "NextStep")
        reset(slots)
        reply = step(slots, [0], "NextStep")
        assert reply.observations[0].numpy().tolist() == [[1.0]]

    @pytest.mark.parametrize("mode", ["Disabled", "SameStep"])
    def test_a_finished_env_is_never_stepped(self, mode):
        factory = Factory(Count, {"length": 1})
        slots = make_slots(factory, 1)
        reset(slots)
        step(slots, [0], "NextStep")
        (failure,) = step(slots, [0], mode).failures
        assert failure.type == "ResetNeeded"
        assert factory.envs[0].count("step") == 1

    def test_a_limit_of_the_session(self):
        slots = make_slots(lambda: Count(100), 1, max_episode_steps=2)
        reset(slots)
        flags = [step(slots, [0], "NextStep") for _ in range(2)][-1]
        assert (flags.terminated.numpy().tolist(), flags.truncated.numpy().tolist()) == ([False], [True])


class TestFailures:
    def others(self, reply):
        """What the envs besides the second show."""
        values = reply.observations[0].numpy().ravel()
        return [values[0], values[2]]

    @pytest.mark.parametrize("error", [ValueError("oops"), SystemExit("oops"), KeyboardInterrupt("oops")])
    def test_step(self, error):
        slots = make_slots(lambda: Count(habits={1: raiser(error)}), 3)
        reset(slots)
        reply = step(slots, [0, 1, 0], "NextStep")
        (failure,) = reply.failures
        assert (failure.slot, failure.type, failure.message) == (1, type(error).__name__, "oops")
        assert (failure.code, failure.traceback) == ("EXECUTION_ERROR", None)
        assert self.others(reply) == [1.0, 1.0]
        assert set(reply.infos) == {0, 2}
        assert step(slots, [0, 0, 0], "NextStep").failures == []  # it goes on where it was

    def test_the_slot_is_named_not_the_position(self):
        slots = make_slots(lambda: Count(habits={1: raiser(ValueError())}), 3)
        reset(slots)
        (failure,) = step(slots, [0, 1], numbers=[0, 2]).failures
        assert failure.slot == 2

    @pytest.mark.parametrize("error", [ValueError("oops"), SystemExit(3)])
    def test_reset(self, error):
        factory = Factory(Count)
        slots = make_slots(factory, 3)
        factory.envs[1].on["reset"] = raiser(error)
        reply = reset(slots, seeds=[1, 2, 3])
        assert [failure.slot for failure in reply.failures] == [1]
        assert set(reply.infos) == {0, 2}
        (needed,) = step(slots, [0, 0, 0], "NextStep").failures
        assert (needed.slot, needed.type) == (1, "ResetNeeded")
        assert reset(slots, numbers=[1]).failures == []
        assert factory.envs[1].count("close") == 1
        assert len(factory.envs) == 4

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
    def test_autoreset(self, mode):
        factory = Factory(Count, {"length": 100})
        slots = make_slots(factory, 3)
        factory.envs[1].length = 1
        reset(slots)
        factory.envs[1].on["reset"] = raiser(ValueError("oops"))
        replies = [step(slots, [0, 0, 0], mode) for _ in range(2)]
        reply = replies[0 if mode == "SameStep" else 1]
        (failure,) = reply.failures
        assert (failure.slot, failure.message) == (1, "oops")
        assert reply.final is None
        assert set(reply.infos) == {0, 2}
        (needed,) = step(slots, [0, 0, 0], mode).failures
        assert needed.type == "ResetNeeded"
        assert reset(slots).failures == []

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(
        "result, message",
        [
            (([1.0], 0, True, False, {"map": [0, object()]}), "info['map'][1]: a value of type builtins.object"),
            (([1.0, 2.0], 0, True, False, {}), "a value of shape (2,) doesn't fit shape (1,)"),
            (("?", 0, True, False, {}), "'?' of type str doesn't fit float64"),
        ],
    )
    def test_what_can_not_be_sent(self, mode, result, message):
        """The env went on, and nothing may pretend that it didn't."""
        factory = Factory(lambda: Count(habits={1: lambda env: result}))
        slots = make_slots(factory, 3)
        reset(slots)
        reply = step(slots, [0, 1, 0], mode)
        (failure,) = reply.failures
        assert (failure.slot, failure.code) == (1, "SERIALIZATION_ERROR")
        assert message in failure.message
        assert self.others(reply) == [1.0, 1.0]
        assert [slots.state(n)["step_count"] for n in range(3)] == [1, 1, 1]
        after = step(slots, [0, 0, 0], mode)
        if mode == "NextStep":
            assert after.infos[1] == {"r": 1}
        else:
            assert [failure.type for failure in after.failures] == ["ResetNeeded"]
        assert factory.envs[1].count("step") == 1

    def test_a_reset_whose_observation_can_not_be_sent(self):
        factory = Factory(Count)
        slots = make_slots(factory, 1)
        factory.envs[0].on["reset"] = lambda env: setattr(env, "reset", lambda **kwargs: (["?"], {}))
        reset(slots)
        (failure,) = reset(slots).failures
        assert failure.code == "SERIALIZATION_ERROR"

    @pytest.mark.parametrize("result", [None, 3, ([1.0], 0, False, {})])
    def test_a_step_that_returns_something_else(self, result):
        class Odd(Count):
            def step(self, action):
                return result if action else super().step(action)

        slots = make_slots(Odd, 2)
        reset(slots)
        reply = step(slots, [1, 0])
        assert [(f.slot, f.code) for f in reply.failures] == [(0, "EXECUTION_ERROR")]

    def test_before_the_first_reset(self):
        factory = Factory(Count)
        slots = make_slots(factory, 2)
        reply = step(slots, [0, 0], "NextStep")
        assert [(f.slot, f.type, f.message) for f in reply.failures] == [
            (n, "ResetNeeded", "Cannot call `step` before calling `reset`") for n in range(2)
        ]
        assert factory.envs[0].count("step") == 0

    def test_a_missing_seed_parameter(self):
        class Unseeded(Count):
            def reset(self):
                return super().reset()

        slots = make_slots(Unseeded, 2)
        assert reset(slots).unseeded is False
        assert reset(slots, seeds=[None, 3]).unseeded is True
        assert reset(slots).unseeded is False


class TestTrimming:
    @pytest.mark.parametrize("include, exclude", [(["arm"], None), (None, ["camera"]), (["arm.a"], None)])
    def test_what_is_trimmed_is_not_touched(self, include, exclude):
        space = trim(Trimmed.observation_space, include=include, exclude=exclude)
        spaces = Trimmed.observation_space, Trimmed.action_space
        slots = make_slots(Trimmed, 2, spaces=spaces, encoding=BatchEncoding(space, Trimmed.action_space))
        assert reset(slots).failures == []
        reply = step(slots, [0, 0], "SameStep")
        assert reply.failures == []
        assert reply.final.observations[0].numpy().tolist() == [[1.0, 1.0]] * 2

    def test_what_is_wanted_is(self):
        slots = make_slots(Trimmed, 1)
        (failure,) = reset(slots).failures
        assert "a trimmed key was touched" in failure.message

    def test_info_keys(self):
        encoding = BatchEncoding(Count.observation_space, Count.action_space, frozenset({"i"}))
        slots = make_slots(Count, 1, encoding=encoding)
        assert reset(slots).infos == {}
        assert step(slots, [0]).infos == {0: {"i": 1}}


class TestEach:
    def each(self, slots, use, numbers=None):
        numbers = range(slots.count) if numbers is None else numbers
        page = slots.begin()
        slots.each(page, list(enumerate(numbers)), use)
        return page.returned(1, len(numbers))

    def test_values_by_position(self):
        factory = Factory(Count)
        slots = make_slots(factory, 3)
        for number, env in enumerate(factory.envs):
            env.level = number
        reply = self.each(slots, lambda env, position: (position, env.get("level")), [2, 0])
        assert [unpack(value) for value in reply.values] == [(0, 2), (1, 0)]

    @pytest.mark.parametrize("error", [ValueError("oops"), SystemExit("oops")])
    def test_one_that_raises(self, error):
        slots = make_slots(Count, 3)

        def use(env, position):
            if position == 1:
                raise error
            return position

        reply = self.each(slots, use)
        assert reply.values == [0, None, 2]
        assert [(f.slot, f.type) for f in reply.failures] == [(1, type(error).__name__)]

    def test_what_can_not_be_sent(self):
        (failure,) = self.each(make_slots(Count, 1), lambda env, position: object()).failures
        assert failure.code == "SERIALIZATION_ERROR"

    def test_a_closed_env(self):
        slots = make_slots(Count, 1)
        slots.slots[0].close()
        (failure,) = self.each(slots, lambda env, position: 1).failures
        assert failure.type == "ResetNeeded"


class TestBuilding:
    def test_other_spaces_than_the_servers(self):
        class Other(Count):
            action_space = gym.spaces.Discrete(3)

        factory = Factory(Other, {"on": {"close": raiser(ValueError("hidden"))}})
        slots = Slots(EnvSource(factory), 1, (Count.observation_space, Count.action_space), None)
        with pytest.raises(SpaceError, match=r"Factory made an env with the spaces .*Discrete\(3\), but this server's"):
            slots.slots[0].build()
        assert factory.all[0].count("close") == 1
        assert slots.slots[0].env is None

    def test_a_factory_that_fails(self):
        slots = Slots(EnvSource(Factory(failing=(0,))), 1, (Count.observation_space, Count.action_space), None)
        with pytest.raises(FactoryError, match="no licence"):
            slots.slots[0].build()

    def test_render_mode(self):
        slots = make_slots(Count, 1, render_mode="rgb_array")
        assert slots.metadata["render_mode"] == "rgb_array"

    def test_another_render_mode(self):
        slots = make_slots(Count, 2)
        reset(slots)
        before = [slot.env for slot in slots.slots]
        slots.render_in("rgb_array")
        step(slots, [0, 0])
        assert [slot.env for slot in slots.slots] == before
        reset(slots, numbers=[1])
        assert [slot.env is old for slot, old in zip(slots.slots, before, strict=True)] == [True, False]
        assert slots.slots[1].env.metadata["render_mode"] == "rgb_array"
        slots.render_in("rgb_array")
        reset(slots, numbers=[1])
        assert slots.slots[1].env is not before[1]

    def test_names_of_episodes(self):
        slots = make_slots(Count, 2)
        reset(slots)
        first = slots.state(0)["episode_id"]
        slots.name_episode(1, "mine")
        assert slots.state(1) == {"episode_id": "mine", "step_count": 0}
        assert slots.state(0)["episode_id"] == first
        reset(slots)
        assert "mine" not in {slots.state(n)["episode_id"] for n in range(2)}
        assert slots.state(0)["episode_id"] != first


class TestAbandoning:
    def test_old_pages_keep_the_old_slot(self):
        """A job that starts late, or never ends, can touch neither the new slot nor a page of later requests."""
        factory = Factory(Count, {"length": 100})
        slots = make_slots(factory, 2)
        reset(slots)
        page = slots.begin()
        old = slots.abandon(1)
        assert slots.slots[1] is not old
        assert slots.slots[1].env is None
        reset(slots)
        slots.step(page, [(1, 1)], [None, 7], "NextStep")  # the late job
        assert old.env.env.count("step") == 1
        assert slots.slots[1].env.env.count("step") == 0
        reply = step(slots, [0, 0], "NextStep")
        assert reply.observations[0].numpy().ravel().tolist() == [1.0, 1.0]
        assert slots.begin() is not page

    def test_the_other_envs_stay(self):
        slots = make_slots(Count, 3)
        reset(slots)
        kept = [slots.slots[0], slots.slots[2]]
        slots.abandon(1)
        assert [slots.slots[0], slots.slots[2]] == kept

    def test_only_a_reset_goes_on(self):
        slots = make_slots(Count, 2)
        reset(slots)
        slots.abandon(1)
        (failure,) = step(slots, [0, 0], "NextStep").failures
        assert (failure.slot, failure.type) == (1, "ResetNeeded")
        assert reset(slots, numbers=[1]).failures == []
        assert step(slots, [0, 0], "NextStep").failures == []
