"""One env and its episode. No threads and no I/O here."""

from __future__ import annotations

import copy
import logging
import math
import uuid
from collections.abc import Callable
from typing import Any, Final

import gymnasium as gym

from openenv_gym.server.adapters import HostedEnv

__all__ = ["DISABLED", "NEXT_STEP", "SAME_STEP", "Slot"]

NEXT_STEP: Final = gym.vector.AutoresetMode.NEXT_STEP.value
SAME_STEP: Final = gym.vector.AutoresetMode.SAME_STEP.value
DISABLED: Final = gym.vector.AutoresetMode.DISABLED.value

logger = logging.getLogger(__name__)


class Slot:
    """Room for one env.

    Args:
        make: builds an env.
        max_episode_steps: truncate episodes at this length.

    Attributes:
        env: the env, if there is one.
        metadata: the env's metadata, read when it was built.
        steps: steps of the episode so far.
        over: whether the episode ended in the last step.
        stale: whether the env is built anew before the next reset: its last reset raised, or the render mode changed.
        sticky: the options that its autoresets pass; None for none, as with Gymnasium.
    """

    def __init__(self, make: Callable[[], HostedEnv], max_episode_steps: int | None = None) -> None:
        self.env: HostedEnv | None = None
        self.metadata: dict[str, Any] = {}
        self.steps = 0
        self.over = False
        self.stale = False
        self.sticky: dict[str, Any] | None = None
        self._make = make
        self._limit = math.inf if max_episode_steps is None else max_episode_steps
        self._step: Callable[[Any], Any] | None = None  # the env's, while it has an episode
        self._episode_id: str | None = ""  # before the first reset; None until somebody asks for the new episode's

    @property
    def episode_id(self) -> str | None:
        """The episode's name, made when it is first asked for; None before the first reset."""
        if self._episode_id is None:
            self._episode_id = str(uuid.uuid4())
        return self._episode_id or None

    @episode_id.setter
    def episode_id(self, name: str) -> None:
        self._episode_id = name

    def build(self) -> HostedEnv:
        """Build the env.

        Raises:
            FactoryError: if it can't be built.
            SpaceError: if its spaces aren't those of the server's other envs.
        """
        self.env = env = self._make()
        self.metadata = env.metadata
        return env

    def present(self) -> HostedEnv:
        """The env.

        Raises:
            ResetNeeded: if it was given up, and the next reset builds a new one.
        """
        if self.env is None:
            raise gym.error.ResetNeeded("this env is gone; `reset` builds a new one")
        return self.env

    def close(self) -> None:
        """Close the env, once, whatever it raises."""
        env, self.env = self.env, None
        if env is not None:
            env.close()

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the env."""
        env = self.env
        if env is None or (self.stale and env.guarded):
            self._step = None
            self._discard()
            env = self.build()
        self._step, self.stale, self.over, self.steps = None, True, False, 0
        result: Any = env.reset(**arguments)
        if not isinstance(result, tuple) or len(result) != 2:  # an observation of two numbers would pass for both
            raise TypeError(f"the env's reset() must return (observation, info), not {_told(result)}")
        observation, info = result
        self._step, self.stale, self._episode_id = env.step, False, None
        return observation, info

    def autoreset(self) -> tuple[Any, dict[str, Any]]:
        """Reset the env after its episode, without a seed: its generator goes on."""
        return self.reset() if self.sticky is None else self.reset(options=copy.deepcopy(self.sticky))

    def step(self, action: Any, autoreset: str | None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the env, or reset it where ``NextStep`` says so.

        Args:
            action: the env's action.
            autoreset: an ``AutoresetMode``'s value; None lets the env decide what a step after the end means.

        Returns:
            observation, reward, terminated, truncated and info.

        Raises:
            ResetNeeded: if there is no episode that could go on.
        """
        step = self._step if not self.over else None
        if step is None:
            if self.over and autoreset == NEXT_STEP:
                observation, info = self.autoreset()
                return observation, 0.0, False, False, info
            step = self._step_without_episode(autoreset)
        result: Any = step(action)
        try:
            observation, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            raise TypeError(
                f"the env's step() must return (observation, reward, terminated, truncated, info), not {_told(result)}"
            ) from None
        self.steps += 1
        if self.steps >= self._limit:
            truncated = True
        if terminated or truncated:
            self.over = True
        return observation, reward, terminated, truncated, info

    def _step_without_episode(self, autoreset: str | None) -> Callable[[Any], Any]:
        """The env's own ``step``, if it may be called though the episode is over, or there was none."""
        if self.over and autoreset is not None:
            # With SameStep only after a failure: the end could not be reported, and so the env was not reset.
            raise gym.error.ResetNeeded(f"the episode is over; with the autoreset mode {autoreset}, call `reset` first")
        if self._step is not None:
            return self._step
        if self.env is None or self.env.guarded or autoreset is not None:
            raise gym.error.ResetNeeded("Cannot call `step` before calling `reset`")
        return self.env.step

    def _discard(self) -> None:
        """Close an env that is to be replaced; it may well be broken."""
        try:
            self.close()
        except BaseException:  # not even sys.exit() shall keep the new env from being built
            logger.exception("closing an env before it is built anew failed")


def _told(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
