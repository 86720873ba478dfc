"""Patience with a server that can't be reached for a while."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from openenv_gym.errors import (
    CapacityError,
    ConnectFailed,
    ConnectionLost,
    OpenEnvGymError,
    ProtocolError,
    RemoteEnvError,
    SessionLost,
    SpaceError,
    Unauthorized,
)
from openenv_gym.outage import Outage

__all__ = ["await_room", "insist", "reason_of"]

_T = TypeVar("_T")
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 5.0
_FINAL: Final = (SessionLost, Unauthorized, ProtocolError, RemoteEnvError, SpaceError)
"""What doesn't get better by waiting. A full server may: the room that is taken may be that of the lost session."""


async def insist(
    attempt: Callable[[], Awaitable[None]],
    limit_s: float,
    url: str,
    error: OpenEnvGymError | None = None,
    *,
    outages: list[Outage],
    anew: bool = False,
) -> None:
    """Try until it works, with growing, fully jittered pauses, at least once.

    Args:
        attempt: what to try; it is cancelled at the limit.
        limit_s: total limit.
        url: the server, for the error.
        error: why there is something to try.
        outages: lists this wait while it lasts, for those who want to tell of it.
        anew: whether it is for a new session.

    Raises:
        SessionLost: if it didn't work within the limit, with the last attempt's reason.
        CapacityError: if that was the last attempt's reason.
        OpenEnvGymError: an attempt's own error, if it is of a kind that waiting doesn't change.
    """
    outage = Outage(url, limit_s, "no answer yet" if error is None else reason_of(error), anew)
    outages.append(outage)
    try:
        await _insist(attempt, outage, error)
    finally:
        outages.remove(outage)


async def _insist(attempt: Callable[[], Awaitable[None]], outage: Outage, error: OpenEnvGymError | None) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + outage.limit_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await asyncio.wait_for(attempt(), max(end - loop.time(), 0.001))
        except _FINAL:
            raise
        except (OpenEnvGymError, TimeoutError, asyncio.TimeoutError) as failure:
            error = failure if isinstance(failure, OpenEnvGymError) else error
        if error is not None:
            outage.reason = reason_of(error)
        if loop.time() >= end:
            if isinstance(error, CapacityError):
                raise error
            why = "" if error is None else f": {reason_of(error)}"
            raise SessionLost(outage.url, f"not reconnected within {outage.limit_s:g} second(s){why}")
        # Full jitter: after a server's restart its clients must not come back all at once.
        await asyncio.sleep(random.uniform(0, min(pause_s, max(end - loop.time(), 0))))  # noqa: S311
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def await_room(attempt: Callable[[], Awaitable[_T]], limit_s: float) -> _T:
    """Try again while a server is full, with growing, fully jittered pauses.

    Args:
        attempt: what to try, which leaves nothing behind where it fails.
        limit_s: when to stop beginning attempts; 0 for only one.

    Raises:
        CapacityError: if there was no room until then.
        OpenEnvGymError: what an attempt raised for another reason.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await attempt()
        except CapacityError:
            if loop.time() >= end:
                raise
        await asyncio.sleep(random.uniform(0, min(pause_s, max(end - loop.time(), 0))))  # noqa: S311
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def reason_of(error: BaseException) -> str:
    """An error's reason in a few words, to be part of another's."""
    if isinstance(error, ConnectFailed | ConnectionLost):
        return error.reason
    return str(error) if isinstance(error, OpenEnvGymError) else repr(error)
