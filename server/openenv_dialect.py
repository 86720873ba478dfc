"""A connection in the OpenEnv dialect: JSON text, one reply to each message, until it ends. No FastAPI here.

It speaks as OpenEnv 0.10 does (openenv/core/env_server/http_server.py, ``websocket_endpoint``), with one difference on
purpose: there a list, a binary frame or an action that a validator refuses ends the session; here each costs an error
reply.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import ValidationError

from openenv_gym.server import mcp_endpoint
from openenv_gym.server.exact_messages import ExactResetMessage, refused_exactly
from openenv_gym.server.json_results import Reported
from openenv_gym.server.json_sessions import JsonSessions
from openenv_gym.server.mcp_endpoint import Owner
from openenv_gym.server.openenv_messages import (
    MESSAGES,
    BatchStepMessage,
    CloseMessage,
    DialectError,
    McpMessage,
    Message,
    ResetMessage,
    StateMessage,
    StepMessage,
    encoded,
    misfit,
    options_from_query,
    refused,
)
from openenv_gym.server.session import Connection

__all__ = ["converse"]

logger = logging.getLogger(__name__)


async def converse(
    sessions: JsonSessions,
    connection: Connection,
    receive: Callable[[], Awaitable[str | bytes]],
    query: Mapping[str, str],
) -> None:
    """Serve one connection until its client says ``close``, or it breaks.

    Args:
        sessions: the server's sessions in this dialect.
        connection: where replies go, as text.
        receive: gives the next message; raises ConnectionError once the connection is gone.
        query: the URL's query parameters: ``num_envs``, those of `openenv_gym.server.openenv_messages.Options`, and
            ``session_id`` for a session that was made over HTTP.
    """
    try:
        owner = await _open(sessions, query)
    except DialectError as error:
        sessions.registry.counts.failed(error.code)
        logger.info("a session was refused", extra={"code": error.code, "reason": str(error)})
        await connection.send(_frame("error", error.data))
        await connection.close(1000, error.code)
        return
    try:
        await owner.session.attach(connection)
        while await _serve(sessions, owner, connection, await receive()):
            pass
    except ConnectionError:
        if not owner.lasting:
            owner.session.lost()
        raise
    finally:
        # Before the connection is closed: a client that waits for that, and then connects again, finds room.
        await asyncio.shield(_leave(sessions, owner, connection))
    await connection.close(1000, "closed")


async def _open(sessions: JsonSessions, query: Mapping[str, str]) -> Owner:
    count, options = options_from_query(query)
    name = query.get("session_id")
    if not name:
        return Owner(await sessions.open(count, options))
    if count > 1:
        raise misfit(["num_envs"], "a session that was made over HTTP has one env", count)
    return Owner(sessions.attach(name, options), name)


async def _leave(sessions: JsonSessions, owner: Owner, connection: Connection) -> None:
    if owner.lasting:
        owner.session.detach(connection)
        await sessions.detach(owner.name)
    else:
        await owner.session.close()


async def _serve(sessions: JsonSessions, owner: Owner, connection: Connection, text: str | bytes) -> bool:
    """Serve one message; False once the client has closed the session."""
    counts = owner.session.counts
    counts.received_bytes += len(text)
    try:
        message = _read(text, exact=owner.session.exact)
        if isinstance(message, CloseMessage):
            return False
        frame = _fitting(_frame(*await _answer(sessions, owner, message)), sessions.registry.settings.max_message_bytes)
    except DialectError as error:
        if not isinstance(error, Reported):
            counts.failed(error.code)
        frame = _frame("error", error.data)
    except Exception as error:  # a mistake of ours costs one reply, not the episode
        logger.exception("a message could not be served")
        counts.failed("EXECUTION_ERROR")
        frame = _frame("error", {"message": f"{type(error).__name__}: {error}", "code": "EXECUTION_ERROR"})
    counts.sent_bytes += len(frame)
    await connection.send(frame)
    return True


def _read(text: str | bytes, *, exact: bool) -> Message:
    """A client's message; ``exact`` for the messages, and the errors, of OpenEnv's own servers.

    Raises:
        DialectError: if it is none.
    """
    if isinstance(text, bytes):
        raise misfit([], "messages are text here; this one is binary", None)
    try:
        # Python's own decoder, because OpenEnv's clients send what its encoder writes, NaN included.
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DialectError("INVALID_JSON", f"Invalid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise misfit([], "a message is an object with a type and data", fields)
    kind = fields.get("type", "")
    form = MESSAGES.get(kind) if isinstance(kind, str) else None
    if exact and form is ResetMessage:
        form = ExactResetMessage
    if form is None:
        raise DialectError("UNKNOWN_TYPE", f"Unknown message type: {str(kind)[:100]}")
    try:
        return form.model_validate(fields)
    except ValidationError as error:
        raise (refused_exactly if exact else refused)(error.errors()) from None


async def _answer(sessions: JsonSessions, owner: Owner, message: Message) -> tuple[str, dict[str, Any]]:
    """The type and data of a message's reply."""
    session = owner.session
    if isinstance(message, StepMessage):
        return "observation", await session.step(message.data)
    if isinstance(message, BatchStepMessage):
        return "observation", await session.batch_step(message.data)
    if isinstance(message, ExactResetMessage):
        return "observation", await session.reset_exactly(message.data)
    if isinstance(message, ResetMessage):
        return "observation", await session.reset(message.data)
    if isinstance(message, McpMessage):
        return "mcp", await mcp_endpoint.answer(sessions, message.data, owner)
    assert isinstance(message, StateMessage)
    return "state", await session.state()


def _fitting(frame: bytes, limit: int) -> bytes:
    if len(frame) > limit:
        raise DialectError("MESSAGE_TOO_LARGE", "the reply is too large", size=len(frame), limit=limit)
    return frame


def _frame(kind: str, data: dict[str, Any]) -> bytes:
    return encoded({"type": kind, "data": data})
