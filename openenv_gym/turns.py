"""Whose turn it is: one call at a time, begun and waited for, in the words of ``AsyncVectorEnv``.

(gymnasium/vector/async_vector_env.py)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector.async_vector_env import AsyncState

from openenv_gym.outcomes import Pending

__all__ = ["Turns"]


class Turns:
    """One call at a time, whichever thread it is made on.

    Attributes:
        state: what is waited for.
        pending: what was sent and not yet waited for.
        in_flight: the number of envs whose step was sent by `send`, and not yet received.
    """

    def __init__(self) -> None:
        self.state = AsyncState.DEFAULT
        self.pending: Pending | None = None
        self.in_flight = 0
        self._lock = threading.Lock()

    @contextmanager
    def alone(self, name: str, *, beside: bool = False) -> Iterator[None]:
        """Hold the turn for the block.

        Args:
            name: the call's name.
            beside: whether it may be made while envs are in flight.

        Raises:
            AlreadyPendingCallError: if another call wasn't waited for.
        """
        self._take(name, beside)
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def begin(self, name: str, state: AsyncState, *, beside: bool = False) -> Iterator[None]:
        """Take the turn and, unless what is sent in the block fails, keep it until it was waited for; see `alone`.

        Raises:
            AlreadyPendingCallError: if another call wasn't waited for.
        """
        self._take(name, beside)
        self.state = state
        try:
            yield
        except BaseException:
            self.end()
            raise

    @contextmanager
    def wait(self, state: AsyncState, name: str) -> Iterator[Pending]:
        """Give what is pending, and the turn back, however the block ends.

        Raises:
            NoAsyncCallError: if there is nothing of this kind.
        """
        pending = self.pending
        if pending is None or self.state is not state:
            raise NoAsyncCallError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)
        self.pending = None
        try:
            yield pending
        finally:
            self.end()

    def end(self) -> None:
        """Give the turn back, if it is held for a pending call."""
        if self.state is not AsyncState.DEFAULT:
            self.state = AsyncState.DEFAULT
            self._lock.release()

    def _take(self, name: str, beside: bool) -> None:
        if not self._lock.acquire(blocking=False):
            state = str(self.state.value)
            text = f"Calling `{name}` while waiting for a pending call to `{state}` to complete"
            raise AlreadyPendingCallError(text, state)
        if self.in_flight and not beside:
            self._lock.release()
            text = f"Calling `{name}` while {self.in_flight} env(s) are in flight after `send`: call `recv` first"
            raise AlreadyPendingCallError(text, "send")
