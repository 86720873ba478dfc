"""A session's envs, stepped and reset in Gymnasium's three autoreset modes. No threads and no I/O here.

The loops write straight into arrays that are allocated once and then encoded. What a client trimmed away is never
touched. The semantics are those of ``SyncVectorEnv.step`` (gymnasium/vector/sync_vector_env.py): an autoreset passes
no seed and no options; under ``NextStep`` the reset step has reward 0; under ``SameStep`` the last observation and info
travel as `FinalRows`, written down before the reset can overwrite them.
"""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from openenv_gym.codec import PackError, unpack
from openenv_gym.errors import FactoryError, SpaceError
from openenv_gym.messages import Array, EnvFailure, FinalRows, Observed, Reset, Step, Stepped
from openenv_gym.server.adapters import EnvSource, GymnasiumEnv
from openenv_gym.server.encoding import Encoding

__all__ = ["Assignment", "Slots"]

NEXT_STEP, SAME_STEP, DISABLED = (mode.value for mode in gym.vector.AutoresetMode)

Assignment = tuple[int, int]
"""A position in a request, and the slot that stands there."""


@dataclass
class _Slot:
    """One env and what is known of its episode."""

    env: GymnasiumEnv | None = None
    steps: int = 0
    episode_id: str | None = None
    live: bool = False
    """An episode has begun, so it can be stepped."""
    over: bool = False
    """The episode ended in the last step."""
    broken: bool = False
    """The last reset raised, or the render mode changed, so the env is built anew before the next reset."""


@dataclass
class _Reply:
    """What the threads that work on one request collect."""

    infos: dict[int, dict[str, Any]] = field(default_factory=dict)
    final_infos: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: list[EnvFailure] = field(default_factory=list)
    unseeded: bool = False


class Slots:
    """The envs of one session.

    Guarantees: methods that take assignments may run on several threads at the same time, each with other slots;
    `begin` and the methods that give a reply run before and after them.

    Args:
        source: where the envs come from.
        count: the number of slots.
        spaces: one env's observation and action space.
        encoding: how observations, infos and actions travel.
        render_mode: the envs' render mode.
        max_episode_steps: truncate episodes at this length.
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
        debug: bool = False,
    ) -> None:
        self.source = source
        self.count = count
        self._spaces = spaces
        self._render_mode = render_mode
        self._max_episode_steps = max_episode_steps
        self._debug = debug
        self._slots = [_Slot() for _ in range(count)]
        self._rewards = np.zeros(count)
        self._terminated = np.zeros(count, np.bool_)
        self._truncated = np.zeros(count, np.bool_)
        self._reply = _Reply()
        self.use(encoding)

    def use(self, encoding: Encoding) -> None:
        """Change how observations, infos and actions travel, between two requests."""
        self._encoding = encoding
        self._observations = encoding.writer(self.count)
        self._final_observations = encoding.writer(self.count)

    def render_in(self, mode: str) -> None:
        """Change the render mode, between two requests. Each env with another one is built anew at its next reset."""
        if mode != self._render_mode:
            self._render_mode = mode
            for slot in self._slots:
                slot.broken = True

    def name_episode(self, slot: int, episode_id: str) -> None:
        """Give an env's current episode another id, between two requests."""
        self._slots[slot].episode_id = episode_id

    @property
    def metadata(self) -> dict[str, Any]:
        """The first env's metadata."""
        env = self._slots[0].env
        return {} if env is None else env.metadata

    # ------------------------------------------------------------------------------------ on the envs' threads

    def build(self, slots: Sequence[int]) -> None:
        """Build envs.

        Raises:
            FactoryError: if one can't be built.
            SpaceError: if its spaces aren't those of the server's other envs.
        """
        for slot in slots:
            self._build(self._slots[slot])

    def close(self, slots: Sequence[int]) -> None:
        """Close envs, each once, whatever one of them raises.

        Raises:
            Exception: what the first of those raised that did.
        """
        errors: list[Exception] = []
        for slot in slots:
            env, self._slots[slot].env = self._slots[slot].env, None
            try:
                if env is not None:
                    env.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def reset(self, assignments: Sequence[Assignment], request: Reset) -> None:
        """Reset envs as a request says."""
        for position, number in assignments:
            slot = self._slots[number]
            seed = request.seeds[position] if request.seeds is not None else None
            try:
                options = unpack(request.options[position]) if request.options is not None else None
                observation, info = self._reset(slot, seed, options)
                self._write(position, observation, info)
            except BaseException as error:  # noqa: BLE001 - sys.exit() in an env must not pass for a transition
                self._fail(number, error)
            if seed is not None and slot.env is not None and not slot.env.takes_seed:
                self._reply.unseeded = True

    def step(self, assignments: Sequence[Assignment], actions: Sequence[Any], autoreset: str | None) -> None:
        """Step envs.

        Args:
            assignments: positions and slots.
            actions: one action for each position of the request.
            autoreset: an ``AutoresetMode``'s value, or None.
        """
        rewards, terminated, truncated = self._rewards, self._terminated, self._truncated
        limit = self._max_episode_steps
        for position, number in assignments:
            slot = self._slots[number]
            try:
                if slot.over and autoreset == NEXT_STEP:
                    rewards[position] = 0.0
                    terminated[position] = truncated[position] = False
                    observation, info = self._reset(slot, None, None)
                else:
                    env = self._steppable(slot, autoreset)
                    observation, reward, term, trunc, info = env.step(actions[position])
                    slot.steps += 1
                    if limit is not None and slot.steps >= limit:
                        trunc = True
                    rewards[position] = reward
                    terminated[position] = term
                    truncated[position] = trunc
                    slot.over = bool(term or trunc)
                    if slot.over and autoreset == SAME_STEP:
                        self._final_observations.write(position, observation)
                        self._reply.final_infos[position] = self._encoding.info(info)
                        observation, info = self._reset(slot, None, None)
                self._write(position, observation, info)
            except BaseException as error:  # noqa: BLE001 - sys.exit() in an env must not pass for a transition
                self._fail(number, error)

    def each(
        self, assignments: Sequence[Assignment], values: list[Any], use: Callable[[GymnasiumEnv, int], Any]
    ) -> None:
        """Call ``use(env, position)`` with envs, and put what it returns, packed, into ``values``."""
        for position, number in assignments:
            try:
                env = self._slots[number].env
                if env is None:
                    raise gym.error.ClosedEnvironmentError("the env is closed")
                values[position] = self._encoding.value(use(env, position))
            except BaseException as error:  # noqa: BLE001 - sys.exit() in an env must not pass for a transition
                self._fail(number, error)

    # ----------------------------------------------------------------------------------- before and after them

    def begin(self) -> None:
        """Start a request."""
        self._reply = _Reply()

    def actions(self, request: Step, count: int) -> Sequence[Any]:
        """The actions of a request, one for each position.

        Raises:
            RemoteProtocolError: if they don't fit the action space.
        """
        return self._encoding.actions(request.actions, count)

    def observed(self, id: int, count: int) -> Observed:
        """The reply to a `Reset` of ``count`` envs."""
        reply = self._reply
        return Observed(id, self._observations.batch(count), reply.infos, reply.failures, reply.unseeded)

    def stepped(self, id: int, count: int) -> Stepped:
        """The reply to a `Step` of ``count`` envs."""
        reply = self._reply
        return Stepped(
            id,
            self._observations.batch(count),
            Array.of(self._rewards[:count]),
            Array.of(self._terminated[:count]),
            Array.of(self._truncated[:count]),
            reply.infos,
            self._final(reply.final_infos) if reply.final_infos else None,
            reply.failures,
        )

    @property
    def failures(self) -> list[EnvFailure]:
        """What envs raised in this request."""
        return self._reply.failures

    def state(self, slot: int) -> dict[str, Any]:
        """An env's state, as OpenEnv has it: ``episode_id`` and ``step_count``."""
        return {"episode_id": self._slots[slot].episode_id, "step_count": self._slots[slot].steps}

    def _final(self, infos: dict[int, dict[str, Any]]) -> FinalRows:
        positions = sorted(infos)
        return FinalRows(positions, self._final_observations.batch(positions), [infos[p] for p in positions])

    # ------------------------------------------------------------------------------------------------ one env

    def _build(self, slot: _Slot) -> GymnasiumEnv:
        env = self.source.make(self._render_mode)
        if (env.observation_space, env.action_space) != self._spaces:
            env.close()
            raise SpaceError(
                f"{self.source.name} made an env with the spaces {env.observation_space} and {env.action_space}, "
                f"but this server's are {self._spaces[0]} and {self._spaces[1]}"
            )
        slot.env = env
        return env

    def _reset(self, slot: _Slot, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        env = slot.env
        if env is None or slot.broken:
            slot.env = None  # even if `close` raises, the next reset builds one
            if env is not None:
                env.close()
            env = self._build(slot)
        slot.live, slot.broken, slot.over, slot.steps = False, True, False, 0
        observation, info = env.reset(seed=seed, options=options)
        slot.live, slot.broken, slot.episode_id = True, False, str(uuid.uuid4())
        return observation, info

    def _steppable(self, slot: _Slot, autoreset: str | None) -> GymnasiumEnv:
        if slot.env is None or not slot.live:
            raise gym.error.ResetNeeded("Cannot call `step` before calling `reset`")
        if slot.over and autoreset == DISABLED:
            raise gym.error.ResetNeeded("the episode is over; with autoreset disabled, call `reset` first")
        return slot.env

    def _write(self, position: int, observation: Any, info: dict[str, Any]) -> None:
        self._observations.write(position, observation)
        if info:
            encoded = self._encoding.info(info)
            if encoded:
                self._reply.infos[position] = encoded

    def _fail(self, slot: int, error: BaseException) -> None:
        code = "SERIALIZATION_ERROR" if isinstance(error, (SpaceError, PackError)) else "EXECUTION_ERROR"
        if isinstance(error, FactoryError):
            code = "FACTORY_ERROR"
        trace = "".join(traceback.format_exception(error)) if self._debug else None
        self._reply.failures.append(EnvFailure(slot, code, type(error).__name__, str(error), trace))
