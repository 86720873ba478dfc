"""The tools of an OpenEnv environment, listed and called on the env's thread. No threads and no I/O here.

Where the tools are is what openenv/core/env_server/http_server.py (``mcp_handler``, 0.10) looks for: an ``mcp_client``,
else an ``mcp_server``, else actions that list and call tools.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from openenv_gym.server.adapters import HostedEnv
from openenv_gym.server.mcp import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from openenv_gym.server.openenv_env import Models, OpenEnvEnv

__all__ = ["Tools", "plain_result"]


class Tools:
    """The tools of one env.

    Args:
        env: the env.
        models: its models; None for a Gymnasium env, which has no tools.

    Raises:
        RpcError: if it has none.
    """

    def __init__(self, env: HostedEnv, models: Models | None) -> None:
        if not isinstance(env, OpenEnvEnv) or models is None:
            raise _no_tools()
        self._env = env
        self._client: Any = getattr(env.env, "mcp_client", None)
        self._server: Any = getattr(env.env, "mcp_server", None)
        self._actions = models.tool_actions
        if self._client is None and self._server is None and models.action not in self._actions.values():
            raise _no_tools()

    def listed(self) -> dict[str, Any]:
        """The result of ``tools/list``."""
        if self._client is not None:
            tools = self._asked(lambda client: client.list_tools())
            return {"tools": [plain_result(tool) if hasattr(tool, "model_dump") else dict(tool) for tool in tools]}
        if self._server is not None:
            return {"tools": [_described(tool) for tool in self._on_server().values()]}
        return {"tools": plain_result(self._step("list_tools", "tools/list", "ListToolsObservation").tools)}

    def called(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The result of ``tools/call``.

        Args:
            name: the tool's name.
            arguments: its arguments.

        Raises:
            RpcError: if there is no such tool; for some environments, what they raise themselves says that.
        """
        if self._client is not None:
            return plain_result(self._asked(lambda client: client.call_tool(name=name, arguments=arguments)))
        if self._server is None:
            return plain_result(
                self._step("call_tool", "tools/call", "CallToolObservation", tool_name=name, arguments=arguments)
            )
        tool = self._on_server().get(name)
        if tool is None:
            raise RpcError(INVALID_PARAMS, f"Tool not found: {name}")
        return plain_result(self._env.waited(tool.fn(**arguments)))

    def _asked(self, ask: Any) -> Any:
        async def connected() -> Any:
            async with self._client:  # counts how often it was entered, so this costs nothing in an open session
                return await ask(self._client)

        return self._env.waited(connected())

    def _on_server(self) -> dict[str, Any]:
        """The tools of a FastMCP server: version 2 has ``get_tools``, a dict, and version 3 ``list_tools``."""
        if hasattr(self._server, "get_tools"):
            found = self._env.waited(self._server.get_tools())
            if isinstance(found, dict):
                return found
        return {tool.name: tool for tool in self._env.waited(self._server.list_tools())}

    def _step(self, kind: str, method: str, expected: str, **fields: Any) -> Any:
        observation = self._env.step(self._actions[kind](**fields))[0]
        found = type(observation).__name__
        if found != expected:
            raise RpcError(INTERNAL_ERROR, f"MCP-style {method} step returned {found}, expected {expected}")
        return observation


def _no_tools() -> RpcError:
    return RpcError(INTERNAL_ERROR, "Environment does not support MCP")


def _described(tool: Any) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description or "", "inputSchema": tool.parameters or {}}


def plain_result(value: Any) -> Any:
    """What a tool or a task list gave, as JSON data; what has no other form is its text, as on OpenEnv's servers."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain_result(item) for item in value]
    if isinstance(value, dict):
        return {key: plain_result(item) for key, item in value.items()}
    if hasattr(value, "model_dump") and not inspect.isclass(value):
        return value.model_dump(mode="json")
    if hasattr(value, "__dict__"):
        return {key: plain_result(item) for key, item in vars(value).items()}
    return str(value)
