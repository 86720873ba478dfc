"""Train on a stock OpenEnv server with Stable-Baselines3.

The server knows nothing of this project. The spaces come from its schemas: a list of words becomes ``Discrete``, and so
does a bounded integer.

    python examples/openenv_train_sb3.py
"""

import argparse

import numpy as np
from openenv_servers import STOCK, serving
from stable_baselines3 import PPO

from openenv_gym import RemoteVecEnv
from openenv_gym.sb3 import SB3VecEnv


def episode_returns(model, url, envs=4):
    """The returns of one episode of each env under the trained policy."""
    with RemoteVecEnv(url, envs, max_episode_steps=50) as env:
        places, _ = env.reset()
        returns, running = np.zeros(envs), np.ones(envs, bool)
        while running.any():
            actions, _ = model.predict(places, deterministic=True)
            places, rewards, terminated, truncated, _ = env.step(actions)
            returns += rewards * running
            running &= ~(terminated | truncated)
    return returns


def main():
    """Train, evaluate, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=4096)
    args = parser.parse_args()
    with serving(*STOCK) as url:
        env = SB3VecEnv(RemoteVecEnv(url, num_envs=8, max_episode_steps=50))
        print(f"{env.observation_space} -> {env.action_space}")
        model = PPO("MlpPolicy", env, n_steps=64, batch_size=128, ent_coef=0.01, learning_rate=1e-3, seed=1)
        model.learn(args.timesteps)
        env.close()
        print(f"mean_return={episode_returns(model, url).mean():.2f}  best_possible=0.30")


if __name__ == "__main__":
    main()
