"""Opening a WebSocket: addresses, proxies and tokens in, a connection or one of our errors out, on real sockets."""

import asyncio
import contextlib
import os
import socket
import ssl
import time

import pytest
from helpers_server import nobody
from helpers_wait import LIMIT_S
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK, InvalidProxy, WebSocketException
from websockets.frames import Close

from openenv_gym import RemoteVecEnv
from openenv_gym.dial import Target, default_url, dial, lost, websocket_url
from openenv_gym.errors import ConnectFailed, ConnectionLost, MessageTooLarge, NotAWebSocket, OptionError, Unauthorized

SECRET = "s3cr3t"
HANG_UP = b""
NO_SERVER = "isn't a URL of a server; write it like http://localhost:8000 or wss://host/path"


def status(line):
    return b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % line


@contextlib.asynccontextmanager
async def answering(reply, heard=None):
    """The port of a server that reads a request's head and answers with these bytes; None: never."""

    tasks = []

    async def handle(reader, writer):
        tasks.append(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            if heard is not None:
                heard.append(head.decode())
            if reply is None:
                await reader.read()  # until the client gives up
            else:
                writer.write(reply)
                await writer.drain()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            await asyncio.gather(*tasks)


@contextlib.asynccontextmanager
async def websocket_server(handler, **options):
    """The URL of a WebSocket server."""
    async with serve(handler, "127.0.0.1", 0, **options) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/ws"


def failure(reply, **options):
    """The kind of error for a server that answers like this, and its reason."""

    async def run():
        async with answering(reply) as port:
            url = f"ws://127.0.0.1:{port}/ws"
            with pytest.raises(ConnectFailed) as caught:
                await dial(Target(url, token=SECRET, headers={"X-Key": SECRET}, **options))
            assert caught.value.url == url
            return caught.value

    error = asyncio.run(run())
    assert SECRET not in f"{error!r} {error} {error.__cause__!r}"
    return type(error), error.reason


# ---------------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "base_url, url",
    [
        ("http://a", "ws://a/ws"),
        ("https://a", "wss://a/ws"),
        ("ws://a", "ws://a/ws"),
        ("wss://a", "wss://a/ws"),
        ("HTTP://a:80/", "ws://a:80/ws"),
        ("http://a/ws", "ws://a/ws"),
        ("http://a/ws/", "ws://a/ws"),
        ("http://a/news", "ws://a/news/ws"),
        ("https://a/one/two/", "wss://a/one/two/ws"),
        ("http://[::1]:8000", "ws://[::1]:8000/ws"),
        ("http://a/x?q=1#top", "ws://a/x/ws?q=1"),
    ],
)
def test_websocket_urls(base_url, url):
    assert websocket_url(base_url) == url
    assert websocket_url(url) == url


@pytest.mark.parametrize(
    "base_url, text",
    [
        ("", f"'' {NO_SERVER}"),
        ("localhost:8000", f"'localhost:8000' {NO_SERVER}"),
        ("ftp://a", f"'ftp://a' {NO_SERVER}"),
        ("http://", f"'http://' {NO_SERVER}"),
        ("//a", f"'//a' {NO_SERVER}"),
        ("http://a:99999", "'http://a:99999' isn't a URL: Port out of range 0-65535"),
        ("http://[::1", "'http://[::1' isn't a URL: Invalid IPv6 URL"),
    ],
)
def test_what_is_no_url(base_url, text):
    with pytest.raises(OptionError) as caught:
        websocket_url(base_url)
    assert str(caught.value) == text


def test_the_default_url(monkeypatch):
    monkeypatch.setenv("OPENENV_BASE_URL", "http://there")
    assert default_url() == "http://there"
    monkeypatch.delenv("OPENENV_BASE_URL")
    assert default_url() == "http://localhost:8000"


@pytest.mark.parametrize(
    "host, loopback",
    [
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("127.0.0.1:8000", True),
        ("127.9.9.9", True),
        ("[::1]:8000", True),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("notlocalhost", False),
        ("localhost@example.com", False),
        ("example.com/localhost", False),
        ("192.168.0.1", False),
        ("[::2]", False),
    ],
)
def test_loopback_is_told_by_the_whole_host(host, loopback):
    assert Target(f"ws://{host}/ws").is_loopback is loopback


def test_a_target_shows_no_secrets():
    target = Target("ws://a/ws", SECRET, {"X-Key": SECRET})
    assert SECRET not in f"{target!r} {target}"
    assert target.all_headers() == {"Authorization": f"Bearer {SECRET}", "X-Key": SECRET}
    assert Target("ws://a/ws").all_headers() == {}
    assert Target("ws://a/ws", "t", {"Authorization": "Basic x"}).all_headers() == {"Authorization": "Basic x"}


# -------------------------------------------------------------------------------------------- connections


def test_what_the_handshake_says():
    async def run():
        async def handler(connection):
            heard.update(connection.request.headers.raw_items())
            await connection.wait_closed()

        heard = {}
        async with websocket_server(handler, subprotocols=["two"]) as url:
            target = Target(url, token=SECRET, headers={"X-One": "1"}, max_message_bytes=9, ping_interval_s=None)
            connection = await dial(target, subprotocols=["one", "two"])
            assert connection.subprotocol == "two"
            assert connection.protocol.extensions == []
            await connection.close()
        return heard

    heard = asyncio.run(run())
    assert (heard["Authorization"], heard["X-One"]) == (f"Bearer {SECRET}", "1")
    assert heard["Sec-WebSocket-Protocol"] == "one, two"
    assert "Sec-WebSocket-Extensions" not in heard


def test_nothing_listens():
    begin = time.monotonic()
    with nobody() as url, pytest.raises(ConnectFailed) as caught:
        asyncio.run(dial(Target(websocket_url(url), connect_timeout_s=2 * LIMIT_S)))
    assert time.monotonic() - begin < LIMIT_S
    assert type(caught.value) is ConnectFailed
    assert caught.value.reason == "connection refused"
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("host", ["a" * 64, f"{'a' * 64}.example.invalid", "..invalid"])
def test_a_name_that_cannot_be(host, proxied):
    proxied(None)
    with pytest.raises(ConnectFailed):
        asyncio.run(dial(Target(websocket_url(f"http://{host}"))))


REFUSED = "[Errno 111] Connect call failed ('::1', 1, 0, 0)"


@pytest.mark.parametrize(
    "error, kind, reason",
    [
        (ConnectionRefusedError(111, "Connect call failed"), ConnectFailed, "connection refused"),
        (OSError(f"Multiple exceptions: {REFUSED}, {REFUSED}"), ConnectFailed, "connection refused"),
        (OSError(113, "Connect call failed"), ConnectFailed, "OSError: [Errno 113] Connect call failed"),
        (socket.gaierror(-2, "Name unknown"), ConnectFailed, "gaierror: [Errno -2] Name unknown"),
        (ssl.SSLCertVerificationError("self-signed"), ConnectFailed, "SSLCertVerificationError: ('self-signed',)"),
        (TimeoutError("timed out"), ConnectFailed, "no answer within 10 second(s)"),
        (asyncio.TimeoutError(), ConnectFailed, "no answer within 10 second(s)"),
        (InvalidProxy(f"x://me:{SECRET}@p", "no such"), ConnectFailed, "the proxy's URL isn't valid: no such"),
        (ImportError("SOCKS needs python-socks"), ConnectFailed, "ImportError: SOCKS needs python-socks"),
        (UnicodeError("label too long"), ConnectFailed, "UnicodeError: label too long"),
        (ConnectionClosedError(None, None), ConnectFailed, "the connection was closed at once"),
        (WebSocketException("something new"), ConnectFailed, "WebSocketException: something new"),
        (
            EOFError(),
            NotAWebSocket,
            "it closed the connection without an HTTP answer; if it speaks TLS, write https://",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_becomes_one_of_ours(monkeypatch, error, kind, reason):
    async def connect(*args, **kwargs):
        raise error

    monkeypatch.setattr("openenv_gym.dial.connect", connect)
    with pytest.raises(ConnectFailed) as caught:
        asyncio.run(dial(Target("ws://a/ws")))
    assert (type(caught.value), caught.value.reason) == (kind, reason)
    assert caught.value.__cause__ is error


def test_another_server_gets_no_token_by_a_redirect():
    async def run():
        async def handler(connection):
            heard.append(connection.request.headers.get("Authorization"))
            await connection.wait_closed()

        heard = []
        async with websocket_server(handler) as url:
            moved = b"HTTP/1.1 307 Moved\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % url.encode()
            async with answering(moved, heads) as port:
                connection = await dial(Target(f"ws://127.0.0.1:{port}/ws", token=SECRET))
                await connection.close()
        return heard

    heads = []
    assert asyncio.run(run()) == [None]
    assert f"Bearer {SECRET}" in heads[0]


GARBAGE = "it doesn't speak HTTP"
SILENCE = "it closed the connection without an HTTP answer; if it speaks TLS, write https://"


@pytest.mark.parametrize(
    "reply, kind, reason",
    [
        (status(b"404 Not Found"), NotAWebSocket, "HTTP 404"),
        (status(b"200 OK"), NotAWebSocket, "HTTP 200"),
        (status(b"401 Unauthorized"), Unauthorized, "HTTP 401"),
        (status(b"403 Forbidden"), Unauthorized, "HTTP 403"),
        (status(b"500 Oops"), NotAWebSocket, "HTTP 500"),
        (
            status(b"503 Service Unavailable"),
            ConnectFailed,
            "HTTP 503, the server is overloaded or shutting down",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n", NotAWebSocket, GARBAGE),
        (b"\x00\xff" * 100, NotAWebSocket, SILENCE),
        (HANG_UP, NotAWebSocket, SILENCE),
        (b"HTTP/1.0 404 Not Found\r\n\r\n", NotAWebSocket, "it speaks HTTP/1.0 only, which has no WebSockets"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", NotAWebSocket, "missing Connection header"),
    ],
    ids=["404", "200", "401", "403", "500", "503", "ssh", "bytes", "hang-up", "HTTP/1.0", "half a handshake"],
)
def test_what_else_answers(reply, kind, reason):
    assert failure(reply) == (kind, reason)


@pytest.mark.parametrize(
    "headers, token, given",
    [({}, None, False), ({}, SECRET, True), ({"authorization": f"Bearer {SECRET}"}, None, True)],
)
def test_who_is_refused_without_a_token_is_told_so(headers, token, given):
    async def run():
        async with answering(status(b"401 Unauthorized"), []) as port:
            with pytest.raises(Unauthorized) as caught:
                await dial(Target(f"ws://127.0.0.1:{port}/ws", token, headers))
            return caught.value

    error = asyncio.run(run())
    assert error.given is given
    assert ("none was given" in str(error)) is not given


def test_a_server_without_tls():
    async def refuse(reader, writer):
        await reader.read(100)
        writer.write(status(b"400 Bad Request"))
        await writer.drain()
        writer.close()

    async def run():
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(NotAWebSocket, match="it speaks no TLS: write http://"):
                await dial(Target(f"wss://127.0.0.1:{port}/ws"))

    asyncio.run(run())


def test_nobody_answers():
    assert failure(None, connect_timeout_s=0.1) == (ConnectFailed, "no answer within 0.1 second(s)")


@pytest.mark.parametrize("token", [f"{SECRET}\n", f"{SECRET}☃"], ids=ascii)
def test_a_token_that_no_header_can_carry_is_not_shown(token):
    with pytest.raises(OptionError, match="the token has characters that no header can carry") as caught:
        Target("ws://127.0.0.1:1/ws", token=token)
    assert SECRET not in f"{caught.value!r} {caught.value} {caught.value.__cause__}"


def test_tls_settings_without_tls_are_refused():
    with pytest.raises(OptionError, match=r"are for https:// and wss://, and ws://a:1/ws would not be encrypted"):
        RemoteVecEnv("http://a:1", ssl=ssl.create_default_context())


def test_a_url_is_no_place_for_a_password():
    with pytest.raises(OptionError, match="no place for a password") as caught:
        websocket_url(f"http://user:{SECRET}@host")
    assert SECRET not in str(caught.value)


# ------------------------------------------------------------------------------------------------ proxies


@pytest.fixture
def proxied(monkeypatch):
    """Sets the process's proxy for everything, by its URL; None: no proxy."""

    def use(url):
        for name in ("http_proxy", "https_proxy", "all_proxy", "socks_proxy", "ws_proxy", "wss_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        for name in ("http_proxy", "https_proxy") if url is not None else ():
            monkeypatch.setenv(name, url)

    return use


def test_loopback_needs_no_proxy_and_the_environment_stays(proxied):
    async def run():
        async with websocket_server(lambda connection: connection.wait_closed()) as url:
            await (await dial(Target(url))).close()

    with nobody() as proxy:
        proxied(proxy)
        before = dict(os.environ)
        asyncio.run(run())
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    "reply, reason",
    [
        (status(b"403 Forbidden"), "the proxy failed: proxy rejected connection: HTTP 403"),
        (b"nonsense\r\n", "the proxy failed: did not receive a valid HTTP response from proxy"),
    ],
    ids=["refusal", "nonsense"],
)
def test_other_hosts_are_reached_through_the_proxy(proxied, reply, reason):
    async def run():
        async with answering(reply, heard) as port:
            proxied(f"http://127.0.0.1:{port}")
            with pytest.raises(ConnectFailed) as caught:
                await dial(Target("ws://localhost.example.invalid:81/ws", token=SECRET))
            return caught.value

    heard = []
    error = asyncio.run(run())
    assert (type(error), error.reason) == (ConnectFailed, reason)
    assert heard[0].startswith("CONNECT localhost.example.invalid:81 ")
    assert SECRET not in heard[0]


# ------------------------------------------------------------------------------------------ lost connections

TARGET = Target("ws://a/ws", SECRET, max_message_bytes=2048)


@pytest.mark.parametrize(
    "error, reason",
    [
        (ConnectionClosedOK(Close(1000, ""), Close(1000, ""), True), "close code 1000"),
        (ConnectionClosedError(Close(1001, "going away"), None), "close code 1001, going away"),
        (ConnectionClosedError(Close(1011, "theirs"), Close(1002, "ours"), False), "close code 1011, theirs"),
        (ConnectionClosedError(None, Close(1011, "keepalive ping timeout")), "close code 1011, keepalive ping timeout"),
        (ConnectionClosedError(None, None), "no close frame"),
        (ConnectionResetError(104, "reset by peer"), "ConnectionResetError: [Errno 104] reset by peer"),
        (EOFError(), "EOFError"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
    ids=str,
)
def test_lost(error, reason):
    ours = lost(TARGET, error)
    assert type(ours) is ConnectionLost
    assert (ours.url, ours.reason) == ("ws://a/ws", reason)


def test_lost_without_a_close_frame_tells_the_cause():
    error = ConnectionClosedError(None, None)
    error.__cause__ = ConnectionResetError("reset by peer")
    assert lost(TARGET, error).reason == "ConnectionResetError: reset by peer"


@pytest.mark.parametrize("sent, received", [(None, Close(1009, "")), (Close(1009, ""), None)])
def test_close_code_1009_is_a_message_over_the_limit(sent, received):
    ours = lost(TARGET, ConnectionClosedError(received, sent))
    assert isinstance(ours, MessageTooLarge)
    assert str(ours) == (
        "a message is over the limit of 2,048 bytes; raise max_message_size_mb on both sides, or trim the observation"
    )


@pytest.mark.parametrize("reader", ["client", "server"])
def test_a_real_message_over_the_limit(reader):
    async def run():
        async def handler(connection):
            if reader == "client":
                await connection.send(b"x" * 100)
            await connection.wait_closed()

        async with websocket_server(handler, max_size=99) as url:
            target = Target(url, max_message_bytes=99)
            connection = await dial(target)
            if reader == "server":
                await connection.send(b"x" * 100)
            await connection.wait_closed()
            return lost(target, connection.protocol.close_exc)

    assert isinstance(asyncio.run(run()), MessageTooLarge)
