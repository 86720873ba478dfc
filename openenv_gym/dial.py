"""Opens WebSockets: addresses, proxies and tokens in, a connection or one of our errors out."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidProxy,
    InvalidStatus,
    ProxyError,
    WebSocketException,
)
from websockets.typing import Subprotocol

from openenv_gym.errors import (
    ConnectFailed,
    ConnectionLost,
    MessageTooLarge,
    NotAWebSocket,
    OptionError,
    TransportError,
    Unauthorized,
)

__all__ = ["DEFAULT_URL", "SCHEMES", "Target", "default_url", "dial", "lost", "websocket_url"]

_HARMLESS: Final = frozenset({"host", "upgrade", "connection", "user-agent"})
_PLAIN: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
"""What OpenSSL calls an answer that isn't TLS."""
_wire: Final = logging.getLogger(f"{__name__}.wire")
"""What the websockets library says of the connections, such as each frame, at the level DEBUG."""

DEFAULT_URL: Final = "http://localhost:8000"
SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def default_url() -> str:
    """``$OPENENV_BASE_URL``, or the address that ``openenv-gym serve`` listens on."""
    return os.environ.get("OPENENV_BASE_URL") or DEFAULT_URL


def websocket_url(base_url: str) -> str:
    """The WebSocket endpoint of a server.

    Args:
        base_url: ``http``, ``https``, ``ws`` or ``wss``, with a path if the server has one, with or without ``/ws``.

    Raises:
        OptionError: if it isn't such a URL, or holds a password.
    """
    try:
        parts = urlsplit(base_url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise OptionError(f"{base_url!r} isn't a URL: {error}") from None
    if parts.scheme not in SCHEMES or not host:
        raise OptionError(f"{base_url!r} isn't a URL of a server; write it like {DEFAULT_URL} or wss://host/path")
    if parts.username is not None or parts.password is not None:  # it would show in every error and repr
        raise OptionError("a URL is no place for a password: pass token=... or headers=...")
    path = parts.path.rstrip("/")
    path = path if path.endswith("/ws") else f"{path}/ws"
    return urlunsplit(SplitResult(SCHEMES[parts.scheme], parts.netloc, path, parts.query, ""))


class Seat(Protocol):
    """A place on one of a launcher's servers; see `openenv_gym.placement`.

    Attributes:
        name: the server's name.
    """

    name: str

    async def resolve(self, *, anew: bool) -> str:
        """The URL for the next connection; see `Target.current`."""


@dataclass(frozen=True)
class Target:
    """A server, and how to talk to it.

    Attributes:
        url: its WebSocket endpoint.
        token: the bearer token; never shown.
        headers: more headers for the handshake; never shown, for a token may be among them.
        connect_timeout_s: limit for connection and handshake.
        max_message_bytes: the largest message in either direction.
        ping_interval_s: seconds between pings; None sends none.
        ping_timeout_s: seconds after which a missing pong breaks the connection; None waits for ever.
        ssl: TLS settings for ``wss``; None takes the system's.
        seat: gives the URL for the next connection, for servers that move; see `current`.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_timeout_s: float = 10.0
    max_message_bytes: int = 100 * 1024 * 1024
    ping_interval_s: float | None = 60.0
    ping_timeout_s: float | None = 60.0
    ssl: ssl.SSLContext | None = field(default=None, repr=False)
    seat: Seat | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        # Checked here, where nothing can quote it: a library's own error would show it.
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise OptionError("the token has characters that no header can carry, such as a line break at its end")

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine: the host itself is compared, never a part of its name."""
        host = urlsplit(self.url).hostname or ""
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    async def current(self, *, anew: bool) -> Target:
        """The same server where it is now.

        Args:
            anew: for a new session, which may be on another server if this one is gone; else to resume one.

        Raises:
            ConnectFailed: if nobody knows that now.
        """
        return self if self.seat is None else replace(self, url=await self.seat.resolve(anew=anew))

    def all_headers(self) -> dict[str, str]:
        """The handshake's headers, the token's among them."""
        authorization = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return {**authorization, **self.headers}


async def dial(
    target: Target, *, subprotocols: Sequence[str] = (), connection: type[ClientConnection] | None = None
) -> ClientConnection:
    """Open a WebSocket.

    Args:
        target: the server.
        subprotocols: subprotocols to offer.
        connection: the connection class.

    Returns:
        the open connection; its ``subprotocol`` is the one that the server chose, or None.

    Raises:
        ConnectFailed: if nothing listens there, the name is unknown, TLS fails, or the handshake takes too long.
        NotAWebSocket: if what answers isn't a WebSocket endpoint.
        Unauthorized: if the token is refused, or there is none, or perhaps no WebSocket endpoint.
        OptionError: if there are TLS settings for a URL without TLS.
    """
    if target.ssl is not None and not target.url.startswith("wss:"):
        raise OptionError(f"ca_file and ssl are for https:// and wss://, and {target.url} would not be encrypted")
    # Compression costs more than it saves on loopback and datacentre networks, and can't be a bomb when it's off.
    arguments: dict[str, Any] = {"ssl": target.ssl} if target.ssl is not None else {}
    if target.is_loopback:
        arguments["proxy"] = None  # for this connection only: the process's environment is nobody's to change
    try:
        return await connect(
            target.url,
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            additional_headers=target.all_headers(),
            open_timeout=target.connect_timeout_s,
            ping_interval=target.ping_interval_s,
            ping_timeout=target.ping_timeout_s,
            close_timeout=2,
            max_size=target.max_message_bytes,
            compression=None,
            logger=_wire,
            create_connection=connection,
            **arguments,
        )
    except (
        OSError,
        asyncio.TimeoutError,  # before Python 3.11 no OSError
        WebSocketException,
        EOFError,
        UnicodeError,  # a host that can't be one
        ImportError,  # a SOCKS proxy, which needs another package
    ) as error:
        raise _translated(target, error) from error


def _mask_header(record: logging.LogRecord) -> bool:
    """The websockets library logs all headers that it sends, and so the token."""
    if record.msg == "> %s: %s" and isinstance(record.args, tuple):
        name = str(record.args[0])
        if name.lower() not in _HARMLESS and not name.lower().startswith("sec-websocket-"):
            record.args = (name, "***")
    return True


_wire.addFilter(_mask_header)


def _translated(target: Target, error: Exception) -> TransportError:
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return ConnectFailed(target.url, f"no answer within {target.connect_timeout_s:g} second(s)")
    if isinstance(error, InvalidStatus):
        return _refused(target, error.response.status_code)
    if isinstance(error, ProxyError):
        return ConnectFailed(target.url, f"the proxy failed: {error}")
    if isinstance(error, InvalidProxy):  # its text would show the proxy's password
        return ConnectFailed(target.url, f"the proxy's URL isn't valid: {error.msg}")
    if isinstance(error, (InvalidMessage, EOFError)):
        return NotAWebSocket(target.url, _no_handshake(error, secure=target.url.startswith("wss")))
    if isinstance(error, InvalidHandshake):
        return NotAWebSocket(target.url, str(error))
    if isinstance(error, ConnectionClosed):  # before the handshake was sent
        return ConnectFailed(target.url, "the connection was closed at once")
    if isinstance(error, ssl.SSLError) and getattr(error, "reason", None) in _PLAIN:
        return NotAWebSocket(target.url, "it speaks no TLS: write http:// or ws://")
    return ConnectFailed(target.url, _reason(error))


def _refused(target: Target, status: int) -> ConnectFailed:
    if status in (401, 403):
        given = any(name.lower() == "authorization" for name in target.all_headers())
        return Unauthorized(target.url, f"HTTP {status}", given)
    if status == 503:
        return ConnectFailed(target.url, "HTTP 503, the server is overloaded or shutting down")
    return NotAWebSocket(target.url, f"HTTP {status}")


def _no_handshake(error: Exception, *, secure: bool) -> str:
    """What came instead of an answer to the handshake."""
    cause = error.__cause__ if isinstance(error, InvalidMessage) else error
    if isinstance(cause, EOFError):
        return "it closed the connection without an HTTP answer" + (
            "" if secure else "; if it speaks TLS, write https://"
        )
    if "HTTP/1.0" in str(cause):
        return "it speaks HTTP/1.0 only, which has no WebSockets"
    return "it doesn't speak HTTP"


def _reason(error: Exception) -> str:
    # Where a name has several addresses, asyncio raises one OSError with all their texts.
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "connection refused"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def lost(target: Target, error: BaseException) -> TransportError:
    """Our error for what ended an open connection."""
    if isinstance(error, ConnectionClosed):
        cause = error.__cause__
        if any(close is not None and close.code == 1009 for close in (error.sent, error.rcvd)):
            return MessageTooLarge(None, target.max_message_bytes, "max_message_size_mb")
        close = error.rcvd or error.sent
        if close is not None:
            reason = f", {close.reason}" if close.reason else ""
            return ConnectionLost(target.url, f"close code {int(close.code)}{reason}")
        return ConnectionLost(target.url, _reason(cause) if isinstance(cause, Exception) else "no close frame")
    return ConnectionLost(target.url, _reason(error) if isinstance(error, Exception) else type(error).__name__)
