"""Messages to frames and back, and any plain data in a form that arrives as what it was.

MessagePack knows no tuples, numpy scalars, arrays or integers over 64 bits; `pack` turns them into extension types and
`unpack` back, so that an env's infos, options and arguments cross the wire without changing type. Only data is
packed: there is no pickle and no object of a class that the peer names.

Extension codes: 1 array · 2 numpy scalar · 3 tuple · 4 large integer · 5 object array · 6 set · 7 frozenset ·
8 array of strings, bytes, dates or times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from openenv_gym import messages
from openenv_gym.errors import RemoteProtocolError
from openenv_gym.messages import Array, Message, Opening, Reply, Request, Resumed, Welcome

__all__ = [
    "MAX_DEPTH",
    "PackError",
    "decode_answer",
    "decode_opening",
    "decode_reply",
    "decode_request",
    "encode",
    "pack",
    "unpack",
]

MAX_DEPTH: Final = 64
"""Nesting that `pack` and `unpack` accept; deeper data is refused rather than exhausting the stack."""

ARRAY, SCALAR, TUPLE, INTEGER, OBJECTS, SET, FROZENSET, TEXT_ARRAY = range(1, 9)
_TEXT_KINDS = "SUmM"

_PLAIN = frozenset({type(None), bool, float, str, bytes})
_encoder = msgspec.msgpack.Encoder()
_M = TypeVar("_M")


class PackError(TypeError):
    """Raised for data that can't travel; the text names where it is."""


def encode(message: Message) -> bytes:
    """A message as a frame."""
    return _encoder.encode(message)


# ------------------------------------------------------------------------------------------------- pack


def pack(value: Any, where: str = "value", depth: int = 0) -> Any:
    """Make plain data ready for a message.

    Args:
        value: None, booleans, numbers, strings, bytes, numpy scalars and arrays, and dicts, lists, tuples and sets of them.
            A member of an ``Enum`` travels as its value.
        where: what to call the value in an error.
        depth: nesting so far.

    Returns:
        data that MessagePack keeps; give it to `unpack` on the other side.

    Raises:
        PackError: for anything else, naming the place: ``info['map'][2]: …``.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < (1 << 64) else _extend(INTEGER, str(value))
    if depth > MAX_DEPTH:
        raise PackError(f"{where}: nested deeper than {MAX_DEPTH}")
    if kind is dict:
        return {_key(k, where): pack(v, f"{where}[{k!r}]", depth + 1) for k, v in value.items()}
    if kind is list:
        return _pack_all(value, where, depth)
    if isinstance(value, np.ndarray):
        return _pack_array(value, where, depth)
    if isinstance(value, np.generic):
        return _pack_scalar(value, where)
    if isinstance(value, tuple):
        return _extend(TUPLE, _pack_all(value, where, depth))
    if isinstance(value, (set, frozenset)):
        return _extend(FROZENSET if isinstance(value, frozenset) else SET, _pack_all(list(value), where, depth))
    return pack(_as_plain(value, where), where, depth + 1)


def _pack_all(values: Any, where: str, depth: int) -> list[Any]:
    return [pack(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(values)]


def _key(key: Any, where: str) -> Any:
    if isinstance(key, (np.integer, np.bool_, np.str_)):
        key = key.item()
    if isinstance(key, (str, int, float, bytes, type(None))):
        return key
    raise PackError(f"{where}: a key of type {type(key).__name__} can't be sent")


def _pack_array(value: NDArray[Any], where: str, depth: int) -> msgspec.msgpack.Ext:
    if value.dtype.kind == "O":
        return _extend(OBJECTS, (value.shape, _pack_all(value.reshape(-1).tolist(), where, depth)))
    if value.dtype.kind in _TEXT_KINDS:
        return _extend(TEXT_ARRAY, (value.dtype.str, value.shape, value.tobytes()))
    try:
        return _extend(ARRAY, Array.of(value))
    except TypeError as error:
        raise PackError(f"{where}: {error}") from None


def _pack_scalar(value: np.generic, where: str) -> msgspec.msgpack.Ext:
    packed = _pack_array(np.asarray(value), where, 0)
    return msgspec.msgpack.Ext(SCALAR, _encoder.encode(packed))


def _as_plain(value: Any, where: str) -> Any:
    """Subclasses of builtin types, and enums, lose their class; everything else is refused."""
    if isinstance(value, Enum):
        return value.value
    for plain in (bool, int, float, str, bytes, dict, list):
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise PackError(f"{where}: a value of type {type(value).__module__}.{type(value).__qualname__} can't be sent")


def _extend(code: int, content: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, _encoder.encode(content))


# ----------------------------------------------------------------------------------------------- unpack


def unpack(value: Any) -> Any:
    """Undo `pack`, on what a decoded message holds.

    Args:
        value: a field of a decoded message.

    Returns:
        the data that was packed. Arrays are fresh and writable.

    Raises:
        RemoteProtocolError: for an extension that makes no sense.
    """
    try:
        return _unpack(value, 0)
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
        raise RemoteProtocolError(f"malformed data: {error}") from None


def _unpack(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is msgspec.msgpack.Ext or kind is dict or kind is list:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        if kind is dict:
            return {k: _unpack(v, depth + 1) for k, v in value.items()}
        if kind is list:
            return [_unpack(v, depth + 1) for v in value]
        unpacker = _UNPACKERS.get(value.code)
        if unpacker is None:
            raise ValueError(f"unknown extension {value.code}")
        return unpacker(value.data, depth + 1)
    return value


@functools.cache
def _decoder(type_: Any) -> Callable[[Any], Any]:
    return msgspec.msgpack.Decoder(type_).decode


def _unpack_array(data: Any, depth: int) -> NDArray[Any]:
    array: Array = _decoder(Array)(data)
    return array.numpy().copy()


def _unpack_text_array(data: Any, depth: int) -> NDArray[Any]:
    name, shape, content = _decoder(tuple[str, tuple[int, ...], bytes])(data)
    dtype = np.dtype(name)
    if dtype.kind not in _TEXT_KINDS or min(shape, default=0) < 0:
        raise ValueError(f"bad array of {name!r} with shape {shape}")
    if dtype.itemsize == 0:  # "<U0": numpy reads no bytes for it, so the shape alone would decide what is allocated
        if len(content) or np.prod(shape, dtype=object) > 1:
            raise ValueError(f"bad array of {name!r} with shape {shape}")
        return np.zeros(shape, dtype)
    return np.frombuffer(content, dtype).reshape(shape).copy()


def _unpack_scalar(data: Any, depth: int) -> Any:
    array = _unpack(_decoder(Any)(data), depth)
    if not isinstance(array, np.ndarray) or array.shape != () or array.dtype.kind == "O":
        raise ValueError("a scalar must be an array without axes")
    return array[()]


def _unpack_objects(data: Any, depth: int) -> NDArray[Any]:
    shape, items = _decoder(tuple[tuple[int, ...], list[Any]])(data)
    if min(shape, default=0) < 0:
        raise ValueError(f"negative size in shape {shape}")
    array = np.empty(len(items), dtype=object)
    for i, item in enumerate(items):
        array[i] = _unpack(item, depth)
    return array.reshape(shape)


def _unpack_list(data: Any, depth: int) -> list[Any]:
    return [_unpack(item, depth) for item in _decoder(list[Any])(data)]


def _unpack_integer(data: Any, depth: int) -> int:
    digits = _decoder(str)(data)
    if len(digits) > 4000:  # quadratic to parse, and over Python's own limit
        raise ValueError("an integer of too many digits")
    return int(digits)


_UNPACKERS: dict[int, Callable[[Any, int], Any]] = {
    ARRAY: _unpack_array,
    SCALAR: _unpack_scalar,
    TUPLE: lambda data, depth: tuple(_unpack_list(data, depth)),
    INTEGER: _unpack_integer,
    OBJECTS: _unpack_objects,
    SET: lambda data, depth: set(_unpack_list(data, depth)),
    FROZENSET: lambda data, depth: frozenset(_unpack_list(data, depth)),
    TEXT_ARRAY: _unpack_text_array,
}


# ----------------------------------------------------------------------------------------------- decode


def _decode(frame: bytes, type_: Any) -> Any:
    try:
        return _decoder(type_)(frame)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise RemoteProtocolError(f"malformed frame: {error}") from None


def decode_opening(frame: bytes) -> Opening:
    """Decode a connection's first frame, on the server.

    Raises:
        RemoteProtocolError: if it is no `Hello` or `Resume`.
    """
    opening: Opening = _decode(frame, Opening)
    return opening


def decode_answer(frame: bytes) -> Welcome | Resumed | messages.Failed:
    """Decode the answer to the first frame, on the client.

    Raises:
        RemoteProtocolError: if it is none.
    """
    answer: Welcome | Resumed | messages.Failed = _decode(frame, Welcome | Resumed | messages.Failed)
    return answer


def decode_request(frame: bytes) -> Request:
    """Decode a request, on the server.

    Raises:
        RemoteProtocolError: if it is none.
    """
    request: Request = _decode(frame, Request)
    return request


def decode_reply(frame: bytes) -> Reply:
    """Decode a reply, on the client.

    Raises:
        RemoteProtocolError: if it is none.
    """
    reply: Reply = _decode(frame, Reply)
    return reply
