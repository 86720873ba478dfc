"""Observations with images, of which only what the policy needs is sent.

The env below has an image, some numbers, and a large debug picture that no policy looks at. `exclude` leaves the
picture on the server: it isn't encoded, not sent, and not in the observation space. `obs_dtype` halves the numbers.
"""

import argparse
import time

import gymnasium as gym
import numpy as np

from openenv_gym import LocalServer, RemoteVecEnv


class Camera(gym.Env):
    """A dot that has to be pushed to the right, seen by a camera."""

    observation_space = gym.spaces.Dict(
        {
            "image": gym.spaces.Box(0, 255, (84, 84, 4), np.uint8),
            "place": gym.spaces.Box(-100, 100, (2,), np.float64),
            "debug": gym.spaces.Box(0, 255, (512, 512, 4), np.uint8),
        }
    )
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        """Start on the left."""
        super().reset(seed=seed)
        self._x = int(self.np_random.integers(10))
        return self._observe(), {}

    def step(self, action):
        """Move by -1, 0 or 1."""
        self._x = min(max(self._x + int(action) - 1, 0), 83)
        return self._observe(), float(self._x == 83), self._x == 83, False, {}

    def _observe(self):
        image = np.zeros((84, 84, 4), np.uint8)
        image[:, self._x] = 255
        debug = np.broadcast_to(np.uint8(self._x), (512, 512, 4)).copy()
        return {"image": image, "place": np.array([self._x, 42.0]), "debug": debug}


def steps_per_second(envs: RemoteVecEnv, seconds: float) -> float:
    """Env steps per second with random actions."""
    envs.reset(seed=1)
    envs.action_space.seed(1)
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        envs.step(envs.action_space.sample())
        steps += envs.num_envs
    return steps / (time.perf_counter() - start)


def main() -> None:
    """Measure with and without the debug picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to measure each of them")
    arguments = parser.parse_args()
    rates = {}
    with LocalServer(Camera) as server:
        less = {"exclude": ["debug"], "obs_dtype": {"place": "float32"}}
        for name, trimming in (("everything", {}), ("trimmed", less)):
            with RemoteVecEnv(server.url, num_envs=8, token=server.token, **trimming) as envs:
                rates[name] = steps_per_second(envs, arguments.seconds)
                print(f"{name}: {envs.single_observation_space}\n    {rates[name]:,.0f} env steps/s")
    print(f"trimming makes it {rates['trimmed'] / rates['everything']:.1f} times as fast")


if __name__ == "__main__":
    main()
