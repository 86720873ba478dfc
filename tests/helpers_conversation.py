"""What OpenEnv's own clients hear from a server, as plain data; and an older release of it, in a process of its own.

As a program this is that process. It serves environments of `helpers_openenv` with whichever release Python finds,
prints their URLs as a line of JSON, and then holds the conversation with each pair of URLs that it reads from a line.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

OLD_RELEASE = "0.3.1"
TESTS = Path(__file__).parent
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|127\.0\.0\.1:\d+")

SPECIAL = ["", "fail", "mute", "odd", "nan", "end", ""]
"""What `helpers_openenv.Every` is told to do."""


@cache
def old_release():
    """A folder with nothing but the older OpenEnv in it; the packages that it needs are those of this Python.

    It is installed once into the virtual environment, beside the packages that tests can import.
    """
    folder = Path(sys.prefix) / f"openenv-{OLD_RELEASE}"
    if not folder.is_dir():
        made = folder.with_suffix(f".{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        result = subprocess.run(
            [*pip, "--target", str(made), f"openenv=={OLD_RELEASE}"], capture_output=True, text=True, timeout=300
        )
        if result.returncode != 0 and not os.environ.get("CI"):
            pytest.skip(f"OpenEnv {OLD_RELEASE} can't be installed here: {result.stderr[-300:]}")
        assert result.returncode == 0, result.stderr
        with contextlib.suppress(OSError):  # another process was first
            made.rename(folder)
        shutil.rmtree(made, ignore_errors=True)
    return folder


class OldRelease:
    """The older release's servers and clients.

    Attributes:
        every: the URL of its server of `helpers_openenv.Every`, with room for eight.
        tools: the URL of its server of ``Tools``.
        columns: the URL of its server of ``Columns``.
    """

    def __enter__(self):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(old_release()), str(TESTS)])}
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.every, self.tools, self.columns = self._read()
        return self

    def __exit__(self, *exc_info):
        self._process.communicate(timeout=60)  # it ends with its input

    def hold(self, every, tools):
        """The conversation as its clients hold it; see `hold`."""
        print(json.dumps([every, tools]), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self):
        line = self._process.stdout.readline()
        assert line, "the older release's process ended"
        return json.loads(line)


# ------------------------------------------------------------------------------------------- the conversation


def hold(every, tools):
    """What is heard from servers of `helpers_openenv.Every` and ``Tools``, as JSON text, without ids and ports."""
    heard = [
        *asyncio.run(_with_async_client(every)),
        *_with_blocking_client(every),
        *_with_typed_client(every),
        *asyncio.run(_with_tools(tools)),
        *_with_tool_actions(tools),
    ]
    return ID.sub("ID", json.dumps(heard, default=str))


def _shown(result):
    observation = result.observation
    shown = observation if isinstance(observation, dict) else observation.model_dump(mode="json")
    return [shown, result.reward, result.done, getattr(result, "metadata", None)]


def _error(error):
    return [type(error).__name__, str(error)]


def _actions():
    yield from ({"order": order} for order in SPECIAL)
    yield from ({"gear": 9}, {"nothing": 1}, {"turn": "right", "arm": {"joint": 4}, "note": "ä", "point": [1, 2.5]})


async def _with_async_client(url):
    from openenv.core import GenericEnvClient

    heard = []
    async with GenericEnvClient(base_url=url) as client:
        heard.append(_shown(await client.reset(seed=3, episode_id="mine", difficulty="hard")))
        for action in _actions():
            try:
                heard.append(_shown(await client.step(action)))
            except RuntimeError as error:
                heard.append(_error(error))
        heard.append(await client.state())
    return heard


def _with_blocking_client(url):
    from openenv.core import GenericEnvClient

    with GenericEnvClient(base_url=url).sync() as client:
        heard = [_shown(client.reset())]
        for action in ({"turn": "right"}, {"turn": "up"}):
            try:
                heard.append(_shown(client.step(action)))
            except RuntimeError as error:
                heard.append(_error(error))
        return [*heard, client.state(), _shown(client.reset(seed=1)), client.state()]


def _with_typed_client(url):
    from helpers_openenv import EveryAction, EveryObservation
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient
    from openenv.core.env_server.types import State

    class Client(EnvClient[EveryAction, EveryObservation, State]):
        def _step_payload(self, action):
            return action.model_dump(mode="json")

        def _parse_result(self, payload):
            seen = EveryObservation(**payload["observation"])
            return StepResult(observation=seen, reward=payload.get("reward"), done=payload["done"])

        def _parse_state(self, payload):
            return State(**payload)

    with Client(base_url=url).sync() as client:
        heard = [_shown(client.reset(seed=2)), _shown(client.step(EveryAction(turn="right", scale=0.5)))]
        return [*heard, client.state().model_dump()]


TOOL_CALLS = [("add", {"a": 1, "b": 2}), ("add", {"a": "x"}), ("fail", {}), ("no", {}), ("odd", {})]


async def _with_tools(url):
    from openenv.core.mcp_client import MCPToolClient

    heard = []
    async with MCPToolClient(base_url=url) as client:
        heard.append([tool.model_dump() for tool in await client.list_tools()])
        heard.append(_shown(await client.reset()))
        for name, arguments in [*TOOL_CALLS, ("remember", {"what": "this"}), ("recall", {})]:
            try:
                heard.append(await client.call_tool(name, **arguments))
            except RuntimeError as error:
                heard.append(_error(error))
        heard.append((await client.state()).model_dump())
        heard.append([await client.has_tool("add"), await client.has_tool("no")])
    return heard


def _with_tool_actions(url):
    from openenv.core import GenericEnvClient

    with GenericEnvClient(base_url=url).sync() as client:
        client.reset()
        calls = [{"type": "call_tool", "tool_name": name, "arguments": given} for name, given in TOOL_CALLS]
        return [_shown(client.step(call)) for call in [{"type": "list_tools"}, *calls]]


def main():
    """Be the other process."""
    import helpers_openenv as envs

    every = {"env": envs.Every, "models": (envs.EveryAction, envs.EveryObservation)}
    tools = {"env": envs.Tools, "models": (envs.CallToolAction, envs.Observation)}
    columns = {"env": envs.Columns, "models": (envs.DropAction, envs.BoardObservation)}
    with (
        envs.stock_server(**every) as first,
        envs.stock_server(**tools) as second,
        envs.stock_server(**columns) as third,
    ):
        print(json.dumps([first, second, third]), flush=True)
        for line in sys.stdin:
            print(json.dumps(hold(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
