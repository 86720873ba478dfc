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

from openenv_gym.server import mcp
from openenv_gym.server.exact_messages import ExactResetMessage, refused_exactly
from openenv_gym.server.json_session import JsonSession
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
from openenv_gym.server.registry import Registry
from openenv_gym.server.session import Connection

__all__ = ["converse"]

logger = logging.getLogger(__name__)


async def converse(
    registry: Registry,
    connection: Connection,
    receive: Callable[[], Awaitable[str | bytes]],
    query: Mapping[str, str],
) -> None:
    """Serve one connection until its client says ``close``, or it breaks.

    Args:
        registry: the server's sessions.
        connection: where replies go, as text.
        receive: gives the next message; raises ConnectionError once the connection is gone.
        query: the URL's query parameters: ``num_envs``, and those of `openenv_gym.server.openenv_messages.Options`.
    """
    try:
        session = await _open(registry, query)
    except DialectError as error:
        await connection.send(_frame("error", error.data))
        await connection.close(1000, error.code)
        return
    try:
        await session.attach(connection)
        while await _serve(registry, session, connection, await receive()):
            pass
    finally:
        # Before the connection is closed: a client that waits for that, and then connects again, finds room.
        await asyncio.shield(session.close())
    await connection.close(1000, "closed")


async def _open(registry: Registry, query: Mapping[str, str]) -> JsonSession:
    count, options = options_from_query(query)
    if "session_id" in query:  # how a stock client names a session that it made over HTTP
        raise DialectError("SESSION_ERROR", f"Unknown session_id: {query['session_id']}")
    try:
        return await JsonSession.open(registry, count, options)
    except DialectError:
        raise
    except Exception as error:
        logger.exception("a session could not be opened")
        raise DialectError("SESSION_ERROR", str(error) or type(error).__name__) from None


async def _serve(registry: Registry, session: JsonSession, connection: Connection, text: str | bytes) -> bool:
    """Serve one message; False once the client has closed the session."""
    try:
        message = _read(text, exact=session.exact)
        if isinstance(message, CloseMessage):
            return False
        frame = _fitting(_frame(*await _answer(session, message)), registry.settings.max_message_bytes)
    except DialectError as error:
        frame = _frame("error", error.data)
    except Exception as error:  # a mistake of ours costs one reply, not the episode
        logger.exception("a message could not be served")
        frame = _frame("error", {"message": f"{type(error).__name__}: {error}", "code": "EXECUTION_ERROR"})
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


async def _answer(session: JsonSession, message: Message) -> tuple[str, dict[str, Any]]:
    """The type and data of a message's reply."""
    if isinstance(message, StepMessage):
        return "observation", await session.step(message.data)
    if isinstance(message, BatchStepMessage):
        return "observation", await session.batch_step(message.data)
    if isinstance(message, ExactResetMessage):
        return "observation", await session.reset_exactly(message.data)
    if isinstance(message, ResetMessage):
        return "observation", await session.reset(message.data)
    if isinstance(message, McpMessage):
        return "mcp", mcp.answer(message.data)
    assert isinstance(message, StateMessage)
    return "state", await session.state()


def _fitting(frame: bytes, limit: int) -> bytes:
    if len(frame) > limit:
        raise DialectError("MESSAGE_TOO_LARGE", "the reply is too large", size=len(frame), limit=limit)
    return frame


def _frame(kind: str, data: dict[str, Any]) -> bytes:
    return encoded({"type": kind, "data": data})
