"""`SB3VecEnv`: a Stable-Baselines3 ``VecEnv`` over a `RemoteVecEnv`.

The rules are those of ``stable_baselines3/common/vec_env/base_vec_env.py`` and ``dummy_vec_env.py``: what this gives
equals what ``DummyVecEnv`` gives for the same envs, seeds and actions. Envs are reset in the step in which their
episode ends; the info of that step is the episode's last, with the last observation in it, and the reset's info goes to
``reset_infos``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from openenv_gym.actions import check_actions, gather_actions
from openenv_gym.asking import Ask, calling, getting, rendering, setting
from openenv_gym.errors import OptionError
from openenv_gym.rollout import Pending, Steps
from openenv_gym.vector_env import RemoteVecEnv

__all__ = ["SB3VecEnv"]


class SB3VecEnv(VecEnv):
    """A ``VecEnv`` over remote envs.

    Args:
        env: the remote vector env; its autoreset mode doesn't matter. This object owns it from now on.

    Attributes:
        env: the remote vector env.
        spec: its spec.

    Raises:
        OptionError: if it is something else, or was made with ``copy=False``.
        NotImplementedError: for an observation space that SB3 doesn't know, such as a nested Dict.
    """

    def __init__(self, env: RemoteVecEnv) -> None:
        if not isinstance(env, RemoteVecEnv):
            raise OptionError(f"SB3VecEnv wraps a RemoteVecEnv, not {type(env).__name__}")
        if not env.copy:
            raise OptionError("SB3 keeps observations, so the RemoteVecEnv must be made with copy=True")
        self.env = env
        self.spec = env.spec
        self._pending: Pending | None = None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self.metadata = env.metadata  # the base class has put only the render modes there

    # ------------------------------------------------------------------------------------------- episodes

    def reset(self) -> Any:
        """Reset all envs, with the seeds and options that `seed` and `set_options` left for them.

        Returns:
            the observations; the infos are in ``reset_infos``.

        Raises:
            OptionError: if the server has a vector env.
        """
        rollout = self.env.rollout
        options = [option or None for option in self._options]
        limit_s = self.env.options.resets_within_s
        result = rollout.finish_reset(rollout.start_reset(self._seeds, options), limit_s)
        if result.vector_infos:
            raise OptionError(
                "the server has a vector env, with infos for all envs at once: SB3VecEnv needs single envs"
            )
        self.reset_infos = [{} for _ in range(self.num_envs)]
        for row, info in result.infos:
            self.reset_infos[row] = info
        self._reset_seeds()
        self._reset_options()
        return rollout.reader.read(result.parts)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Send a step without waiting.

        Args:
            actions: one action for each env.

        Raises:
            ActionError: for actions of the wrong number or shape.
        """
        self.env.rollout.recorder.begin()
        leaves = check_actions(self.action_space, gather_actions(self.action_space, actions), self.num_envs)
        self._pending = self.env.rollout.start_step(leaves, AutoresetMode.SAME_STEP)

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Wait for `step_async`.

        Returns:
            observations, rewards (float32), dones (bool) and an info dict for each env; all are fresh.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            raise gym.error.NoAsyncCallError("Calling `step_wait` without any prior call to `step_async`.", "step")
        result = self.env.rollout.finish_step(pending, self.env.options.message_timeout_s)
        observations = self.env.rollout.reader.read(result.parts)
        dones = np.logical_or(result.terminated, result.truncated)
        infos = self._infos(result)
        self.env.rollout.recorder.end()
        return observations, result.rewards.astype(np.float32), dones, infos

    def _infos(self, result: Steps) -> list[dict[str, Any]]:
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row, info in result.infos:
            infos[row] = info
        for ending in result.endings:
            self.reset_infos[ending.row] = infos[ending.row]
            infos[ending.row] = {**ending.info, "terminal_observation": ending.observation}
        for info, cut in zip(infos, result.truncated & ~result.terminated, strict=True):
            info["TimeLimit.truncated"] = bool(cut)
        return infos

    def close(self) -> None:
        """Close the remote vector env; closing twice is fine."""
        self._pending = None
        self.env.close()

    # ------------------------------------------------------------------------------------ methods, attributes

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """Read an attribute from the envs.

        Raises:
            AttributeError: if an env has none, or the server doesn't let it be read.
        """
        rows = self._rows(indices)
        if attr_name == "render_mode":  # known here, and asked for by the base class
            return [self.env.render_mode for _ in rows]
        return self._ask(rows, getting(attr_name), "get_attr")

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Set an attribute that the server allows (``--allow-set``) on the envs."""
        self._ask(self._rows(indices), setting(attr_name, [value] * self.num_envs), "set_attr")

    def env_method(
        self, method_name: str, *method_args: Any, indices: int | Iterable[int] | None = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method that the server allows (``--allow-call``) on the envs."""
        return self._ask(self._rows(indices), calling(method_name, method_args, method_kwargs), "env_method")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: int | Iterable[int] | None = None) -> list[bool]:
        """Whether envs are wrapped with a class of this process: no, they live on a server."""
        return [False for _ in self._rows(indices)]

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Each env's frame, or None where the render mode isn't ``rgb_array``."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"The render mode is {self.render_mode}; frames need `rgb_array`.", stacklevel=2)
            return [None for _ in range(self.num_envs)]
        return list(self._ask(list(range(self.num_envs)), rendering(), "render"))

    def _rows(self, indices: int | Iterable[int] | None) -> list[int]:
        """Row numbers; negative ones count from the end."""
        return [range(self.num_envs)[int(index)] for index in self._get_indices(indices)]

    def _ask(self, rows: list[int], make: Ask, phase: str) -> list[Any]:
        return self.env.rollout.ask(make, phase, self.env.options.message_timeout_s, rows)
