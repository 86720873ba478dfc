"""What a server can host, as one kind of object: `Env`. No threads and no I/O here.

A Gymnasium env is adapted by `GymnasiumEnv`. `EnvSource` turns what a user passed (an id, a factory or
a class) into envs, and says clearly what is wrong where it can't.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from openenv_gym.errors import FactoryError

__all__ = ["EnvSource", "GymnasiumEnv"]


class GymnasiumEnv:
    """A Gymnasium env on the server.

    Args:
        env: the env, with whatever wrappers.

    Attributes:
        env: the env.
        step: the env's own ``step``.
        render: the env's own ``render``.
        close: the env's own ``close``.
        takes_seed: whether its ``reset`` has a ``seed`` parameter.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env
        self.step = env.step
        self.render = env.render
        self.close = env.close
        parameters = inspect.signature(env.unwrapped.reset).parameters
        self._accepted = None if _takes_any(parameters) else frozenset(parameters)
        self.takes_seed = self._accepted is None or "seed" in self._accepted

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The env's observation space."""
        return self.env.observation_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """The env's action space."""
        return self.env.action_space

    @property
    def metadata(self) -> dict[str, Any]:
        """The env's metadata, with the render mode that it runs in."""
        return {**self.env.metadata, "render_mode": self.env.render_mode}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env, with the arguments that its ``reset`` has."""
        if self._accepted is None or {"seed", "options"} <= self._accepted:
            return self.env.reset(seed=seed, options=options)
        arguments = {"seed": seed, "options": options}
        return self.env.reset(**{k: v for k, v in arguments.items() if k in self._accepted and v is not None})

    def get(self, name: str) -> Any:
        """An attribute of the outermost wrapper that has it."""
        return self.env.get_wrapper_attr(name)

    def set(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute where it is found, or with ``force`` on the outermost wrapper."""
        try:
            return bool(self.env.set_wrapper_attr(name, value, force=force))  # type: ignore[call-arg]
        except TypeError:  # Gymnasium < 1.1 has no `force`
            return bool(self.env.set_wrapper_attr(name, value))


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


class EnvSource:
    """Where a server's envs come from.

    Args:
        env: a Gymnasium id (``CartPole-v1``, ``module:EnvId``), ``package.module:callable``, or a callable that
            returns a Gymnasium env.
        env_kwargs: keyword arguments for it.
        name: the name to publish; None takes the id or the callable's name.

    Attributes:
        name: the published name.

    Raises:
        TypeError: for an env instance or anything else that makes no envs.
        FactoryError: for a module that can't be imported.
    """

    def __init__(
        self, env: str | Callable[..., Any], env_kwargs: Mapping[str, Any] | None = None, *, name: str | None = None
    ) -> None:
        if isinstance(env, (gym.Env, gym.vector.VectorEnv)) or (hasattr(env, "reset") and not isinstance(env, type)):
            raise TypeError(
                f"env must be an id or a factory, not an instance of {type(env).__name__}: every session needs envs "
                f"of its own. Pass the class, or `lambda: {type(env).__name__}(...)`"
            )
        self._env_kwargs = dict(env_kwargs or {})
        self._id: str | None = None
        if isinstance(env, str):
            self.name = name or env
            factory = _imported(env)
            if factory is None:
                self._id = env
        elif callable(env):
            self.name = name or getattr(env, "__name__", type(env).__name__)
            factory = env
        else:
            raise TypeError(f"env must be an id or a factory, not {env!r}")
        self._factory = factory

    def make(self, render_mode: str | None = None) -> GymnasiumEnv:
        """Build one env, on the thread that will run it.

        Args:
            render_mode: the mode to render in, for envs that take one.

        Raises:
            FactoryError: with what the env's constructor raised.
        """
        kwargs = dict(self._env_kwargs)
        if render_mode is not None and self.takes_render_mode:
            kwargs["render_mode"] = render_mode
        try:
            env = self._factory(**kwargs) if self._factory is not None else self._make_registered(kwargs)
        except Exception as error:
            raise FactoryError(self.name, f"{type(error).__name__}: {error}") from error
        if not isinstance(env, gym.Env):
            raise FactoryError(self.name, f"the factory returned {type(env).__name__}, not a gymnasium.Env")
        return GymnasiumEnv(env)

    def _make_registered(self, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
        assert self._id is not None
        # The learner's own gym.make brings a checker; a second one here would warn where nobody sees it.
        return gym.make(self._id, disable_env_checker=True, **kwargs)

    @property
    def takes_render_mode(self) -> bool:
        """Whether an env can be built for a render mode."""
        if self._factory is None:
            return True
        try:
            parameters = inspect.signature(self._factory).parameters
        except (TypeError, ValueError):
            return False
        return "render_mode" in parameters or _takes_any(parameters)


def _imported(name: str) -> Callable[..., Any] | None:
    """The callable that ``package.module:callable`` names, or None for a Gymnasium id, ``module:EnvId`` included."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        return None
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise FactoryError(name, f"importing {module_name} raised {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    return found if callable(found) else None
