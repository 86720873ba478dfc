"""A small OpenEnv environment, written as for OpenEnv's own server; the other openenv_*.py examples use it.

Somebody walks along a corridor of nine places, from the left end to the right one.

Serve it with OpenEnv's server, or with this project's, which takes the same class::

    uvicorn openenv_walk:stock --port 8000
    openenv-gym serve openenv_walk:Walk --port 8000
"""

from typing import Annotated, Literal

from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import Field


class Go(Action):
    """Which way to go."""

    to: Literal["left", "right"]


class Seen(Observation):
    """Where one is."""

    place: Annotated[int, Field(ge=0, le=8)]


class Walk(Environment[Go, Seen, State]):
    """Each step costs a little, and the right end pays."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        """Begin at the left end."""
        self._state = State(episode_id=episode_id, step_count=0)
        self.place = 0
        return Seen(place=self.place)

    def step(self, action, timeout_s=None, **kwargs):
        """Go one place to the left or to the right."""
        self._state.step_count += 1
        self.place = max(0, self.place + (1 if action.to == "right" else -1))
        done = self.place == 8
        return Seen(place=self.place, reward=1.0 if done else -0.1, done=done)

    @property
    def state(self):
        """The episode so far."""
        return self._state


stock = create_app(Walk, Go, Seen, env_name="walk", max_concurrent_envs=64)
"""The application for OpenEnv's own server."""
