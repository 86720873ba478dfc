"""Any plain data as strict JSON data: what OpenEnv's JSON dialect sends of infos and of rendered frames.

Unlike `openenv_gym.codec.pack` this loses types, since JSON has few: arrays and sets become lists, bytes become base64.
Unlike ``json.dumps`` it knows numpy, and never writes ``NaN``, which strict peers refuse.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from openenv_gym.codec import MAX_DEPTH, PackError

__all__ = ["base64_text", "jsonable"]


def jsonable(value: Any, where: str = "value", depth: int = 0) -> Any:
    """Plain data as None, booleans, integers, finite floats, strings, lists and dicts with string keys.

    Nan and infinities become None, as OpenEnv's own servers send them. The order of keys is kept.

    Args:
        value: None, booleans, numbers, strings, bytes, numpy scalars and arrays, enums, pydantic models, dataclasses,
            and mappings, lists, tuples and sets of them.
        where: what to call the value in an error.
        depth: nesting so far.

    Returns:
        fresh data that shares nothing with ``value``.

    Raises:
        PackError: for anything else, naming the place: ``info['map'][2]: …``.
    """
    kind = type(value)
    if value is None or kind is bool or kind is int:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):  # before str and int, because a member can be one of those too
        return jsonable(value.value, where, depth)
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, bytes):
        return _array(np.asarray(value), where, depth)
    if isinstance(value, (bool, int, float)):
        return jsonable(int(value) if isinstance(value, int) else float(value), where, depth)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64_text(bytes(value))
    if depth >= MAX_DEPTH:  # a value that contains itself ends here too
        raise PackError(f"{where}: nested deeper than {MAX_DEPTH}")
    return _container(value, where, depth)


def base64_text(data: Any) -> str:
    """Bytes, or a C-contiguous array's bytes, in base64 (RFC 4648, section 4)."""
    return base64.b64encode(data).decode("ascii")


def _container(value: Any, where: str, depth: int) -> Any:
    if isinstance(value, Mapping):
        return _members(value.items(), where, depth)
    if isinstance(value, (list, tuple)):
        return _items(value, where, depth)
    if isinstance(value, (set, frozenset)):
        return _items(_ordered(value), where, depth)
    if isinstance(value, BaseModel):
        return _members(value.model_dump().items(), where, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _members(((f.name, getattr(value, f.name)) for f in dataclasses.fields(value)), where, depth)
    raise PackError(f"{where}: a value of type {type(value).__module__}.{type(value).__qualname__} has no JSON form")


def _members(members: Iterable[tuple[Any, Any]], where: str, depth: int) -> dict[str, Any]:
    done: dict[str, Any] = {}
    for key, value in members:
        name = _key(key, where)
        if name in done:
            raise PackError(f"{where}: two keys become {name!r}")
        done[name] = jsonable(value, f"{where}[{key!r}]", depth + 1)
    return done


def _items(values: Iterable[Any], where: str, depth: int) -> list[Any]:
    return [jsonable(value, f"{where}[{i}]", depth + 1) for i, value in enumerate(values)]


def _ordered(values: Any) -> Any:
    """A set in an order that doesn't depend on the process's hash seed, where its values have one."""
    try:
        return sorted(values)
    except TypeError:
        return values


def _key(key: Any, where: str) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return _text(key, where)
    if isinstance(key, np.generic):
        key = key.item()
    if key is None or isinstance(key, (bool, int, float)):
        return str(key)
    if isinstance(key, bytes):
        return base64_text(key)
    raise PackError(f"{where}: a key of type {type(key).__name__} has no JSON form")


def _text(value: str, where: str) -> str:
    text = str.__str__(value) if type(value) is not str else value
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair, which no UTF-8 message can hold
            raise PackError(f"{where}: {error.reason} (at position {error.start})") from None
    return text


def _array(array: NDArray[Any], where: str, depth: int) -> Any:
    kind = array.dtype.kind
    if kind == "f":
        array = array.astype(np.float64, copy=False)  # a long double would remain numpy's even in `tolist`
        finite = np.isfinite(array)
        if not finite.all():
            array = np.where(finite, array, None)  # type: ignore[call-overload]
    elif kind not in "biu":
        if kind not in "OUS":
            raise PackError(f"{where}: an array of dtype {array.dtype} has no JSON form")
        return jsonable(array.tolist(), where, depth)
    return array.tolist()
