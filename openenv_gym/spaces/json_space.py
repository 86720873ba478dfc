"""`Json`: a space of whatever JSON can say, for texts, tool calls and their results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np

__all__ = ["Json"]

_MAX_DEPTH: Final = 64


class Json(gym.Space[Any]):
    """Null, booleans, finite numbers, strings, and lists and dicts of them, of any size.

    Values aren't arrays: several of them are a tuple, as with Text. There is no meaningful way to draw one, so `sample`
    always gives an empty dict.

    Example:
        >>> {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1}} in Json()
        True
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: values have no fixed size."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> dict[str, Any]:
        """An empty dict."""
        return {}

    def contains(self, x: Any) -> bool:
        """Whether it is JSON data."""
        return _is_json(x, 0)

    def to_jsonable(self, sample_n: Iterable[Any]) -> list[Any]:
        """The values themselves."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[Any]:
        """The values themselves."""
        return list(sample_n)

    def __eq__(self, other: object) -> bool:
        return type(other) is Json

    __hash__ = gym.Space.__hash__

    def __repr__(self) -> str:
        return "Json()"


def _is_json(value: Any, depth: int) -> bool:
    if value is None or isinstance(value, (bool, int, str)):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if depth > _MAX_DEPTH:  # a value that contains itself ends here too
        return False
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item, depth + 1) for key, item in value.items())
    return isinstance(value, (list, tuple)) and all(_is_json(item, depth + 1) for item in value)
