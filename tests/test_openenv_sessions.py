"""Sessions that outlive a connection, on OpenEnv's own server and on servers that know no such thing."""

import asyncio
import contextlib
import dataclasses
from urllib.parse import urlsplit

import pytest
from helpers_faults import FaultProxy
from helpers_server import running
from helpers_tally import Tally
from helpers_wait import LIMIT_S

from openenv_gym import openenv_sessions
from openenv_gym.dial import Target, websocket_url
from openenv_gym.errors import CapacityError, RemoteEnvError
from openenv_gym.json_channel import JsonChannel
from openenv_gym.server import create_app


@pytest.fixture(scope="module")
def openenv():
    return pytest.importorskip("helpers_openenv")


def target(url, **options):
    return Target(websocket_url(url), **options)


def answering(text, status="200 OK"):
    """An HTTP server that gives one answer to everybody: its port, and what it was asked."""
    asked, answered = [], asyncio.Event()

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        asked.append((head.decode(), await reader.readexactly(length)))
        writer.write(f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\n\r\n{text}".encode())
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        answered.set()

    async def listen():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]

    return listen, asked, answered


def ask(function, text, *args, **options):
    """Call a function with a target that answers so."""

    async def main():
        listen, asked, answered = answering(text)
        server, port = await listen()
        try:
            return await function(target(f"http://127.0.0.1:{port}/base", **options), *args), asked
        finally:
            await answered.wait()
            server.close()

    return asyncio.run(main())


def test_a_session_is_made_attached_to_and_closed(openenv):
    async def main(url):
        here = target(url)
        assert await openenv_sessions.can_create(here)
        session = await openenv_sessions.create(here)
        assert len(openenv.Count.live) == 1
        for _ in range(2):
            channel = JsonChannel(openenv_sessions.attached(here, session.name))
            await channel.open()
            await channel.ask({"type": "reset", "data": {}})
            await channel.close(LIMIT_S)
        assert len(openenv.Count.live) == 1
        with pytest.raises(CapacityError, match="1 of 1 are in use"):
            await openenv_sessions.create(here)
        await openenv_sessions.destroy(here, session, LIMIT_S)
        assert not openenv.Count.live
        await openenv_sessions.destroy(here, session, LIMIT_S)

    with openenv.stock_server(max_envs=1) as url:
        asyncio.run(main(url))


def test_our_server_has_them():
    with running(create_app(Tally)) as url:
        assert asyncio.run(openenv_sessions.can_create(target(url)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Not Found",
        "[]",
        '{"jsonrpc": "2.0", "error": null, "result": {"closed": true}}',
        '{"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}}',
        '{"error": "no"}',
        '{"detail": "Not Found"}',
    ],
)
def test_other_servers_have_none(text):
    assert not ask(openenv_sessions.can_create, text)[0]


def test_nothing_listens():
    with FaultProxy(1) as proxy:
        proxy.refuse()
        assert not asyncio.run(openenv_sessions.can_create(target(proxy.url)))


def test_a_server_that_does_not_answer_is_not_waited_for():
    async def main():
        left = asyncio.Event()

        async def deaf(reader, writer):
            await reader.read()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            left.set()

        server = await asyncio.start_server(deaf, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert not await openenv_sessions.can_create(target(f"http://127.0.0.1:{port}", connect_timeout_s=0.1))
        await left.wait()
        server.close()

    asyncio.run(main())


def test_the_call_goes_beside_the_websocket_with_the_token():
    async def destroy(target):
        session = openenv_sessions.LastingSession("s1", ("127.0.0.1", urlsplit(target.url).port))
        nowhere = dataclasses.replace(target, url="ws://no.such.host.invalid/base/ws")  # it is known already
        await openenv_sessions.destroy(nowhere, session, 5.0)

    (_, asked) = ask(destroy, "{}", token="secret")
    ((head, body),) = asked
    assert head.startswith("POST /base/mcp HTTP/1.0\r\n")
    assert "Host: no.such.host.invalid\r\n" in head
    assert "Authorization: Bearer secret\r\n" in head
    assert body == b'{"jsonrpc":"2.0","id":1,"method":"openenv/session/close","params":{"session_id":"s1"}}'


@pytest.mark.parametrize("text", ['{"error": {"message": "boom"}}', "{}", "nonsense", '{"result": {"other": 1}}'])
def test_a_session_that_cannot_be_made_is_told(text):
    with pytest.raises(RemoteEnvError):
        ask(openenv_sessions.create, text)


def test_an_answer_without_end_is_not_read():
    assert not ask(openenv_sessions.can_create, "x" * 2_000_000)[0]


def test_the_address_of_a_session():
    here = target("http://host/base?token=1")
    assert openenv_sessions.attached(here, "a b").url == "ws://host/base/ws?token=1&session_id=a+b"
