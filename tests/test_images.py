"""PNG files, read back here and by another library."""

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from openenv_gym.errors import RemoteProtocolError
from openenv_gym.images import from_png, png


@pytest.mark.parametrize("shape", [(1, 1, 3), (7, 5, 3), (40, 60, 3), (7, 5), (1, 9)])
def test_another_reader_sees_the_same(shape):
    frame = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    image = Image.open(io.BytesIO(png(frame)))
    image.verify()
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(frame)))), frame)


@pytest.mark.parametrize("shape", [(1, 1, 3), (7, 5, 3), (40, 60, 3), (7, 5), (1, 9)])
def test_a_frame_comes_back(shape):
    frame = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    back = from_png(png(frame), frame.nbytes)
    assert (back.dtype, back.shape, back.tobytes()) == (frame.dtype, frame.shape, frame.tobytes())
    assert back.flags.writeable
    assert back.flags.owndata
    with pytest.raises(RemoteProtocolError, match="is over the limit of"):
        from_png(png(frame), frame.nbytes - 1)


def rebuilt(header=(3, 2, 8, 2, 0, 0, 0), pixels=bytes(20), more=()):
    """A PNG file of these parts, with good checksums."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", *header)), (b"IDAT", zlib.compress(pixels)), *more, (b"IEND", b"")]
    chunks = (struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def other_png(mode):
    """A file as another library writes it."""
    file = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).convert(mode).save(file, "PNG")
    return file.getvalue()


STRANGE = {
    "nothing": b"",
    "no signature": png(np.zeros((2, 2), np.uint8))[1:],
    "cut off": rebuilt()[:-5],
    "a wrong checksum": rebuilt()[:-1] + b"x",
    "no width": rebuilt((0, 2, 8, 2, 0, 0, 0)),
    "16 bits": rebuilt((3, 2, 16, 2, 0, 0, 0)),
    "a palette": rebuilt((3, 2, 8, 3, 0, 0, 0)),
    "interlaced": rebuilt((3, 2, 8, 2, 0, 0, 1)),
    "too few pixels": rebuilt(pixels=bytes(19)),
    "too many pixels": rebuilt(pixels=bytes(21)),
    "a filter": rebuilt(pixels=b"\x01" + bytes(19)),
    "one chunk more": rebuilt(more=[(b"tEXt", b"x")]),
    "with an alpha channel": other_png("RGBA"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_files_are_refused(name):
    assert from_png(rebuilt(), 100).shape == (2, 3, 3)
    with pytest.raises(RemoteProtocolError):
        from_png(STRANGE[name], 100)


@pytest.mark.parametrize("header", [(60_000, 60_000, 8, 2, 0, 0, 0), (3, 2, 8, 2, 0, 0, 0)], ids=["said", "unsaid"])
def test_a_bomb_is_not_unpacked(header):
    bomb = rebuilt(header, bytes(100_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            from_png(bomb, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_view_that_is_not_contiguous():
    frame = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)[::-1, ::-1]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(frame)))), frame)


@pytest.mark.parametrize(
    "odd", [np.zeros((2, 2, 3)), np.zeros((2, 2, 4), np.uint8), np.zeros((0, 2, 3), np.uint8), None, "text", [1], 3]
)
def test_what_is_no_frame(odd):
    assert png(odd) is None
