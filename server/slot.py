"""One env and its episode. No threads and no I/O here."""

from __future__ import annotations

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
    """

    def __init__(self, make: Callable[[], HostedEnv], max_episode_steps: int | None = None) -> None:
        self.env: HostedEnv | None = None
        self.metadata: dict[str, Any] = {}
        self.steps = 0
        self.over = False
        self.stale = False
        self._make = make
        self._limit = math.inf if max_episode_steps is None else max_episode_steps
        self._live = False
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
        """Reset the env. An autoreset passes no arguments, as with Gymnasium."""
        env = self.env
        if env is None or (self.stale and env.guarded):
            self._live = False
            self._discard()
            env = self.build()
        self._live, self.stale, self.over, self.steps = False, True, False, 0
        observation, info = env.reset(**arguments)
        self._live, self.stale, self._episode_id = True, False, None
        return observation, info

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
        if self.over and autoreset is not None:
            if autoreset == NEXT_STEP:
                observation, info = self.reset()
                return observation, 0.0, False, False, info
            # With SameStep only after a failure: the end could not be reported, and so the env was not reset.
            raise gym.error.ResetNeeded(f"the episode is over; with the autoreset mode {autoreset}, call `reset` first")
        if self.env is None or not (self._live or (autoreset is None and not self.env.guarded)):
            raise gym.error.ResetNeeded("Cannot call `step` before calling `reset`")
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        if self.steps >= self._limit:
            truncated = True
        return observation, reward, terminated, truncated, info

    def _discard(self) -> None:
        """Close an env that is to be replaced; it may well be broken."""
        try:
            self.close()
        except BaseException:  # not even sys.exit() shall keep the new env from being built
            logger.exception("closing an env before it is built anew failed")
