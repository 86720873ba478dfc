"""The conversation with an agent that an OpenEnv environment wraps: turn after turn, as events. No FastAPI here.

Messages, texts and codes are those of OpenEnv 0.10 (openenv/core/env_server/http_server.py,
``_register_harness_route``, and openenv/core/harness/events.py); only a binary frame, which ends the session there,
costs an error reply here. The agent runs on the env's thread, in the env's own event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from openenv_gym.server.adapters import HostedEnv
from openenv_gym.server.json_session import JsonSession
from openenv_gym.server.json_sessions import JsonSessions
from openenv_gym.server.openenv_env import OpenEnvEnv
from openenv_gym.server.openenv_messages import DialectError, Options, encoded
from openenv_gym.server.outlet import Connection

__all__ = ["converse"]

logger = logging.getLogger(__name__)


class HarnessClientMessage(BaseModel):
    """What a client sends for one turn; its name stands in pydantic's texts, which clients see."""

    type: Literal["message"]
    content: str


class _Misread(Exception):
    """Raised for a message that starts no turn; the conversation goes on."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(code, problem)
        self.frame = _frame("protocol_error", {"message": problem, "code": code})


class _Left(Exception):
    """Raised in a turn that nobody listens to any more."""


async def converse(
    sessions: JsonSessions, connection: Connection, receive: Callable[[], Awaitable[str | bytes]]
) -> None:
    """Serve one connection with an env, and so an agent, of its own: until a turn fails, or it breaks.

    Args:
        sessions: the server's sessions.
        connection: where events go, as text.
        receive: gives the next message; raises ConnectionError once the connection is gone.
    """
    try:
        session = await sessions.open(1, Options())
    except DialectError as error:
        await connection.send(_frame("error", {"message": error.data["message"], "code": error.code}))
        await connection.close(1000, error.code)
        return
    try:
        await session.attach(connection)
        await _talk(session, connection, receive)
    except ConnectionError:
        raise
    except Exception:
        logger.exception("a conversation failed", extra={"session": session.name})
        await connection.send(_frame("error", {"message": "harness session failed", "code": "SESSION_ERROR"}))
    finally:
        await asyncio.shield(session.close())
    await connection.close(1000, "closed")


async def _talk(session: JsonSession, connection: Connection, receive: Callable[[], Awaitable[str | bytes]]) -> None:
    name = await session.visit(_begin)
    await connection.send(_frame("session_started", {"session_id": session.name, "harness": name}))
    while True:
        try:
            content = _content(await receive())
        except _Misread as error:
            await connection.send(error.frame)
            continue
        problem = await _turn(session, connection, content)
        if problem is not None:  # nobody knows what the agent does now, so the next one is a new one
            data = {"message": problem, "recoverable": False}
            await connection.send(encoded({"type": "error", "timestamp": time.time(), "data": data}))
            return


def _begin(env: HostedEnv) -> str:
    """Start the agent, and give its name."""
    env.reset()
    return str(_adapter(env).config.name)


def _adapter(env: HostedEnv) -> Any:
    assert isinstance(env, OpenEnvEnv)
    return env.env.adapter


def _content(text: str | bytes) -> str:
    try:
        if isinstance(text, bytes):
            raise _Misread("VALIDATION_ERROR", "Invalid message: messages are text here; this one is binary")
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Misread("INVALID_JSON", f"Invalid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise _Misread("VALIDATION_ERROR", "Invalid message: a message is an object with a type and content")
    try:
        return HarnessClientMessage.model_validate(fields).content
    except ValidationError as error:
        raise _Misread("VALIDATION_ERROR", f"Invalid message: {error}") from None


async def _turn(session: JsonSession, connection: Connection, content: str) -> str | None:
    """Run one turn, and send its events while it runs.

    Returns:
        what went wrong; None if nothing did.
    """
    loop, left = asyncio.get_running_loop(), False
    events: asyncio.Queue[str | None] = asyncio.Queue()

    def tell(event: str | None) -> None:  # on the env's thread
        if left:
            raise _Left
        loop.call_soon_threadsafe(events.put_nowait, event)

    def run(env: HostedEnv) -> Any:
        assert isinstance(env, OpenEnvEnv)
        return env.waited(_events(_adapter(env), content, tell))

    turn = asyncio.ensure_future(session.visit(run))
    turn.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            await connection.send(event.encode())
    except BaseException:
        left = True
        raise
    problem: str | None = turn.result()
    return problem


async def _events(adapter: Any, content: str, tell: Callable[[str], None]) -> str | None:
    """Hand on the events of one turn, on the env's thread; what went wrong, if something did."""

    async def stream() -> str | None:
        if not await adapter.is_alive():
            return "harness process is not running"
        last = None
        async for event in adapter.send_message_streaming(content):
            tell(event.model_dump_json())
            last = event.type
        return None if last == "turn_complete" else "harness event stream ended without a TURN_COMPLETE event"

    limit_s = adapter.config.session_timeout_s
    try:
        return await asyncio.wait_for(stream(), limit_s)
    except _Left:
        return None
    except asyncio.TimeoutError:
        return f"harness turn exceeded {limit_s} seconds"
    except Exception as error:
        if any(kind.__name__ == "HarnessNotRunningError" for kind in type(error).__mro__):
            return "harness process is not running"
        logger.exception("an agent's turn failed")  # its text may hold what clients mustn't see
        return "harness turn failed"


def _frame(kind: str, data: dict[str, Any]) -> bytes:
    return encoded({"type": kind, "data": data})
