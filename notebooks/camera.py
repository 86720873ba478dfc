"""An environment with large observations."""

import gymnasium as gym
import numpy as np


class Camera(gym.Env):
    """A dot that has to be pushed to the right, seen by a camera."""

    observation_space = gym.spaces.Dict(
        {
            "image": gym.spaces.Box(0, 255, (84, 84, 3), np.uint8),
            "place": gym.spaces.Box(0, 83, (2,), np.float64),
            "debug": gym.spaces.Box(0, 255, (400, 400, 3), np.uint8),
        }
    )
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        """Start on the left."""
        super().reset(seed=seed)
        self.x = int(self.np_random.integers(10))
        return self.observe(), {}

    def step(self, action):
        """Move by -1, 0 or 1."""
        self.x = min(max(self.x + int(action) - 1, 0), 83)
        return self.observe(), float(self.x == 83), self.x == 83, False, {}

    def observe(self):
        """What the camera sees, where the dot is, and a picture for whoever looks for a bug."""
        image = np.zeros((84, 84, 3), np.uint8)
        image[:, self.x] = 255
        return {"image": image, "place": np.array([self.x, 42.0]), "debug": np.full((400, 400, 3), self.x, np.uint8)}
