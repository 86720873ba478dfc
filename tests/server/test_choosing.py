"""Spaces and keys that a client of the batch dialect chooses itself, over real sockets."""

import datetime as dt
import enum
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Sequence, Text
from helpers_server import running
from helpers_spaces import identical
from msgspec.structs import replace
from pydantic import BaseModel, Field, computed_field, field_serializer

from openenv_gym import RemoteVecEnv
from openenv_gym.batch_link import BatchLink
from openenv_gym.errors import SpaceError
from openenv_gym.server import batch_dialect, create_app
from openenv_gym.spaces import Json

PARTS = {"at": Box(-1, 1, (2,)), "left": Discrete(3), "inner": Dict({"deep": Box(0, 9, (), np.int64)})}


class Parts(gym.Env):
    observation_space = Dict(PARTS)
    action_space = Dict({"go": Discrete(3), "far": Box(0, 1, (), np.float64)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(0), {}

    def step(self, action):
        return self._seen(action["go"]), float(action["far"]), False, False, {}

    def _seen(self, go):
        at = self.np_random.random(2, np.float32)
        return {"at": at, "left": int(go), "inner": {"deep": np.array(7)}}


@pytest.fixture(scope="module")
def envs():
    return pytest.importorskip("helpers_openenv")


@pytest.fixture(scope="module")
def parts():
    with running(create_app(Parts)) as url:
        yield url


@pytest.fixture(scope="module")
def odd(envs):
    """An environment with fields that have no space, or only one that its client must choose; and its server's URL."""

    class Mood(enum.Enum):
        GOOD = "good"

    class Side(enum.Enum):
        LEFT = "left"
        RIGHT = "right"

    class Leg(BaseModel):
        length: int = Field(default=3, alias="longEnough")

    class Knee(Leg):
        bend: float = 0.5

    class Turn(BaseModel):
        by: float = 1 / 3

        @field_serializer("by")
        def _rounded(self, by):
            return round(by, 2)

    class Push(envs.Action):
        column: int = 0
        side: Side = Side.LEFT

    class Seen(envs.Observation):
        wait: float | None = None
        count: int = 0
        mood: Mood = Mood.GOOD
        seen: set[int] = {3}
        at: dt.datetime = dt.datetime(2024, 5, 6, tzinfo=dt.timezone.utc)
        pixels: list[int] = list(range(12))
        shape: list[int] = [2, 2, 3]
        grid: list[list[int]] = [[0, 1], [2, 3]]
        legal: tuple[int, ...] = (0, 3)
        sides: list[Side] = [Side.LEFT]
        leg: Leg = Knee()
        turn: Turn = Turn()
        third: float = 1 / 3
        name: int = Field(default=3, alias="renamed")

        @computed_field
        @property
        def twice(self) -> int:
            return 2 * self.count

        @field_serializer("third")
        def _rounded(self, third):
            return round(third, 2)

        @field_serializer("legal")
        def _counted_from_zero(self, legal):
            return [number + 1 for number in legal]

    class Odd(envs.Count):
        def reset(self, seed=None, episode_id=None, **kwargs):
            super().reset()
            return Seen()

        def step(self, action, timeout_s=None):
            super().step(envs.CountAction())
            wait = 0.5 if action.side is Side.RIGHT else None
            told = {"at": dt.date(2024, 5, 6), "leg": Knee(), "file": Path("/a"), "mood": Mood.GOOD, "n": 3}
            return Seen(count=action.column, wait=wait, pixels=[1] * 12, reward=1, metadata=told)

    with running(create_app(Odd, Push, Seen)) as url:
        yield url


def in_batches(env):
    return all(isinstance(link, BatchLink) for link in env.rollout.pool.links)


def both(url, actions, **options):
    """What two envs show in the batch dialect, after seeing that it is the same in OpenEnv's."""
    with RemoteVecEnv(url, 2, **options) as ours, RemoteVecEnv(url, 2, dialect="openenv", **options) as theirs:
        assert in_batches(ours)
        assert not in_batches(theirs)
        assert ours.single_observation_space == theirs.single_observation_space
        assert ours.single_action_space == theirs.single_action_space
        seen = [ours.reset(seed=3)[0]]
        assert identical(seen[0], theirs.reset(seed=3)[0])
        for action in actions:
            step = ours.step(action)
            assert identical(step, theirs.step(action))
            seen.append(step[0])
        return seen


class TestOfGymnasium:
    ACTIONS = ({"go": np.array([1, 2]), "far": np.array([0.5, 0.25])},)

    @pytest.mark.parametrize(
        "space",
        [
            Dict(PARTS),
            Dict({"at": PARTS["at"]}),
            Dict([("left", Discrete(9)), ("at", Box(-5, 5, (2,)))]),
            Dict({"inner": PARTS["inner"], "at": PARTS["at"]}),
        ],
        ids=["equal", "fewer", "other bounds and order", "nested"],
    )
    def test_what_travels_alike_is_in_batches(self, parts, space):
        assert list(both(parts, self.ACTIONS, observation_space=space)[0]) == list(space.spaces)

    def test_both_and_trimmed(self, parts):
        given = {"observation_space": Dict(PARTS), "action_space": Parts.action_space}
        seen = both(parts, self.ACTIONS, **given, exclude=("inner",), obs_dtype={"at": "float16"})
        assert list(seen[0]) == ["at", "left"]
        assert seen[0]["at"].dtype == np.float16

    @pytest.mark.parametrize(
        "given",
        [
            {"observation_space": Dict({"at": Box(-1, 1, (2,), np.float64)})},
            {"action_space": Dict({"go": Discrete(3, dtype=np.int32), "far": Box(0, 1, (), np.float64)})},
            {"obs_key": "at"},
        ],
        ids=["dtype", "action", "key"],
    )
    def test_the_rest_is_in_openenvs_dialect(self, parts, given):
        with RemoteVecEnv(parts, 2, **given) as env:
            assert not in_batches(env)
            env.reset(seed=1)
            env.step(*self.ACTIONS)

    @pytest.mark.parametrize("dialect", [None, "openenv"])
    @pytest.mark.parametrize("go", [Box(0, 2, ()), Box(0, 2, (1,)), Box(0, 2, (2,), np.int64)], ids=str)
    def test_an_action_that_the_env_cannot_take_is_refused_at_once(self, parts, dialect, go):
        space = Dict({"go": go, "far": Box(0, 1, (1,))})
        with pytest.raises(SpaceError, match=r"Dict.* isn't taken for one of the env's Dict.*encode_action="):
            RemoteVecEnv(parts, 2, action_space=space, dialect=dialect)

    def test_a_space_of_the_users_own_class(self, parts):
        class Mine(Discrete):
            pass

        mine = Dict({"left": Mine(3)})
        with RemoteVecEnv(parts, 2, observation_space=mine) as env:
            assert env.single_observation_space is mine
            assert not in_batches(env)


class TestOfOpenEnv:
    ACTION = {"action_space": Discrete(5), "action_key": "column"}
    ACTIONS = (np.array([1, 2]), np.array([3, 4]))

    def test_keys(self, odd):
        seen = both(odd, self.ACTIONS, obs_key="grid", **self.ACTION)
        assert seen[0].shape == (2, 2, 2)
        seen = both(odd, self.ACTIONS, obs_key="count", action_key="column")
        assert seen[2].tolist() == [3, 4]

    def test_pixels_in_one_list(self, odd):
        pixels = Box(0, 255, (2, 2, 3), np.uint8)
        seen = both(odd, self.ACTIONS, obs_key="pixels", observation_space=pixels, **self.ACTION)
        np.testing.assert_array_equal(seen[0][1], np.arange(12).reshape(2, 2, 3))
        space = Dict({"pixels": pixels, "shape": Box(0, 99, (3,), np.int64)})
        assert both(odd, self.ACTIONS, observation_space=space, **self.ACTION)[1]["pixels"].sum() == 24

    @pytest.mark.filterwarnings("ignore:.*null in an observation of floats became nan")  # in OpenEnv's dialect
    def test_fields_of_every_kind(self, odd):
        space = Dict(
            {
                "wait": Box(0, 1, (), np.float64),
                "mood": Text(9),
                "at": Text(40),
                "seen": Sequence(Discrete(9)),
                "shape": Json(),
                "count": Discrete(9),
            }
        )
        actions = Dict({"column": Discrete(5), "side": Discrete(2)})
        steps = ({"column": np.array([1, 2]), "side": np.array([0, 1])},)
        first, second = both(odd, steps, observation_space=space, action_space=actions)
        assert np.isnan(first["wait"]).all()
        assert np.isnan(second["wait"][0])
        assert second["wait"][1] == 0.5
        assert first["mood"] == ("good", "good")
        assert second["count"].tolist() == [1, 2]

    def test_what_a_model_writes_in_its_own_way(self, odd):
        """What a serializer makes of a field, at any depth, and of a derived object what the model declares."""
        number = Box(0, 9, (), np.float64)
        space = Dict({"third": number, "turn": Dict({"by": number}), "leg": Json()})
        (first, _, _) = both(odd, self.ACTIONS, observation_space=space, **self.ACTION)
        assert first["third"].tolist() == first["turn"]["by"].tolist() == [0.33] * 2
        assert first["leg"] == ({"length": 3},) * 2
        assert both(odd, (), obs_key="third", **self.ACTION)[0].tolist() == [0.33] * 2

    def test_fields_that_the_schema_does_not_have(self, odd):
        assert both(odd, self.ACTIONS, obs_key="twice", **self.ACTION)[1].tolist() == [2.0, 4.0]
        with RemoteVecEnv(odd, 2, obs_key="renamed", observation_space=Discrete(9), **self.ACTION) as env:
            with pytest.raises(Exception, match=r"the observation has no field 'renamed', only \['at', .*'twice'"):
                env.reset()

    def test_metadata_of_every_kind(self, odd):
        both(odd, self.ACTIONS, obs_key="count", **self.ACTION)
        with RemoteVecEnv(odd, 2, obs_key="count", info_keys=["at", "leg", "file"], **self.ACTION) as env:
            env.reset()
            infos = env.step(self.ACTIONS[0])[4]
            assert in_batches(env)
        assert [infos["at"][0], infos["file"][0], infos["leg"]["bend"][0]] == ["2024-05-06", "/a", 0.5]
        assert "mood" not in infos

    def test_all_as_json(self, odd):
        seen = both(odd, self.ACTIONS, observation_space=Json(), **self.ACTION)
        assert seen[1][0]["mood"] == "good"

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
    def test_a_mask(self, odd, mode):
        given = {**self.ACTION, "autoreset_mode": mode, "max_episode_steps": 1, "info_keys": ()}
        with RemoteVecEnv(odd, 2, obs_key="grid", mask_key="legal", **given) as env:
            _, infos = env.reset()
            assert identical(infos["action_mask"], np.array([[0, 1, 0, 0, 1]] * 2, np.int8))
            assert list(infos) == ["action_mask", "_action_mask"]
        both(odd, self.ACTIONS[:1], obs_key="grid", mask_key="legal", **given)

    def test_a_mask_of_labels(self, odd):
        given = {"obs_key": "grid", "action_key": "side", "mask_key": "sides"}
        both(odd, (np.array([0, 1]),), **given)
        with RemoteVecEnv(odd, 2, **given) as env:
            assert env.reset()[1]["action_mask"].tolist() == [[1, 0]] * 2

    def test_the_client_comes_before_the_server(self, envs):
        app = create_app(envs.Every, obs_key="speed", action_key="gear")
        with running(app) as url:
            with RemoteVecEnv(url, 2) as env:
                assert env.single_observation_space.shape == ()
            with RemoteVecEnv(url, 2, obs_key="board") as env:
                assert in_batches(env)
                assert env.single_observation_space.shape == (2, 3)
                assert env.single_action_space == Discrete(6, start=1)
            with RemoteVecEnv(url, 2, observation_space=Dict({"open": Discrete(2)})) as env:
                assert env.reset()[0]["open"].tolist() == [0, 0]

    @pytest.mark.parametrize("dialect", [None, "openenv"])
    def test_a_value_that_does_not_fit_names_its_field(self, odd, dialect):
        space = Dict({"grid": Box(0, 9, (5, 5), np.int64)})
        with RemoteVecEnv(odd, 2, observation_space=space, **self.ACTION, dialect=dialect) as env:
            with pytest.raises(Exception, match=r"grid.*\(2, 2\)"):
                env.reset()

    def test_what_makes_no_sense_is_told(self, odd):
        with pytest.raises(SpaceError, match="the observation has no field 'gird', only"):
            RemoteVecEnv(odd, 2, obs_key="gird", **self.ACTION)
        with pytest.raises(SpaceError, match="the observation has no field 'legl', only"):
            RemoteVecEnv(odd, 2, obs_key="grid", mask_key="legl", **self.ACTION)
        with pytest.raises(SpaceError, match="mask_key needs a Discrete action space, not Box"):
            RemoteVecEnv(odd, 2, obs_key="grid", mask_key="legal", action_key="column")

    def test_a_strangers_idea_of_a_space_does_not_fill_the_memory(self, envs):
        huge = Dict({"board": Box(0, 9, (2**20,), np.int64)})
        app = create_app(envs.Every, max_message_size_mb=1)
        with running(app) as url, RemoteVecEnv(url, 2, observation_space=huge, action_key="gear") as env:
            assert not in_batches(env)


class TestFieldsThatNoSchemaDescribes:
    """OpenEnv's models take numpy's types, with which pydantic makes no JSON schema."""

    @pytest.fixture
    def models(self, envs):
        class Fire(envs.Action):
            at: int = 0

        class Screen(envs.Observation):
            frame: np.ndarray
            score: np.float64 = np.float64(0.5)
            lives: int = 3

        class Arcade(envs.Count):
            def reset(self, seed=None, episode_id=None, **kwargs):
                super().reset()
                return Screen(frame=np.zeros((2, 3), np.uint8))

            def step(self, action, timeout_s=None):
                return Screen(frame=np.full((2, 3), action.at, np.uint8), reward=1.0)

        return Arcade, Fire, Screen

    def test_are_found_in_a_reset(self, models):
        with running(create_app(*models)) as url:
            (_, seen) = both(url, (np.array([1, 2]),), obs_key="frame", action_key="at", action_space=Discrete(9))
            assert seen[1].tolist() == [[2.0] * 3] * 2
            with pytest.raises(SpaceError, match="score: a field of any type has no space; choose"):
                RemoteVecEnv(url, 2)

    def test_have_the_spaces_that_are_given(self, models):
        space = Dict({"frame": Box(0, 255, (2, 3), np.uint8), "score": Box(0, 1, (), np.float64)})
        with running(create_app(*models)) as url:
            seen = both(url, (np.array([1, 2]),), observation_space=space, action_key="at", action_space=Discrete(9))[1]
        assert seen["score"].tolist() == [0.5] * 2

    def test_on_an_openenv_server(self, envs, models):
        """It sends what it can, and has no schema."""
        given = {"action_key": "at", "action_space": Discrete(9)}

        class Plain(models[0]):
            def reset(self, **kwargs):
                return super().reset().model_copy(update={"frame": [0]})

        with envs.stock_server(Plain, models=models[1:]) as url:
            with pytest.raises(SpaceError, match="the server doesn't say which fields its observations have; choose a"):
                RemoteVecEnv(url, 2, obs_key="score", **given)
            space = Box(0, 1, (), np.float64)
            with RemoteVecEnv(url, 2, obs_key="score", observation_space=space, **given) as env:
                assert env.reset()[0].tolist() == [0.5] * 2


def test_an_older_server_that_knows_no_wishes(envs, monkeypatch):
    be_older(monkeypatch, "observation_space action_space obs_key action_key mask_key", chosen=False)
    with running(create_app(envs.Every, obs_key="speed", action_key="gear")) as url:
        with RemoteVecEnv(url, 2, obs_key="board", action_key="gear") as env:
            assert not in_batches(env)
            assert env.single_observation_space.shape == (2, 3)
        with RemoteVecEnv(url, 2, action_space=Discrete(6, start=1)) as env:
            assert in_batches(env)


def test_an_older_server_that_knows_no_masks(odd, monkeypatch):
    be_older(monkeypatch, "mask_key", mask_key=None)
    given = {"obs_key": "grid", **TestOfOpenEnv.ACTION}
    with RemoteVecEnv(odd, 2, **given) as env, RemoteVecEnv(odd, 2, mask_key="legal", **given) as masked:
        assert in_batches(env)
        assert not in_batches(masked)
        assert masked.reset()[1]["action_mask"].tolist() == [[0, 1, 0, 0, 1]] * 2


def be_older(monkeypatch, unknown, **said):
    """Let servers ignore some wishes, and say so in their `Welcome`."""
    choose, welcome = batch_dialect.choose, batch_dialect._welcome
    unsaid = dict.fromkeys(unknown.split())
    monkeypatch.setattr(
        batch_dialect, "choose", lambda s, p, hello, limit: choose(s, p, replace(hello, **unsaid), limit)
    )
    monkeypatch.setattr(batch_dialect, "_welcome", lambda *args: replace(welcome(*args), **said))
