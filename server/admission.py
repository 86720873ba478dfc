"""Keeps out what `openenv_gym.server.gate` refuses, and too large requests. An ASGI middleware, without a framework.

It stands before every route, so that a new one can't be forgotten.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from openenv_gym.server.gate import Asked, Gate
from openenv_gym.server.settings import ServerSettings

__all__ = ["Admission"]

# ASGI's own words: https://asgi.readthedocs.io/en/latest/specs/main.html
Scope: TypeAlias = MutableMapping[str, Any]
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)

_READING: Final = frozenset({"GET", "HEAD"})
_CODES: Final = {401: "UNAUTHORIZED", 403: "ORIGIN_NOT_ALLOWED", 408: "TOO_SLOW", 413: "MESSAGE_TOO_LARGE"}


class Admission:
    """Refuses requests, or hands them on.

    Args:
        app: the application behind it.
        gate: who is let in.
        settings: the server's settings, for the size and the time of a request.
        refused: told the code of each refusal.
    """

    def __init__(self, app: App, gate: Gate, settings: ServerSettings, refused: Callable[[str], None]) -> None:
        self._app = app
        self._gate = gate
        self._max_bytes = settings.max_message_bytes
        self._limit_s = settings.opening_timeout_s
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection, as ASGI calls it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._gate.refusal(_asked(scope, headers))
        if refusal is None and scope["type"] == "http":
            try:
                body = await asyncio.wait_for(self._body(headers, receive), self._limit_s)
            except ConnectionError:
                return  # nobody is left to answer
            except asyncio.TimeoutError:
                body, refusal = None, (408, f"the request didn't arrive within {self._limit_s:g} second(s)")
            if body is not None:
                receive = _replay(body, receive)
            elif refusal is None:
                refusal = 413, f"the request is larger than {self._max_bytes:,} bytes"
        if refusal is not None:
            self._refused(_CODES[refusal[0]])
            what = {"status": refusal[0], "path": scope["path"], "client": (scope.get("client") or ["?"])[0]}
            logger.info("a request was refused", extra=what)
            await _refuse(scope, send, *refusal)
            return
        await self._app(scope, receive, send)

    async def _body(self, headers: dict[str, str], receive: Receive) -> list[Event] | None:
        """A request's body as its events, or None if it is too large: frameworks read any amount into memory.

        Raises:
            ConnectionError: if the client leaves before its end.
        """
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            return None
        events: list[Event] = []
        size = 0
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise ConnectionError("the client has left")
            events.append(event)
            size += len(event.get("body", b""))
            if size > self._max_bytes:
                return None
            if not event.get("more_body", False):
                return events


def _asked(scope: Scope, headers: dict[str, str]) -> Asked:
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    if scope["type"] == "websocket":
        return Asked("connect", path, headers)
    return Asked("read" if scope["method"] in _READING else "write", path, headers)


def _replay(events: list[Event], receive: Receive) -> Receive:
    waiting = iter(events)

    async def replay() -> Event:
        for event in waiting:
            return event
        return await receive()

    return replay


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    prefix = ""
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": reason})  # becomes a bare 403
            return
        prefix = "websocket."
    headers = [(b"content-type", b"application/json")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    body = json.dumps({"detail": reason}).encode()
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": f"{prefix}http.response.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}http.response.body", "body": body})
