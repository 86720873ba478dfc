"""The fields of a description that a stranger may have sent, each checked as it is read.

Nothing here knows spaces, only plain data: a `Reader` gives numbers, shapes and arrays, or raises `SpaceError` with the
path, before it allocates anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openenv_gym.errors import SpaceError
from openenv_gym.spaces.parts import Path, path_name

__all__ = [
    "DTYPES",
    "MAX_CHILDREN",
    "MAX_DEPTH",
    "MAX_ELEMENTS",
    "Budget",
    "Reader",
    "check_depth",
    "checked_key",
    "checked_text",
    "limits",
    "shown",
]

MAX_DEPTH: Final = 32
"""How deep spaces may nest."""

MAX_CHILDREN: Final = 4096
"""How many spaces one Dict, Tuple or OneOf may hold."""

MAX_ELEMENTS: Final = 2**25
"""How many bounds the spaces of one description may have together; a 4K RGB frame has 24,883,200."""

_PER_SPACE: Final = 2**12  # the cost of building a space, counted in bounds
_PER_CHARACTER: Final = 2**4  # and of a character in the charset of a Text
_MAX_KEY: Final = 1024  # characters
_MAX_AXES: Final = 32  # numpy's own limit, before 2.0

_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
DTYPES: Final = {name: np.dtype(name) for name in ("bool", *_NUMBERS)}
"""The dtypes that travel, in native byte order: gymnasium's Box also takes others, such as float128."""


@dataclass(slots=True)
class Budget:
    """What the rest of a description may cost, counted in bounds.

    Attributes:
        left: how much remains.
    """

    left: int = MAX_ELEMENTS


@dataclass(frozen=True, slots=True)
class Reader:
    """The fields of one space's description.

    Every method takes the name of a field, and raises `SpaceError` if its value isn't what is asked for.

    Attributes:
        data: the description; a mapping, which `Reader` doesn't check.
        path: where it is in the whole.
        budget: shared by all readers of the whole.
        copies: how often gymnasium will hold the space. Graph and a stacked Sequence keep a batched copy of their parts
            (gymnasium/spaces/graph.py), so twenty of them inside each other would fill any memory.
    """

    data: Any
    path: Path
    budget: Budget
    copies: int = 1

    def inner(self, data: object, name: str | int, *, copies: int = 1) -> Reader:
        """The reader of a part's description, one level down."""
        return Reader(data, (*self.path, name), self.budget, self.copies * copies)

    def error(self, message: str) -> SpaceError:
        """The error to raise for this description."""
        return SpaceError(message, path=path_name(self.path))

    def check(self, ok: bool, field: str, expected: str) -> None:
        """Raise unless ``ok``."""
        if not ok:
            raise self.error(f"{field} must be {expected}, not {shown(self.data[field])}")

    def spend(self, elements: int) -> None:
        """Take from the budget what this description is about to allocate, in bounds."""
        self.budget.left -= elements * self.copies
        if self.budget.left < 0:
            raise self.error(f"the whole space is too large: it counts for more than {MAX_ELEMENTS} elements")

    def names(self, kind: str, fields: tuple[str, ...]) -> None:
        """Check that there are exactly these fields beside ``type``, and pay for a space."""
        for field in fields:
            if field not in self.data:
                raise self.error(f"{kind} lacks the field {field!r}")
        for field in self.data:
            if field not in ("type", *fields):
                raise self.error(f"{kind} has no field {shown(field)}")
        self.spend(_PER_SPACE)

    def integer(self, field: str, low: int, high: int) -> int:
        """An integer between two others, these included."""
        value = self.data[field]
        self.check(type(value) is int and low <= value <= high, field, f"an integer from {low} to {high}")
        return int(value)

    def flag(self, field: str) -> bool:
        """True or false."""
        self.check(isinstance(self.data[field], bool), field, "true or false")
        return bool(self.data[field])

    def charset(self, field: str) -> str:
        """A str whose characters a space will list one by one."""
        self.check(isinstance(self.data[field], str), field, "a str")
        self.spend(_PER_CHARACTER * len(self.data[field]))
        return checked_text(self.data[field], self.path)

    def dtype(self, field: str, kinds: str) -> np.dtype[Any]:
        """One of `DTYPES`, of numpy's ``kinds``."""
        names = [name for name, dtype in DTYPES.items() if dtype.kind in kinds]
        self.check(self.data[field] in names, field, f"one of {', '.join(names)}")
        return DTYPES[self.data[field]]

    def items(self, field: str, least: int = 0, most: int = MAX_CHILDREN) -> list[Any]:
        """A list of a limited length."""
        items = self.data[field]
        ok = isinstance(items, (list, tuple)) and least <= len(items) <= most
        self.check(ok, field, f"a list of {least} to {most} items")
        return list(items)

    def shape(self, field: str, least: int = 0) -> tuple[int, ...]:
        """The shape of an array, whose elements are paid for."""
        sizes = self.items(field, most=_MAX_AXES)
        ok = all(type(size) is int and least <= size <= MAX_ELEMENTS for size in sizes)
        self.check(ok, field, f"a list of integers from {least} to {MAX_ELEMENTS}")
        self.spend(math.prod(max(size, 1) for size in sizes))  # numpy refuses a huge shape even if a size is 0
        return tuple(sizes)

    def numbers(
        self, field: str, shape: tuple[int, ...], dtype: np.dtype[Any], words: Mapping[str, float]
    ) -> NDArray[Any]:
        """An array of numbers that the dtype holds.

        Args:
            field: has one number for all elements, or a flat list.
            shape: what `shape` returned.
            dtype: what `dtype` returned.
            words: the words that stand for numbers.
        """
        size, given = math.prod(shape), self.data[field]
        listed = isinstance(given, (list, tuple))
        self.check(not listed or len(given) == size, field, f"one number or {size} of them")
        plain = []
        for value in given if listed else [given]:
            word = words.get(value) if isinstance(value, str) else None
            if word is None and not _holds(dtype, value):
                raise self.error(f"{field} has {shown(value)}, which {dtype.name} doesn't hold")
            plain.append(value if word is None else word)
        return np.array(plain, dtype).reshape(shape) if listed else np.full(shape, plain[0], dtype)

    def bounded(self, field: str, shape: tuple[int, ...], infinity: str) -> NDArray[np.bool_]:
        """Where a field that `numbers` has checked isn't infinite."""
        given = self.data[field]
        if isinstance(given, (list, tuple)):
            return np.array([value != infinity for value in given], bool).reshape(shape)
        return np.full(shape, given != infinity)


@cache
def limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The smallest and the largest finite number that one of `DTYPES` holds, as Python's bool, int or float."""
    if dtype.kind == "b":
        return False, True
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _holds(dtype: np.dtype[Any], value: object) -> bool:
    """Whether it is a finite number in the dtype's range: floats may be rounded, integers must be integers."""
    if dtype.kind == "b" or isinstance(value, bool):
        return dtype.kind == "b" and isinstance(value, bool)
    smallest, largest = limits(dtype)
    return isinstance(value, (int, float) if dtype.kind == "f" else int) and smallest <= value <= largest


def check_depth(path: Path) -> None:
    """Raise `SpaceError` if a path is longer than `MAX_DEPTH`."""
    if len(path) > MAX_DEPTH:
        raise SpaceError(f"spaces nest more than {MAX_DEPTH} deep", path=path_name(path))


def checked_key(key: object, path: Path) -> str:
    """The key of a Dict, if it is text that can be sent; raises `SpaceError` otherwise."""
    if not isinstance(key, str) or len(key) > _MAX_KEY:
        message = f"a key must be a str of at most {_MAX_KEY} characters, not {shown(key)}"
        raise SpaceError(message, path=path_name(path))
    return checked_text(str.__str__(key), path)  # plain, also if it is an enum's member


def checked_text(text: str, path: Path) -> str:
    """The text, if UTF-8 can carry it; raises `SpaceError` otherwise."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpaceError("a lone surrogate can't be sent as UTF-8", path=path_name(path)) from error
    return text


def shown(value: object) -> str:
    """A value as an error's text shows it: short, whatever a peer sent."""
    if isinstance(value, str):
        return repr(value) if len(value) <= 40 else f"{value[:40]!r}…"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"  # Python may refuse to print it
    if value is None or isinstance(value, (int, float, np.generic)):
        return str(value)
    if isinstance(value, (list, tuple)) and all(x is None or isinstance(x, (str, int, float)) for x in value[:9]):
        return f"[{', '.join(map(shown, value[:8]))}{', …' if len(value) > 8 else ''}]"
    return f"a {type(value).__name__}"
