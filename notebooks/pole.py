"""CartPole as an environment for OpenEnv, as its users write them.

`python pole.py PORT` serves it with OpenEnv's own server.
"""

import sys

import gymnasium as gym
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import Field


class PoleAction(Action):
    """Which way to push the cart."""

    push: int = Field(ge=0, le=1)


class PoleObservation(Observation):
    """The cart's place and speed, and the pole's angle and speed."""

    state: list[float]


class Pole(Environment[PoleAction, PoleObservation, State]):
    """A pole on a cart, to be kept upright."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.env = gym.make("CartPole-v1")
        self._state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        """Begin an episode."""
        self._state = State(episode_id=episode_id)
        return PoleObservation(state=self.env.reset(seed=seed)[0].tolist())

    def step(self, action, timeout_s=None, **kwargs):
        """Push the cart once."""
        self._state.step_count += 1
        state, reward, terminated, truncated, _ = self.env.step(action.push)
        return PoleObservation(
            state=state.tolist(), reward=reward, done=terminated or truncated, metadata={"truncated": truncated}
        )

    @property
    def state(self):
        """The episode's id and the number of its steps."""
        return self._state


if __name__ == "__main__":
    import uvicorn

    stock = create_app(Pole, PoleAction, PoleObservation, max_concurrent_envs=256)
    uvicorn.run(stock, port=int(sys.argv[1]), log_level="error")
