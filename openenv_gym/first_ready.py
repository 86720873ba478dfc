"""First-ready steps: some rows are sent their actions, and whichever are ready first are received.

The rows, their episodes and what becomes of lost sessions are `openenv_gym.rollout.Rollout`'s; a row's transitions are
the same whether it is stepped with all others or here. A row whose episode went with its session while it wasn't in
flight is an orphan: its next step reports that, and only the one after it begins a new episode.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from operator import index
from typing import Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode

from openenv_gym.actions import to_batch
from openenv_gym.batching import rows_of
from openenv_gym.codec import unpack
from openenv_gym.errors import RemoteEnvError, ReplyTimeout, SessionLost
from openenv_gym.flights import Flight, Flights
from openenv_gym.leaf_values import LeafValues
from openenv_gym.messages import Launch, Observed, Step, Stepped
from openenv_gym.outcomes import Ending, Steps, raise_all
from openenv_gym.rollout import CONNECTION_LOST, Rollout

__all__ = ["FirstReady", "check_env_ids"]


class FirstReady:
    """Rows in flight over a rollout.

    Args:
        rollout: the rows.
        autoreset: the mode to step in.
        on_lost: as for the rollout.

    Attributes:
        in_flight: rows that were sent an action, and whose transition wasn't received yet.
    """

    def __init__(self, rollout: Rollout, autoreset: AutoresetMode, *, on_lost: str) -> None:
        self.in_flight: set[int] = set()
        self._rollout = rollout
        self._autoreset = autoreset
        self._on_lost = on_lost
        self._link_of = [i for i, rows in enumerate(rollout.pool.rows) for _ in rows]
        self._flights = Flights(rollout.pool)
        self._ready: set[int] = set()
        self._result = Steps.of(rollout.num_envs)
        self._endings: dict[int, Ending] = {}
        self._errors: list[Exception] = []

    @property
    def needed(self) -> bool:
        """Whether the rows of a link are in different states after a lost session, so that only this can step them."""
        orphans, truncated = self._rollout.orphans, self._rollout.truncated
        if orphans or not truncated:  # nearly always; to look at each row would cost each step of many envs
            return bool(orphans)
        return any(0 < len(truncated.intersection(rows)) < len(rows) for rows in self._rollout.pool.rows)

    # ------------------------------------------------------------------------------------------------- send

    def send(self, actions: list[LeafValues], rows: list[int]) -> None:
        """Send rows their actions.

        Args:
            actions: leaves from `openenv_gym.actions.check_actions`, in the order of ``rows``.
            rows: the rows.

        Raises:
            AlreadyPendingCallError: if one is in flight; nothing is sent then.
            ResetNeeded: if one has no episode to go on with.
            PackError: for an action that can't be sent.
        """
        self.prepare(rows, "send")
        self._rollout.check(rows, self._autoreset)
        self.in_flight.update(rows)
        orphans = self._rollout.orphans.intersection(rows)
        by_link: dict[int, list[int]] = {}
        for position, row in enumerate(rows):
            if row not in orphans:
                by_link.setdefault(self._link_of[row], []).append(position)
        try:
            flights = [flight for i in by_link for flight in self._flights_of(i, by_link[i], rows, actions)]
            self._flights.send(flights)
        except BaseException:  # such as for an action that can't be packed
            self.in_flight.difference_update(rows)
            raise
        self._report_lost(sorted(orphans))

    def _flights_of(
        self, link: int, positions: list[int], rows: list[int], actions: list[LeafValues]
    ) -> Iterator[Flight]:
        of_link, truncated = self._rollout.pool.rows[link], self._rollout.truncated
        renewed = [rows[p] for p in positions if rows[p] in truncated]
        if renewed:
            yield self._reset(link, renewed)
            positions = [p for p in positions if rows[p] not in truncated]
        if positions:
            slots = [rows[p] - of_link.start for p in positions]
            batch, mode = to_batch(actions, rows_of(positions)), self._autoreset.value
            yield link, slots, Step(0, None, batch, mode) if len(of_link) == 1 else Launch(0, slots, batch, mode)

    def prepare(self, rows: Sequence[int], name: str) -> None:
        """Refuse a call for rows that are in flight, and note which sessions were lost before it.

        Raises:
            AlreadyPendingCallError: naming them.
        """
        self._take()
        found = sorted(self.in_flight.intersection(rows))
        if found:
            raise AlreadyPendingCallError(
                f"Calling `{name}` for env(s) {found}, which are in flight: `recv` them", name
            )

    def _reset(self, link: int, rows: Sequence[int]) -> Flight:
        slots = [row - self._rollout.pool.rows[link].start for row in rows]
        return link, slots, self._rollout.sticky.beginning(rows, slots)

    # ---------------------------------------------------------------------------------------------- receive

    def receive(self, min_ready: int | None, timeout_s: float) -> tuple[list[int], Steps]:
        """Wait for rows, and take all that are ready.

        Args:
            min_ready: how many to wait for; None for all that are in flight.
            timeout_s: total limit.

        Returns:
            the rows, ascending, and a result for all rows of which only theirs counts.

        Raises:
            NoAsyncCallError: if nothing is in flight.
            ValueError: for fewer than one row, or more than are in flight.
            RemoteEnvError: if an env raised; it is no longer in flight. What else is ready is received next.
            SessionLost: if a session is gone and ``on_lost`` is ``"raise"``.
            ReplyTimeout: at the limit. Rows that haven't arrived are no longer in flight, and need a reset.
        """
        count = self._check_count(min_ready)
        end = time.monotonic() + timeout_s
        self._take_or_raise()
        while len(self._ready) < count:
            landed = partial(self._flights.wait, count - len(self._ready))
            in_time = self._rollout.pool.look_out(landed, end - time.monotonic())
            self._take_or_raise()
            if not in_time and len(self._ready) < count:
                self._end_late(timeout_s)
        rows, result = sorted(self._ready), self._result
        self._ready, self._result = set(), Steps.of(self._rollout.num_envs)
        self.in_flight.difference_update(rows)
        return rows, result

    def receive_all(self, timeout_s: float) -> Steps:
        """Wait for all rows, as for one step: if it fails, what is ready is dropped."""
        try:
            return self.receive(None, timeout_s)[1]
        except BaseException:
            self.give_up()
            self.in_flight.clear()
            self._ready, self._result, self._errors = set(), Steps.of(self._rollout.num_envs), []
            raise

    def _check_count(self, min_ready: int | None) -> int:
        if not self.in_flight:
            raise NoAsyncCallError("Calling `recv` without any prior call to `send`.", "recv")
        if min_ready is None:
            return len(self.in_flight)
        if not 1 <= index(min_ready) <= len(self.in_flight):
            raise ValueError(f"min_ready is {min_ready}, but {len(self.in_flight)} env(s) are in flight")
        return index(min_ready)

    def _end_late(self, timeout_s: float) -> None:
        late = sorted(self.in_flight - self._ready)
        self.give_up()
        url = self._rollout.pool.links[self._link_of[late[0]]].url
        raise ReplyTimeout("recv", url, timeout_s, tuple(late))

    def give_up(self) -> None:
        """Wait no longer for the rows that aren't ready: they need a reset."""
        late = self.in_flight - self._ready
        if late:
            self._rollout.begun[list(late)] = False
            self._flights.give_up()
            self._flights = Flights(self._rollout.pool)
        self.in_flight.difference_update(late)
        self._endings.clear()

    def settle(self) -> int:
        """After a reset of other rows failed: give up if it took all episodes along. Returns how many are in flight."""
        if not self._rollout.begun[list(self.in_flight)].all():
            self.give_up()
        return len(self.in_flight)

    # ------------------------------------------------------------------------------------------ what landed

    def _take_or_raise(self) -> None:
        self._take()
        self._rollout.notices.tell_noted(self._rollout.pool.links)
        errors, self._errors = self._errors, []
        raise_all(errors)

    def _take(self) -> None:
        """Take what has landed, and keep what is to be raised."""
        for landing in self._flights.take():
            of_link = self._rollout.pool.rows[landing.link]
            rows = [of_link[slot] for slot in landing.slots]
            if isinstance(landing.outcome, Exception):
                self._errors += self._take_error(landing.link, rows, landing.outcome)
                continue
            failed = {of_link[failure.slot] for failure in landing.outcome.failures}
            self.in_flight -= failed
            self._errors += self._rollout.errors_of(landing.link, landing.outcome.failures)
            if isinstance(landing.outcome, Stepped):
                self._take_stepped([row for row in rows if row not in failed], landing.outcome)
            else:
                self._take_observed(landing.link, rows, failed, landing.outcome)

    def _take_stepped(self, rows: list[int], reply: Stepped) -> None:
        if rows:  # a reply to a `Step` of one env has a row for it even if it failed
            self._rollout.take_stepped([(rows, reply)], self._result)
            self._rollout.over[rows] = self._result.terminated[rows] | self._result.truncated[rows]
            self._ready.update(rows)

    def _take_observed(self, link: int, rows: list[int], failed: set[int], reply: Observed) -> None:
        """Take the first observations of new episodes, after the session of the ones before was lost."""
        self._rollout.truncated.difference_update(rows)
        self._rollout.begun[list(failed)] = False
        self._result.parts.append((rows, reply.observations))
        self._result.infos += [(rows[position], unpack(info)) for position, info in reply.infos.items()]
        good = [row for row in rows if row not in failed]
        self._rollout.over[good] = False
        self._ready.update(good)
        for row in good:
            if row in self._endings:
                self._result.endings.append(self._endings.pop(row))
                self._mark_lost(row)

    def _take_error(self, link: int, rows: list[int], error: Exception) -> list[Exception]:
        """Take what is no reply; return what is to be raised."""
        # Rows whose next episode couldn't be begun; the next step tries again.
        again = self._rollout.truncated.intersection(rows)
        unreported = again & self._endings.keys()
        self._rollout.truncated -= unreported
        self._rollout.orphans |= unreported
        for row in unreported:
            del self._endings[row]
        rows = [row for row in rows if row not in again]
        self.in_flight -= again
        if isinstance(error, SessionLost) and self._on_lost == "truncate":
            self._take_lost(link, rows, error)
            return [error] if again else []
        if isinstance(error, SessionLost):
            self._rollout.begun[list(self._rollout.pool.rows[link])] = False
        elif not isinstance(error, RemoteEnvError):  # which would say that nothing was changed
            self._rollout.begun[rows] = False
        self.in_flight.difference_update(rows)
        return [error]

    def _take_lost(self, link: int, rows: list[int], error: SessionLost) -> None:
        if self._rollout.notice_loss(link) is not None:  # else a reset has noticed it, and opened a new session
            self._rollout.orphans.update(set(self._rollout.pool.rows[link]) - self._rollout.truncated)
        if rows:
            self._rollout.notices.note_lost(error, rows)
            self._report_lost(rows)

    def _report_lost(self, rows: list[int]) -> None:
        """Report rows as truncated; under same-step autoreset only once the next episode has begun."""
        self._rollout.orphans.difference_update(rows)
        self._rollout.truncated.update(rows)
        if self._autoreset is AutoresetMode.SAME_STEP:
            for row in rows:
                self._endings[row] = Ending(row, self._rollout.reader.last(row), {CONNECTION_LOST: True})
            links = {self._link_of[row] for row in rows}
            self._flights.send([self._reset(i, [row for row in rows if self._link_of[row] == i]) for i in links])
            return
        for row in rows:
            self._mark_lost(row)
            self._rollout.over[row] = True
            self._ready.add(row)

    def _mark_lost(self, row: int) -> None:
        self._result.truncated[row] = True
        self._result.infos.append((row, {CONNECTION_LOST: True}))


def check_env_ids(env_ids: Any, num_envs: int) -> list[int]:
    """The rows that a caller names.

    Args:
        env_ids: integers, each once; None for all rows.
        num_envs: the number of rows.

    Raises:
        TypeError: for something else than a sequence of integers.
        ValueError: for none, an unknown one, or one that is named twice.
    """
    if env_ids is None:
        return list(range(num_envs))
    array = np.asarray(env_ids)
    if array.size == 0:
        raise ValueError("env_ids is empty")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"env_ids are a sequence of integers, not {env_ids!r}")
    rows: list[int] = array.tolist()
    unknown = sorted({row for row in rows if not 0 <= row < num_envs})
    if unknown:
        raise ValueError(f"unknown env_ids {unknown}: there are {num_envs} envs, numbered from 0")
    if len(set(rows)) != len(rows):
        raise ValueError(f"env_ids {sorted({row for row in rows if rows.count(row) > 1})} are named more than once")
    return rows
