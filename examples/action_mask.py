"""Action masks: the env says in its info which actions are legal, and the policy samples only from these.

Gymnasium's Taxi does so in `info["action_mask"]`. Of a vector env it is an array of shape (num_envs, actions).
"""

import argparse

import numpy as np

from openenv_gym import RemoteVecEnv


def play(envs: RemoteVecEnv, steps: int, *, masked: bool) -> tuple[float, float]:
    """Random play; the mean reward of a step, and the share of illegal actions."""
    generator = np.random.default_rng(1)
    _, infos = envs.reset(seed=1)
    rewards, illegal = [], 0
    for _ in range(steps):
        legal = infos["action_mask"].astype(bool)
        scores = generator.random(legal.shape)
        actions = np.where(legal, scores, -1).argmax(axis=1) if masked else scores.argmax(axis=1)
        illegal += int((~legal[np.arange(envs.num_envs), actions]).sum())
        _, reward, _, _, infos = envs.step(actions)
        rewards.append(reward.mean())
    return float(np.mean(rewards)), illegal / (steps * envs.num_envs)


def main() -> None:
    """Compare play with and without the mask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server of Taxi-v4; without one, a server is started")
    parser.add_argument("--token")
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    envs = (
        RemoteVecEnv(arguments.url, num_envs=16, token=arguments.token)
        if arguments.url
        else RemoteVecEnv.local("Taxi-v4", num_envs=16)
    )
    for masked in (False, True):
        reward, illegal = play(envs, arguments.steps, masked=masked)
        print(f"masked={masked}: {reward:.2f} a step, {illegal:.1%} illegal actions")
    envs.close()


if __name__ == "__main__":
    main()
