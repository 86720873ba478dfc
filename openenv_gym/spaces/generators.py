"""The random generators of a space as plain data, so that it samples elsewhere as it would have here."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from openenv_gym.errors import SpaceError
from openenv_gym.spaces.parts import Space, sub_spaces

__all__ = ["generators", "restore_generators"]

_STATE: Final = struct.Struct("<16s16s?I")
"""Of a PCG64, which is numpy's own choice: its state and increment, and half of a number that is left over."""


def generators(space: Space) -> list[bytes | None]:
    """The state of the generator of a space and of each space inside it, depth-first.

    None stands for one that was never seeded nor used, and is made when it is (gymnasium/spaces/space.py), and for one
    of another kind than Gymnasium's.
    """
    return [_state(part._np_random) for part in _parts(space)]  # noqa: SLF001 - the public one would be seeded by now


def restore_generators(space: Space, states: Sequence[bytes | None]) -> None:
    """Set the generators of a space and of those inside it.

    Args:
        space: the same space as that of `generators`.
        states: data from a peer, trusted in nothing.

    Raises:
        SpaceError: for states of another space, or malformed ones.
    """
    parts = list(_parts(space))
    if len(parts) != len(states):
        raise SpaceError(f"{len(states)} generators came for a space with {len(parts)}")
    for part, state in zip(parts, states, strict=True):
        if state is not None:
            part._np_random = _generator(state)  # noqa: SLF001 - there is no public way


def _parts(space: Space) -> Iterator[Space]:
    yield space
    for _, part in sub_spaces(space):
        yield from _parts(part)


def _state(generator: np.random.Generator | None) -> bytes | None:
    if generator is None or type(generator.bit_generator) is not np.random.PCG64:
        return None
    state = generator.bit_generator.state
    state_and_increment = (state["state"][name].to_bytes(16, "little") for name in ("state", "inc"))
    return _STATE.pack(*state_and_increment, bool(state["has_uint32"]), state["uinteger"])


def _generator(packed: bytes) -> np.random.Generator:
    try:
        state, increment, has_uint32, uinteger = _STATE.unpack(packed)
    except struct.error:
        raise SpaceError(f"a generator's state has {len(packed)} bytes, not {_STATE.size}") from None
    bits = np.random.PCG64(0)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": int.from_bytes(state, "little"), "inc": int.from_bytes(increment, "little")},
        "has_uint32": int(has_uint32),
        "uinteger": uinteger,
    }
    return np.random.Generator(bits)
