"""Frames as PNG files (ISO/IEC 15948), for browsers and for slow links. No threads and no I/O here."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openenv_gym.errors import RemoteProtocolError

__all__ = ["from_png", "png"]

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_HEADER: Final = struct.Struct(">IIBBBBB")
_CHANNELS: Final = {0: (), 2: (3,)}
"""What comes after height and width in the shape of an image, by its type of colour: grey, or red, green and blue."""


def png(frame: Any) -> bytes | None:
    """A frame as a PNG file, compressed a little; None for what is no such frame.

    Args:
        frame: an array of uint8 with the shape (height, width) or (height, width, 3), as ``rgb_array`` gives.
    """
    array = np.asarray(frame)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or 0 in array.shape or array.shape[2:] not in ((), (3,)):
        return None
    height, width = array.shape[:2]
    rows = np.zeros((height, 1 + array[0].size), np.uint8)  # each row begins with its filter's number: 0, none
    rows[:, 1:] = array.reshape(height, -1)
    header = _HEADER.pack(width, height, 8, 2 if array.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def from_png(data: bytes, max_bytes: int) -> NDArray[np.uint8]:
    """The frame in a file that `png` made, in memory of its own.

    Args:
        data: the file, from a peer, trusted in nothing.
        max_bytes: the most that the frame may have. Its header says how many, so no more than that is decompressed.

    Raises:
        RemoteProtocolError: for anything else than such a file, and for a frame beyond the limit.
    """
    chunks = list(_chunks(data))
    if [kind for kind, _ in chunks] != [b"IHDR", b"IDAT", b"IEND"] or len(chunks[0][1]) != _HEADER.size:
        raise RemoteProtocolError("a frame is no PNG file of the expected kind")
    width, height, depth, colour, *ways = _HEADER.unpack(chunks[0][1])
    if depth != 8 or colour not in _CHANNELS or any(ways) or not width or not height:
        raise RemoteProtocolError("a frame's PNG file has an unexpected header")
    shape = (height, width, *_CHANNELS[colour])
    row = width * (3 if colour else 1)
    if height * row > max_bytes:
        raise RemoteProtocolError(f"a frame of shape {shape} is over the limit of {max_bytes:,} bytes")
    unpacker = zlib.decompressobj()
    try:
        pixels = unpacker.decompress(chunks[1][1], height * (1 + row) + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"a frame's PNG file is damaged: {error}") from None
    if len(pixels) != height * (1 + row) or not unpacker.eof or unpacker.unused_data:
        raise RemoteProtocolError(f"a frame's PNG file doesn't hold an image of shape {shape}")
    rows = np.frombuffer(pixels, np.uint8).reshape(height, 1 + row)
    if rows[:, 0].any():
        raise RemoteProtocolError("a frame's PNG file has filters, which this package's servers don't use")
    frame = np.empty(shape, np.uint8)
    frame.reshape(height, row)[...] = rows[:, 1:]
    return frame


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The kinds and contents of a file's chunks; an empty kind where it breaks off or a checksum is wrong."""
    at = len(_SIGNATURE)
    if data[:at] != _SIGNATURE:
        return
    while at < len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        content = data[at + 8 : at + 8 + length]
        yield (kind if data[at : at + 12 + length] == _chunk(kind, content) else b""), content
        at += 12 + length
