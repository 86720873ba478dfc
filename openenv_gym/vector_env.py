"""`RemoteVecEnv`: a ``gymnasium.vector.VectorEnv`` whose envs run on servers.

What it gives equals what ``gymnasium.vector.SyncVectorEnv`` gives for the same envs, seeds and actions. Misuse raises
what ``gymnasium.vector.AsyncVectorEnv`` raises (gymnasium/vector/async_vector_env.py).
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from openenv_gym.actions import check_actions
from openenv_gym.backend import Backend
from openenv_gym.display import table
from openenv_gym.errors import OpenEnvGymError
from openenv_gym.first_ready import FirstReady
from openenv_gym.notices import warn
from openenv_gym.observation_mode import ObservationMode, batched_space, check_observation_mode
from openenv_gym.options import RemoteOptions, checked_mode
from openenv_gym.outcomes import Pending
from openenv_gym.rendering import METADATA, check_render_mode, metadata_here
from openenv_gym.reset_arguments import each_seed, split_mask
from openenv_gym.rollout import Rollout
from openenv_gym.specs import without_secrets
from openenv_gym.turns import Turns
from openenv_gym.vector_calls import limit
from openenv_gym.vector_ready import VectorReady, step_infos

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec
    from typing_extensions import Self

    from openenv_gym.launcher import Launcher

__all__ = ["RemoteVecEnv"]


class RemoteVecEnv(VectorReady):
    """``num_envs`` envs on one or more servers, stepped in one round trip.

    Args:
        base_url: one URL or a list of URLs, ``http(s)://`` or ``ws(s)://``; None takes ``$OPENENV_BASE_URL``, else
            ``http://localhost:8000``. Several servers share the envs evenly. A `openenv_gym.fleet.Launcher` instead of
            URLs lets the envs follow its servers.
        num_envs: the number of envs.
        autoreset_mode: ``"NextStep"``, ``"SameStep"``, ``"Disabled"`` or an ``AutoresetMode``.
        copy: give out fresh observations at each step, rather than the same arrays.
        sticky_options: pass the options of a reset at the autoresets that follow it, too, until the env is reset by
            hand again; seeds are never repeated. Gymnasium's own vector envs pass none, as False does.
        observation_mode: ``"same"`` for envs with one observation space; ``"different"`` for envs whose spaces have
            other bounds, but the same shapes and dtypes; or the batched and the single observation space to have.
        local: an environment to serve from an embedded `openenv_gym.LocalServer`, instead of ``base_url``.
        env_kwargs: keyword arguments for that environment.
        workers: processes of that server; None for one.
        disable_env_checker: ignored; ``gymnasium.make_vec`` passes it on.
        **options: the fields of `openenv_gym.options.RemoteOptions`: ``connections``, ``include``, ``exclude``,
            ``obs_dtype``, ``info_keys``, ``render_mode``, ``frames``, ``max_episode_steps``, ``token``, ``headers``,
            ``connect_timeout_s``, ``message_timeout_s``, ``reset_timeout_s``, ``max_message_size_mb``, ``on_lost``,
            ``observation_space``, ``action_space`` and more.

    Attributes:
        num_envs: the number of envs.
        single_observation_space: one env's observation space, after trimming.
        single_action_space: one env's action space.
        observation_space: the batched observation space.
        action_space: the batched action space.
        autoreset_mode: how envs are reset, as ``SyncVectorEnv`` and ``AsyncVectorEnv`` say it.
        metadata: the envs' metadata, with ``autoreset_mode``; this instance's own.
        render_mode: the envs' render mode, which is None if they don't have the one that was asked for.
        spec: how ``gymnasium.make_vec`` made it, without the token.
        options: the validated options.
        copy: whether observations are fresh at each step.
        rollout: the rows and their episodes, for adapters to other libraries.

    Raises:
        OptionError: for an unknown option or a bad value, and for ``render_mode="human"``.
        ValueError: for an unknown ``observation_mode``.
        ConnectFailed: if a server can't be reached; `CapacityError` if it has no room, `Unauthorized` if it refuses the
            token, `NotAWebSocket` if it is something else.
        SpaceError: if the servers' spaces differ, or a trimmed key doesn't exist.
    """

    metadata: dict[str, Any] = METADATA
    _spec: EnvSpec | None = None

    def __init__(
        self,
        base_url: str | Sequence[str] | Launcher | None = None,
        num_envs: int = 1,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        sticky_options: bool = False,
        observation_mode: ObservationMode = "same",
        local: str | Callable[..., Any] | None = None,
        env_kwargs: dict[str, Any] | None = None,
        workers: int | None = None,
        disable_env_checker: bool | None = None,
        **options: Any,
    ) -> None:
        self.closed = True  # until it is open: whatever fails below leaves nothing to close
        self.options = RemoteOptions.from_kwargs({"base_url": base_url, **options}, also=_ARGUMENTS)
        check_render_mode(self.options.render_mode, "gymnasium.wrappers.vector.HumanRendering")
        self.autoreset_mode = checked_mode(autoreset_mode)
        check_observation_mode(observation_mode)
        self._backend = Backend(
            self.options,
            num_envs,
            local=local,
            env_kwargs=env_kwargs,
            workers=workers,
            autoreset_mode=self.autoreset_mode.value,
            varied=observation_mode != "same",
        )
        links = self._backend.pool.links
        spaces = [space for link in links for space in link.observation_spaces]
        try:
            self.single_observation_space, self.observation_space = batched_space(observation_mode, spaces)
        except BaseException:
            self._backend.close()
            raise
        self.rollout = Rollout(
            self._backend.pool, on_lost=self.options.on_lost, warn=warn, copy=copy, sticky_options=sticky_options
        )
        self._first_ready = FirstReady(self.rollout, self.autoreset_mode, on_lost=self.options.on_lost)
        self.num_envs = num_envs
        self.copy = copy
        self.single_action_space = links[0].action_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata, self.render_mode = metadata_here(links[0].metadata, self.options.render_mode, warn)
        self.metadata["autoreset_mode"] = self.autoreset_mode
        self.closed = False
        self._turns = Turns()
        self._seeds: tuple[int | None, ...] = (None,) * num_envs
        self._rounds, self._since, self._until = 0, 0.0, 0.0

    @classmethod
    def local(
        cls,
        env: str | Callable[..., Any],
        num_envs: int = 1,
        *,
        env_kwargs: dict[str, Any] | None = None,
        workers: int | None = None,
        **options: Any,
    ) -> Self:
        """The same over an embedded `openenv_gym.LocalServer`, which it owns and stops.

        Args:
            env: a Gymnasium id, ``package.module:callable``, or a callable that makes an env.
            num_envs: the number of envs.
            env_kwargs: keyword arguments for the env.
            workers: processes that share the envs; for an id or ``package.module:callable`` only. None for one.
            **options: as for the class.
        """
        return cls(num_envs=num_envs, local=env, env_kwargs=env_kwargs, workers=workers, **options)

    # ------------------------------------------------------------------------------------------------ reset

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the envs.

        Args:
            seed: None; an int, from which each env gets the next; or one int or None for each env.
            options: given to every env, with ``sticky_options`` also at its autoresets. ``options["reset_mask"]``, a
                bool array of shape ``(num_envs,)``, resets only the envs where it is True; it isn't given to them, nor
                taken out of this dict.

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
        seeds = each_seed(seed, self.num_envs)
        with self._turns.begin("reset_async", AsyncState.WAITING_RESET, beside=True):
            rows, rest = split_mask(options, self.num_envs)
            self._first_ready.prepare(range(self.num_envs) if rows is None else rows, "reset_async")
            self._turns.pending = self.rollout.start_reset(seeds, [rest] * self.num_envs, rows)
        # A seed of None lets an env's generator go on, so the last seed still describes it.
        chosen = set(range(self.num_envs) if rows is None else rows)
        self._seeds = tuple(
            new if row in chosen and new is not None else old
            for row, (new, old) in enumerate(zip(seeds, self._seeds, strict=True))
        )
        self._rounds, self._since = 0, time.monotonic()

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for `reset_async`.

        Args:
            timeout: total limit in seconds; None takes ``reset_timeout_s``.

        Raises:
            NoAsyncCallError: without a call to `reset_async` before.
            ReplyTimeout: if it takes longer. It is a ``multiprocessing.TimeoutError``. The envs need a reset then.
        """
        self._assert_is_running()
        with self._turns.wait(AsyncState.WAITING_RESET, "reset") as pending:
            try:
                result = self.rollout.finish_reset(pending, limit(timeout, self.options.resets_within_s))
            except BaseException:
                self._turns.in_flight = self._first_ready.settle()
                raise
            return self.rollout.reader.read(result.parts), result.merged_infos(self.num_envs)

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
        with self._turns.begin("step_async", AsyncState.WAITING_STEP):
            self.rollout.recorder.begin()
            leaves = check_actions(self.single_action_space, actions, self.num_envs)
            if self._first_ready.needed:
                self._first_ready.send(leaves, list(range(self.num_envs)))
                self._turns.pending = Pending("step", [], None)
            else:
                self._turns.pending = self.rollout.start_step(leaves, self.autoreset_mode)

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
        self._assert_is_running()
        with self._turns.wait(AsyncState.WAITING_STEP, "step") as pending:
            within_s = limit(timeout, self.options.message_timeout_s)
            if pending.call is None:
                result = self._first_ready.receive_all(within_s)
                self.rollout.recorder.take(None)
            else:
                result = self.rollout.finish_step(pending, within_s)
            observations = self.rollout.reader.read(result.parts)
            self._rounds, self._until = self._rounds + 1, time.monotonic()
            infos = step_infos(result, range(self.num_envs))
            self.rollout.recorder.end()
            return observations, result.rewards, result.terminated, result.truncated, infos

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]
        """The last seed that each env was given; where it was given none, the one that it chose, or None if unknown."""
        chosen: Sequence[int | None] = self._seeds
        if None in chosen and not self.closed:
            with suppress(AlreadyPendingCallError, AttributeError, OpenEnvGymError):
                chosen = self.get_attr("np_random_seed")
        return tuple(old if old is not None else new for old, new in zip(self._seeds, chosen, strict=True))

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The envs' generators live on the server and can't be had.

        Raises:
            AttributeError: always.
        """
        raise AttributeError("the envs' random generators live on the server; use `reset(seed=...)`")

    # ------------------------------------------------------------------------------------------------- ends

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """Close the connections, within a limit. `close` calls this once.

        A server answers in order, and so the envs end their steps before it closes them.

        Args:
            timeout: limit in seconds; None takes ``close_timeout_s``.
            terminate: don't wait for a call that is pending, or for envs that are in flight.
            **kwargs: ignored.
        """
        pending, self._turns.pending = self._turns.pending, None
        busy = pending is not None or self._turns.in_flight > 0
        if pending is not None:
            warn(f"Calling `close` while waiting for a pending call to `{pending.phase}` to complete.")
        self._turns.end()
        self._backend.close(0.0 if busy and terminate else timeout)

    @property
    def spec(self) -> EnvSpec | None:
        """How ``gymnasium.make_vec`` made it, without the token."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        self._spec = without_secrets(spec)

    def __repr__(self) -> str:
        urls = dict.fromkeys(link.url for link in self._backend.pool.links)
        shown = repr(*urls) if len(urls) == 1 else repr(list(urls))
        shown = shown.replace("%", r"\x")  # Gymnasium's wrappers give an env's repr to a logger that formats with %
        return f"{type(self).__name__}({shown}, num_envs={self.num_envs})"

    def _repr_html_(self) -> str:
        links = self._backend.pool.links
        took = self._until - self._since
        return table(
            repr(self),
            {
                "observation space": self.single_observation_space,
                "action space": self.single_action_space,
                "autoreset": self.autoreset_mode.value,
                "servers": ", ".join(dict.fromkeys(link.url for link in links)),
                "environment": ", ".join(dict.fromkeys(link.env_name for link in links if link.env_name)),
                "sessions": "closed" if self.closed else len(links),
                "steps/s since the last reset": f"{self._rounds * self.num_envs / took:,.0f}" if self._rounds else "-",
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


_ARGUMENTS: Final = tuple(inspect.signature(RemoteVecEnv).parameters)
