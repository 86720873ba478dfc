"""`RemoteVecEnv`: a ``gymnasium.vector.VectorEnv`` whose envs run on servers.

What it gives equals what ``gymnasium.vector.SyncVectorEnv`` gives for the same envs, seeds and actions. Misuse raises what
``gymnasium.vector.AsyncVectorEnv`` raises (gymnasium/vector/async_vector_env.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from openenv_gym.backend import Backend
from openenv_gym.batching import check_actions
from openenv_gym.codec import pack
from openenv_gym.infos import merge_infos
from openenv_gym.messages import Call, Get, Render, Set
from openenv_gym.options import RemoteOptions
from openenv_gym.rollout import Ask, Pending, Rollout, Steps

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RemoteVecEnv"]

_REFUSED_CALLS = frozenset({"reset", "step", "close", "_setattr", "_check_spaces"})
_FOR_EVER = float(2**31)


class RemoteVecEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """``num_envs`` envs on one or more servers, stepped in one round trip.

    Args:
        base_url: one URL or a list of URLs, ``http(s)://`` or ``ws(s)://``; None takes ``$OPENENV_BASE_URL``, else
            ``http://localhost:8000``. Several servers share the envs evenly.
        num_envs: the number of envs.
        autoreset_mode: ``"NextStep"``, ``"SameStep"``, ``"Disabled"`` or an ``AutoresetMode``.
        copy: give out fresh observations at each step, rather than the same arrays.
        local: an environment to serve from an embedded `openenv_gym.LocalServer`, instead of ``base_url``.
        env_kwargs: keyword arguments for that environment.
        **options: the fields of `openenv_gym.options.RemoteOptions`: ``connections``, ``include``, ``exclude``,
            ``obs_dtype``, ``info_keys``, ``render_mode``, ``max_episode_steps``, ``token``, ``headers``,
            ``connect_timeout_s``, ``message_timeout_s``, ``reset_timeout_s``, ``max_message_size_mb``, ``on_lost``,
            ``observation_space``, ``action_space`` and more.

    Attributes:
        num_envs: the number of envs.
        single_observation_space: one env's observation space, after trimming.
        single_action_space: one env's action space.
        observation_space: the batched observation space.
        action_space: the batched action space.
        metadata: the envs' metadata, with ``autoreset_mode``; this instance's own.
        render_mode: the envs' render mode.
        options: the validated options.
        copy: whether observations are fresh at each step.
        rollout: the rows and their episodes, for adapters to other libraries.

    Raises:
        OptionError: for an unknown option or a bad value.
        ConnectFailed: if a server can't be reached; `CapacityError` if it has no room, `Unauthorized` if it refuses the
            token, `NotAWebSocket` if it is something else.
        SpaceError: if the servers' spaces differ, or a trimmed key doesn't exist.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"], "render_fps": 30}  # noqa: RUF012 - Gymnasium's

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        num_envs: int = 1,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        local: str | Callable[..., Any] | None = None,
        env_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.closed = True  # until it is open: whatever fails below leaves nothing to close
        self.options = RemoteOptions.from_kwargs({"base_url": base_url, **options})
        self._autoreset = AutoresetMode(autoreset_mode)
        self._backend = Backend(self.options, num_envs, local=local, env_kwargs=env_kwargs)
        self.rollout = Rollout(self._backend.pool, on_lost=self.options.on_lost, warn=_warn, copy=copy)
        link = self._backend.pool.links[0]
        self.num_envs = num_envs
        self.copy = copy
        self.single_observation_space = link.observation_space
        self.single_action_space = link.action_space
        self.observation_space = batch_space(link.observation_space, num_envs)
        self.action_space = batch_space(link.action_space, num_envs)
        self.render_mode = link.metadata.get("render_mode")
        self.metadata = {k: v for k, v in link.metadata.items() if k != "render_mode"}
        self.metadata["render_modes"] = list(self.metadata.get("render_modes", ()))
        self.metadata["autoreset_mode"] = self._autoreset
        self.closed = False
        self._state = AsyncState.DEFAULT
        self._pending: Pending | None = None
        self._seeds: tuple[int | None, ...] = (None,) * num_envs

    @classmethod
    def local(
        cls,
        env: str | Callable[..., Any],
        num_envs: int = 1,
        *,
        env_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """The same over an embedded `openenv_gym.LocalServer`, which it owns and stops.

        Args:
            env: a Gymnasium id, ``package.module:callable``, or a callable that makes an env.
            num_envs: the number of envs.
            env_kwargs: keyword arguments for the env.
            **options: as for the class.
        """
        return cls(num_envs=num_envs, local=env, env_kwargs=env_kwargs, **options)

    # ------------------------------------------------------------------------------------------------ reset

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the envs.

        Args:
            seed: None; an int, from which each env gets the next; or one int or None for each env.
            options: given to every env. ``options["reset_mask"]``, a bool array of shape ``(num_envs,)``, resets only
                the envs where it is True; it isn't given to them, nor taken out of this dict.

        Returns:
            batched observations and infos. Envs that weren't reset show their last observation.

        Raises:
            ValueError: for a wrong number of seeds, or a mask of the wrong shape.
            TypeError: for a mask that is no bool array.
            ResetNeeded: if an env outside the mask was never reset.
        """
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Send a reset without waiting; see `reset`.

        Raises:
            AlreadyPendingCallError: if another call wasn't waited for.
        """
        self._assert_is_running()
        seeds = _seeds(seed, self.num_envs)
        self._assert_nothing_pending("reset_async")
        rows = None
        if options is not None and "reset_mask" in options:
            rows = _masked_rows(options["reset_mask"], self.num_envs)
            options = {key: value for key, value in options.items() if key != "reset_mask"}
        chosen = range(self.num_envs) if rows is None else rows
        self._pending = self.rollout.start_reset(seeds, [options] * self.num_envs, rows)
        self._state = AsyncState.WAITING_RESET
        # A seed of None lets an env's generator go on, so the last seed still describes it.
        old = self._seeds
        self._seeds = tuple(
            seeds[row] if row in set(chosen) and seeds[row] is not None else old[row] for row in range(self.num_envs)
        )

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for `reset_async`.

        Args:
            timeout: total limit in seconds; None takes ``reset_timeout_s``.

        Raises:
            NoAsyncCallError: without a call to `reset_async` before.
            ReplyTimeout: if it takes longer. It is a ``multiprocessing.TimeoutError``. The envs need a reset then.
        """
        pending = self._take_pending(AsyncState.WAITING_RESET, "reset")
        result = self.rollout.finish_reset(pending, _limit(timeout, self.options.resets_within_s))
        return self.rollout.reader.read(result.parts), merge_infos(result.infos, self.num_envs)

    # ------------------------------------------------------------------------------------------------- step

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Step all envs in one round trip.

        Args:
            actions: one action for each env, as ``gymnasium.vector.utils.iterate`` takes them.

        Returns:
            observations, rewards (float64), terminations and truncations (bool), each of ``num_envs``, and infos.
            All are fresh, unless ``copy=False`` for observations.

        Raises:
            ActionError: for actions of the wrong number or shape, before anything is sent. It is a ``ValueError``.
            ResetNeeded: if an env has no episode to go on with.
            RemoteEnvError: if an env raised; the others have made their step.
            ReplyTimeout: after ``message_timeout_s``; the envs need a reset then.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Send a step without waiting; see `step`.

        Raises:
            AlreadyPendingCallError: if another call wasn't waited for.
        """
        self._assert_is_running()
        self._assert_nothing_pending("step_async")
        leaves = check_actions(self.single_action_space, actions, self.num_envs)
        self._pending = self.rollout.start_step(leaves, self._autoreset)
        self._state = AsyncState.WAITING_STEP

    def step_wait(
        self, timeout: float | None = None
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Wait for `step_async`.

        Args:
            timeout: total limit in seconds; None takes ``message_timeout_s``.

        Raises:
            NoAsyncCallError: without a call to `step_async` before.
            ReplyTimeout: if it takes longer. It is a ``multiprocessing.TimeoutError``. The envs need a reset then.
        """
        pending = self._take_pending(AsyncState.WAITING_STEP, "step")
        result = self.rollout.finish_step(pending, _limit(timeout, self.options.message_timeout_s))
        observations = self.rollout.reader.read(result.parts)
        return observations, result.rewards, result.terminated, result.truncated, self._infos(result)

    def _infos(self, result: Steps) -> dict[str, Any]:
        if not result.infos and not result.endings:
            return {}
        endings = [(e.row, {"final_obs": e.observation, "final_info": e.info}) for e in result.endings]
        return merge_infos([*endings, *result.infos], self.num_envs)

    # ------------------------------------------------------------------------------------ methods, attributes

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env that the server allows, or read an attribute.

        Args:
            name: the method's name, looked up from the outermost wrapper.
            *args: plain data.
            **kwargs: plain data.

        Returns:
            one result for each env.

        Raises:
            ValueError: for ``reset``, ``step`` and ``close``, which have methods of their own.
            RemoteEnvError: if the server doesn't allow it (``--allow-call``), or it raises.
        """
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Send a call without waiting; see `call`."""
        self._assert_is_running()
        self._assert_nothing_pending("call_async")
        if name in _REFUSED_CALLS:
            raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        packed_args = [pack(arg, f"args[{i}]") for i, arg in enumerate(args)]
        packed_kwargs = {key: pack(value, key) for key, value in kwargs.items()}
        self._pending = self.rollout.start_ask(lambda slots, rows: Call(0, slots, name, packed_args, packed_kwargs), "call")
        self._state = AsyncState.WAITING_CALL

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for `call_async`."""
        pending = self._take_pending(AsyncState.WAITING_CALL, "call")
        return tuple(self.rollout.finish_ask(pending, _limit(timeout, self.options.message_timeout_s)))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of plain data from each env, looked up from the outermost wrapper.

        Raises:
            AttributeError: if an env has none. It is a `RemoteEnvError` too.
        """
        return tuple(self._ask(lambda slots, rows: Get(0, slots, name), "get_attr"))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute that the server allows.

        Args:
            name: the attribute's name.
            values: a list or tuple with one value for each env, or one value for all.

        Raises:
            ValueError: for a list or tuple of another length.
            RemoteEnvError: if the server doesn't allow it (``--allow-set``).
        """
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        packed = [pack(value, name) for value in values]
        self._ask(lambda slots, rows: Set(0, slots, name, [packed[row] for row in rows]), "set_attr")

    def render(self) -> tuple[Any, ...]:
        """Each env's current frame, in ``render_mode``."""
        return tuple(self._ask(lambda slots, rows: Render(0, slots), "render"))

    def _ask(self, make: Ask, phase: str) -> list[Any]:
        self._assert_is_running()
        self._assert_nothing_pending(phase)
        return self.rollout.ask(make, phase, self.options.message_timeout_s)

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]
        """The last seed that each env was given, or None."""
        return self._seeds

    @property
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The envs' generators live on the server and can't be had.

        Raises:
            AttributeError: always.
        """
        raise AttributeError("the envs' random generators live on the server; use `reset(seed=...)`")

    # ------------------------------------------------------------------------------------------------- ends

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """Close the connections, within a limit. `close` calls this once.

        Args:
            timeout: limit in seconds; None takes ``close_timeout_s``.
            terminate: don't wait for a pending call.
            **kwargs: ignored.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            gym.logger.warn(f"Calling `close` while waiting for a pending call to `{pending.phase}` to complete.")
            if not terminate:
                limit = _limit(timeout, self.options.close_timeout_s)
                self._backend.pool.wait(pending.call, pending.requests, pending.phase, limit)
        self._state = AsyncState.DEFAULT
        self._backend.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _assert_is_running(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )

    def _assert_nothing_pending(self, name: str) -> None:
        if self._pending is not None:
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{self._state.value}` to complete",
                self._state.value,
            )

    def _take_pending(self, state: AsyncState, name: str) -> Pending:
        self._assert_is_running()
        if self._pending is None or self._state is not state:
            raise NoAsyncCallError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)
        # Cleared before anything can raise, so that the env stays usable.
        pending, self._pending, self._state = self._pending, None, AsyncState.DEFAULT
        return pending


def _warn(text: str) -> None:
    gym.logger.warn("%s", text)


def _limit(timeout: float | None, default: float) -> float:
    return default if timeout is None else timeout


def _seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """One seed for each env (gymnasium/vector/sync_vector_env.py, ``reset``), as Python ints."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        seed = [int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={num_envs} but got length={len(seed)}."
        )
    seeds = [None if s is None else int(s) for s in seed]
    negative = [s for s in seeds if s is not None and s < 0]
    if negative:
        raise gym.error.Error(f"Seed must be greater or equal to zero, actual value: {negative[0]}")
    return seeds


def _masked_rows(mask: Any, num_envs: int) -> list[int]:
    """The rows to reset, with ``SyncVectorEnv.reset``'s checks in its order and words."""
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    return [int(row) for row in np.flatnonzero(mask)]
