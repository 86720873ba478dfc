"""A session's envs, stepped and reset in Gymnasium's three autoreset modes. No threads and no I/O here.

The loops write straight into the arrays of a `Page`, which are allocated once and then encoded. What a client trimmed
away is never touched. The semantics are those of ``SyncVectorEnv.step`` (gymnasium/vector/sync_vector_env.py): an
autoreset passes no seed and no options; under ``NextStep`` the reset step has reward 0; under ``SameStep`` the last
observation and info travel as `FinalRows`, written down before the reset can overwrite them.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from openenv_gym.errors import SpaceError
from openenv_gym.messages import Launch, Request, Step
from openenv_gym.server.adapters import EnvSource, HostedEnv
from openenv_gym.server.encoding import Encoding
from openenv_gym.server.openenv_env import OpenEnvEnv
from openenv_gym.server.page import Assignment, Page
from openenv_gym.server.slot import SAME_STEP, Slot
from openenv_gym.spaces import alike

__all__ = ["Slots"]


class Slots:
    """The envs of one session.

    Guarantees: methods that take a page may run on several threads at the same time, each with other slots; the others
    run before and after them.

    Args:
        source: where the envs come from.
        count: the number of slots.
        spaces: one env's observation and action space.
        encoding: how observations, infos and actions travel.
        render_mode: the envs' render mode.
        max_episode_steps: truncate episodes at this length.
        varied: let the bounds of the envs' observation spaces differ.
        debug: put tracebacks into failures.

    Attributes:
        source: where the envs come from.
        count: the number of slots.
    """

    def __init__(
        self,
        source: EnvSource,
        count: int,
        spaces: tuple[gym.Space[Any], gym.Space[Any]],
        encoding: Encoding,
        *,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
        varied: bool = False,
        debug: bool = False,
    ) -> None:
        self.source = source
        self.count = count
        self._spaces = spaces
        self._encoding = encoding
        self._render_mode = render_mode
        self._max_episode_steps = max_episode_steps
        self._varied = varied
        self._debug = debug
        self._slots = [self._new_slot() for _ in range(count)]
        self._page: Page | None = None

    # ------------------------------------------------------------------------------------ on the envs' threads

    def reset(
        self,
        page: Page,
        assignments: Sequence[Assignment],
        seeds: Sequence[int | None],
        options: Sequence[dict[str, Any] | None],
        sticky: bool,
    ) -> None:
        """Reset envs.

        Args:
            page: where the observations and infos go.
            assignments: positions and slots.
            seeds: a seed or None for each position of the request.
            options: the same with options.
            sticky: whether their autoresets shall pass these options too.
        """
        for position, number in assignments:
            slot, seed = page.slots[number], seeds[position]
            slot.sticky = copy.deepcopy(options[position]) if sticky else None  # the env may change what it is given
            try:
                page.write(position, *slot.reset(seed=seed, options=options[position]))
            except BaseException as error:  # noqa: BLE001 - sys.exit() in an env must not pass for a transition
                page.fail(position, number, error)
            if seed is not None and slot.env is not None and not slot.env.takes_seed:
                page.unseeded = True

    def step(
        self,
        page: Page,
        assignments: Sequence[Assignment],
        actions: Sequence[Any] | Mapping[int, Any],
        autoreset: str | None,
    ) -> None:
        """Step envs.

        Args:
            page: where the transitions go.
            assignments: positions and slots.
            actions: one action for each position.
            autoreset: an ``AutoresetMode``'s value, or None.
        """
        slots, write = page.slots, page.write
        rewards, terminated, truncated = page.rewards, page.terminated, page.truncated
        for position, number in assignments:
            slot = slots[number]
            try:
                observation, reward, term, trunc, info = slot.step(actions[position], autoreset)
                terminated[position], truncated[position] = term, trunc
                try:
                    rewards[position] = reward
                except (TypeError, ValueError):  # an array of one element, which numpy 2 takes for no number
                    rewards[position] = np.asarray(reward).item()
                if slot.over and autoreset == SAME_STEP:
                    page.write_final(position, observation, info)
                    observation, info = slot.autoreset()
                write(position, observation, info)
            except BaseException as error:  # noqa: BLE001 - sys.exit() in an env must not pass for a transition
                page.fail(position, number, error)

    def each(self, page: Page, assignments: Sequence[Assignment], use: Callable[[HostedEnv, int], Any]) -> None:
        """Call ``use(env, position)`` with envs, and write down what it returns."""
        for position, number in assignments:
            try:
                page.write_value(position, use(page.slots[number].present(), position))
            except BaseException as error:  # noqa: BLE001 - sys.exit() in an env must not pass for a transition
                page.fail(position, number, error)

    def own_states(self, page: Page, assignments: Sequence[Assignment]) -> None:
        """Write down the states of OpenEnv environments, which are their own."""
        self.each(page, assignments, lambda env, _: env.state() if isinstance(env, OpenEnvEnv) else None)

    # ----------------------------------------------------------------------------------- before and after them

    as_one = False
    """Whether the envs are one vector env, on one thread."""

    autoreset_mode: str | None = None
    """The mode in which the envs reset themselves; None where each step says it."""

    def check(self, request: Request) -> None:
        """Refuse what these envs can't do, with a ValueError."""

    def begin(self) -> Page:
        """Borrow a page for one request."""
        page, self._page = self._page, None
        if page is None:
            page = self._new_page()
        page.clear()
        return page

    def end(self, page: Page) -> None:
        """Give a page back, when nobody writes there any more. What isn't given back is never used again."""
        self._page = page

    def abandon(self, number: int) -> Slot:
        """Put an empty slot in the place of one whose thread doesn't return, and give out the old one.

        Pages that were borrowed before keep the old slot.
        """
        old = self._slots[number]
        self._slots = [self._new_slot() if n == number else slot for n, slot in enumerate(self._slots)]
        self._page = None
        return old

    def use(self, encoding: Encoding) -> None:
        """Change how observations, infos and actions travel."""
        self._encoding = encoding
        self._page = None

    def render_in(self, mode: str) -> None:
        """Change the render mode. Each env with another one is built anew at its next reset."""
        if mode != self._render_mode:
            self._render_mode = mode
            for slot in self._slots:
                slot.stale = True

    def name_episode(self, slot: int, episode_id: str) -> None:
        """Give an env's current episode another id."""
        self._slots[slot].episode_id = episode_id

    def actions(self, request: Step | Launch, count: int) -> Sequence[Any]:
        """The actions of a request, one for each position.

        Raises:
            RemoteProtocolError: if they don't fit the action space.
        """
        return self._encoding.actions(request.actions, count)

    def state(self, slot: int) -> dict[str, Any]:
        """An env's state, as OpenEnv has it: ``episode_id`` and ``step_count``."""
        return {"episode_id": self._slots[slot].episode_id, "step_count": self._slots[slot].steps}

    @property
    def metadata(self) -> dict[str, Any]:
        """The first env's metadata."""
        return self._slots[0].metadata

    @property
    def slots(self) -> Sequence[Slot]:
        """The slots, by number."""
        return self._slots

    # ------------------------------------------------------------------------------------------------ one env

    def _new_page(self) -> Page:
        return Page(self._slots, self._encoding, debug=self._debug)

    def _new_slot(self) -> Slot:
        return Slot(self._make, self._max_episode_steps)

    def _make(self) -> HostedEnv:
        env = self.source.make(self._render_mode)
        problem = self._misfit(env)
        if problem is None:
            return env
        with contextlib.suppress(Exception):
            env.close()
        raise problem

    def _misfit(self, env: HostedEnv) -> SpaceError | None:
        """Why an env can't be one of these, partly in Gymnasium's words (gymnasium/vector/sync_vector_env.py)."""
        observation_space, action_space = self._spaces
        made = (
            f"{self.source.name} made an env with the spaces {env.observation_space} and {env.action_space}, "
            f"but this server's are {observation_space} and {action_space}"
        )
        if env.action_space != action_space:
            return SpaceError(made)
        if env.observation_space == observation_space:
            return None
        if not self._varied:
            return SpaceError(
                f"the sub-environments observation spaces are not equivalent. {made}. If this is intentional, use "
                "`observation_mode='different'` instead."
            )
        return None if alike(env.observation_space, observation_space) else SpaceError(f"{made}: not just other bounds")
