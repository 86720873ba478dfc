"""OpenEnv environments hosted by this server: the arguments of `create_app`, and the batch dialect on real sockets."""

import functools
import json
import logging
import threading
from typing import ClassVar, Literal

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import data_equivalence
from helpers_faults import FaultProxy
from helpers_server import running
from pydantic import Field, field_serializer
from starlette.testclient import TestClient

from openenv_gym import RemoteVecEnv
from openenv_gym.errors import CapacityError, FactoryError, OptionError, RemoteEnvError, SpaceError
from openenv_gym.server import create_app


@pytest.fixture(scope="module")
def envs():
    return pytest.importorskip("helpers_openenv")


@pytest.fixture(scope="module")
def toys(envs):
    """Small environments with spaces that can be inferred."""

    class Move(envs.Action):
        to: Literal["left", "right"] = "left"

    class Board(envs.Observation):
        cells: list[int]
        turn: envs.Colour = envs.Colour.RED
        score: float = 0.0
        note: str = ""

    class Toy(envs.Environment[Move, Board, envs.State]):
        """Counts on a board; "right" counts twice. An episode ends at four."""

        SUPPORTS_CONCURRENT_SESSIONS = True
        made: ClassVar[list] = []

        def __init__(self, limit=4):
            super().__init__()
            self.limit, self.at = limit, 0
            self.threads = {threading.get_ident()}
            self.made.append(self)

        def reset(self, episode_id=None):
            self.at = 0
            return self._seen()

        def step(self, action, timeout_s=None):
            self.threads.add(threading.get_ident())
            assert type(action) is Move
            self.at += 1 + (action.to == "right")
            if self.at == 3 and action.to == "right":
                raise LookupError("three is taken")
            return self._seen(reward=float(self.at), done=self.at >= self.limit, metadata={"at": self.at})

        def _seen(self, **more):
            colour = envs.Colour.GREEN if self.at % 2 else envs.Colour.RED
            return Board(cells=[self.at] * 3, turn=colour, score=self.at / 2, note=f"at {self.at}", **more)

        @property
        def state(self):
            self.threads.add(threading.get_ident())
            return envs.State(episode_id="toy", step_count=self.at)

        def close(self):
            self.threads.add(threading.get_ident())
            self.at = None

    class Toys:
        move, board, toy = Move, Board, Toy

    return Toys


def hosted(toys, **options):
    return create_app(toys.toy, toys.move, toys.board, **options)


class TestArguments:
    def test_names_of_openenv(self, toys, envs):
        settings = hosted(toys, env_name="toys", max_concurrent_envs=3).state.registry.settings
        assert (settings.max_envs, settings.env_name) == (3, "toys")
        from openenv.core.env_server.types import ConcurrencyConfig

        config = ConcurrencyConfig(max_concurrent_envs=2, session_timeout=7)
        settings = create_app(toys.toy, toys.move, toys.board, "toys", None, config).state.registry.settings
        assert (settings.max_envs, settings.idle_timeout_s) == (2, 7)

    @pytest.mark.parametrize(
        "options, text",
        [
            ({"max_concurrent_envs": 2, "max_envs": 3}, "two names for one limit"),
            ({"max_concurrent_envs": 2, "concurrency_config": object()}, "two ways to give one limit"),
            ({"max_concurrent_envs": 0}, "max_envs"),
            ({"nonsense": 1}, "nonsense"),
        ],
    )
    def test_what_is_wrong(self, toys, options, text):
        with pytest.raises(OptionError, match=text):
            hosted(toys, **options)

    def test_both_models_or_none(self, toys):
        with pytest.raises(TypeError, match="needs both"):
            create_app(toys.toy, toys.move)
        assert create_app(toys.toy).state.registry.source.openenv

    def test_models_in_the_wrong_order(self, toys):
        with pytest.raises(TypeError, match=r"comes first: create_app\(MyEnvironment, Move, Board\)"):
            create_app(toys.toy, toys.board, toys.move)

    def test_an_instance(self, toys):
        with pytest.raises(TypeError, match="not an instance of Toy: every session needs envs of its own"):
            create_app(toys.toy(), toys.move, toys.board)

    def test_a_class_that_does_not_say_its_models(self, envs):
        with pytest.raises(FactoryError, match=r"create_app\(Count, MyAction, MyObservation\)"):
            create_app(envs.Count)

    def test_factories(self, toys):
        for factory in (functools.partial(toys.toy, limit=2), lambda: toys.toy(limit=2)):
            app = create_app(factory, toys.move, toys.board)
            assert app.state.registry.probe.observation_space["cells"].shape == (3,)
        assert create_app(toys.toy, env_kwargs={"limit": 3}).state.registry.source.make().env.limit == 3

    def test_what_is_for_a_web_interface(self, toys, caplog):
        with caplog.at_level(logging.WARNING):
            hosted(toys, gradio_builder=print, mode="simulation")
        assert "gradio_builder has no effect" in caplog.text

    def test_a_class_for_one_session(self, toys):
        class Alone(toys.toy):
            SUPPORTS_CONCURRENT_SESSIONS = False

        assert create_app(Alone).state.registry.settings.max_envs == 1
        assert create_app(functools.partial(Alone)).state.registry.settings.max_envs == 1
        assert create_app(lambda: Alone(limit=2)).state.registry.settings.max_envs == 1
        for factory in (Alone, lambda: Alone(limit=2)):
            with pytest.raises(OptionError, match="Alone doesn't say SUPPORTS_CONCURRENT_SESSIONS"):
                create_app(factory, max_concurrent_envs=2)

    def test_a_class_for_one_thread(self, toys):
        class Single(toys.toy):
            REQUIRES_SINGLE_THREAD_EXECUTOR = True

        app = create_app(Single)
        toys.toy.made.clear()
        with running(app) as url, RemoteVecEnv(url, num_envs=3) as one, RemoteVecEnv(url, num_envs=2) as two:
            one.reset(), two.reset()
            one.step(one.action_space.sample() * 0)
            two.step(two.action_space.sample() * 0)
        assert len(toys.toy.made) == 5
        assert len(set().union(*(env.threads for env in toys.toy.made))) == 1
        with pytest.raises(OptionError, match="Single needs all of its envs on one thread"):
            create_app(Single, max_workers=2)


class TestInBatches:
    def test_an_episode(self, toys):
        with running(hosted(toys)) as url, RemoteVecEnv(url, num_envs=2, autoreset_mode="SameStep") as vec:
            assert vec.single_action_space == Discrete(2)
            assert vec.single_observation_space["turn"] == Discrete(2)
            assert vec.single_observation_space["score"] == Box(-np.inf, np.inf, (), np.float64)
            seen, _ = vec.reset()
            np.testing.assert_array_equal(seen["cells"], [[0] * 3] * 2)
            assert seen["note"] == ("at 0", "at 0")
            seen, rewards, *_, infos = vec.step(np.array([0, 1]))
            np.testing.assert_array_equal(seen["cells"], [[1] * 3, [2] * 3])
            np.testing.assert_array_equal(seen["turn"], [1, 0])
            np.testing.assert_array_equal(rewards, [1.0, 2.0])
            np.testing.assert_array_equal(infos["at"], [1, 2])
            seen, rewards, terminated, truncated, infos = vec.step(np.array([0, 1]))
            np.testing.assert_array_equal(terminated, [False, True])
            np.testing.assert_array_equal(truncated, [False, False])
            np.testing.assert_array_equal(seen["cells"], [[2] * 3, [0] * 3])
            np.testing.assert_array_equal(infos["final_obs"][1]["cells"], [4] * 3)

    def test_learners_sample_actions_of_their_own(self, toys):
        with running(hosted(toys)) as url, RemoteVecEnv(url) as one, RemoteVecEnv(url) as other:
            states = [env.action_space.np_random.bit_generator.state for env in (one, other)]
        assert states[0] != states[1]

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
    def test_the_same_as_in_openenvs_own_dialect(self, toys, mode):
        runs = []
        with running(hosted(toys)) as url:
            for dialect in (None, "openenv"):
                with RemoteVecEnv(url, num_envs=3, dialect=dialect, autoreset_mode=mode) as vec:
                    runs.append([vec.reset(), *(vec.step([0, 0, 0]) for _ in range(14))])
        for step, (ours, theirs) in enumerate(zip(*runs, strict=True)):
            assert data_equivalence(ours, theirs, exact=True), f"step {step}: {ours} != {theirs}"

    def test_a_trimmed_field_is_never_touched(self, envs):
        class Look(envs.Action):
            at: Literal["a", "b"] = "a"

        class Scene(envs.Observation):
            small: int = 1
            frame: list[int] = Field(default_factory=lambda: [1, 2, 3])

            def __getattribute__(self, name):
                if name == "frame" and Camera.armed:
                    raise AssertionError("it was touched")
                return super().__getattribute__(name)

        class Camera(envs.Every):
            armed = False

            def reset(self, **kwargs):
                return Scene()

            def step(self, action, timeout_s=None):
                return Scene(reward=1.0)

        app = create_app(Camera, Look, Scene)
        Camera.armed = True
        with running(app) as url, RemoteVecEnv(url, num_envs=2, include=["small"]) as vec:
            seen, _ = vec.reset()
            np.testing.assert_array_equal(seen["small"], [1, 1])
            assert vec.step(np.array([0, 1]))[1].tolist() == [1.0, 1.0]

    def test_an_error_names_its_row(self, toys):
        with running(hosted(toys)) as url, RemoteVecEnv(url, num_envs=2) as vec:
            vec.reset()
            vec.step(np.array([0, 0]))
            with pytest.raises(RemoteEnvError, match="three is taken"):
                vec.step(np.array([0, 1]))

    @pytest.mark.parametrize("serve", ["stock", "ours", "ours in JSON"])
    @pytest.mark.parametrize("number, name", [(9, "gear"), (3, "count")], ids=["an action", "data of the env's own"])
    def test_what_does_not_fit_is_told_as_openenvs_servers_do(self, envs, serve, number, name):
        """They don't tell whose data it was. The other env takes its step all the same."""

        class Careless(envs.Every):
            def step(self, action, timeout_s=None):
                return envs.EveryObservation(count="three" if action.gear == 3 else action.gear)

        models = envs.EveryAction, envs.EveryObservation
        stock, ours = envs.stock_server(Careless, models=models), running(create_app(Careless, *models))
        given = {"obs_key": "count", "action_key": "gear", "action_space": Discrete(10)}
        dialect = "openenv" if serve == "ours in JSON" else None
        with stock if serve == "stock" else ours as url, RemoteVecEnv(url, 2, dialect=dialect, **given) as vec:
            vec.reset()
            with pytest.raises(RemoteEnvError, match=rf"^env 0 reported Invalid message: {name}: Input should") as told:
                vec.step(np.array([number, 5]))
            assert (told.value.code, told.value.type) == ("VALIDATION_ERROR", "")
            assert vec.step(np.array([4, 6]))[0].tolist() == [4, 6]

    @pytest.mark.parametrize("serve", ["stock", "ours", "ours in JSON"])
    def test_choices_are_indices_or_their_words(self, envs, toys, serve):
        models = toys.move, toys.board
        stock, ours = envs.stock_server(toys.toy, models=models), running(create_app(toys.toy, *models))
        dialect = "openenv" if serve == "ours in JSON" else None
        with stock if serve == "stock" else ours as url, RemoteVecEnv(url, 2, obs_key="score", dialect=dialect) as vec:
            vec.reset()
            for wrong in (-1, 2, "up"):  # the other env steps
                with pytest.raises(RemoteEnvError, match=rf"env 0 .*to: {wrong!r} is not one of 0 'left', 1 'right'"):
                    vec.step([wrong, 0])
                vec.reset()
            assert vec.step([1, 0])[0].tolist() == [1.0, 0.5]
            assert vec.step(["right", "left"])[0].tolist() == [2.0, 1.0]

    @pytest.mark.parametrize("dialect", [None, "openenv"])
    def test_an_action_may_be_read_in_a_way_of_its_own(self, envs, dialect):
        class Doubled(envs.EveryAction):
            @classmethod
            def model_validate(cls, data, **kwargs):
                return super().model_validate({**data, "gear": 2 * data["gear"]}, **kwargs)

        class Every(envs.Every):
            def step(self, action, timeout_s=None):
                assert type(action) is Doubled
                return envs.EveryObservation(count=action.gear)

        app = create_app(Every, Doubled, envs.EveryObservation)
        given = {"obs_key": "count", "action_key": "gear", "action_space": Discrete(3)}
        with running(app) as url, RemoteVecEnv(url, 2, dialect=dialect, **given) as vec:
            vec.reset()
            assert vec.step(np.array([1, 2]))[0].tolist() == [2, 4]

    def test_an_ignored_seed_is_said(self, toys):
        with running(hosted(toys)) as url, RemoteVecEnv(url, num_envs=1) as vec:
            with pytest.warns(UserWarning, match="seed"):
                vec.reset(seed=3)

    def test_async_environments(self, envs):
        app = create_app(envs.EveryAsync, obs_key="speed", action_key="gear")
        with running(app) as url, RemoteVecEnv(url, num_envs=3) as vec:
            vec.reset()
            seen, *_ = vec.step(np.array([1, 2, 3]))
        np.testing.assert_array_equal(seen, [0.1] * 3)

    def test_no_room(self, toys):
        with running(hosted(toys, max_concurrent_envs=1)) as url, pytest.raises(CapacityError):
            RemoteVecEnv(url, num_envs=2)

    def test_the_state_is_its_own(self, toys):
        with TestClient(hosted(toys)) as client, client.websocket_connect("/ws") as socket:
            socket.send_json({"type": "state"})
            assert socket.receive_json()["data"] == {"episode_id": "toy", "step_count": 0}
        assert len(toys.toy.made[-1].threads) == 1


class TestWhatItGains:
    """What a server of OpenEnv's doesn't give the same environment."""

    def test_a_cut_connection_costs_no_step(self, envs):
        spaces = {"observation_space": Discrete(1000), "obs_key": "count", "action_space": Box(0, 1, ())}
        app = create_app(envs.Count, envs.CountAction, envs.CountObservation)
        with running(app) as url, FaultProxy(url) as proxy:
            with RemoteVecEnv(proxy.url, 2, **spaces) as vec:
                vec.reset()
                for step in range(1, 9):
                    proxy.cut()
                    assert vec.step(np.zeros(2, np.float32))[0].tolist() == [step] * 2
            assert app.state.registry.total().resumed > 0
            assert app.state.registry.total().steps == 16

    def test_a_step_that_takes_too_long_is_given_up(self, envs):
        app = create_app(envs.Count, envs.CountAction, envs.CountObservation, max_step_s=5)
        with running(app) as url, RemoteVecEnv(url, 2, obs_key="count") as vec:
            vec.reset()
            with pytest.raises(RemoteEnvError, match=r"env 1 didn't return from 'step' within 5 second"):
                vec.step(np.array([0.0, 30.0]))

    def test_metrics(self, toys):
        with TestClient(hosted(toys)) as client:
            with client.websocket_connect("/ws") as socket:
                for message in (
                    {"type": "reset"},
                    {"type": "step", "data": {}},
                    {"type": "step", "data": {"to": "up"}},
                ):
                    socket.send_json(message)
                    socket.receive_json()
            text = client.get("/metrics").text
        assert "openenv_gym_steps_total 1.0" in text.splitlines()
        assert 'openenv_gym_errors_total{code="VALIDATION_ERROR"} 1.0' in text.splitlines()

    def test_metrics_have_what_an_env_fails_with_once(self, envs):
        with TestClient(create_app(envs.Every)) as client:
            with client.websocket_connect("/ws") as socket:
                for data in ({"difficulty": [1]}, {"fail": True}):
                    socket.send_json({"type": "reset", "data": data})
                    assert socket.receive_json()["type"] == "error"
            lines = client.get("/metrics").text.splitlines()
        assert 'openenv_gym_errors_total{code="VALIDATION_ERROR"} 1.0' in lines
        assert 'openenv_gym_errors_total{code="EXECUTION_ERROR"} 1.0' in lines

    @pytest.mark.parametrize("query", ["exclude=frame", "include=small"])
    def test_a_trimmed_field_is_never_dumped(self, envs, query):
        class Scene(envs.Observation):
            small: int = 1
            frame: int = 2

            @field_serializer("frame")
            def _dump(self, frame):
                raise AssertionError("it was dumped")

        class Camera(envs.Every):
            def reset(self, **kwargs):
                return Scene()

        with TestClient(create_app(Camera, envs.EveryAction, Scene)) as client:
            with client.websocket_connect(f"/ws?{query}") as socket:
                socket.send_json({"type": "reset"})
                seen = socket.receive_json()["data"]["observation"]
        assert seen["small"] == 1
        assert "frame" not in seen


class TestWithoutSpaces:
    def test_its_own_dialect_works(self, envs):
        with running(create_app(envs.Every)) as url:
            with pytest.raises(SpaceError) as caught:
                RemoteVecEnv(url, num_envs=1)
            assert "Every is an OpenEnv environment that no spaces can be inferred for" in str(caught.value)
            assert "Say so here, or in the server's create_app(...)" in str(caught.value)
            with RemoteVecEnv(url, num_envs=2, obs_key="board", action_key="gear") as vec:
                seen, _ = vec.reset()
                assert seen.shape == (2, 2, 3)

    def test_a_reset_that_fails_at_the_start(self, envs):
        class Down(envs.Every):
            def reset(self, **kwargs):
                raise OSError("no display")

        app = create_app(Down, obs_key="board", action_key="gear")
        assert app.state.registry.probe.problem == "OSError: no display"

    def test_a_description_that_fails_at_the_start(self, envs, caplog):
        class Shy(envs.Every):
            def get_metadata(self):
                raise OSError("no description")

        with TestClient(create_app(Shy)) as client:
            assert client.get("/metadata").json()["name"] == "Shy"
        assert "get_metadata failed" in caplog.text

    def test_tools_need_no_reset_at_the_start(self, envs):
        class Down(envs.Tools):
            def reset(self, **kwargs):
                raise OSError("no display")

        assert create_app(Down, envs.CallToolAction, envs.Observation).state.registry.probe.problem is None

    def test_spaces_that_are_given(self, envs):
        space = Box(0, 9, (2, 3), np.int8)
        app = create_app(envs.Every, obs_key="board", action_key="gear", observation_space=space)
        with running(app) as url, RemoteVecEnv(url, num_envs=1) as vec:
            assert vec.single_observation_space == space
            assert vec.reset()[0].dtype == np.int8


class TestTrimming:
    """In OpenEnv's dialect, by the URL's query: a reset's data are the environment's own."""

    def talk(self, envs, query):
        with TestClient(create_app(envs.Every)) as client, client.websocket_connect(f"/ws?{query}") as socket:
            socket.send_json({"type": "reset", "data": {"seed": 3}})
            return socket.receive_json()["data"]

    def test_fields(self, envs):
        data = self.talk(envs, "include=board,arm.joint,text&exclude=text")
        assert data["observation"] == {"board": [[0, 0, 0], [0, 0, 0]], "arm": {"joint": 0}}
        assert data["metadata"] == {"seed": 3}

    def test_info_keys(self, envs):
        data = self.talk(envs, "include=count,metadata&info_keys=other")
        assert data == {"observation": {"count": 0, "metadata": {}}, "reward": None, "done": False}

    @pytest.mark.parametrize("query, text", [("include=cout", "no field 'cout'"), ("obs_dtype=float16", "obs_dtype")])
    def test_what_is_wrong(self, envs, query, text):
        assert text in json.dumps(self.talk(envs, query))

    def test_batch_steps_and_several_envs(self, envs):
        with TestClient(create_app(envs.Every)) as client, client.websocket_connect("/ws?num_envs=2") as socket:
            socket.send_json({"type": "reset", "data": {"episode_id": "e"}})
            assert len(socket.receive_json()["data"]["results"]) == 2
            socket.send_json({"type": "batch_step", "data": {"actions": [{"order": "fail"}, {"scale": 3}]}})
            bad, good = socket.receive_json()["data"]["results"]
            assert bad == {"error": {"message": "the arm is gone", "code": "EXECUTION_ERROR"}}
            assert good["reward"] == 3
            socket.send_json({"type": "batch_step", "data": {"actions": [{}, {"gear": 9}]}})
            refused = socket.receive_json()["data"]
            assert (refused["code"], refused["message"]) == ("VALIDATION_ERROR", "Invalid message")
            assert refused["errors"][0]["loc"] == ["data", "actions", 1, "gear"]
            socket.send_json({"type": "state"})
            assert [s["step_count"] for s in socket.receive_json()["data"]["results"]] == [1, 1]


def test_openenv_is_never_imported():
    import subprocess
    import sys

    code = "import sys, openenv_gym.server; assert not any(m.split('.')[0] == 'openenv' for m in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
