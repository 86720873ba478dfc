"""Messages to frames and back, and any plain data in a form that arrives as what it was.

MessagePack knows no tuples, numpy scalars, arrays or integers over 64 bits; `pack` turns them into extension types and
`unpack` back, so that an env's infos, options and arguments cross the wire without changing type. Only data is
packed: there is no pickle and no object of a class that the peer names.

Extension codes: 1 array · 2 numpy scalar · 3 tuple · 4 large integer · 5 object array · 6 set · 7 frozenset ·
8 array of strings, bytes, dates or times.
"""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from openenv_gym import messages
from openenv_gym.errors import RemoteProtocolError
from openenv_gym.messages import Array, Message, Opening, Received, Reply, Request, Resumed, Since, Welcome

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

_ATOMS = frozenset({type(None), bool, float, bytes})
"""Types whose values all travel as they are."""

_COPIES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: bytes,
    dict: dict,
    list: list,
    bytearray: bytes,
    memoryview: bytes,
}
"""How a value of a subclass becomes a plain one, whatever its methods do."""

_TEXT_DTYPE = re.compile(r"[<>|][SU][1-9][0-9]{0,9}|[<>][mM]8(\[[0-9]{0,9}[a-zA-Z]+\])?")


def _encode_other(value: object) -> float:
    """What msgspec asks about a value of a type that it doesn't know, when it comes to it."""
    if type(value) is Since:
        return time.perf_counter() - value
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other)


class PackError(TypeError):
    """Raised for data that can't travel; the text names where it is."""


def encode(message: Message) -> bytes:
    """A message as a frame.

    Raises:
        PackError: for a number or a string in it that MessagePack doesn't have; what was packed has none.
    """
    try:
        return _encoder.encode(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise PackError(f"this {type(message).__name__} can't be sent: {error}") from None


# ------------------------------------------------------------------------------------------------- pack


def pack(value: Any, where: str = "value", depth: int = 0) -> Any:
    """Make plain data ready for a message.

    Args:
        value: None, booleans, numbers, strings, bytes, numpy scalars and arrays, and dicts, lists, tuples and sets of
            them. A member of an ``Enum`` travels as its value, a value of a subclass as one of the builtin class.
        where: what to call the value in an error.
        depth: nesting so far.

    Returns:
        data that MessagePack keeps; give it to `unpack` on the other side. It shares no memory with the value.

    Raises:
        PackError: for anything else, naming the place: ``info['map'][2]: …``.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is str:
        return value if value.isascii() else _checked_text(value, where)
    if kind is int:
        return value if -(1 << 63) <= value < (1 << 64) else _pack_integer(value)
    if depth > MAX_DEPTH:
        raise PackError(f"{where}: nested deeper than {MAX_DEPTH}")
    if kind is dict:
        return {
            _key(k, where): v if type(v) in _ATOMS else pack(v, f"{where}[{k!r}]", depth + 1) for k, v in value.items()
        }
    if kind is list:
        return _pack_all(value, where, depth)
    if isinstance(value, np.ndarray):
        return _pack_array(value, where, depth)
    if isinstance(value, np.generic):
        return _pack_scalar(value, where)
    if isinstance(value, (tuple, set, frozenset)):
        code = TUPLE if isinstance(value, tuple) else SET if isinstance(value, set) else FROZENSET
        return _extend(code, _pack_all(value, where, depth))
    return pack(_as_plain(value, where), where, depth + 1)


def _pack_all(values: Any, where: str, depth: int) -> list[Any]:
    return [v if type(v) in _ATOMS else pack(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(values)]


def _key(key: Any, where: str) -> Any:
    """A key of a builtin type that is equal to it, so that no two keys become one."""
    if type(key) is str and key.isascii():
        return key
    if isinstance(key, (np.integer, np.bool_)):
        key = key.item()
    elif isinstance(key, (str, int, float, bytes)) and type(key) is not bool:
        key = _as_plain(key, where)
    if key is not None and not isinstance(key, (str, int, float, bytes)):
        raise PackError(f"{where}: a key of type {type(key).__name__} can't be sent")
    packed = pack(key, where)
    if isinstance(packed, msgspec.msgpack.Ext):
        raise PackError(f"{where}: a key of more than 64 bits can't be sent")
    return packed


def _checked_text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PackError(f"{where}: {error}") from None
    return text


def _pack_integer(value: int) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _pack_array(value: NDArray[Any], where: str, depth: int) -> msgspec.msgpack.Ext:
    kind = value.dtype.kind
    if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):  # `ma` is slow to import
        raise PackError(f"{where}: a masked array can't be sent")
    if kind == "O":
        return _extend(OBJECTS, (value.shape, _pack_all(value.reshape(-1).tolist(), where, depth)))
    if kind in "SU" and value.dtype.itemsize == 0:  # strings of no characters, of which numpy too makes one character
        value = value.astype(f"{kind}1")
    if kind in "SUmM":
        return _extend(TEXT_ARRAY, (value.dtype.str, value.shape, value.tobytes()))
    try:
        return _extend(ARRAY, Array.of(value))
    except TypeError as error:
        raise PackError(f"{where}: {error}") from None


def _pack_scalar(value: np.generic, where: str) -> msgspec.msgpack.Ext:
    if isinstance(value, (np.str_, np.bytes_)):  # an array would lose zeros at the end
        return _extend(SCALAR, pack(_as_plain(value, where), where))
    return _extend(SCALAR, _pack_array(np.asarray(value), where, 0))


def _as_plain(value: Any, where: str) -> Any:
    """Subclasses of builtin types, and enums, lose their class; everything else is refused."""
    if isinstance(value, Enum):
        return value.value
    for plain, copy in _COPIES.items():
        if isinstance(value, plain):
            return copy(value)
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
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
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
    # The hook leaves extensions' data as views of the frame: with copies, each level of nesting would hold one more.
    return msgspec.msgpack.Decoder(type_, ext_hook=msgspec.msgpack.Ext).decode


def _unpack_array(data: Any, _depth: int) -> NDArray[Any]:
    array: Array = _decoder(Array)(data)
    return array.numpy().copy()


def _unpack_text_array(data: Any, _depth: int) -> NDArray[Any]:
    name, shape, content = _decoder(tuple[str, tuple[int, ...], memoryview])(data)
    if not _TEXT_DTYPE.fullmatch(name) or min(shape, default=0) < 0:
        raise ValueError(f"bad array of {name!r} with shape {shape}")
    array = np.frombuffer(content, np.dtype(name)).reshape(shape).copy()
    if name[1] == "U" and (np.frombuffer(content, f"{name[0]}u4") > sys.maxunicode).any():
        raise ValueError("a string with characters that don't exist")  # numpy would crash on them when they are read
    return array


def _unpack_scalar(data: Any, depth: int) -> Any:
    content = _decoder(Any)(data)
    if type(content) is str:
        return np.str_(content)
    if type(content) is bytes:
        return np.bytes_(content)
    if type(content) is not msgspec.msgpack.Ext or content.code not in (ARRAY, TEXT_ARRAY):
        raise ValueError("a scalar must be an array or a string")
    array = _UNPACKERS[content.code](content.data, depth)
    if array.shape != ():
        raise ValueError(f"a scalar of shape {array.shape}")
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


_UNPACKERS: dict[int, Callable[[Any, int], Any]] = {
    ARRAY: _unpack_array,
    SCALAR: _unpack_scalar,
    TUPLE: lambda data, depth: tuple(_unpack_list(data, depth)),
    INTEGER: lambda data, _depth: int.from_bytes(data, "little", signed=True),
    OBJECTS: _unpack_objects,
    SET: lambda data, depth: set(_unpack_list(data, depth)),
    FROZENSET: lambda data, depth: frozenset(_unpack_list(data, depth)),
    TEXT_ARRAY: _unpack_text_array,
}


# ----------------------------------------------------------------------------------------------- decode


def _decode(frame: Received, type_: Any) -> Any:
    try:
        return _decoder(type_)(memoryview(frame).toreadonly())  # as arrays that are views of it must be
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RemoteProtocolError(f"malformed frame: {error}") from None


def decode_opening(frame: Received) -> Opening:
    """Decode a connection's first frame, on the server.

    Raises:
        RemoteProtocolError: if it is no `Hello` or `Resume`.
    """
    opening: Opening = _decode(frame, Opening)
    return opening


def decode_answer(frame: Received) -> Welcome | Resumed | messages.Failed:
    """Decode the answer to the first frame, on the client.

    Raises:
        RemoteProtocolError: if it is none.
    """
    answer: Welcome | Resumed | messages.Failed = _decode(frame, Welcome | Resumed | messages.Failed)
    return answer


def decode_request(frame: Received) -> Request:
    """Decode a request, on the server.

    Raises:
        RemoteProtocolError: if it is none.
    """
    request: Request = _decode(frame, Request)
    return request


def decode_reply(frame: Received) -> Reply:
    """Decode a reply, on the client.

    Raises:
        RemoteProtocolError: if it is none.
    """
    reply: Reply = _decode(frame, Reply)
    return reply
