"""What envs can be asked besides resetting and stepping: requests for methods, attributes and frames.

Each function packs what it is given at once, so that the caller sees what can't be sent, and returns what makes the
request to one of several links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from openenv_gym.codec import pack
from openenv_gym.messages import Call, Get, Render, Request, Set

__all__ = ["Ask", "calling", "getting", "rendering", "setting"]

Ask: TypeAlias = "Callable[[list[int] | None, list[int]], Request]"
"""Makes the request to a link from its slots (None for all) and the rows that these are."""


def calling(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ask:
    """Call a method, with arguments of plain data.

    Raises:
        PackError: naming an argument that can't be sent.
    """
    packed_args = [pack(arg, f"args[{i}]") for i, arg in enumerate(args)]
    packed_kwargs = {key: pack(value, key) for key, value in kwargs.items()}
    return lambda slots, _: Call(0, slots, name, packed_args, packed_kwargs)


def getting(name: str) -> Ask:
    """Read an attribute."""
    return lambda slots, _: Get(0, slots, name)


def setting(name: str, values: Sequence[Any], *, force: bool = True) -> Ask:
    """Set an attribute.

    Args:
        name: the attribute's name.
        values: a value for each row of the whole vector env, of plain data.
        force: False leaves an env without that attribute alone.

    Raises:
        PackError: for a value that can't be sent.
    """
    packed = [pack(value, name) for value in values]
    return lambda slots, rows: Set(0, slots, name, [packed[row] for row in rows], force)


def rendering(*, png: bool = False) -> Ask:
    """Render; ``png`` asks for frames as PNG files."""
    return lambda slots, _: Render(0, slots, png)
