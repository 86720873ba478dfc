"""Answers to requests of the Model Context Protocol, over HTTP and on WebSockets. No FastAPI here.

Methods: ``tools/list`` and ``tools/call``, in the session that the request or the connection names, else with a fresh
env that is closed again; and ``openenv/session/create`` and ``openenv/session/close``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from openenv_gym.server import mcp
from openenv_gym.server.adapters import HostedEnv
from openenv_gym.server.disclosure import disclosed
from openenv_gym.server.json_session import JsonSession
from openenv_gym.server.json_sessions import JsonSessions, UnknownSession
from openenv_gym.server.mcp import JsonRpcRequest, RpcError
from openenv_gym.server.openenv_messages import DialectError, Options, encoded
from openenv_gym.server.outlet import Connection
from openenv_gym.server.tools import Tools

__all__ = ["Owner", "answer", "answer_text", "converse"]

_FACTS: Final = ("active_sessions", "max_sessions", "factory_name")


class Owner:
    """The session that a connection has already, and its id if it was made over HTTP.

    Args:
        session: the session.
        name: the id; None for one that ends with its connection.

    Attributes:
        session: the session.
        name: the id; of a session that ends with its connection, one that gives nobody access to it.
        lasting: whether it was made over HTTP.
    """

    def __init__(self, session: JsonSession, name: str | None = None) -> None:
        self.session = session
        self.lasting = name is not None
        self.name = name or session.name


async def answer_text(sessions: JsonSessions, text: str | bytes, owner: Owner | None = None) -> dict[str, Any]:
    """The answer to a request as it arrived. Errors are answers too: JSON-RPC has no HTTP status of its own."""
    try:
        data = mcp.parsed(text)
    except RpcError as error:
        return mcp.refused(None, error)
    return await answer(sessions, data, owner)


async def answer(sessions: JsonSessions, data: Any, owner: Owner | None = None) -> dict[str, Any]:
    """The answer to a request that was parsed already.

    Args:
        sessions: the server's sessions.
        data: the request.
        owner: the session that it belongs to, if it came on a connection.
    """
    id = None
    try:
        request = mcp.request_of(data)
        id = request.id
        return mcp.answered(id, await _result(sessions, request, owner))
    except RpcError as error:
        return mcp.refused(id, error)
    except UnknownSession as error:
        return mcp.refused(id, RpcError(mcp.INVALID_PARAMS, error.data["message"]))
    except DialectError as error:
        return mcp.refused(id, _not_opened(error))
    except Exception as error:  # noqa: BLE001 - what a tool raises is an answer
        text = disclosed(str(error), debug=sessions.registry.settings.debug)
        return mcp.refused(id, RpcError(mcp.INTERNAL_ERROR, text))


async def converse(
    sessions: JsonSessions, connection: Connection, receive: Callable[[], Awaitable[str | bytes]]
) -> None:
    """Serve a connection that asks for nothing but tools, with an env of its own.

    Args:
        sessions: the server's sessions.
        connection: where answers go, as text.
        receive: gives the next message; raises ConnectionError once the connection is gone.
    """
    try:
        session = await sessions.open(1, Options())
    except DialectError as error:
        await connection.send(encoded(mcp.refused(None, _not_opened(error))))
        await connection.close(1000, error.code)
        return
    try:
        await session.attach(connection)
        while True:
            await connection.send(encoded(await answer_text(sessions, await receive(), Owner(session))))
    finally:
        await asyncio.shield(session.close())


async def _result(sessions: JsonSessions, request: JsonRpcRequest, owner: Owner | None) -> Any:
    method, params = request.method, request.params
    if method == "openenv/session/create":
        return {"session_id": owner.name if owner is not None else await sessions.create()}
    if method == "openenv/session/close":
        return await _close(sessions, params.get("session_id"), owner)
    if owner is not None:
        return await _with_tools(sessions, owner.session, request)
    if params.get("session_id"):
        return await _with_tools(sessions, sessions.find(params["session_id"]), request)
    session = await sessions.open(1, Options())
    try:
        return await _with_tools(sessions, session, request)
    finally:
        await asyncio.shield(session.close())


async def _close(sessions: JsonSessions, name: Any, owner: Owner | None) -> dict[str, Any]:
    if not name:
        raise RpcError(mcp.INVALID_PARAMS, "Invalid params - 'session_id' is required")
    if owner is not None and name == owner.name:
        raise RpcError(mcp.INVALID_REQUEST, "Cannot close active WebSocket-managed session via MCP method")
    if await sessions.close(name):
        return {"session_id": name, "closed": True}
    return {"session_id": name, "closed": False, "closing": True}


async def _with_tools(sessions: JsonSessions, session: JsonSession, request: JsonRpcRequest) -> Any:
    models, method, params = sessions.registry.source.known_models, request.method, request.params
    if method == "tools/list":
        return await session.visit(lambda env: Tools(env, models).listed())
    if method != "tools/call":
        raise RpcError(mcp.METHOD_NOT_FOUND, f"Method not found: {method}")
    if not params.get("name"):
        raise RpcError(mcp.INVALID_PARAMS, "Missing 'name' in params")

    def call(env: HostedEnv) -> Any:
        return Tools(env, models).called(params["name"], params.get("arguments", {}))

    return await session.visit(call)


def _not_opened(error: DialectError) -> RpcError:
    facts = {name: error.data[name] for name in _FACTS if name in error.data}
    return RpcError(mcp.SERVER_ERROR, error.data["message"], facts or None)
