"""OpenEnv environments as the server takes them: by their methods, whatever base class they have."""

import asyncio
import threading
from collections import namedtuple
from typing import Any

import pytest
from gymnasium.spaces import Dict, Discrete
from helpers_envs import Count as GymnasiumCount
from pydantic import BaseModel

from openenv_gym.errors import FactoryError, SpaceError
from openenv_gym.inference import Fields
from openenv_gym.server.coroutines import Coroutines
from openenv_gym.server.openenv_env import Models, OpenEnvEnv, is_openenv, models_of
from openenv_gym.server.openenv_values import Pending, plain, view


@pytest.fixture(scope="module")
def envs():
    return pytest.importorskip("helpers_openenv")


class Push(BaseModel):
    push: int = 0


class Seen(BaseModel):
    count: int = 0
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = {}


class Plain:
    """Not derived from anything of OpenEnv."""

    def __init__(self):
        self.calls = []
        self.answer = {}

    def reset(self, seed=None, episode_id=None):
        self.calls.append((seed, episode_id))
        return Seen()

    def step(self, action: Push) -> Seen:
        return Seen(count=action.push, **self.answer)

    state = {"a": 1}


class PlainAsync:
    state = None

    async def reset_async(self):
        self.loop = asyncio.get_running_loop()
        return Seen()

    async def step_async(self, action: Push) -> Seen:
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        return Seen(count=action.push, reward=1.0)

    async def close(self):
        self.closed = asyncio.get_running_loop() is self.loop


class TestRecognised:
    def test_by_methods(self, envs):
        assert all(map(is_openenv, [Plain, PlainAsync, Plain(), envs.Every, envs.EveryAsync]))

    def test_nothing_else(self):
        assert not any(map(is_openenv, [GymnasiumCount, dict, 3, len, Push]))

    @pytest.mark.parametrize("name, waits", [("Every", False), ("EveryAsync", True), ("Shaped", False)])
    def test_what_the_base_class_brings_is_not_async(self, envs, name, waits):
        env = OpenEnvEnv(getattr(envs, name)())
        assert env.waits is waits
        env.close()


class TestModels:
    def test_generic_parameters(self, envs):
        assert models_of(envs.EveryAsync, "x") == Models(envs.EveryAction, envs.EveryObservation, envs.State)

    def test_hints(self):
        assert models_of(Plain, "x") == Models(Push, Seen)
        assert models_of(PlainAsync(), "x") == Models(Push, Seen)

    def test_neither(self, envs):
        with pytest.raises(FactoryError) as caught:
            models_of(envs.Count, "mine:Count")
        assert "say which class its actions have" in str(caught.value)
        assert "create_app(Count, MyAction, MyObservation)" in str(caught.value)


class TestCalls:
    def test_reset_takes_what_it_has_a_parameter_for(self):
        env = OpenEnvEnv(Plain())
        env.reset(seed=3, options={"episode_id": "e", "unknown": 1})
        env.reset()
        env.reset(options={"seed": 4})
        assert env.env.calls == [(3, "e"), (None, None), (4, None)]
        assert env.takes_seed

    def test_a_reset_without_seed(self):
        env = OpenEnvEnv(PlainAsync())
        env.reset(seed=3)
        assert not env.takes_seed
        env.close()

    @pytest.mark.parametrize(
        "answer, ends",
        [
            ({}, (0.0, False, False)),
            ({"reward": 2, "done": True}, (2.0, True, False)),
            ({"done": True, "metadata": {"truncated": True}}, (0.0, False, True)),
            ({"done": True, "metadata": {"TimeLimit.truncated": True}}, (0.0, False, True)),
            ({"done": False, "metadata": {"truncated": True}}, (0.0, False, False)),
        ],
    )
    def test_ends(self, answer, ends):
        env = OpenEnvEnv(Plain())
        env.env.answer = answer
        observation, *found, info = env.step(Push(push=5))
        assert observation.count == 5
        assert tuple(found) == ends
        assert info == answer.get("metadata", {})

    def test_an_attribute_says_truncated(self):
        class Cut(Seen):
            truncated: bool = True

        class Cutting(Plain):
            def step(self, action):
                return Cut(done=True)

        assert OpenEnvEnv(Cutting()).step(Push())[2:4] == (False, True)

    def test_a_pending_action_is_made_here(self):
        assert OpenEnvEnv(Plain()).step(Pending(lambda value: Push(push=value + 1), 1))[0].count == 2

    def test_states(self, envs):
        assert OpenEnvEnv(Plain()).state() == {"a": 1}
        assert OpenEnvEnv(PlainAsync()).state() == {}
        assert OpenEnvEnv(envs.Every()).state()["extra"] == {"a": 1}

    def test_attributes(self):
        env = OpenEnvEnv(Plain())
        assert env.set("answer", 3)
        assert env.get("answer") == 3
        assert not env.set("other", 3, force=False)
        with pytest.raises(NotImplementedError):
            env.render()

    def test_a_refusal_is_kept_until_the_next_call(self):
        env = OpenEnvEnv(Plain())
        env.env.answer = {"reward": "much"}
        with pytest.raises(ValueError, match="reward"):
            env.step(Push())
        assert env.refusal[0]["loc"] == ("reward",)
        env.reset()
        assert env.refusal is None


class TestCoroutines:
    def test_one_loop_for_all_calls(self):
        env = OpenEnvEnv(PlainAsync())
        env.reset()
        assert env.step(Push(push=4))[:2] == (Seen(count=4, reward=1.0), 1.0)
        loop = env.env.loop
        env.close()
        assert env.env.closed
        assert loop.is_closed()

    def test_what_is_left_is_cancelled(self):
        async def leave():
            tasks.append(asyncio.ensure_future(asyncio.Event().wait()))

        tasks, coroutines = [], Coroutines()
        coroutines.run(leave())
        coroutines.close()
        coroutines.close()
        assert tasks[0].cancelled()

    def test_on_a_thread_of_its_own(self):
        async def seven():
            await asyncio.sleep(0)
            return 7

        results = []

        def work():
            coroutines = Coroutines()
            results.append(coroutines.run(seven()))
            coroutines.close()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(10)
        assert results == [7]


class Guarded(BaseModel):
    """Raises where it is read beyond `kept`."""

    kept: int = 3
    inner: dict[str, Any] = {"colour": "green", "n": 1}

    @property
    def costly(self):
        raise AssertionError("it was touched")


class TestViews:
    def test_one_field(self):
        assert view(Fields(Discrete(5), "kept"))(Guarded()) == 3
        assert view(Fields(Discrete(5), "kept"))({"kept": 4}) == 4
        assert view(Fields(Discrete(5), "kept", {("kept",): (1, 3)}))(Guarded()) == 1

    def test_fields_are_read_when_they_are_asked_for(self):
        space = Dict({"kept": Discrete(5), "costly": Discrete(5), "inner": Dict({"colour": Discrete(2)})})
        seen = view(Fields(space, None, {("inner", "colour"): ("red", "green")}))(Guarded())
        assert seen["kept"] == 3
        assert seen["inner"]["colour"] == 1
        assert seen["inner"]["n"] == 1

    def test_a_missing_field(self):
        with pytest.raises(SpaceError, match="no field 'gone'"):
            view(Fields(Discrete(5), "gone"))(Guarded())
        seen = view(Fields(Dict({"gone": Discrete(2)}), None))(Guarded())
        with pytest.raises(SpaceError, match="no field 'gone'"):
            seen["gone"]


def test_plain():
    np = pytest.importorskip("numpy")
    Pair = namedtuple("Pair", "a b")  # noqa: PYI024
    assert plain({"a": np.int64(3), "b": (np.zeros(2), "x")}) == {"a": 3, "b": [[0.0, 0.0], "x"]}
    assert plain(Pair(1, np.float32(0.5))) == [1, 0.5]
