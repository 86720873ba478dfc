"""The arguments of `openenv_gym.server.create_app` that OpenEnv authors already write, as this server's own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from openenv_gym.choices import Choices
from openenv_gym.errors import OptionError
from openenv_gym.server.adapters import EnvSource
from openenv_gym.server.openenv_env import Models
from openenv_gym.server.settings import ServerSettings

__all__ = ["Hosting", "limited"]

logger = logging.getLogger(__name__)

_CHOICES: Final = ("obs_key", "action_key", "observation_space", "action_space")
_MODELS: Final = ("state_cls", "reset_observation_cls")
_WEB: Final = frozenset(
    {"gradio_builder", "custom_tab_name", "custom_tab_primary", "show_default_tab", "title_override"}
)
"""What OpenEnv's ``create_app`` takes for its web interface; this server's page is its own."""


@dataclass(frozen=True)
class Hosting:
    """What is to be hosted, and how.

    Attributes:
        source: where envs come from.
        settings: the server's settings.
    """

    source: EnvSource
    settings: ServerSettings

    @classmethod
    def of(
        cls,
        env: str | Callable[..., Any],
        action_cls: type[Any] | None,
        observation_cls: type[Any] | None,
        options: Mapping[str, Any],
    ) -> Hosting:
        """Read the arguments of ``create_app``.

        Raises:
            TypeError: for an env instance, one model without the other, or both in the wrong order.
            OptionError: for an unknown option or a bad value.
            FactoryError: for a module that can't be imported.
        """
        rest = dict(options)
        chosen = Choices(**{name: rest.pop(name) for name in _CHOICES if name in rest})
        models = _models(action_cls, observation_cls, {name: rest.pop(name, None) for name in _MODELS})
        rest["mode"] = _mode(rest.pop("mode", None))
        for name in _WEB & rest.keys():
            del rest[name]
            logger.warning("%s has no effect: this server's page is its own", name)
        _translate(rest)
        settings = ServerSettings.from_options(rest)
        source = EnvSource(env, settings.env_kwargs, name=settings.env_name, models=models, choices=chosen)
        return cls(source, settings)


def _models(action: type[Any] | None, observation: type[Any] | None, more: dict[str, Any]) -> Models | None:
    if (action is None) != (observation is None):
        raise TypeError("an OpenEnv environment needs both: create_app(MyEnvironment, MyAction, MyObservation)")
    if action is None or observation is None:
        return None
    if "done" in getattr(action, "model_fields", ()) and "done" not in getattr(observation, "model_fields", ()):
        names = observation.__name__, action.__name__
        raise TypeError(f"the action's class comes first: create_app(MyEnvironment, {', '.join(names)})")
    return Models(action, observation, more["state_cls"], more["reset_observation_cls"])


def _mode(given: Any) -> str:
    """The mode's name; like OpenEnv's ``ServerMode``, it may be in capitals, or in ``$OPENENV_MODE``."""
    return str(getattr(given, "value", given) or os.environ.get("OPENENV_MODE") or "simulation").lower()


def _translate(options: dict[str, Any]) -> None:
    """Turn OpenEnv's names for limits into this server's."""
    count, config = options.pop("max_concurrent_envs", None), options.pop("concurrency_config", None)
    if count is not None and config is not None:
        raise OptionError("max_concurrent_envs and concurrency_config are two ways to give one limit: leave one out")
    if config is not None:
        count = config.max_concurrent_envs
        if config.session_timeout is not None:
            options.setdefault("idle_timeout_s", config.session_timeout)
    if count is not None:
        if "max_envs" in options:
            raise OptionError("max_envs and max_concurrent_envs are two names for one limit: leave one out")
        options["max_envs"] = count


def limited(kind: type, settings: ServerSettings) -> ServerSettings:
    """The settings within what an environment's class says about itself.

    With the default limit, a class that doesn't support concurrent sessions has one env at a time.

    Raises:
        OptionError: for more envs, or more threads, than it can have.
    """
    if not hasattr(kind, "SUPPORTS_CONCURRENT_SESSIONS"):
        return settings
    update: dict[str, Any] = {}
    if not kind.SUPPORTS_CONCURRENT_SESSIONS:
        if settings.max_envs not in {1, ServerSettings.model_fields["max_envs"].default}:
            raise OptionError(
                f"{kind.__name__} doesn't say SUPPORTS_CONCURRENT_SESSIONS = True, so max_envs={settings.max_envs} "
                "can't be served: leave the limit at 1, or say so in the class if its instances share nothing"
            )
        update["max_envs"] = 1
    if getattr(kind, "REQUIRES_SINGLE_THREAD_EXECUTOR", False):
        if settings.max_step_s is not None or (settings.max_workers or 1) != 1:
            raise OptionError(f"{kind.__name__} needs all of its envs on one thread: leave out max_step_s, max_workers")
        update["max_workers"] = 1
    return settings.model_copy(update=update)
