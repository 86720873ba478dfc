"""OpenEnv's lasting sessions: made over HTTP, attached to by a WebSocket, and alive without one for a while.

A plain OpenEnv session ends with its connection. Since 0.10 a session can also be made by a JSON-RPC call to ``/mcp``
(openenv/core/env_server/http_server.py, ``openenv/session/create``), and ``/ws?session_id=...`` attaches to it, again
after a broken connection too. Whoever makes one must close it: by default nobody else does. While a WebSocket is
attached, closing means that the session ends when the WebSocket does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from openenv_gym.dial import Target
from openenv_gym.errors import CapacityError, remote_env_error
from openenv_gym.leftovers import owe, settled

__all__ = ["LastingSession", "attached", "can_create", "create", "destroy"]

_NOBODY: Final = "openenv-gym-asks-whether-you-know-sessions"
_LARGEST: Final = 1_000_000


@dataclass(frozen=True)
class LastingSession:
    """A session that was made.

    Attributes:
        name: its id.
        address: host and port of the server as numbers, for asyncio looks up names in a thread, and there are no new
            ones while the interpreter ends.
    """

    name: str
    address: tuple[str, int]


def attached(target: Target, name: str = _NOBODY) -> Target:
    """Where to attach to a session; without its id an address that a server with such sessions refuses."""
    query = urlencode({"session_id": name})
    return dataclasses.replace(target, url=f"{target.url}{'&' if '?' in target.url else '?'}{query}")


async def can_create(target: Target) -> bool:
    """Whether a server knows the calls; it is asked to close a session that doesn't exist."""
    answer, _ = await _call(target, "close", {"session_id": _NOBODY}, target.connect_timeout_s)
    return _NOBODY in str(_part(answer, "error").get("message"))


async def create(target: Target) -> LastingSession:
    """Make a session, however long the server takes for its env. It is closed if this process is killed.

    Raises:
        CapacityError: if the server has no room.
        RemoteEnvError: if it can't build the env.
    """
    answer, address = await _call(target, "create", {}, None)
    result, error = _part(answer, "result"), _part(answer, "error")
    if "session_id" in result:
        session = LastingSession(str(result["session_id"]), address)
        if target.ssl is None:  # TLS settings of the user's can't be told to another process
            parts = urlsplit(target.url)
            host = parts.hostname if parts.scheme == "wss" else None
            owe(session.name, address, host, _request(target, "close", {"session_id": session.name}))
        return session
    facts = _part(error, "data")
    if "max_sessions" in facts:
        raise CapacityError(target.url, facts.get("active_sessions"), facts["max_sessions"], 1, keeps_sessions=True)
    raise remote_env_error("FACTORY_ERROR", "", str(error.get("message", "")))


async def destroy(target: Target, session: LastingSession, timeout_s: float) -> None:
    """Close a session; never raises."""
    answer, _ = await _call(target, "close", {"session_id": session.name}, timeout_s, session.address)
    if "jsonrpc" in answer:
        settled(session.name)


async def _call(
    target: Target,
    method: str,
    params: dict[str, Any],
    timeout_s: float | None,
    address: tuple[str, int] | None = None,
) -> tuple[dict[str, Any], tuple[str, int]]:
    """The answer to a call, or an error that says why there is none; and the address that it came from.

    On the event loop and not in a thread, because it must work while the interpreter shuts down; HTTP 1.0, because
    its answers end where the connection ends.
    """
    parts = urlsplit(target.url)
    there = address or (parts.hostname or "", parts.port or (443 if parts.scheme == "wss" else 80))
    try:
        answer, there = await asyncio.wait_for(_post(target, _request(target, method, params), there), timeout_s)
        return msgspec.json.decode(answer, type=dict[str, Any]), there
    except (OSError, asyncio.TimeoutError, ValueError) as error:
        return {"error": {"message": f"{type(error).__name__}: {error}"}}, there


def _request(target: Target, method: str, params: dict[str, Any]) -> bytes:
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": f"openenv/session/{method}", "params": params})
    parts = urlsplit(target.url)
    headers = {
        "Host": parts.netloc.rpartition("@")[2],
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **target.all_headers(),
    }
    lines = [f"POST {parts.path.removesuffix('/ws')}/mcp HTTP/1.0", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def _post(target: Target, request: bytes, address: tuple[str, int]) -> tuple[bytes, tuple[str, int]]:
    parts = urlsplit(target.url)
    tls: dict[str, Any] = {}
    if parts.scheme == "wss":
        tls = {"ssl": target.ssl or ssl.create_default_context(), "server_hostname": parts.hostname}
    reader, writer = await asyncio.open_connection(*address, limit=_LARGEST, **tls)
    try:
        peer = writer.get_extra_info("peername")
        writer.write(request)
        await reader.readexactly(_LARGEST)
        raise ValueError("the answer is too large")
    except asyncio.IncompleteReadError as end:
        return end.partial.partition(b"\r\n\r\n")[2], peer[:2]
    finally:
        writer.close()


def _part(answer: dict[str, Any], name: str) -> dict[str, Any]:
    part = answer.get(name)
    return part if isinstance(part, dict) else {}
