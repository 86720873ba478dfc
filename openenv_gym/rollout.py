"""A learner's rows from reset to step: what is sent for them, what came back, and what to do about lost sessions.

This is the one layer under `RemoteVecEnv`, `RemoteEnv` and the Stable-Baselines3 adapter: it knows rows and episodes,
and gives raw results, from which each of them makes what its library expects. It never steps an env that wasn't reset:
after a timeout, an interrupt or a lost session it asks for a reset first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from openenv_gym.actions import to_batch
from openenv_gym.asking import Ask
from openenv_gym.batching import BatchReader, rows_of
from openenv_gym.codec import pack, unpack
from openenv_gym.errors import (
    MessageTooLarge,
    ReplyTimeout,
    SessionLost,
    remote_env_error,
)
from openenv_gym.infos import CONNECTION_LOST
from openenv_gym.leaf_values import LeafValues
from openenv_gym.messages import EnvFailure, Observed, Reply, Request, Reset, Returned, Step, Stepped
from openenv_gym.notices import Notices
from openenv_gym.outcomes import Ending, Pending, Resets, Steps, raise_all, unexpected
from openenv_gym.pool import Pool
from openenv_gym.stats import Recorder, Stats
from openenv_gym.sticky_options import StickyOptions

__all__ = ["CONNECTION_LOST", "EpisodeOver", "Rollout"]


class Rollout:
    """Rows and their episodes over a pool.

    Args:
        pool: the connections.
        on_lost: ``"truncate"`` reports the rows of a lost session as truncated and goes on; ``"raise"`` raises
            `SessionLost`.
        warn: called with what the user should be told, once for each cause.
        copy: give out fresh observations each time.
        typed: keep the types of Discrete observations; see `BatchReader`.
        sticky_options: pass the options of a reset at the autoresets that follow it, too.

    Attributes:
        pool: the connections.
        reader: puts observations together, and remembers the last of each row.
        begun: the rows with an episode to go on with.
        over: the rows whose episode ended in their last step.
        orphans: rows whose episode went with its session, which their next step has to report.
        truncated: rows for which that was reported, and whose next step is the reset of a new episode.
        sticky: the options that autoresets pass.
        recorder: counts the steps, and notes where their time goes.
        notices: what the user is told.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        on_lost: str,
        warn: Callable[[str], None],
        copy: bool = True,
        typed: bool = False,
        sticky_options: bool = False,
    ) -> None:
        self.pool = pool
        self.num_envs = sum(len(rows) for rows in pool.rows)
        self.recorder = Recorder()
        self.notices = Notices(warn)
        pool.meanwhile = partial(self.notices.tell_outages, pool.links)
        self.reader = BatchReader(pool.links[0].observation_space, self.num_envs, copy=copy, typed=typed)
        self.sticky = StickyOptions()
        self._sticks = sticky_options
        self._on_lost = on_lost
        self.begun = np.zeros(self.num_envs, np.bool_)
        self.over = np.zeros(self.num_envs, np.bool_)
        self.orphans: set[int] = set()
        self.truncated: set[int] = set()
        self._losses = [link.loss for link in pool.links]

    # ------------------------------------------------------------------------------------------------ reset

    def start_reset(
        self,
        seeds: Sequence[int | None],
        options: Sequence[dict[str, Any] | None],
        rows: Sequence[int] | None = None,
    ) -> Pending:
        """Send a reset.

        Args:
            seeds: a seed or None for each row of the whole env.
            options: options or None for each row of the whole env.
            rows: the rows to reset; None for all.

        Raises:
            ResetNeeded: if some row would be left that was never reset.
            PackError: for options that can't be sent.
        """
        chosen = range(self.num_envs) if rows is None else rows
        left = sorted(set(np.flatnonzero(~self.begun).tolist()) - set(chosen))
        if left:
            raise gym.error.ResetNeeded(f"env {left[0]} was never reset (or its session was lost): reset it too")
        requests: list[tuple[int, Request]] = []
        for i, mine in self._by_link(rows):
            given = _some([pack(seeds[row], "seed") for row in mine]), _packed([options[row] for row in mine])
            request = Reset(0, _slots(self.pool.rows[i], mine), *given, self._sticks)
            self.sticky.keep(request, mine)
            requests.append((i, request))
        return self._send("reset", requests)

    def finish_reset(self, pending: Pending, timeout_s: float) -> Resets:
        """Wait for a reset.

        Raises:
            RemoteEnvError: if an env raised, or `BatchError` if several did.
            TransportError: if a server can't be reached, or doesn't answer in time.
        """
        replies = self._wait(pending, timeout_s)
        result = Resets()
        errors: list[Exception] = []
        for (i, request), reply in zip(pending.requests, replies, strict=True):
            assert isinstance(request, Reset)
            if isinstance(reply, Observed):
                self._take_observed(i, request, reply, result)
                errors += self.errors_of(i, reply.failures)
            else:
                errors.append(unexpected(reply))
        self.notices.tell_noted(self.pool.links)
        raise_all(errors)
        return result

    def _take_observed(self, link: int, request: Reset, reply: Observed, result: Resets) -> list[int]:
        of_link = self.pool.rows[link]
        rows = self._rows_of(link, request)
        loss = self.notice_loss(link)
        if loss is not None:  # this reset has made new envs of all rows
            self._take_unnoticed(sorted(set(of_link).difference(rows, self.truncated)), loss)
        self.orphans.difference_update(rows)
        self.truncated.difference_update(rows)
        failed = {of_link[failure.slot] for failure in reply.failures}
        good = [row for row in rows if row not in failed]
        self.begun[good] = True
        self.over[rows] = False
        result.parts.append((rows_of(rows), reply.observations))
        result.infos += [(rows[position], unpack(info)) for position, info in reply.infos.items()]
        if reply.vector_infos is not None:
            result.vector_infos.append((of_link, unpack(reply.vector_infos)))
        if reply.unseeded:
            name = self.pool.links[link].env_name or self.pool.links[link].url
            self.notices.tell(f"{name} ignores seeds: its reset() takes none")
        return rows

    # ------------------------------------------------------------------------------------------------- step

    def start_step(self, actions: list[LeafValues], autoreset: AutoresetMode | None) -> Pending:
        """Send a step.

        Args:
            actions: leaves from `openenv_gym.actions.check_actions`.
            autoreset: the mode; None steps envs even after the end of an episode, as single envs may be.

        Raises:
            ResetNeeded: if an env was never reset or, without autoreset, has finished. Nothing is sent then.
            PackError: for an action that can't be sent.
        """
        self.check(slice(None), autoreset)
        mode = None if autoreset is None else autoreset.value
        requests: list[tuple[int, Request]] = []
        for i, rows in enumerate(self.pool.rows):
            if self.truncated and self.truncated.issuperset(rows):  # this step starts new episodes
                requests.append((i, self.sticky.beginning(rows)))
            else:
                batch = to_batch(actions, slice(rows.start, rows.stop))
                requests.append((i, Step(0, None, batch, mode, self.recorder.collecting)))
        return self._send("step", requests, autoreset)

    def check(self, rows: slice | list[int], autoreset: AutoresetMode | None) -> None:
        """Refuse to step rows without an episode; see `start_step`."""
        if not self.begun[rows].all():
            row = np.arange(self.num_envs)[rows][~self.begun[rows]][0]
            raise gym.error.ResetNeeded(f"call `reset` before `step`: env {row} has no episode to go on with")
        if autoreset is AutoresetMode.DISABLED and self.over[rows].any():
            raise EpisodeOver(sorted(np.arange(self.num_envs)[rows][self.over[rows]].tolist()))

    def finish_step(self, pending: Pending, timeout_s: float) -> Steps:
        """Wait for a step.

        Raises:
            RemoteEnvError: if an env raised, or `BatchError` if several did; the others have made their step.
            SessionLost: if a session is gone and ``on_lost`` is ``"raise"``.
            TransportError: if a server doesn't answer in time; a reset is needed then.
        """
        self.recorder.wait()
        replies = self._wait(pending, timeout_s)
        self.recorder.take(self.pool.trip(pending.call, pending.requests) if self.recorder.collecting else None)
        result = Steps.of(self.num_envs)
        self.take_stepped(
            [
                (self.pool.rows[i], reply)
                for (i, _), reply in zip(pending.requests, replies, strict=True)
                if isinstance(reply, Stepped)
            ],
            result,
        )
        errors: list[Exception] = []
        for (i, request), reply in zip(pending.requests, replies, strict=True):
            if isinstance(reply, Stepped):
                errors += self.errors_of(i, reply.failures)
            elif isinstance(reply, Observed) and isinstance(request, Reset):
                self._take_observed(i, request, reply, result)
                errors += self.errors_of(i, reply.failures)
            elif isinstance(reply, SessionLost) and isinstance(request, Step):
                errors += self._take_lost(i, reply, result, pending.autoreset, timeout_s)
            elif isinstance(reply, MessageTooLarge):  # the step was taken, but nobody knows what it led to
                self.begun[list(self.pool.rows[i])] = False
                errors.append(reply)
            else:
                errors.append(unexpected(reply))
        np.logical_or(result.terminated, result.truncated, out=self.over)
        self.notices.tell_noted(self.pool.links)
        if errors:
            self.reader.keep(result.parts)  # a reset of some rows gives the latest of the others
        raise_all(errors)
        return result

    def take_stepped(self, stepped: Sequence[tuple[Sequence[int], Stepped]], result: Steps) -> None:
        """Put the replies for some rows each into a result."""
        result.take(stepped, self.reader.rows)
        self.recorder.env_steps += sum(len(rows) for rows, _ in stepped)

    # -------------------------------------------------------------------------------------- lost sessions

    def _take_lost(
        self, link: int, error: SessionLost, result: Steps, autoreset: AutoresetMode | None, timeout_s: float
    ) -> list[Exception]:
        """Report a lost session's rows as truncated; under same-step autoreset also start their next episodes."""
        rows = self.pool.rows[link]
        self.notice_loss(link)
        if self._on_lost == "raise":
            self.begun[list(rows)] = False
            return [error]
        self.truncated.update(rows)
        self.notices.note_lost(error, rows)
        result.truncated[list(rows)] = True
        endings = [Ending(row, self.reader.last(row), {CONNECTION_LOST: True}) for row in rows]
        if autoreset is None:  # a single env's caller must reset it
            self.begun[list(rows)] = False
        if autoreset is AutoresetMode.SAME_STEP:
            request = self.sticky.beginning(rows)
            (reply,) = self.pool.call([(link, request)], "reset", timeout_s)
            if not isinstance(reply, Observed):
                return [unexpected(reply)]
            self._take_observed(link, request, reply, result)
            result.endings += endings
        result.infos += [(row, {CONNECTION_LOST: True}) for row in rows]
        return []

    def notice_loss(self, link: int) -> SessionLost | None:
        """Take note of a link's last lost session; None if there is none that nothing has told of yet."""
        known, loss = self._losses[link], self.pool.links[link].loss
        self._losses[link] = loss
        return None if loss is known else loss

    def _take_unnoticed(self, rows: list[int], loss: SessionLost) -> None:
        """Take rows whose session was lost while nobody asked for anything there: their next step tells it."""
        if self._on_lost == "raise":
            self.begun[rows] = False
        elif rows:
            self.orphans.update(rows)
            self.notices.note_lost(loss, rows)

    # ----------------------------------------------------------------------------------------- other calls

    def ask(self, make: Ask, phase: str, timeout_s: float, rows: Sequence[int] | None = None) -> list[Any]:
        """Ask the envs of some rows.

        Args:
            make: makes the request to a link.
            phase: what to call it in an error.
            timeout_s: total limit.
            rows: the rows; None for all.

        Returns:
            each row's value, in the order of ``rows``.

        Raises:
            RemoteEnvError: if an env or the server refuses, or `BatchError` if several do.
        """
        return self.finish_ask(self.start_ask(make, phase, rows), timeout_s)

    def start_ask(self, make: Ask, phase: str, rows: Sequence[int] | None = None) -> Pending:
        """Ask without waiting; `finish_ask` takes what this returns."""
        chosen = list(range(self.num_envs) if rows is None else rows)
        requests = [(i, make(_slots(self.pool.rows[i], mine), mine)) for i, mine in self._by_link(rows)]
        return Pending(phase, requests, self.pool.start(requests), rows=chosen)

    def finish_ask(self, pending: Pending, timeout_s: float) -> list[Any]:
        """Wait for what `start_ask` sent; see `ask`."""
        values: dict[int, Any] = {}
        errors: list[Exception] = []
        replies = self.pool.wait(pending.call, pending.requests, pending.phase, timeout_s)
        for (i, request), reply in zip(pending.requests, replies, strict=True):
            if isinstance(reply, Returned):
                values.update(zip(self._rows_of(i, request), (unpack(value) for value in reply.values), strict=True))
                errors += self.errors_of(i, reply.failures)
            else:
                errors.append(unexpected(reply))
        raise_all(errors)
        return [values[row] for row in pending.rows]

    # ------------------------------------------------------------------------------------------------ stats

    def stats(self) -> Stats:
        """What was done so far, and where the time went."""
        links = self.pool.links
        known = Stats(
            self.num_envs,
            reconnects=sum(link.counters["reconnects"] for link in links),
            sessions_lost=sum(link.counters["sessions_lost"] for link in links),
            bytes_up=sum(link.traffic.bytes_up for link in links),
            bytes_down=sum(link.traffic.bytes_down for link in links),
        )
        return self.recorder.stats(known)

    # ---------------------------------------------------------------------------------------------- helpers

    def _send(self, phase: str, requests: list[tuple[int, Request]], autoreset: AutoresetMode | None = None) -> Pending:
        """Send. Unless all replies come (an interrupt is enough), nothing is known of the rows: they need a reset."""
        begun, self.begun = self.begun, np.zeros_like(self.begun)
        return Pending(phase, requests, self.pool.start(requests), autoreset, begun=begun)

    def _wait(self, pending: Pending, timeout_s: float) -> list[Reply | Exception]:
        replies = self.pool.wait(pending.call, pending.requests, pending.phase, timeout_s)
        if all(not isinstance(reply, ReplyTimeout) for reply in replies):
            self.begun = pending.begun
        return replies

    def _by_link(self, rows: Sequence[int] | None) -> Iterator[tuple[int, list[int]]]:
        """The links that have some of these rows, None for all, each with those that it has."""
        chosen = None if rows is None else set(rows)
        for i, of_link in enumerate(self.pool.rows):
            mine = [row for row in of_link if chosen is None or row in chosen]
            if mine:
                yield i, mine

    def _rows_of(self, link: int, request: Request) -> list[int]:
        of_link = self.pool.rows[link]
        slots = getattr(request, "slots", None)
        return list(of_link) if slots is None else [of_link[slot] for slot in slots]

    def errors_of(self, link: int, failures: list[EnvFailure]) -> list[Exception]:
        """What a link's envs raised."""
        rows = self.pool.rows[link]
        return [remote_env_error(f.code, f.type, f.message, rows[f.slot], f.traceback) for f in failures]


class EpisodeOver(gym.error.ResetNeeded, AssertionError):
    """Raised when finished envs are stepped without autoreset; an ``AssertionError`` as ``SyncVectorEnv`` raises.

    Attributes:
        rows: the finished envs.
    """

    def __init__(self, rows: list[int]) -> None:
        super().__init__(rows)
        self.rows = rows

    def __str__(self) -> str:
        return (
            f"autoreset is disabled and the episodes of env(s) {self.rows} are over: reset them with "
            'reset(options={"reset_mask": mask}), where mask is a bool array that is True for them'
        )


def _slots(of_link: range, rows: Sequence[int]) -> list[int] | None:
    """A link's slots for some of its rows; None for all of them."""
    return None if len(rows) == len(of_link) else [row - of_link.start for row in rows]


def _some(values: list[Any]) -> list[Any] | None:
    return None if all(value is None for value in values) else values


def _packed(options: list[dict[str, Any] | None]) -> list[Any] | None:
    if all(option is None for option in options):
        return None
    return [pack(option, "options") for option in options]
