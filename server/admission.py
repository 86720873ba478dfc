"""Who may come in: the token, the Origin header, and the size of a request. An ASGI middleware, without a framework.

It stands before every route, so that a new one can't be forgotten; only ``/health`` is open to all.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from openenv_gym.server.settings import ServerSettings

__all__ = ["Admission"]

# ASGI's own words: https://asgi.readthedocs.io/en/latest/specs/main.html
Scope: TypeAlias = MutableMapping[str, Any]
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)

_OPEN: Final = "/health"
_CODES: Final = {401: "UNAUTHORIZED", 403: "ORIGIN_NOT_ALLOWED", 413: "MESSAGE_TOO_LARGE"}


class Admission:
    """Refuses requests, or hands them on.

    Args:
        app: the application behind it.
        settings: the server's settings.
        refused: told the code of each refusal.
    """

    def __init__(self, app: App, settings: ServerSettings, refused: Callable[[str], None]) -> None:
        self._app = app
        self._refused = refused
        self._token = settings.token.get_secret_value().encode() if settings.token is not None else None
        self._origins = frozenset(settings.allowed_origins)
        self._max_bytes = settings.max_message_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection, as ASGI calls it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is None and scope["type"] == "http":
            body = await self._body(headers, receive)
            if body is None:
                refusal = 413, f"the request is larger than {self._max_bytes:,} bytes"
            else:
                receive = _replay(body, receive)
        if refusal is not None:
            self._refused(_CODES[refusal[0]])
            what = {"status": refusal[0], "path": scope["path"], "client": (scope.get("client") or ["?"])[0]}
            logger.info("a request was refused", extra=what)
            await _refuse(scope, send, *refusal)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if scope["type"] == "http" and scope["path"].removeprefix(scope.get("root_path", "")) == _OPEN:
            return None
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins:
            return 403, "this origin isn't allowed"
        if self._token is not None:
            scheme, _, shown = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not secrets.compare_digest(shown.strip().encode(), self._token):
                return 401, "the token is missing or wrong"
        return None

    async def _body(self, headers: dict[str, str], receive: Receive) -> list[Event] | None:
        """A request's body as its events, or None if it is too large: frameworks read any amount into memory."""
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            return None
        events: list[Event] = []
        size = 0
        while True:
            event = await receive()
            events.append(event)
            size += len(event.get("body", b""))
            if size > self._max_bytes:
                return None
            if not event.get("more_body", False):
                return events


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
