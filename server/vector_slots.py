"""A session's envs that are one vector env: steps pass straight through, as batches. No threads and no I/O here.

What Gymnasium's vector envs give is given on: rewards in their own dtype, and infos in their own layout. Where one env
fails, all do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from openenv_gym.errors import FactoryError, OptionError, SpaceError
from openenv_gym.messages import (
    Array,
    Collect,
    Launch,
    Observed,
    Render,
    Request,
    Reset,
    Set,
    State,
    Step,
    Stepped,
    Timings,
)
from openenv_gym.server.adapters import EnvSource, HostedEnv
from openenv_gym.server.hosted_vector import HostedVector
from openenv_gym.server.page import Assignment, Page
from openenv_gym.server.slot import Slot
from openenv_gym.server.slots import Slots
from openenv_gym.server.vector_encoding import VectorEncoding

__all__ = ["VectorSlots", "check_vector"]


class _VectorPage(Page):
    """What one request of a vector env gave, for all envs at once."""

    def __init__(self, slots: VectorSlots, encoding: VectorEncoding, *, debug: bool) -> None:
        super().__init__((), encoding, debug=debug)
        self.slots = slots.slots
        self._vector_encoding = encoding
        self._batch: list[Any] = []
        self._infos: dict[str, Any] = {}

    def take(self, batched: Any, infos: dict[str, Any], numbers: Sequence[int] | None = None) -> None:
        """Write the observations of some envs or of all, and the infos."""
        self._batch = self._vector_encoding.observations(batched, numbers, len(self.slots))
        self._infos = self._vector_encoding.infos(infos)

    def take_outcome(self, rewards: Any, terminated: Any, truncated: Any) -> None:
        """Write how a step went."""
        count = len(self.slots)
        self.rewards = _row_of(rewards, count, "rewards")
        self.terminated, self.truncated = (
            _row_of(values, count, name).astype(np.bool_, copy=False)
            for values, name in ((terminated, "terminations"), (truncated, "truncations"))
        )

    def fail_all(self, group: Sequence[Assignment], error: BaseException) -> None:
        """Write what the vector env raised; no row holds data then."""
        for position, number in group:
            self.fail(position, number, error)

    def observed(self, id: int, count: int) -> Observed:
        """See `Page.observed`."""
        batch = self._vector_encoding.blank(count) if self.failures else self._batch
        return Observed(id, batch, {}, self._in_order(), vector_infos={} if self.failures else self._infos)

    def stepped(self, id: int, count: int, timings: Timings | None = None) -> Stepped:
        """See `Page.stepped`."""
        failed, never = bool(self.failures), np.zeros(count, np.bool_)
        return Stepped(
            id,
            self._vector_encoding.blank(count) if failed else self._batch,
            Array.of(np.zeros(count) if failed else self.rewards),
            Array.of(never if failed else self.terminated),
            Array.of(never if failed else self.truncated),
            {},
            None,
            self._in_order(),
            vector_infos={} if failed else self._infos,
            timings=timings,
        )


def _row_of(values: Any, count: int, name: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.shape != (count,):
        raise SpaceError(f"the vector env gave {name} of shape {array.shape} for {count} envs")
    return array


class VectorSlots(Slots):
    """The envs of one session, which are one vector env on one thread; see `Slots`.

    Args:
        source: where the vector env comes from.
        count: the number of its envs.
        spaces: one env's observation and action space.
        encoding: how observations, infos and actions travel.
        autoreset_mode: what the client expects, as ``AutoresetMode``'s value.
        render_mode: the render mode.
        debug: put tracebacks into failures.
    """

    def __init__(
        self,
        source: EnvSource,
        count: int,
        spaces: tuple[gym.Space[Any], gym.Space[Any]],
        encoding: VectorEncoding,
        *,
        autoreset_mode: str | None,
        render_mode: str | None = None,
        debug: bool = False,
    ) -> None:
        super().__init__(source, 1, spaces, encoding, render_mode=render_mode, debug=debug)
        self.count = count
        self.autoreset_mode = autoreset_mode
        self._encoding_of_all = encoding
        self._slots *= count
        self._begun = self._renders = False

    # ------------------------------------------------------------------------------------ on the env's thread

    def reset(
        self,
        page: Page,
        assignments: Sequence[Assignment],
        seeds: Sequence[int | None],
        options: Sequence[dict[str, Any] | None],
        sticky: bool,
    ) -> None:
        """See `Slots.reset`. Some of the envs are reset by ``options["reset_mask"]``, Gymnasium's word for it."""
        assert isinstance(page, _VectorPage)
        numbers = [number for _, number in assignments]
        try:
            given = dict(options[0] or {})
            if len(numbers) < self.count:
                given["reset_mask"] = np.isin(np.arange(self.count), numbers)
            seed = _one_seed(seeds, numbers, self.count)
            self._begun = self._begun and len(numbers) < self.count
            batched, infos = self._slots[0].reset(seed=seed, options=given or None)
            self._begun = True
            page.take(batched, infos, numbers)
        except BaseException as error:  # noqa: BLE001 - sys.exit() in an env must not pass for a transition
            page.fail_all(assignments, error)

    def step(self, page: Page, assignments: Sequence[Assignment], actions: Any, autoreset: str | None) -> None:
        """See `Slots.step`."""
        assert isinstance(page, _VectorPage)
        try:
            batched, *outcome, infos = self._live().step(actions)
            page.take_outcome(*outcome)
            page.take(batched, infos)
        except BaseException as error:  # noqa: BLE001 - sys.exit() in an env must not pass for a transition
            page.fail_all(assignments, error)

    def each(self, page: Page, assignments: Sequence[Assignment], use: Callable[[HostedEnv, int], Any]) -> None:
        """Call ``use`` with the vector env, once: of frames each env gets its own, of other results all the same."""
        try:
            result = use(self._hosted(), 0)
            frames = self._renders and isinstance(result, (tuple, list, np.ndarray)) and len(result) == self.count
            for position, number in assignments:
                page.write_value(position, result[number] if frames else result)
        except BaseException as error:  # noqa: BLE001 - sys.exit() in an env must not pass for a transition
            for position, number in assignments:
                page.fail(position, number, error)

    # ----------------------------------------------------------------------------------- before and after them

    as_one = True

    def check(self, request: Request) -> None:
        """See `Slots.check`."""
        self._renders = isinstance(request, Render)
        refusal = self._refusal(request)
        if refusal is not None:
            raise ValueError(f"{self.source.name} is a vector env, {refusal}")

    def _refusal(self, request: Request) -> str | None:
        if isinstance(request, (Launch, Collect)):
            return "which steps all of its envs at once: use `step`"
        if isinstance(request, Step) and request.slots is not None:
            return "which steps all of its envs at once, and no others"
        if isinstance(request, Step) and request.autoreset != self.autoreset_mode:
            return f"which resets its envs in the mode {self.autoreset_mode}, and not {request.autoreset}"
        if isinstance(request, Reset) and request.sticky and request.options is not None:
            return "which resets its envs by itself, without options: they can't be sticky"
        if isinstance(request, State):
            return "which doesn't tell its envs' states"
        if isinstance(request, Set) and any(value != request.values[0] for value in request.values):
            return "which has one value for all of its envs"
        return None

    def actions(self, request: Step | Launch, count: int) -> Any:
        """See `Slots.actions`."""
        return self._encoding_of_all.batched_actions(request.actions, count)

    def abandon(self, number: int) -> Slot:
        """See `Slots.abandon`."""
        old = self._slots[0]
        self._slots = [self._new_slot()] * self.count
        self._page, self._begun = None, False
        return old

    # ------------------------------------------------------------------------------------------- the vector env

    def _new_page(self) -> Page:
        return _VectorPage(self, self._encoding_of_all, debug=self._debug)

    def _new_slot(self) -> Slot:
        return _SharedSlot(self._make)

    def _hosted(self) -> HostedVector:
        env = self._slots[0].present()
        assert isinstance(env, HostedVector)
        return env

    def _live(self) -> HostedVector:
        env = self._hosted()
        if not self._begun:
            raise gym.error.ResetNeeded("Cannot call `step` before calling `reset`")
        return env

    def _make(self) -> HostedEnv:
        env = self.source.make(self._render_mode, num_envs=self.count, autoreset_mode=self.autoreset_mode)
        assert isinstance(env, HostedVector)
        problem = self._problem(env)
        if problem is None:
            return env
        with contextlib.suppress(Exception):
            env.close()
        raise problem

    def _problem(self, env: HostedVector) -> Exception | None:
        if (env.observation_space, env.action_space) != self._spaces:
            return SpaceError(f"{self.source.name} made a vector env with other spaces than this server's")
        if env.num_envs != self.count:
            return FactoryError(self.source.name, f"it has {env.num_envs} envs, and not {self.count}")
        if env.autoreset_mode != self.autoreset_mode:
            return OptionError(
                f"{self.source.name} is a vector env that resets its envs in the mode {env.autoreset_mode}, and "
                f'{self.autoreset_mode} was asked for: pass autoreset_mode="{env.autoreset_mode}"'
            )
        return None


class _SharedSlot(Slot):
    """The slot of a vector env, which stands for all of its envs."""

    def build(self) -> HostedEnv:
        """See `Slot.build`; once for all envs."""
        return self.env if self.env is not None else super().build()


def check_vector(
    name: str, fixed_size: int | None, count: int, max_episode_steps: int | None, autoreset_mode: str | None
) -> None:
    """Refuse what a session with a vector env can't have, before anything is built.

    Raises:
        OptionError: saying what it can.
    """
    if autoreset_mode is None:
        raise OptionError(f"{name} is a vector env: it needs a RemoteVecEnv")
    gym.vector.AutoresetMode(autoreset_mode)
    if fixed_size is not None and count != fixed_size:
        raise OptionError(
            f"{name} is a vector env of {fixed_size} envs, and {count} were asked for on a connection: ask for "
            f"{fixed_size}, or give its factory a parameter num_envs"
        )
    if max_episode_steps is not None:
        raise OptionError(f"{name} is a vector env, whose episodes have its own length: leave out max_episode_steps")


def _one_seed(seeds: Sequence[int | None], numbers: Sequence[int], count: int) -> Any:
    """Seeds of single envs as a vector env takes them: an int, if each env's is one more than that before it.

    That is what Gymnasium's vector envs make of an int; many others take nothing else.
    """
    first = None if seeds[0] is None else seeds[0] - numbers[0]
    if all(seed == (None if first is None else first + number) for seed, number in zip(seeds, numbers, strict=True)):
        return first if first is None or first >= 0 else _spread(seeds, numbers, count)
    return _spread(seeds, numbers, count)


def _spread(seeds: Sequence[int | None], numbers: Sequence[int], count: int) -> list[int | None]:
    given = dict(zip(numbers, seeds, strict=True))
    return [given.get(number) for number in range(count)]
