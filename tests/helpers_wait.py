"""Waiting for what happens elsewhere, and tells nobody: polling with a deadline, which no test outlives."""

import asyncio
import time

LIMIT_S = 30
"""Seconds that a test waits for anything at most: long enough for a busy machine."""

_PAUSE_S = 0.005


def wait_until(condition, what="the condition", limit_s=LIMIT_S):
    """Poll until `condition()` is true, and return what it returned."""
    end = time.monotonic() + limit_s
    while not (result := condition()):
        _check(end, what, limit_s)
        time.sleep(_PAUSE_S)
    return result


async def until(condition, what="the condition", limit_s=LIMIT_S):
    """`wait_until` for a running event loop."""
    end = time.monotonic() + limit_s
    while not (result := condition()):
        _check(end, what, limit_s)
        await asyncio.sleep(_PAUSE_S)
    return result


def _check(end, what, limit_s):
    assert time.monotonic() < end, f"{what} didn't come true within {limit_s:g} seconds"
