"""Frames as PNG files, for a browser. No threads and no I/O here."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

__all__ = ["png"]


def png(frame: Any) -> bytes | None:
    """A frame as a PNG file (ISO/IEC 15948), compressed a little; None for what is no such frame.

    Args:
        frame: an array of uint8 with the shape (height, width) or (height, width, 3), as ``rgb_array`` gives.
    """
    array = np.asarray(frame)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or 0 in array.shape or array.shape[2:] not in ((), (3,)):
        return None
    height, width = array.shape[:2]
    rows = np.zeros((height, 1 + array[0].size), np.uint8)  # each row begins with its filter's number: 0, none
    rows[:, 1:] = array.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if array.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
