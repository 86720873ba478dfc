"""OpenEnv's own clients, of this release and of an older one, hear the same from our server as from OpenEnv's.

And our clients work with the older release's server. The script of the conversation is in helpers_conversation.py.
"""

import json
from contextlib import ExitStack

import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete
from helpers_conversation import OldRelease, hold
from helpers_server import running
from helpers_wait import LIMIT_S

from openenv_gym import GenericEnvClient, MCPToolClient, RemoteVecEnv
from openenv_gym.errors import CapacityError, RemoteEnvError, ToolError
from openenv_gym.server import create_app


@pytest.fixture(scope="module")
def envs():
    return pytest.importorskip("helpers_openenv")


@pytest.fixture(scope="module")
def servers(envs):
    """The URLs of servers of ``Every`` and ``Tools``: OpenEnv's and ours."""
    hosted = [
        (envs.Every, envs.EveryAction, envs.EveryObservation),
        (envs.Tools, envs.CallToolAction, envs.Observation),
    ]
    with ExitStack() as stack:
        yield {
            "stock": [stack.enter_context(envs.stock_server(env, models=models)) for env, *models in hosted],
            "ours": [stack.enter_context(running(create_app(*each, max_concurrent_envs=8))) for each in hosted],
        }


@pytest.fixture(scope="module")
def old():
    with OldRelease() as old:
        yield old


def compare(hold, servers):
    stock, ours = (json.loads(hold(*servers[kind])) for kind in ("stock", "ours"))
    for mine, theirs in zip(ours, stock, strict=True):
        assert mine == theirs
    assert len(stock) > 35


def test_clients_of_this_release(servers):
    compare(hold, servers)


def test_clients_of_an_older_release(servers, old):
    compare(old.hold, servers)


@pytest.mark.parametrize("number", [0, 1])
def test_openenvs_validator(servers, number):
    """``openenv validate --url`` passes on a server that hosts an OpenEnv environment."""
    from openenv.cli._validation import validate_running_environment

    report = validate_running_environment(servers["ours"][number])
    assert [criterion for criterion in report["criteria"] if not criterion["passed"]] == []
    assert report["passed"] is True


@pytest.mark.usefixtures("patient")
class TestAnOlderServer:
    def test_many_envs(self, old):
        space = Dict({"count": Discrete(1000), "turn": Discrete(2)})
        given = {"observation_space": space, "action_space": Dict({"gear": Discrete(6, start=1), "turn": Discrete(2)})}
        with RemoteVecEnv(old.every, 4, close_timeout_s=LIMIT_S, **given) as vec:
            vec.reset(seed=[1, 2, 3, 4])
            actions = {"gear": np.array([1, 2, 3, 4]), "turn": np.array([0, 1, 0, 1])}
            seen, rewards, ends, *_ = vec.step(actions)
            assert seen["turn"].tolist() == [0, 1, 0, 1]
            assert (seen["count"].tolist(), rewards.tolist(), ends.any()) == ([1] * 4, [1.0] * 4, False)
            with pytest.raises(CapacityError):
                RemoteVecEnv(old.every, 8, **given)

    def test_spaces_are_inferred(self, old):
        with RemoteVecEnv(old.every, 2, obs_key="board", action_key="gear") as vec:
            assert vec.reset()[0].shape == (2, 2, 3)

    def test_one_client(self, old):
        with GenericEnvClient(old.every) as client:
            assert client.reset(seed=5, difficulty="hard").observation["text"] == "hard"
            end = client.step({"order": "end"})
            assert (end.reward, end.done) == (1.0, True)
            assert client.state()["extra"] == {"seed": 5}
            with pytest.raises(RemoteEnvError, match="the arm is gone"):
                client.step({"order": "fail"})
            with pytest.warns(UserWarning, match="knows no batch_step"):
                assert len(client.batch_step([{}, {"turn": "right"}])) == 2

    def test_tools(self, old):
        with MCPToolClient(old.tools) as client:
            assert client.has_tool("add")
            assert client.call_tool("add", a=1, b=2) == 3
            with pytest.raises(ToolError, match="out of order"):
                client.call_tool("fail")
        with RemoteVecEnv(old.tools, 2) as vec:
            vec.reset()
            call = {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1, "b": 2}}
            assert vec.step([call, call])[0][1]["result"]["data"] == 3
