"""What is wrong with a server, said before a training finds out: the checks behind ``openenv-gym doctor``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from openenv_gym.dial import Target, default_url, dial, websocket_url
from openenv_gym.discovery import fetch
from openenv_gym.errors import (
    CapacityError,
    ConnectFailed,
    FactoryError,
    NotAWebSocket,
    OpenEnvGymError,
    OptionError,
    ProtocolVersionError,
    RemoteEnvError,
    ReplyTimeout,
    SpaceError,
    Unauthorized,
)
from openenv_gym.examination import Finding, examine, look_at_spaces
from openenv_gym.json_channel import JsonChannel
from openenv_gym.messages import PROTOCOL_VERSION, SUBPROTOCOL, Close, Failed, Hello
from openenv_gym.protocol import ClientProtocol
from openenv_gym.vector_env import RemoteVecEnv
from openenv_gym.version import __version__

__all__ = ["diagnose"]

_PROXIES: Final = ("nginx", "cloudflare", "envoy", "caddy", "traefik", "haproxy", "awselb", "openresty", "apache")
_PONG_S: Final = 3.0
_CLOSE_S: Final = 2.0
_WITH_IT: Final = "pass the server's token with --token-env or --token-file, or set OPENENV_GYM_TOKEN"
_UPGRADE: Final = (
    "give the address of an environment server; a proxy before it must pass on WebSockets (nginx: proxy_http_version "
    "1.1, and the headers Upgrade and Connection)"
)
_FIXES: Final[list[tuple[type[Exception], str, str, str]]] = [
    (OptionError, "address", "", "write it like http://localhost:8000 or wss://host/path"),
    (Unauthorized, "token", "", _WITH_IT),
    (NotAWebSocket, "WebSocket", "", _UPGRADE),
    (
        CapacityError,
        "capacity",
        "",
        (
            "close clients that are done, or raise --max-envs (max_concurrent_envs on an OpenEnv server, which keeps "
            "the sessions of killed clients until it is restarted, unless its ConcurrencyConfig has a session_timeout)"
        ),
    ),
    (ProtocolVersionError, "version", "", "install the same version on both sides: pip install --upgrade openenv-gym"),
    (
        SpaceError,
        "spaces",
        "the env's spaces can't be inferred: ",
        "pass observation_space= and action_space=, or choose a field with obs_key= and action_key=",
    ),
    (
        FactoryError,
        "env",
        "",
        "build the env on the server's machine, and read the server's log (--debug shows tracebacks)",
    ),
    (
        ReplyTimeout,
        "env",
        "",
        "find out in the env why it takes long, or raise message_timeout_s= and reset_timeout_s=",
    ),
    (
        ConnectFailed,
        "reachable",
        "",
        "start a server there, check host and port, and let it listen for others with --host 0.0.0.0",
    ),
    (
        OpenEnvGymError,
        "env",
        "the env failed: ",
        "mend it on the server: its log has the traceback, and with --debug clients get it too",
    ),
]
"""Error -> the check that failed, words to put before it, and the fix. The first that fits."""


def diagnose(
    base_url: str | None = None,
    *,
    token: str | None = None,
    ca_file: Path | None = None,
    limit_s: float = 10.0,
    idle_s: float = 3.0,
) -> Iterator[Finding]:
    """Look at a server, and at one of its envs. It never raises, and always ends.

    Args:
        base_url: the server; None takes ``$OPENENV_BASE_URL``, else ``http://localhost:8000``.
        token: the bearer token; None takes ``$OPENENV_GYM_TOKEN``.
        ca_file: PEM file with the certificate authorities to trust; None takes the system's.
        limit_s: limit for each connection, each reply and each of four short episodes.
        idle_s: how long a connection is left alone, to see whether it is cut.

    Yields:
        what was found, as soon as it is. After an error, what depends on it is left out.
    """
    try:
        target = Target(
            websocket_url(base_url or default_url()),
            token or os.environ.get("OPENENV_GYM_TOKEN") or None,
            connect_timeout_s=limit_s,
            ping_interval_s=None,
            ssl=None if ca_file is None else ssl.create_default_context(cafile=ca_file),
        )
        findings, openenv = asyncio.run(_connection(target, limit_s, idle_s))
        yield from findings
        if not any(finding.level == "error" for finding in findings):
            yield from _env(target, openenv, limit_s)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        yield _failure(error)


def _failure(error: Exception) -> Finding:
    if isinstance(error, Unauthorized) and error.is_ambiguous:
        return Finding(
            "WebSocket", "error", _problem(error), f"write the server's address without a path, or {_WITH_IT}"
        )
    if isinstance(error, NotAWebSocket) and isinstance(error.__cause__, ssl.SSLError):
        return Finding("TLS", "error", str(error), "write the address with http:// or ws://, or serve with --tls-cert")
    if isinstance(error.__cause__ or error, (ssl.SSLError, FileNotFoundError, PermissionError)):  # or of ca_file
        fix = "pass --ca-file with the authority that signed the server's certificate, and the name that it is for"
        return Finding("TLS", "error", _problem(error), fix)
    if isinstance(error.__cause__, socket.gaierror):
        return Finding("reachable", "error", _problem(error), "check the host's name")
    for kind, check, before, fix in _FIXES:
        if isinstance(error, kind):
            return Finding(check, "error", f"{before}{_problem(error)}", fix)
    return Finding("env", "error", f"{type(error).__name__}: {error}", "please report this as a mistake of openenv-gym")


def _problem(error: Exception) -> str:
    """What an error says, without what it advises: the advice is the finding's fix here."""
    return str(error).partition("; ")[0] if isinstance(error, (ConnectFailed, OptionError)) else str(error)


def _env(target: Target, openenv: bool, limit_s: float) -> Iterator[Finding]:
    with RemoteVecEnv(
        target.url,
        1,
        token=target.token,
        ssl=target.ssl,
        connect_timeout_s=limit_s,
        message_timeout_s=limit_s,
        reconnect_timeout_s=0,
        on_lost="raise",
    ) as envs:
        if openenv:
            yield asyncio.run(_room(target))
        yield look_at_spaces(envs, openenv=openenv)
        yield from examine(envs, openenv=openenv, limit_s=limit_s)


async def _room(target: Target) -> Finding:
    """Whether an OpenEnv server, which doesn't say how many clients it admits, admits another one."""
    channel = JsonChannel(target)
    try:
        await channel.open()  # which asks for the state, and so brings out whether there is room
    except CapacityError:
        fix = "raise max_concurrent_envs, for each env is a client of its own"
        return Finding("capacity", "warning", "the server admits one client, and that is this check now", fix)
    except RemoteEnvError:
        pass  # it was admitted
    finally:
        await channel.close()
    return Finding("capacity", "ok", "a second client is admitted")


# ----------------------------------------------------------------------------------------------- the connection


async def _connection(target: Target, limit_s: float, idle_s: float) -> tuple[list[Finding], bool]:
    """What a connection shows, and whether the server speaks OpenEnv's dialect only."""
    connection = await dial(target, subprotocols=[SUBPROTOCOL])
    openenv = connection.subprotocol is None
    try:
        return [finding async for finding in _look(target, connection, limit_s, idle_s)], openenv
    finally:
        connection.transport.abort()


async def _look(target: Target, connection: ClientConnection, limit_s: float, idle_s: float) -> AsyncIterator[Finding]:
    yield Finding("reachable", "ok", f"{target.url} answers")
    yield await _token(target)
    yield _tls(target)
    protocol = ClientProtocol()
    try:
        yield await _dialect(connection, protocol, target, limit_s)
    except (OpenEnvGymError, asyncio.TimeoutError, WebSocketException) as error:
        timed_out = isinstance(error, (asyncio.TimeoutError, WebSocketException))
        yield _failure(ReplyTimeout("hello", target.url, limit_s) if timed_out else error)
        return
    capacity = await _capacity(target)
    if capacity is not None:
        yield capacity
    async for finding in _alive(connection, idle_s):
        yield finding
    yield _proxy(connection)
    # Or the session would take room until its grace time is over, and an OpenEnv server may have room for one only.
    welcomed = protocol.welcome is not None
    with contextlib.suppress(WebSocketException, asyncio.TimeoutError):
        await connection.send(protocol.send(Close(0))[1] if welcomed else '{"type": "close"}')
        await asyncio.wait_for(connection.wait_closed(), min(limit_s, _CLOSE_S))


async def _token(target: Target) -> Finding:
    if target.token is None:
        return Finding("token", "ok", "none was needed") if target.is_loopback else _open_to_all("none was needed")
    try:
        connection = await dial(replace(target, token=None), subprotocols=[SUBPROTOCOL])
    except ConnectFailed:
        return Finding("token", "ok", "accepted, and refused without it")
    connection.transport.abort()
    text = "accepted, but the server lets everybody in without one"
    return Finding("token", "ok", text) if target.is_loopback else _open_to_all(text)


def _open_to_all(text: str) -> Finding:
    return Finding("token", "warning", text, "give the server a token: --token-env or --token-file")


def _tls(target: Target) -> Finding:
    if urlsplit(target.url).scheme == "wss":
        return Finding("TLS", "ok", "the connection is encrypted, and the certificate is valid for this host")
    if target.is_loopback:
        return Finding("TLS", "ok", "not needed on this machine")
    fix = "serve with --tls-cert and --tls-key, or put a proxy with TLS before it"
    return Finding("TLS", "warning", "the token and all data travel in the clear", fix)


async def _dialect(connection: ClientConnection, protocol: ClientProtocol, target: Target, limit_s: float) -> Finding:
    if connection.subprotocol is None:
        about = await fetch(target, "/openapi.json") or {}
        info = about.get("info") or {}
        text = f"OpenEnv's, in JSON ({info.get('title', 'no name')}, interface {info.get('version', 'unknown')})"
        return Finding("protocol", "ok", f"{text}; this client is openenv-gym {__version__}")
    await connection.send(protocol.hello(Hello(version=PROTOCOL_VERSION, num_envs=1)))
    frame = await asyncio.wait_for(connection.recv(), limit_s)
    answer = protocol.answer(frame if isinstance(frame, bytes) else frame.encode())
    if isinstance(answer, Failed):
        if answer.code == "CAPACITY_REACHED":
            raise CapacityError(target.url, answer.facts.get("active"), answer.facts.get("maximum"), 1)
        raise OpenEnvGymError(f"{answer.message} ({answer.code})")
    assert protocol.welcome is not None
    text = f"{SUBPROTOCOL}, binary, version {PROTOCOL_VERSION}: {protocol.welcome.server} serves {protocol.welcome.env}"
    return Finding("protocol", "ok", f"{text}; this client is openenv-gym {__version__}")


async def _capacity(target: Target) -> Finding | None:
    health = await fetch(target, "/health") or {}
    active, maximum = health.get("active_envs"), health.get("max_envs")
    if not isinstance(active, int) or not isinstance(maximum, int):
        return None
    left = maximum - active
    text = f"{left} of {maximum} envs are free"
    if left >= 1:
        return Finding("capacity", "ok", f"{text}, while this check has one")
    return Finding("capacity", "warning", f"{text}, now that this check has the last one", "raise --max-envs")


async def _alive(connection: ClientConnection, idle_s: float) -> AsyncIterator[Finding]:
    try:
        seconds = await _pong(connection)
    except WebSocketException:
        return  # such as a full OpenEnv server, which says so when it is asked for an env
    except asyncio.TimeoutError:
        yield Finding(
            "keepalive",
            "error",
            "the server answers no WebSocket ping, so clients take it for dead after ping_timeout_s",
            "mend the server or the proxy before it; until then pass ping_timeout_s=None",
        )
        return
    yield Finding("round trip", "ok", f"{1000 * seconds:.2f} ms for a ping")
    try:
        await asyncio.wait_for(connection.wait_closed(), idle_s)
    except asyncio.TimeoutError:
        text = f"pings are answered, and a connection that is idle for {idle_s:g} s is kept"
        yield Finding("keepalive", "ok", text)
        return
    yield Finding(
        "keepalive",
        "error",
        f"an idle connection is cut within {idle_s:g} s",
        "raise the idle time-out of the server or the proxy before it (nginx: proxy_read_timeout), or pass a "
        "ping_interval_s= below it",
    )


async def _pong(connection: ClientConnection) -> float:
    """Seconds until a ping is answered."""
    began = time.perf_counter()
    await asyncio.wait_for(await connection.ping(), _PONG_S)
    return time.perf_counter() - began


def _proxy(connection: ClientConnection) -> Finding:
    headers: Any = connection.response.headers if connection.response is not None else {}
    said = f"{headers.get('server', '')} {headers.get('via', '')}".lower()
    found = next((name for name in _PROXIES if name in said), "a proxy" if "via" in headers else None)
    if found is None:
        return Finding("proxy", "ok", "none is named in the server's answer")
    return Finding(
        "proxy",
        "warning",
        f"{found} stands before the server; many cut a connection after 60 s without data",
        "let its idle time-out be well above ping_interval_s (60 s), or pass ping_interval_s=20",
    )
