"""OpenEnv's lasting sessions: made over HTTP, attached to by a WebSocket, and alive without one for a while.

A plain OpenEnv session ends with its connection. Since 0.10 a session can also be made by a JSON-RPC call to ``/mcp``
(openenv/core/env_server/http_server.py, ``openenv/session/create``), and ``/ws?session_id=...`` attaches to it, again
after a broken connection too. Whoever makes one must close it: by default nobody else does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from openenv_gym.dial import Target
from openenv_gym.errors import CapacityError, remote_env_error

__all__ = ["attached", "can_create", "create", "destroy"]

_NOBODY: Final = "openenv-gym-asks-whether-you-know-sessions"
_LARGEST: Final = 1_000_000


def attached(target: Target, session: str = _NOBODY) -> Target:
    """Where to attach to a session; without one an address that a server with such sessions refuses."""
    query = urlencode({"session_id": session})
    return dataclasses.replace(target, url=f"{target.url}{'&' if '?' in target.url else '?'}{query}")


async def can_create(target: Target) -> bool:
    """Whether a server knows the calls; it is asked to close a session that doesn't exist."""
    answer = await _call(target, "close", {"session_id": _NOBODY}, target.connect_timeout_s)
    return _NOBODY in str(_part(answer, "error").get("message"))


async def create(target: Target) -> str:
    """Make a session, however long the server takes for its env.

    Returns:
        its id.

    Raises:
        CapacityError: if the server has no room.
        RemoteEnvError: if it can't build the env.
    """
    answer = await _call(target, "create", {}, None)
    result, error = _part(answer, "result"), _part(answer, "error")
    if "session_id" in result:
        return str(result["session_id"])
    facts = _part(error, "data")
    if "max_sessions" in facts:
        raise CapacityError(target.url, facts.get("active_sessions"), facts["max_sessions"], 1)
    raise remote_env_error("FACTORY_ERROR", "", str(error.get("message", "")))


async def destroy(target: Target, session: str, timeout_s: float) -> None:
    """Close a session; never raises."""
    await _call(target, "close", {"session_id": session}, timeout_s)


async def _call(target: Target, method: str, params: dict[str, Any], timeout_s: float | None) -> dict[str, Any]:
    """The answer to a call, or an error that says why there is none.

    On the event loop and not in a thread, because it must work while the interpreter shuts down; HTTP 1.0, because
    its answers end where the connection ends.
    """
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": f"openenv/session/{method}", "params": params})
    try:
        answer = await asyncio.wait_for(_post(target, body), timeout_s)
        return msgspec.json.decode(answer, type=dict[str, Any])
    except (OSError, asyncio.TimeoutError, ValueError) as error:
        return {"error": {"message": f"{type(error).__name__}: {error}"}}


async def _post(target: Target, body: bytes) -> bytes:
    parts = urlsplit(target.url)
    secure = (target.ssl or ssl.create_default_context()) if parts.scheme == "wss" else None
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=_LARGEST)
    try:
        headers = {
            "Host": parts.netloc.rpartition("@")[2],
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **target.all_headers(),
        }
        lines = [f"POST {parts.path.removesuffix('/ws')}/mcp HTTP/1.0", *(f"{k}: {v}" for k, v in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        await reader.readexactly(_LARGEST)
        raise ValueError("the answer is too large")
    except asyncio.IncompleteReadError as end:
        return end.partial.partition(b"\r\n\r\n")[2]
    finally:
        writer.close()


def _part(answer: dict[str, Any], name: str) -> dict[str, Any]:
    part = answer.get(name)
    return part if isinstance(part, dict) else {}
