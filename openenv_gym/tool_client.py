"""`MCPToolClient`: an environment's tools, listed and called like functions, async or sync.

Tools are called with JSON-RPC requests of the Model Context Protocol inside the messages of the session on ``/ws``, as
OpenEnv's servers take them. So tools, `reset`, `step` and `state` all work on one and the same env, and nothing is left
behind on the server when the connection ends. For tool calls in many sessions at a time, `openenv_gym.RemoteVecEnv`
takes them as actions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from openenv_gym.client import EnvClient
from openenv_gym.errors import RemoteEnvError, RemoteProtocolError, ToolError, ToolNotFound

__all__ = ["MCPToolClient", "Tool"]

_Fields: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class Tool:
    """A tool, as its environment describes it.

    Attributes:
        name: its name.
        description: what it does.
        input_schema: the JSON schema of its arguments.
    """

    name: str
    description: str = ""
    input_schema: _Fields = field(default_factory=dict)

    @classmethod
    def read(cls, fields: _Fields) -> Tool:
        """The tool that a server lists; the Model Context Protocol and OpenEnv spell the schema's name differently."""
        schema = fields.get("inputSchema", fields.get("input_schema"))
        return cls(str(fields["name"]), str(fields.get("description") or ""), schema or {})


class MCPToolClient(EnvClient[Any, _Fields, _Fields]):
    """One session with an environment that has tools. Its arguments are those of `EnvClient`.

    Example:
        >>> async with MCPToolClient("http://localhost:8000") as client:  # doctest: +SKIP
        ...     tools = await client.list_tools()
        ...     text = await client.call_tool("echo_message", message="hello")
    """

    def _start_over(self) -> None:
        super()._start_over()
        self._tools: list[Tool] | None = None
        self._ids = itertools.count(1)

    async def list_tools(self, use_cache: bool = True) -> list[Tool]:
        """The environment's tools. No reset is needed before.

        Args:
            use_cache: give the last answer again, if there is one.

        Raises:
            RemoteEnvError: if the environment has no tools at all.
        """
        if self._tools is None or not use_cache:
            async with self._turn():
                if not self._connected:
                    await self._connect()
                answer = await self._request("tools/list", {})
            if "error" in answer:
                raise RemoteEnvError("MCP_ERROR", "", _text(answer["error"]))
            try:
                self._tools = [Tool.read(fields) for fields in answer["result"]["tools"]]
            except (KeyError, TypeError, AttributeError) as error:
                raise RemoteProtocolError(f"{self._target.url} sent no list of tools: {error!r}") from None
        return list(self._tools)

    async def get_tool(self, name: str) -> Tool | None:
        """The tool of this name, or None."""
        return next((tool for tool in await self.list_tools() if tool.name == name), None)

    async def has_tool(self, name: str) -> bool:
        """Whether there is a tool of this name."""
        return await self.get_tool(name) is not None

    async def call_tool(self, name: str, /, **arguments: Any) -> Any:
        """Call a tool. This is no step: it gives no reward, and only `step` with a ``call_tool`` action does.

        Args:
            name: the tool's name.
            **arguments: its arguments.

        Returns:
            what the tool gave, as JSON data.

        Raises:
            ToolNotFound: if there is no such tool; it is a ``LookupError``.
            ToolError: if the arguments don't fit, or the tool fails; it is a ``RuntimeError``.
            ReplyTimeout: after ``message_timeout_s``, and a reset is needed then.
            SessionLost: if the session is gone, and with it what tools have done; a reset is needed.
        """
        async with self._turn():
            await self._go_on()
            answer = await self._request("tools/call", {"name": name, "arguments": arguments})
        if "error" not in answer:
            result = answer.get("result")
            return result["data"] if isinstance(result, dict) and "data" in result else result
        message = _text(answer["error"])
        if all(tool.name != name for tool in await self.list_tools(use_cache=False)):
            raise ToolNotFound(name, message)
        raise ToolError(name, message)

    async def _request(self, method: str, params: _Fields) -> _Fields:
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        return await self._ask("mcp", request)


def _text(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
