"""A Gymnasium vector env on the server: EnvPool, JAX, a GPU simulator. No threads and no I/O here.

It is stepped as a whole, and resets its envs by itself, in a mode of its own.
"""

from __future__ import annotations

from typing import Any, Final

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv

__all__ = ["HostedVector"]


class HostedVector:
    """A vector env, as far as a server asks it what it asks single envs.

    Args:
        env: the env, with whatever wrappers.

    Attributes:
        env: the env.
        num_envs: how many envs it has.
        autoreset_mode: how it resets its envs, as ``AutoresetMode``'s value; ``NextStep`` if it doesn't say, as
            Gymnasium's own wrappers take it.
        observation_space: one env's observation space.
        action_space: one env's action space.
        metadata: its metadata, with the render mode that it runs in.
        step: its own ``step``.
        reset: its own ``reset``.
        close: its own ``close``.
        render: its own ``render``.
        takes_seed: True.
        guarded: True: a step without a reset is refused, and an env whose reset raised is built anew.
    """

    guarded: Final = True
    takes_seed: Final = True

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.num_envs: int = env.num_envs
        self.autoreset_mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)).value
        self.observation_space: gym.Space[Any] = env.single_observation_space
        self.action_space: gym.Space[Any] = env.single_action_space
        self.metadata: dict[str, Any] = {**env.metadata, "render_mode": env.render_mode}
        self.step = env.step
        self.reset = env.reset
        self.close = env.close
        self.render = env.render

    def get(self, name: str) -> Any:
        """An attribute of the vector env."""
        return getattr(self.env, name)

    def set(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the vector env."""
        if force or hasattr(self.env, name):
            setattr(self.env, name, value)
            return True
        return False
