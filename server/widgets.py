"""What a person needs to enter an action by hand, chosen by its space. No threads and no I/O here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from openenv_gym.jsonable import jsonable

__all__ = ["Number", "Widget", "example", "widget"]

_MOST_NUMBERS: Final = 16
_MOST_CHOICES: Final = 64
_MOST_BUTTONS: Final = 18


@dataclass(frozen=True)
class Number:
    """One number of a vector.

    Attributes:
        label: its place in the vector.
        low: the least value; None if there is no limit.
        high: the greatest value; None if there is no limit.
        step: the distance between values; ``any`` for floats.
        value: the value to begin with.
    """

    label: str
    low: float | None
    high: float | None
    step: str
    value: float


@dataclass(frozen=True)
class Widget:
    """What to enter a value with.

    Attributes:
        kind: ``buttons`` (each is a whole action), ``choice``, ``numbers``, ``flags``, ``group`` or ``json``.
        name: the key in its group; ``""`` for the whole action.
        choices: what to choose from.
        numbers: the numbers of a vector, or the flags.
        shape: the vector's shape.
        parts: a group's widgets.
        text: JSON to begin with.
    """

    kind: str
    name: str
    choices: Sequence[int] = ()
    numbers: Sequence[Number] = ()
    shape: Sequence[int] = ()
    parts: Sequence[Widget] = field(default=())
    text: str = ""


def widget(space: gym.Space[Any], name: str = "") -> Widget:
    """The widget for a space; JSON text where there is no better one."""
    if isinstance(space, Dict):
        return Widget("group", name, parts=[widget(part, str(key)) for key, part in space.spaces.items()])
    if isinstance(space, Discrete) and space.n <= _MOST_CHOICES:
        choices = range(int(space.start), int(space.start + space.n))
        return Widget("buttons" if not name and space.n <= _MOST_BUTTONS else "choice", name, choices=choices)
    numbers = list(_numbers(space)) if np.prod(space.shape or (0,)) <= _MOST_NUMBERS else []
    if numbers:
        kind = "flags" if isinstance(space, MultiBinary) else "numbers"
        return Widget(kind, name, numbers=numbers, shape=space.shape or ())
    return Widget("json", name, text=json.dumps(jsonable(space.sample(), "action")))


def _numbers(space: gym.Space[Any]) -> Iterator[Number]:
    if isinstance(space, MultiBinary):
        low, high = np.zeros(space.shape), np.ones(space.shape)
    elif isinstance(space, MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    elif isinstance(space, Box):
        low, high = space.low, space.high
    else:
        return
    whole = np.issubdtype(space.dtype, np.integer) or space.dtype == np.bool_
    for place in np.ndindex(*low.shape):
        least, most = (float(bound[place]) for bound in (low, high))
        least_or_none, most_or_none = (bound if np.isfinite(bound) else None for bound in (least, most))
        begin = min(max(0.0, least), most)
        label = ", ".join(map(str, place))
        yield Number(label, least_or_none, most_or_none, "1" if whole else "any", int(begin) if whole else begin)


def example(schema: dict[str, Any]) -> str:
    """JSON to begin with for an action that only a JSON schema describes."""
    fields = schema.get("properties", {})
    return json.dumps({name: _value(part) for name, part in fields.items() if name != "metadata"}, indent=2)


def _value(schema: dict[str, Any]) -> Any:
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    low = schema.get("minimum", 0)
    return {"string": "", "integer": low, "number": low, "boolean": False, "array": [], "object": {}}.get(
        schema.get("type", "")
    )
