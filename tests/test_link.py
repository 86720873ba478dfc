"""`FrameConnection` against a real WebSocket server."""

import asyncio
import re
import socket
import struct

import pytest
from helpers_wait import until
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed
from websockets.utils import accept_key

from openenv_gym.dial import Target, dial
from openenv_gym.link import FrameConnection
from openenv_gym.messages import Received

DEADLINE_S = 20


def with_connection(test, **options):
    """Run a coroutine function with a connection and the server's end of it."""

    async def run():
        arrived = asyncio.get_running_loop().create_future()

        async def handler(connection):
            arrived.set_result(connection)
            await connection.wait_closed()

        async with serve(handler, "127.0.0.1", 0, compression=None) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            connection = await dial(Target(f"ws://127.0.0.1:{port}/ws", **options), connection=FrameConnection)
            await test(connection, await arrived)
            await connection.hang_up(1)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


async def settle(connection):
    """Wait until all that the server has sent so far is here: the answer to a ping comes after it."""
    await (await connection.ping())


class Listener:
    """Keeps what it is told, in order."""

    def __init__(self, connection):
        self.told, self.lost = [], asyncio.Event()
        connection.listen(self.told.append, self.on_lost)

    def on_lost(self, error):
        assert isinstance(error, ConnectionClosed)
        self.told.append(error.rcvd and error.rcvd.code)
        self.lost.set()


# ----------------------------------------------------------------------------------------------- messages


def test_messages_in_both_directions():
    async def test(connection, server):
        listener = Listener(connection)
        connection.write(b"\x00\xff")
        connection.write_text("é".encode())
        assert [await server.recv(), await server.recv()] == [b"\x00\xff", "é"]
        for message in (b"\x01\xfe", "ü", b""):
            await server.send(message)
        await settle(connection)
        assert listener.told == [b"\x01\xfe", "ü".encode(), b""]
        assert all(isinstance(message, Received) for message in listener.told)

    with_connection(test)


@pytest.mark.parametrize(
    "fragments, message",
    [
        ([b"a", b"b", b"c"], b"abc"),
        (["a", "é", "c"], "aéc".encode()),
        ([b"", b"x"], b"x"),
        ([b"a" * 70_000, b"b" * 70_000], b"a" * 70_000 + b"b" * 70_000),
        ([b"a"] * 100_000, b"a" * 100_000),
    ],
    ids=["binary", "text", "empty", "large", "many"],
)
def test_fragments_are_joined(fragments, message):
    async def test(connection, server):
        listener = Listener(connection)
        await server.send(fragments)
        await server.send(b"whole")
        await server.send(fragments)
        await settle(connection)
        assert listener.told == [message, b"whole", message]

    with_connection(test)


def test_control_frames_may_come_between_fragments():
    async def test(connection, server):
        async def parts():
            yield b"a"
            await (await server.ping())
            assert listener.told == []
            yield b"b"

        listener = Listener(connection)
        await server.send(parts())
        await settle(connection)
        assert listener.told == [b"ab"]

    with_connection(test)


def test_messages_before_listen_are_told_at_listen():
    async def test(connection, server):
        await server.send(b"1")
        await server.send([b"2", b"3"])
        await settle(connection)
        listener = Listener(connection)
        assert listener.told == [b"1", b"23"]
        await server.send(b"4")
        await settle(connection)
        assert listener.told == [b"1", b"23", b"4"]

    with_connection(test)


def test_listen_may_change_who_is_told():
    async def test(connection, server):
        one = Listener(connection)
        await server.send(b"1")
        await settle(connection)
        two = Listener(connection)
        await server.send(b"2")
        await server.close(1001)
        await two.lost.wait()
        assert (one.told, two.told) == ([b"1"], [b"2", 1001])

    with_connection(test)


def test_first_leaves_the_rest_for_listen():
    async def test(connection, server):
        waiting = asyncio.ensure_future(connection.first())
        for message in (b"1", b"2", b"3"):
            await server.send(message)
        assert await waiting == b"1"
        await settle(connection)
        assert await connection.first() == b"2"
        assert Listener(connection).told == [b"3"]

    with_connection(test)


# --------------------------------------------------------------------------------------------------- ends


def test_the_end_is_told_once():
    async def test(connection, server):
        listener = Listener(connection)
        await server.send(b"last")
        await server.close(1011)
        await connection.wait_closed()
        await listener.lost.wait()
        assert listener.told == [b"last", 1011]

    with_connection(test)


def test_the_end_is_told_once_if_listen_comes_between_the_stream_s_and_the_transport_s():
    async def test(connection, server):
        connection.eof_received()
        listener = Listener(connection)
        assert listener.told == [None]
        connection.transport.abort()
        await connection.wait_closed()
        assert listener.told == [None]

    with_connection(test)


def test_fragments_over_the_limit_end_the_connection():
    async def test(connection, server):
        listener = Listener(connection)
        await server.send([b"x" * 60, b"x" * 60])
        await listener.lost.wait()
        assert connection.protocol.close_exc.sent.code == 1009
        assert listener.told == [None]

    with_connection(test, max_message_bytes=100)


def test_an_end_without_a_close_frame():
    async def test(connection, server):
        listener = Listener(connection)
        server.transport.abort()
        await listener.lost.wait()
        assert listener.told == [None]

    with_connection(test)


@pytest.mark.parametrize("late", [False, True], ids=["listening", "later"])
def test_an_end_has_its_cause(late):
    async def test(connection, server):
        causes, told = [], asyncio.Event()

        def on_lost(error):
            causes.append(type(error.__cause__))
            told.set()

        if not late:
            connection.listen(causes.append, on_lost)
        bare = server.transport.get_extra_info("socket")
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing is a reset then
        server.transport.abort()
        await connection.wait_closed()
        if late:
            connection.listen(causes.append, on_lost)
        await told.wait()
        assert causes == [ConnectionResetError]

    with_connection(test)


def test_an_end_before_listen_is_told_at_listen():
    async def test(connection, server):
        await server.send(b"1")
        await server.close(1001)
        await connection.wait_closed()
        listener = Listener(connection)
        assert listener.told == [b"1", 1001]
        await asyncio.sleep(0)
        assert listener.told == [b"1", 1001]

    with_connection(test)


@pytest.mark.parametrize("early", [True, False])
def test_first_raises_if_the_connection_ends(early):
    async def test(connection, server):
        waiting = None if early else asyncio.ensure_future(connection.first())
        await server.close(1001)
        if early:
            await connection.wait_closed()
        with pytest.raises(ConnectionClosed) as caught:
            await (waiting or connection.first())
        assert caught.value.rcvd.code == 1001

    with_connection(test)


def test_ignore_drops_messages_and_the_end():
    async def test(connection, server):
        listener = Listener(connection)
        await server.send(b"1")
        await settle(connection)
        connection.ignore()
        await server.send(b"2")
        await settle(connection)
        later = Listener(connection)
        connection.ignore()
        await server.close()
        await connection.wait_closed()
        assert (listener.told, later.told) == ([b"1"], [])

    with_connection(test)


def test_writing_to_a_closed_connection_is_dropped():
    async def test(connection, server):
        listener = Listener(connection)
        await server.close(1001)
        await listener.lost.wait()
        connection.write(b"1")
        connection.write_text(b"2")
        assert listener.told == [1001]

    with_connection(test)


def test_writing_while_it_closes_is_dropped():
    async def test(connection, server):
        closing = asyncio.ensure_future(connection.close())
        await asyncio.sleep(0)
        connection.write(b"1")
        connection.write_text(b"2")
        await closing
        with pytest.raises(ConnectionClosed):
            await server.recv()

    with_connection(test)


@pytest.mark.parametrize("deaf", [False, True], ids=["an answer", "no answer"])
def test_hang_up_lets_go_of_the_socket(deaf):
    async def test(connection, server):
        listener = Listener(connection)
        if deaf:
            server.transport.pause_reading()
        await connection.hang_up(0.1 if deaf else DEADLINE_S)
        await connection.wait_closed()
        assert connection.transport.is_closing()
        assert listener.told == []
        if deaf:
            server.transport.resume_reading()
        await server.wait_closed()
        await connection.hang_up(1)

    with_connection(test)


# ------------------------------------------------------------------------------------------------ hostile


def with_raw_server(test, **options):
    """The same with a server's bare streams, after the handshake: what it sends and reads is up to the test."""

    async def run():
        arrived = asyncio.get_running_loop().create_future()

        async def handler(reader, writer):
            key = re.search(r"Sec-WebSocket-Key: (.*)\r\n", (await reader.readuntil(b"\r\n\r\n")).decode())[1]
            lines = ["HTTP/1.1 101 -", "Upgrade: websocket", "Connection: Upgrade"]
            lines += [f"Sec-WebSocket-Accept: {accept_key(key)}", "", ""]
            writer.write("\r\n".join(lines).encode())
            arrived.set_result((reader, writer))

        async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            connection = await dial(Target(f"ws://127.0.0.1:{port}/ws", **options), connection=FrameConnection)
            reader, writer = await arrived
            await test(connection, reader, writer)
            writer.transport.abort()
            await connection.hang_up(1)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def frame(opcode, data):
    """A server's frame."""
    assert len(data) < 2**16
    size = bytes([len(data)]) if len(data) < 126 else b"\x7e" + len(data).to_bytes(2, "big")
    return bytes([0x80 | opcode]) + size + data


async def next_frame(reader):
    """A client's frame: its opcode, and its data, which is short."""
    first, size, *mask = await reader.readexactly(6)
    data = await reader.readexactly(size & 127)
    return first & 15, bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))


def test_a_server_that_reads_no_pongs_gets_no_more_of_them():
    async def test(connection, reader, writer):
        listener = Listener(connection)
        writer.transport.pause_reading()
        for _ in range(160):  # 20 MB
            writer.write(frame(9, b"x" * 125) * 1000)
            await writer.drain()
        writer.write(frame(2, b"end"))
        await until(lambda: listener.told == [b"end"], "the end of the pings")
        assert connection.transport.get_write_buffer_size() < 2**20
        connection.write(b"a request")  # nothing but pongs is dropped
        writer.transport.resume_reading()
        while await next_frame(reader) != (2, b"a request"):
            pass
        writer.write(frame(9, b"again"))
        assert await next_frame(reader) == (10, b"again")

    with_raw_server(test)


@pytest.mark.parametrize("count, size, limit", [(8192, 1000, 2**24), (140, 60_000, 100_000)], ids=["many", "large"])
def test_messages_that_nobody_asked_for_stay_with_the_server(count, size, limit):
    async def test(connection, reader, writer):
        writer.write(frame(2, b"m" * size) * count)  # 8 MB
        await until(lambda: not connection.transport.is_reading(), "a pause")
        assert sum(map(len, connection._early)) < 400_000  # 256 KiB are read at once
        listener = Listener(connection)
        await until(lambda: len(listener.told) == count, "all of them")
        assert all(message == b"m" * size for message in listener.told)

    with_raw_server(test, max_message_bytes=limit)
