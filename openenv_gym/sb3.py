"""`SB3VecEnv`: a Stable-Baselines3 ``VecEnv`` over a `RemoteVecEnv`.

The rules are those of ``stable_baselines3/common/vec_env/base_vec_env.py`` and ``dummy_vec_env.py``: what this gives
equals what ``DummyVecEnv`` gives for the same envs, seeds and actions. Envs are reset in the step in which their
episode ends; the info of that step is the episode's last, with the last observation in it, and the reset's info goes to
``reset_infos``. Only what SB3 can't take has another form: numbers without axes, in a Box of shape ``()``, come with
shape ``(1,)``, also within a Dict.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from openenv_gym.actions import check_actions, gather_actions
from openenv_gym.asking import Ask, calling, getting, rendering, setting
from openenv_gym.errors import OptionError, SpaceError
from openenv_gym.extras import missing
from openenv_gym.notices import warn
from openenv_gym.outcomes import Pending, Steps
from openenv_gym.reset_arguments import each_seed
from openenv_gym.rollout import Rollout
from openenv_gym.vector_env import RemoteVecEnv

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    raise missing(error, "sb3") from error

__all__ = ["SB3VecEnv"]

_KINDS: Final = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""What SB3's policies take, alone or in a flat Dict (stable_baselines3/common/preprocessing.py)."""


class SB3VecEnv(VecEnv):
    """A ``VecEnv`` over remote envs.

    Args:
        env: the remote vector env; its autoreset mode doesn't matter. This object owns it from now on, unless it
            refuses it: then it is still the caller's, to look at and to close.

    Attributes:
        env: the remote vector env.
        spec: its spec.

    Raises:
        OptionError: if it is something else, or was made with ``copy=False``.
        SpaceError: for an observation space that SB3 doesn't know, such as a Text or a nested Dict, naming the fields.
            Of an action space that its algorithms can't choose from it warns.
    """

    def __init__(self, env: RemoteVecEnv) -> None:
        if not isinstance(env, RemoteVecEnv):
            raise OptionError(
                f"SB3VecEnv wraps a RemoteVecEnv, not {type(env).__name__}: write SB3VecEnv(RemoteVecEnv(url, "
                "num_envs=8)), and put SB3's own wrappers, such as VecNormalize, around that; a single env goes to SB3 "
                "as it is"
            )
        if not env.copy:
            raise OptionError("SB3 keeps observations, so the RemoteVecEnv must be made with copy=True")
        self.env = env
        self.spec = env.spec
        self._pending: Pending | None = None
        _check(env.single_observation_space)
        _tell_of_actions(env.single_action_space)
        super().__init__(env.num_envs, _with_axes(env.single_observation_space), env.single_action_space)
        self._reshapes = self.observation_space is not env.single_observation_space
        self.metadata = env.metadata  # the base class has put only the render modes there

    # ------------------------------------------------------------------------------------------- episodes

    def reset(self) -> Any:
        """Reset all envs, with the seeds and options that `seed` and `set_options` left for them.

        Returns:
            the observations; the infos are in ``reset_infos``.

        Raises:
            gymnasium.error.Error: for a negative seed, before anything is sent.
            OptionError: if the server has a vector env.
        """
        rollout = self._rollout()
        seeds = each_seed(self._seeds, self.num_envs)
        options = [option or None for option in self._options]
        limit_s = self.env.options.resets_within_s
        self._pending = None  # a step that nobody waited for belongs to the last episode
        result = rollout.finish_reset(rollout.start_reset(seeds, options), limit_s)
        if result.vector_infos:
            raise OptionError(
                "the server has a vector env, with infos for all envs at once: SB3VecEnv needs single envs"
            )
        self.reset_infos = [{} for _ in range(self.num_envs)]
        for row, info in result.infos:
            self.reset_infos[row] = info
        self._reset_seeds()
        self._reset_options()
        return self._shown(rollout.reader.read(result.parts), self.num_envs)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Send a step without waiting.

        Args:
            actions: one action for each env.

        Raises:
            ActionError: for actions of the wrong number or shape.
            AlreadyPendingCallError: if a step before it wasn't waited for.
        """
        if self._pending is not None:
            text = "Calling `step_async` while waiting for a pending call to `step` to complete"
            raise gym.error.AlreadyPendingCallError(text, "step")
        rollout = self._rollout()
        rollout.recorder.begin()
        leaves = check_actions(self.action_space, gather_actions(self.action_space, actions), self.num_envs)
        self._pending = rollout.start_step(leaves, AutoresetMode.SAME_STEP)

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Wait for `step_async`.

        Returns:
            observations, rewards (float32), dones (bool) and an info dict for each env; all are fresh.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            raise gym.error.NoAsyncCallError("Calling `step_wait` without any prior call to `step_async`.", "step")
        result = self.env.rollout.finish_step(pending, self.env.options.message_timeout_s)
        observations = self._shown(self.env.rollout.reader.read(result.parts), self.num_envs)
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
            infos[ending.row] = {**ending.info, "terminal_observation": self._shown(ending.observation)}
        for info, cut in zip(infos, result.truncated & ~result.terminated, strict=True):
            info["TimeLimit.truncated"] = bool(cut)
        return infos

    def _shown(self, observation: Any, *batch: int) -> Any:
        """An observation, or a batch of so many, as the observation space has it."""
        return _reshaped(self.observation_space, observation, batch) if self._reshapes else observation

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
        frames = self._ask(list(range(self.num_envs)), rendering(png=self.env.options.png), "render")
        return [self.env.options.frame_of(frame) for frame in frames]

    def _rows(self, indices: int | Iterable[int] | None) -> list[int]:
        """Row numbers; negative ones count from the end."""
        return [range(self.num_envs)[int(index)] for index in self._get_indices(indices)]

    def _ask(self, rows: list[int], make: Ask, phase: str) -> list[Any]:
        return self._rollout().ask(make, phase, self.env.options.message_timeout_s, rows)

    def _rollout(self) -> Rollout:
        if self.env.closed:
            raise gym.error.ClosedEnvironmentError("Trying to operate on `SB3VecEnv`, after a call to `close()`.")
        return self.env.rollout


def _check(space: gym.Space[Any]) -> None:
    """Raise `SpaceError` for what SB3's VecEnvs can't hold, naming the field; warn of what algorithms refuse."""
    parts: dict[Any, gym.Space[Any]] = {"": space}
    if isinstance(space, spaces.Dict):
        parts = space.spaces
    elif isinstance(space, spaces.Tuple):
        parts = dict(enumerate(space.spaces))
    unknown = {key: type(part).__name__ for key, part in parts.items() if not isinstance(part, _KINDS)}
    if not unknown:
        if isinstance(space, spaces.Tuple):
            warn(f"Stable-Baselines3's algorithms can't learn from {space}: let the env observe a Dict instead")
        return
    named = ", ".join(kind if key == "" else f"{key} ({kind})" for key, kind in unknown.items())
    rest = "choose one with obs_key= (of an OpenEnv environment), or pass observation_space= with spaces that it takes"
    known = ", ".join(kind.__name__ for kind in _KINDS)
    leave = "" if not isinstance(space, spaces.Dict) else f"leave such fields out with exclude={tuple(unknown)!r}, "
    raise SpaceError(f"Stable-Baselines3 can't learn from the observation's {named}: {leave}{rest} ({known})")


def _tell_of_actions(space: gym.Space[Any]) -> None:
    """Warn of actions that SB3's algorithms will refuse (stable_baselines3/common/base_class.py); envs take them."""
    unbounded = isinstance(space, spaces.Box) and not (np.isfinite(space.low).all() and np.isfinite(space.high).all())
    if isinstance(space, _KINDS) and not unbounded:
        return
    known = ", ".join(kind.__name__ for kind in _KINDS)
    warn(
        f"Stable-Baselines3's algorithms can't choose actions of {space}: choose a field with action_key= (of an "
        f"OpenEnv environment), or pass action_space= with a space that they take ({known}, with bounds), and "
        "encode_action= if an action has several fields"
    )


def _with_axes(space: gym.Space[Any]) -> gym.Space[Any]:
    """The space with an axis for each Box that has none; the same object if there is no such Box."""
    if isinstance(space, spaces.Box) and space.shape == ():
        return spaces.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.dtype.type)
    if isinstance(space, spaces.Dict):
        parts = {key: _with_axes(part) for key, part in space.items()}
        return space if all(parts[key] is part for key, part in space.items()) else spaces.Dict(list(parts.items()))
    return space


def _reshaped(space: gym.Space[Any], value: Any, batch: tuple[int, ...]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _reshaped(part, value[key], batch) for key, part in space.items()}
    return np.reshape(value, (*batch, *space.shape)) if isinstance(space, spaces.Box) else value
