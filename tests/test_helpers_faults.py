"""The fault proxy may delay, split and cut what it passes on, but what arrives is always the start of what was sent."""

import random
import socket
import threading
from contextlib import ExitStack

import pytest
from helpers_faults import DEAF, UP, FaultProxy
from helpers_wait import wait_until


@pytest.fixture
def ends():
    """A proxy, and the client's and the server's end of a connection through it."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        proxy = stack.enter_context(FaultProxy(listener.getsockname()[1]))
        client = stack.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # soon full
        client.connect(("127.0.0.1", proxy.port))
        server = stack.enter_context(listener.accept()[0])
        for end in (client, server):
            end.settimeout(20)
        yield proxy, client, server


def test_pieces_of_another_size_change_no_byte_of_what_is_under_way(ends):
    proxy, client, server = ends
    sent = random.Random(0).randbytes(2**23)
    proxy.piece = 100

    def send():
        server.sendall(sent)
        server.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    wait_until(lambda: proxy.bytes_down and proxy.settled, "a proxy that can't go on")
    proxy.piece = None
    with client.makefile("rb") as stream:
        received = stream.read()
    sender.join()
    assert len(received) == len(sent)
    assert hash(received) == hash(sent)  # pytest would compare the bytes themselves for minutes


def test_nothing_follows_a_cut_that_only_the_client_sees(ends):
    proxy, client, _ = ends
    proxy.hold(UP)
    client.sendall(bytes(100_000))  # more than is read at once
    proxy.cut_after(5, UP, DEAF)
    proxy.release()
    wait_until(lambda: proxy.cuts and proxy.settled, "the cut")
    assert proxy.bytes_up == 5
