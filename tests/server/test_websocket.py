"""WebSockets with odd frames: what they may cost the server, and that the connection goes on."""

import json
import tracemalloc
from contextlib import contextmanager

import pytest
from helpers_envs import Count
from helpers_raw import CLOSE, CONT, PING, PONG, TEXT, Raw, frame
from helpers_server import running

from openenv_gym.server import create_app

RESET = b'{"type": "reset", "data": {"seed": 1}}'


@pytest.fixture
def raw():
    with running(create_app(Count)) as url, Raw(url, room=4096) as raw:
        assert raw.shake_hands().startswith("HTTP/1.1 101")
        yield raw


@contextmanager
def growth():
    """What is allocated meanwhile, and still there at the end, in bytes."""
    tracemalloc.start()
    sizes = []
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield sizes
        sizes.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()


def is_observation(data):
    return json.loads(data)["type"] == "observation"


@pytest.mark.parametrize("data, count", [(b"", 200_000), (b"  ", 100_000)], ids=["empty", "small"])
def test_fragments_take_no_more_memory_than_what_is_in_them(raw, data, count):
    with growth() as grown:
        raw.send(frame(TEXT, b" ", fin=False) + frame(CONT, data, fin=False) * count + frame(PING, b"?"))
        assert raw.next(PONG) == b"?"  # all of them were read
    assert grown[0] < len(data) * count + 500_000
    raw.send(frame(CONT, RESET))
    assert is_observation(raw.next(TEXT))


def test_a_message_arrives_whole_in_fragments_of_any_size(raw):
    pad = b" " * 200_000
    for size in (1, 70_000):
        parts = [(RESET + pad)[start : start + size] for start in range(0, len(RESET + pad), size)]
        middle = b"".join(frame(CONT, part, fin=False) + frame(CONT, fin=False) for part in parts[1:])
        raw.send(frame(TEXT, parts[0], fin=False) + middle + frame(CONT))
        assert is_observation(raw.next(TEXT))


def test_a_peer_that_reads_no_pongs_gets_no_more_of_them(raw):
    with growth() as grown:
        raw.send(frame(PING, b"x" * 125) * 160_000)  # about 20 MB
    assert grown[0] < 2**22
    raw.send(frame(TEXT, RESET))
    assert is_observation(raw.next(TEXT))
    raw.send(frame(PING, b"again"))
    while raw.next(PONG) != b"again":
        pass


def test_a_frame_over_the_limit_is_refused_by_its_head_alone():
    with running(create_app(Count, max_message_size_mb=1)) as url, Raw(url) as raw, growth() as grown:
        raw.shake_hands()
        raw.send(frame(TEXT, bytes(2**21))[:100])
        assert int.from_bytes(raw.next(CLOSE)[:2], "big") == 1009
    assert grown[0] < 2**19


def test_compression_is_offered_in_vain():
    with running(create_app(Count)) as url, Raw(url) as raw:
        head = raw.shake_hands(headers=["Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"])
        assert head.startswith("HTTP/1.1 101")
        assert "extensions" not in head.lower()
