"""What this process has registered with Gymnasium, as text for another process that hasn't imported it."""

from __future__ import annotations

import gymnasium as gym

__all__ = ["register_spec", "spec_of"]


def spec_of(env: str) -> str | None:
    """The registered spec of an id as JSON; None if there is none, or it can't travel."""
    spec = gym.registry.get(env)
    if spec is None or not isinstance(spec.entry_point, str):
        return None
    try:
        return spec.to_json()
    except ValueError:  # a kwarg or wrapper that is no plain data
        return None


def register_spec(spec: str) -> None:
    """Make an id known here that another process knows; see `spec_of`."""
    parsed = gym.envs.registration.EnvSpec.from_json(spec)
    if parsed.id not in gym.registry:
        gym.registry[parsed.id] = parsed
