"""`RemoteEnv`: a ``gymnasium.Env`` that runs on a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from openenv_gym.actions import check_actions, gather_actions
from openenv_gym.asking import Ask, calling, getting, rendering, setting
from openenv_gym.backend import Backend
from openenv_gym.errors import RemoteEnvError
from openenv_gym.notices import warn
from openenv_gym.options import RemoteOptions
from openenv_gym.rendering import METADATA, NO_FRAMES, check_render_mode, metadata_here
from openenv_gym.rollout import Rollout
from openenv_gym.specs import without_secrets, without_type_errors

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

__all__ = ["RemoteEnv"]


class RemoteEnv(gym.Env[Any, Any]):
    """One env on a server.

    Args:
        base_url: the server's URL, ``http(s)://`` or ``ws(s)://``; None takes ``$OPENENV_BASE_URL``, else
            ``http://localhost:8000``.
        local: an environment to serve from an embedded `openenv_gym.LocalServer`, instead of ``base_url``.
        env_kwargs: keyword arguments for that environment.
        **options: the fields of `openenv_gym.options.RemoteOptions`, such as ``token``, ``include``, ``render_mode``,
            ``message_timeout_s``.

    Attributes:
        observation_space: the env's observation space, after trimming.
        action_space: the env's action space.
        metadata: the env's metadata; this instance's own.
        render_mode: the env's render mode, which is None if it doesn't have the one that was asked for.
        spec: how ``gymnasium.make`` made it, without the token.
        options: the validated options.

    Raises:
        OptionError: for an unknown option or a bad value, and for ``render_mode="human"``.
        ConnectFailed: if the server can't be reached; `CapacityError` if it has no room, `Unauthorized` if it refuses
            the token, `NotAWebSocket` if it is something else.
    """

    metadata: dict[str, Any] = METADATA
    _spec: EnvSpec | None = None

    def __init__(
        self,
        base_url: str | None = None,
        *,
        local: str | Callable[..., Any] | None = None,
        env_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._backend: Backend | None = None
        self.options = RemoteOptions.from_kwargs({"base_url": base_url, **options})
        check_render_mode(self.options.render_mode, "gymnasium.wrappers.HumanRendering")
        with without_type_errors():
            self._backend = Backend(self.options, 1, local=local, env_kwargs=env_kwargs, typed=True)
        self.rollout = Rollout(self._backend.pool, on_lost=self.options.on_lost, warn=warn, typed=True)
        link = self._backend.pool.links[0]
        self.observation_space = link.observation_space
        self.action_space = link.action_space
        self.metadata, self.render_mode = metadata_here(link.metadata, self.options.render_mode, warn)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env.

        Args:
            seed: the seed, or None to let the env's generator go on.
            options: given to the env.

        Returns:
            the observation and the info.

        Raises:
            RemoteEnvError: if the env raised. It is also of the raised class, where that is a builtin one.
            ReplyTimeout: after ``reset_timeout_s``.
        """
        super().reset(seed=seed)
        self._assert_open()
        pending = self.rollout.start_reset([seed], [options])
        result = self.rollout.finish_reset(pending, self.options.resets_within_s)
        self.rollout.reader.keep(result.parts)
        return self.rollout.reader.last(0), _only(result.infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the env.

        Args:
            action: a value of ``action_space``.

        Returns:
            observation, reward, terminated, truncated and info, as Python's own float and bool.

        Raises:
            ActionError: for an action of the wrong shape, before anything is sent.
            ResetNeeded: before the first reset, or after the episode was lost to a timeout.
            RemoteEnvError: if the env raised.
            ReplyTimeout: after ``message_timeout_s``; the env needs a reset then.
        """
        self._assert_open()
        leaves = check_actions(self.action_space, gather_actions(self.action_space, [action]), 1)
        pending = self.rollout.start_step(leaves, None)
        result = self.rollout.finish_step(pending, self.options.message_timeout_s)
        self.rollout.reader.keep(result.parts)
        return (
            self.rollout.reader.last(0),
            float(result.rewards[0]),
            bool(result.terminated[0]),
            bool(result.truncated[0]),
            _only(result.infos),
        )

    def render(self) -> Any:
        """The env's current frame, in ``render_mode``."""
        self._assert_open()
        frame = self._ask(rendering(png=self.options.png), "render")
        if frame is None and self.render_mode is None:
            self.rollout.notices.tell(NO_FRAMES)
        return self.options.frame_of(frame)

    @property
    def spec(self) -> EnvSpec | None:
        """How ``gymnasium.make`` made it, without the token."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        self._spec = without_secrets(spec)

    def close(self) -> None:
        """Close the connection; closing twice is fine."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    # ------------------------------------------------------------------------------------ methods, attributes

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the env that the server allows, or read an attribute.

        Raises:
            RemoteEnvError: if the server doesn't allow it (``--allow-call``), or it raises.
        """
        self._assert_open()
        return self._ask(calling(name, args, kwargs), "call")

    def has_wrapper_attr(self, name: str) -> bool:
        """Whether this object, or the env on the server, has an attribute that can be read."""
        try:
            self.get_wrapper_attr(name)
        except AttributeError:
            return False
        return True

    def get_wrapper_attr(self, name: str) -> Any:
        """An attribute of this object or, if it has none, plain data of the env on the server.

        Raises:
            AttributeError: if there is none, or the server doesn't let it be read.
        """
        if hasattr(self, name) or name.startswith("_"):
            return getattr(self, name)
        self._assert_open()
        try:
            return self._ask(getting(name), "get_attr")
        except RemoteEnvError as error:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}: {error}") from error

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of this object if it has it, else of the env on the server if that allows it.

        Returns:
            whether it was set.
        """
        if hasattr(self, name) or name.startswith("_"):
            setattr(self, name, value)
            return True
        self._assert_open()
        return bool(self._ask(setting(name, [value], force=force), "set_attr"))

    def _ask(self, make: Ask, phase: str) -> Any:
        return self.rollout.ask(make, phase, self.options.message_timeout_s)[0]

    def _assert_open(self) -> None:
        if self._backend is None:
            raise gym.error.ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}` after `close()`.")


def _only(infos: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    return infos[0][1] if infos else {}
