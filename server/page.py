"""What the threads that work on one request write down. No threads and no I/O here."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from pydantic import ValidationError

from openenv_gym.codec import PackError
from openenv_gym.errors import FactoryError, SpaceError
from openenv_gym.messages import Array, Collected, EnvFailure, FinalRows, Observed, Returned, Stepped, Timings
from openenv_gym.refusals import in_words
from openenv_gym.server.disclosure import disclosed, sendable, text_of
from openenv_gym.server.encoding import Encoding
from openenv_gym.server.openenv_env import OpenEnvEnv
from openenv_gym.server.slot import Slot

__all__ = ["Assignment", "Page"]

Assignment = tuple[int, int]
"""A position in a request, and the slot that stands there."""


class Page:
    """Rows of a reply to be, and the slots that they come from.

    A request borrows a page and gives it back when all its threads have ended (`openenv_gym.server.slots.Slots.begin`).
    A thread that is given up keeps its page, and with it all that it can write: nobody else uses it any more.

    Guarantees: several threads may write at the same time, each its own rows. The arrays of a reply are views of the
    page, valid until it is borrowed again.

    Args:
        slots: the session's slots.
        encoding: how observations and infos travel.
        debug: put tracebacks and paths of files into failures.

    Attributes:
        slots: the session's slots.
        rewards: the rewards.
        terminated: which episodes terminated.
        truncated: which episodes were truncated.
        infos: the infos, encoded, by position.
        final_infos: the last infos of episodes whose env was reset in the same step.
        values: what calls returned, encoded, by position.
        failures: what envs raised.
        unseeded: whether a seed was given that an env doesn't take.
    """

    def __init__(self, slots: Sequence[Slot], encoding: Encoding, *, debug: bool) -> None:
        self.slots = slots
        self.rewards = np.zeros(len(slots))
        self.terminated = np.zeros(len(slots), np.bool_)
        self.truncated = np.zeros(len(slots), np.bool_)
        self._encoding = encoding
        self._debug = debug
        self._observations = encoding.writer(len(slots))
        self._final_observations = encoding.writer(len(slots), final=True)
        self._write, self._info = self._observations.write, encoding.info
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.values: dict[int, Any] = {}
        self.failures: list[EnvFailure] = []
        self.unseeded = False
        self.infos: dict[int, dict[str, Any]] = {}
        self.final_infos: dict[int, dict[str, Any]] = {}

    # ------------------------------------------------------------------------------------------------ writing

    def write(self, position: int, observation: Any, info: dict[str, Any]) -> None:
        """Write an observation and an info, keeping no reference to them."""
        self._write(position, observation)
        encoded = self._info(info, observation)
        if encoded:
            self.infos[position] = encoded

    def write_final(self, position: int, observation: Any, info: dict[str, Any]) -> None:
        """Write how an episode ended whose env is reset in the same step."""
        self._final_observations.write(position, observation)
        self.final_infos[position] = self._info(info, observation)

    def write_value(self, position: int, value: Any) -> None:
        """Write what a call returned."""
        self.values[position] = self._encoding.value(value)

    def fail(self, position: int, slot: int, error: BaseException) -> None:
        """Write what an env raised; its row then holds no data."""
        for rows in (self.infos, self.final_infos, self.values):
            rows.pop(position, None)
        trace = sendable("".join(traceback.format_exception(error))) if self._debug else None
        if isinstance(error, ValidationError) and isinstance(self.slots[slot].env, OpenEnvEnv):
            # OpenEnv's servers call it so, whether the action or something of the env's own didn't fit.
            code, kind, text = "VALIDATION_ERROR", "", f"Invalid message: {in_words(error.errors())}"
        else:
            code, kind, text = _code(error), type(error).__name__, text_of(error)
        self.failures.append(EnvFailure(slot, code, kind, disclosed(text, debug=self._debug), trace))

    def clear_row(self, position: int) -> None:
        """Forget one row."""
        for rows in (self.infos, self.final_infos):
            rows.pop(position, None)
        for failure in self.failures.copy():  # other threads add to it meanwhile
            if failure.slot == position:
                self.failures.remove(failure)

    def give_up(self, slot: int, doing: str, limit_s: float) -> None:
        """Write that an env took too long."""
        text = f"env {slot} didn't return from {doing!r} within {limit_s:g} second(s); reset it, to get a new one"
        self.failures.append(EnvFailure(slot, "STEP_TIMEOUT", "TimeoutError", text))

    def without(self, stuck: Sequence[Assignment], doing: str, limit_s: float) -> Page:
        """This page as it is now, but with a failure for each of some envs, whose threads may go on writing here."""
        page = copy(self)
        positions = {position for position, _ in stuck}
        # A dict's own `copy` can't be interrupted by another thread, a comprehension over the shared one could.
        page.values, page.infos, page.final_infos = (
            {position: row for position, row in rows.copy().items() if position not in positions}
            for rows in (self.values, self.infos, self.final_infos)
        )
        slots = {slot for _, slot in stuck}
        page.failures = [failure for failure in self.failures.copy() if failure.slot not in slots]
        for slot in slots:
            page.give_up(slot, doing, limit_s)
        return page

    # ------------------------------------------------------------------------------------------------ reading

    def observed(self, id: int, count: int) -> Observed:
        """The reply to a `Reset` of ``count`` envs."""
        return Observed(id, self._observations.batch(count), self.infos, self._in_order(), self.unseeded)

    def stepped(self, id: int, count: int, timings: Timings | None = None) -> Stepped:
        """The reply to a `Step` of ``count`` envs."""
        return Stepped(
            id,
            self._observations.batch(count),
            Array.of(self.rewards[:count]),
            Array.of(self.terminated[:count]),
            Array.of(self.truncated[:count]),
            self.infos,
            self._final() if self.final_infos else None,
            self._in_order(),
            timings=timings,
        )

    def collected(self, id: int, slots: list[int]) -> Collected:
        """The reply to a `Collect`, on a page where each slot has the row of its number; these rows are forgotten."""
        failures = [failure for failure in self._in_order() if failure.slot in slots]
        good = sorted(set(slots) - {failure.slot for failure in failures})
        final = None
        ended = [position for position, slot in enumerate(good) if slot in self.final_infos]
        if ended:
            last = [good[position] for position in ended]
            batch = self._final_observations.batch(last)
            final = FinalRows(ended, batch, [self.final_infos[slot] for slot in last])
        steps = Stepped(
            id,
            self._observations.batch(good),
            Array.of(self.rewards[good]),
            Array.of(self.terminated[good]),
            Array.of(self.truncated[good]),
            {position: self.infos[slot] for position, slot in enumerate(good) if slot in self.infos},
            final,
            failures,
        )
        for slot in slots:
            self.clear_row(slot)
        return Collected(id, good, steps)

    def returned(self, id: int, count: int) -> Returned:
        """The reply to a `Call`, `Get`, `Set` or `Render` with ``count`` envs."""
        return Returned(id, [self.values.get(position) for position in range(count)], self._in_order())

    def _final(self) -> FinalRows:
        positions = sorted(self.final_infos)
        return FinalRows(positions, self._final_observations.batch(positions), [self.final_infos[p] for p in positions])

    def _in_order(self) -> list[EnvFailure]:
        return sorted(self.failures, key=lambda failure: failure.slot)


def _code(error: BaseException) -> str:
    if isinstance(error, FactoryError):
        return "FACTORY_ERROR"
    return "SERIALIZATION_ERROR" if isinstance(error, (SpaceError, PackError)) else "EXECUTION_ERROR"
