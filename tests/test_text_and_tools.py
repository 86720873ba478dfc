"""Text and tools through `RemoteVecEnv`: strings and dicts as actions and observations, in many sessions at a time."""

import threading
from contextlib import ExitStack

import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text
from helpers_server import running

from openenv_gym import RemoteEnv, RemoteVecEnv
from openenv_gym.errors import RemoteEnvError, SpaceError
from openenv_gym.server import create_app
from openenv_gym.spaces import Json

N = 4
MEETING = threading.Barrier(N)


@pytest.fixture(scope="module")
def envs():
    return pytest.importorskip("helpers_openenv")


@pytest.fixture(scope="module")
def talks(envs):
    """A text environment, its action and its observation."""

    class Say(envs.Action):
        text: str

    class Heard(envs.Observation):
        reply: str

    class Talk(envs.Environment):
        """Says everything twice. "together" waits until all sessions say it; "bye" ends the episode."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed=None, episode_id=None):
            self.said = []
            return Heard(reply=f"hello {seed}")

        def step(self, action, timeout_s=None):
            if action.text == "together":
                MEETING.wait(30)
            self.said.append(action.text)
            meta = {"tool": {"name": "x", "of": [1, None]}}
            return Heard(reply=action.text * 2, reward=len(self.said), done=action.text == "bye", metadata=meta)

        @property
        def state(self):
            return envs.State(step_count=len(self.said))

    return Talk, Say, Heard


@pytest.fixture(scope="module")
def servers(envs, talks):
    with ExitStack() as stack:

        def both(*hosted):
            return {
                "stock": stack.enter_context(envs.stock_server(hosted[0], models=hosted[1:])),
                "ours": stack.enter_context(running(create_app(*hosted, max_concurrent_envs=8))),
            }

        yield {
            "talk": both(*talks),
            "tools": both(envs.Tools, envs.CallToolAction, envs.Observation),
            "every": both(envs.Every, envs.EveryAction, envs.EveryObservation),
        }


@pytest.fixture(params=["stock", "ours"])
def kind(request):
    return request.param


def test_strings(servers, kind):
    with RemoteVecEnv(servers["talk"][kind], N, autoreset_mode="SameStep") as vec:
        assert isinstance(vec.single_action_space, Text)
        heard, _ = vec.reset(seed=[1, 2, 3, None])
        assert heard == ("hello 1", "hello 2", "hello 3", "hello None")
        heard, rewards, ends, _, infos = vec.step(["ja", "nein", "漢字 😀", "x" * 5000])
        assert heard == ("jaja", "neinnein", "漢字 😀漢字 😀", "x" * 10_000)
        assert rewards.tolist() == [1.0] * N
        assert not ends.any()
        assert infos["tool"]["name"].tolist() == ["x"] * N
        heard, _, ends, _, infos = vec.step(("a", "bye", "b", "c"))
        assert ends.tolist() == [False, True, False, False]
        assert heard == ("aa", "hello None", "bb", "cc")
        assert infos["final_obs"][1] == "byebye"


def test_sessions_run_at_the_same_time(servers, kind):
    """A step of one comes back only when all of them are in theirs."""
    with RemoteVecEnv(servers["talk"][kind], N) as vec:
        vec.reset()
        assert vec.step(["together"] * N)[0] == ("togethertogether",) * N


def test_dicts_as_they_are(servers, kind):
    spaces = {"action_space": Json(), "observation_space": Json()}
    with RemoteVecEnv(servers["every"][kind], 2, **spaces) as vec:
        vec.reset(seed=3)
        actions = [{"order": "odd"}, {"turn": "right", "arm": {"joint": 3}, "note": None}]
        (odd, turned), rewards, *_ = vec.step(actions)
        assert odd["anything"]["for"] == "PT1M30S"
        assert (turned["arm"], turned["turn"], turned["note"]) == ({"joint": 3, "angle": 0.0}, "right", None)
        assert rewards.tolist() == [0.0, 1.0]
        assert "reward" not in odd
        assert "done" not in odd
        with pytest.raises(RemoteEnvError):
            vec.step([{"gear": 99}, {}])
        assert [seen["count"] for seen in vec.step([{}, {"gear": 2}])[0]] == [2, 3]  # the other one took its step


def test_json_beside_other_fields(servers, kind):
    space = Dict({"table": Json(), "count": Discrete(100), "board": Box(0, 9, (2, 3), int)})
    with RemoteEnv(servers["every"][kind], observation_space=space, action_space=Json()) as env:
        first, _ = env.reset()
        assert first["table"] == {}
        assert first["board"].shape == (2, 3)
        seen = env.step({"order": "nan"})[0]
        assert (seen["table"], seen["count"]) == ({"x": [None, 1.0]}, 1)


def test_one_field_as_it_is(servers, kind):
    with RemoteEnv(servers["every"][kind], obs_key="arm", observation_space=Json(), action_space=Json()) as env:
        assert env.reset()[0] == {"joint": 0, "angle": 0.0}


def test_tools(servers, kind):
    """Without a word about spaces: an environment with tools is known by its actions."""

    def call(name, **arguments):
        return {"type": "call_tool", "tool_name": name, "arguments": arguments}

    with RemoteVecEnv(servers["tools"][kind], N) as vec:
        vec.reset()
        results, rewards, ends, *_ = vec.step([call("add", a=row, b=1) for row in range(N)])
        assert [result["result"]["data"] for result in results] == [1, 2, 3, 4]
        assert (rewards.tolist(), ends.any()) == ([0.0] * N, False)
        vec.step([call("remember", what=f"row {row}") for row in range(N)])
        recalled = vec.step([call("recall")] * N)[0]
        assert [result["result"]["data"] for result in recalled] == [f"row {row}" for row in range(N)]
        listed, failed, unknown, odd = vec.step([{"type": "list_tools"}, call("fail"), call("no"), call("odd")])[0]
        assert len(listed["tools"]) == 5
        assert failed["error"]["error_type"] == "execution_error"
        assert unknown["error"]["error_type"] == "tool_not_found"
        assert odd["result"]["data"]["inner"] == {"a": True}


class TestGivenSpacesOnOurServer:
    """A hosted environment has spaces of its own there, but what the user says comes first."""

    def test_they_are_kept(self, servers):
        space = Dict({"board": Box(0, 9, (2, 3), "int8"), "colour": Discrete(2)})
        given = {"observation_space": space, "action_space": Dict({"gear": Discrete(6, start=1)})}
        for url in servers["every"].values():
            with RemoteVecEnv(url, 2, **given) as vec:
                seen, _ = vec.reset()
                assert vec.single_observation_space == space
                assert seen["board"].dtype == "int8"
                assert vec.step({"gear": [1, 6]})[0]["colour"].tolist() == [0, 0]

    def test_the_same_ones_change_nothing(self, servers):
        with RemoteVecEnv(servers["talk"]["ours"], 2) as vec:
            own = vec.single_observation_space, vec.single_action_space
        with RemoteVecEnv(servers["talk"]["ours"], 2, observation_space=own[0], action_space=own[1]) as vec:
            vec.reset()
            assert vec.rollout is not None
            assert len(vec._backend.pool.links) == 1  # one connection for both, as only the batch dialect has it

    def test_half_of_what_is_needed(self, servers):
        with pytest.raises(SpaceError, match="names: the list was empty"):
            RemoteVecEnv(servers["every"]["ours"], 2, action_space=Json())
