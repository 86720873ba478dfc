"""Each code block of README.md is run, against real servers; each error in docs/errors.md is provoked.

Python blocks run in processes of their own, one after the other in one folder, with the README's addresses replaced by
those of the servers here. A block that begins with `# name.py` also becomes that file.
"""

import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import uvicorn
from helpers_cli import DEADLINE_S, Running, environment, run
from helpers_docs import fenced

from openenv_gym import RemoteEnv, RemoteVecEnv, errors
from openenv_gym.sb3 import SB3VecEnv

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
ERRORS = (ROOT / "docs" / "errors.md").read_text("utf-8")
OPENENV = (ROOT / "docs" / "openenv.md").read_text("utf-8")
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text("utf-8")
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text("utf-8")
BLOCKS = fenced(README)
PYTHON = [text for language, text in BLOCKS if language == "python"]
ELSEWHERE = [text for language, text in fenced(OPENENV) if language == "python" and "hf.space" in text]
"""Blocks of docs/ that need servers, which test_docs.py hasn't."""

COMMANDS = [line for language, text in BLOCKS if language == "console" for line in text.splitlines()]

SERVED = "http://localhost:8000"
STOCK = "http://localhost:8001"
SPACE = "https://your-name-openspiel-env.hf.space"
TOOLS = "https://your-name-echo-env.hf.space"
SECRET = "a-token-of-hugging-face"


def test_the_readme_has_only_blocks_that_are_checked_here():
    assert {language for language, _ in BLOCKS} == {"python", "console"}
    assert (len(PYTHON), len(ELSEWHERE)) == (7, 2)
    assert README.count("```") == 2 * len(BLOCKS)


def test_the_readme_is_short():
    assert len(README.splitlines()) < 270
    assert max(map(len, README.splitlines())) <= 120


def test_the_examples_are_short():
    assert max(len([line for line in text.splitlines() if line]) for text in PYTHON) <= 32


def test_every_module_in_the_picture_exists():
    (picture,) = re.findall(r"^```text\n(.*⇒.*?)^```$", CONCEPTS, re.MULTILINE | re.DOTALL)
    names = set(re.findall(r"^[ →]*([a-z_]+(?:, [a-z_]+)*)(?:\.step\(\w+\))?  ", picture, re.MULTILINE))
    modules = {path.stem for folder in ("openenv_gym", "server") for path in (ROOT / folder).glob("*.py")}
    assert {"vector_env", "rollout", "pool", "session", "slots"} <= names
    assert {name for listed in names for name in listed.split(", ")} - modules - {"link", "env"} == set()


# ------------------------------------------------------------------------------------------------ python blocks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def served():
    """The URL of `openenv-gym serve CartPole-v1`."""
    with Running("serve", "CartPole-v1", "--port", 0) as serving:
        yield serving.url()


@pytest.fixture(scope="module")
def stock(folder):
    """The URL of OpenEnv's own server of my_walk.py, started as the README says."""
    write_named(folder)
    (command,) = (line for line in COMMANDS if line.startswith("$ uvicorn "))
    module, *arguments = shlex.split(command.removeprefix("$ ").replace("8001", "0"))
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        found = (re.search(r"running on (http://\S+)", line) for line in process.stderr)
        yield next(match[1] for match in found if match)
        process.terminate()


def write_named(folder):
    """Write each block that begins with `# name.py` to that file."""
    for code in PYTHON:
        named = re.match(r"# (\w+\.py)\n", code)
        if named:
            (folder / named[1]).write_text(code)


@pytest.fixture(scope="module")
def space():
    """The URL of a private Space: a stock OpenEnv server, behind a proxy that asks for a bearer token.

    The proxy is Hugging Face's there and an ASGI middleware here; the server behind it is OpenEnv's own in both places,
    with the field names of its OpenSpiel environment.
    """
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

    class CatchAction(Action):
        action_id: int

    class CatchObservation(Observation):
        info_state: list[float]
        legal_actions: list[int]

    class Catch(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True
        steps = 0

        def reset(self, seed=None, episode_id=None, **kwargs):
            self.steps = 0
            return CatchObservation(info_state=[0.0] * 50, legal_actions=[0, 1, 2])

        def step(self, action, timeout_s=None, **kwargs):
            self.steps += 1
            seen = {"info_state": [1.0] * 50, "legal_actions": [0, 1, 2]}
            return CatchObservation(**seen, reward=float(action.action_id), done=self.steps == 9)

        @property
        def state(self):
            return State(step_count=self.steps)

    app = create_fastapi_app(Catch, CatchAction, CatchObservation, max_concurrent_envs=8)
    yield from in_a_thread(behind_a_token(app))


@pytest.fixture(scope="module")
def tools():
    """The URL of a stock OpenEnv server whose environment has a tool, with the names of OpenEnv's echo environment."""
    from fastmcp import FastMCP
    from openenv.core.env_server import Observation, State, create_fastapi_app
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

    class Echo(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            server = FastMCP("echo")
            server.tool(self.echo_message)
            super().__init__(server)

        def echo_message(self, message: str) -> str:
            return message

        def reset(self, seed=None, episode_id=None, **kwargs):
            return Observation()

        def _step_impl(self, action, timeout_s=None, **kwargs):
            return Observation()

        @property
        def state(self):
            return State()

    app = create_fastapi_app(Echo, CallToolAction, CallToolObservation, max_concurrent_envs=8)
    yield from in_a_thread(app)


def behind_a_token(app):
    async def proxy(scope, receive, send):
        shown = dict(scope.get("headers", ())).get(b"authorization")
        if scope["type"] != "lifespan" and shown != f"Bearer {SECRET}".encode():
            prefix = "websocket." if scope["type"] == "websocket" else ""
            await send({"type": f"{prefix}http.response.start", "status": 401, "headers": []})
            await send({"type": f"{prefix}http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    return proxy


def in_a_thread(app):
    """Serve as OpenEnv's servers do, with uvicorn's defaults, and give the URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = time.monotonic() + DEADLINE_S
        while not server.started and time.monotonic() < end:
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)


@pytest.mark.parametrize("number", range(len(PYTHON) + len(ELSEWHERE)))
def test_a_python_block_runs(number, folder, served, stock, space, tools):
    code = [*PYTHON, *ELSEWHERE][number]
    for theirs, here in ((SERVED, served), (STOCK, stock), (SPACE, space), (TOOLS, tools)):
        code = code.replace(theirs, here)
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    variables = environment(HF_TOKEN=SECRET, OMP_NUM_THREADS="1")  # the second training leaves torch's threads alone
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_local_example_in_the_text():
    expression = 'RemoteVecEnv.local("CartPole-v1", num_envs=8)'
    assert f"`{expression}`" in README
    envs = RemoteVecEnv.local("CartPole-v1", num_envs=8)
    assert envs.reset(seed=1)[0].shape == (8, 4)
    envs.close()


# ------------------------------------------------------------------------------------------------------ commands

NOT_RUN = {
    'pip install -c constraints.txt ".[server,sb3]"': "tests install nothing; test_packaging.py checks the extras",
    "pip install -c constraints.txt openenv": "the same",
}


def test_every_command_is_known_here():
    assert all(line.startswith("$ ") for line in COMMANDS)
    lines = [line.removeprefix("$ ") for line in COMMANDS]
    run_here = [line for line in lines if line.startswith(("openenv-gym serve", "uvicorn ", "export "))]
    assert sorted(lines) == sorted([*run_here, *NOT_RUN])
    assert len(run_here) == 5


def test_the_openenv_that_is_installed_is_the_one_that_is_tested_with():
    pinned = re.search(r"^openenv==(.+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)[1]
    assert pinned in README
    assert f"openenv == {pinned}\n" in (ROOT / "setup.cfg").read_text("utf-8")


def test_make_has_the_verb():
    assert re.search(r"^demo:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


def test_the_demos_files_and_options_are_as_the_readme_says():
    assert "demo_learning_curve.png" in run("demo", "--help").stdout


def test_serving_runs_as_written():
    with Running(*shlex.split("serve CartPole-v1"), "--port", 0) as serving:
        assert "$ openenv-gym serve CartPole-v1\n" in README
        assert serving.url().startswith("http://")
        assert serving.end(signal.SIGINT) == 0


def test_measuring_runs_as_written(served):
    blocks = fenced(PERFORMANCE)
    (command,) = (text.strip() for language, text in blocks if language == "console")
    arguments = shlex.split(command.replace(SERVED, served).removeprefix("$ openenv-gym "))
    done = run(*arguments, "--steps", 10)
    assert (done.returncode, done.stderr) == (0, "")
    (table,) = (text for language, text in blocks if language == "text" and "hand_over" in text)
    words = [re.sub(r"[\d.,%─]+", "", line).split() for text in (table, done.stdout) for line in text.splitlines()]
    shown = [line for line in words if line]
    count = len(table.splitlines())
    assert shown[:count] == shown[count + 2 : -1]  # but for what was measured, and a last line about bytes


def test_hosting_an_openenv_environment_runs_as_written(folder):
    write_named(folder)
    (command,) = (line for line in COMMANDS if line.startswith("$ openenv-gym serve my_walk:"))
    arguments = shlex.split(command.removeprefix("$ openenv-gym"))
    with Running(*arguments, "--port", 0, cwd=folder) as serving, RemoteVecEnv(serving.url(), 2) as envs:
        observations, _ = envs.reset()
        assert observations["place"].tolist() == [0, 0]
        assert envs.single_action_space == gym.spaces.Discrete(2)


def test_serving_ones_own_env_runs_as_written(folder):
    (command,) = (line for line in COMMANDS if "my_env:" in line)
    (export,) = (line for line in COMMANDS if line.startswith("$ export"))
    name, _, token = export.removeprefix("$ export ").partition("=")
    (code,) = (text for text in PYTHON if text.startswith("# my_env.py"))
    (folder / "my_env.py").write_text(code)
    arguments = shlex.split(command.removeprefix("$ openenv-gym"))
    with Running(*arguments, "--port", 0, cwd=folder, **{name: token}) as serving:
        assert f'token="{token}"' in README
        envs = RemoteVecEnv(serving.url(), 2, token=token)
        envs.reset(seed=1)
        observations, rewards, *_ = envs.step(np.array([0, 1]))
        assert (observations.tolist(), rewards.tolist()) == ([0, 1], [-1, -1])
        envs.close()


# -------------------------------------------------------------------------------------------------------- errors


def shown(error):
    """An error as the README writes it, with this test's numbers."""
    return f"{type(error).__name__}: {error}"


def in_the_readme(error, url, **replaced):
    """Whether the README shows this error; `replaced` are numbers that differ, each with the README's."""
    text = shown(error).replace(url.partition("://")[2], "localhost:8000")
    for ours, readme in replaced.values():
        text = text.replace(ours, readme)
    return f"\n{text}\n" in ERRORS


def test_nobody_answers():
    url = "http://127.0.0.1:1"
    with pytest.raises(errors.ConnectFailed) as caught:
        RemoteVecEnv(url, 1)
    assert in_the_readme(caught.value, url)


def test_the_token_is_wrong(tmp_path):
    with Running("serve", "CartPole-v1", "--port", 0, "--token-env", "MY_TOKEN", MY_TOKEN="right") as serving:
        with pytest.raises(errors.Unauthorized) as caught:
            RemoteVecEnv(serving.url(), 1, token="wrong")
        assert in_the_readme(caught.value, serving.url())
        with pytest.raises(errors.Unauthorized) as caught:
            RemoteVecEnv(serving.url(), 1)
        assert in_the_readme(caught.value, serving.url())


def test_a_path_too_many(served):
    with pytest.raises(errors.Unauthorized) as caught:
        RemoteVecEnv(f"{served}/web", 1)
    assert in_the_readme(caught.value, served)


def test_a_server_without_tls(served):
    with pytest.raises(errors.NotAWebSocket) as caught:
        RemoteVecEnv(served.replace("http", "https"), 1)
    assert in_the_readme(caught.value, served)


def test_fields_that_sb3_can_not_learn_from():
    class Named(gym.Env):
        observation_space = gym.spaces.Dict(place=gym.spaces.Discrete(9), name=gym.spaces.Text(9))
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return {"place": 0, "name": "walker"}, {}

    with RemoteVecEnv.local(Named, 1) as envs:
        with pytest.raises(errors.SpaceError) as caught:
            SB3VecEnv(envs)
    assert f"\n{shown(caught.value)}\n" in ERRORS


def test_there_is_no_room():
    with Running("serve", "CartPole-v1", "--port", 0, "--max-envs", 4) as serving:
        with pytest.raises(errors.CapacityError) as caught:
            RemoteVecEnv(serving.url(), 8)
        assert in_the_readme(caught.value, serving.url())


def test_an_openenv_server_has_several_fields(space):
    with pytest.raises(errors.SpaceError) as caught:
        RemoteVecEnv(space, 1, token=SECRET, observation_space=gym.spaces.Box(0, 1, (50,)))
    assert in_the_readme(caught.value, space)


def test_a_list_that_changes_its_length():
    from helpers_openenv import BoardObservation, Columns, DropAction, stock_server

    given = {"action_key": "column", "action_space": gym.spaces.Discrete(4)}
    with stock_server(Columns, models=(DropAction, BoardObservation)) as url:
        with RemoteVecEnv(url, 1, obs_key="legal", **given) as envs:
            envs.reset()
            envs.step([0])
            with pytest.raises(errors.RemoteEnvError) as caught:
                envs.step([0])  # which fills the column
        with RemoteVecEnv(url, 1, obs_key="board", mask_key="legal", **given) as envs:
            envs.reset()
            envs.step([0])
            assert envs.step([0])[4]["action_mask"].tolist() == [[0, 1, 1, 1]]
    assert in_the_readme(caught.value, url)


SLOW = """
import threading
import gymnasium as gym

class Slow(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        if action:
            threading.Event().wait(60)
        return 0, 0.0, False, False, {}
"""


def test_a_step_after_a_timeout(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    # With a number of workers the server needn't try out how long a step takes.
    with Running("serve", "slow:Slow", "--port", 0, "--max-workers", 8, cwd=tmp_path) as serving:
        envs = RemoteVecEnv(serving.url(), 8, message_timeout_s=1.5, reset_timeout_s=60)
        envs.reset()
        with pytest.raises(errors.ReplyTimeout) as caught:
            envs.step(np.ones(8, np.int64))
        assert in_the_readme(caught.value, serving.url(), limit=("within 1.5 second", "within 60 second"))
        with pytest.raises(gym.error.ResetNeeded) as caught:
            envs.step(np.zeros(8, np.int64))
        assert f"\n{shown(caught.value)}\n" in ERRORS
        envs.close()


def test_a_lost_session_of_a_single_env_needs_a_reset():
    with Running("serve", "CartPole-v1", "--port", 0) as serving:
        env = RemoteEnv(serving.url(), reconnect_timeout_s=0.5)
        env.reset(seed=1)
        serving.process.kill()
        serving.wait()
        with pytest.warns(UserWarning, match="is gone"):
            *_, truncated, info = env.step(0)
        assert (truncated, info["connection_lost"]) == (True, True)
        with pytest.raises(gym.error.ResetNeeded) as caught:
            env.step(0)
        assert f"\n{shown(caught.value)}\n" in ERRORS
        env.close()
