"""Stable-Baselines3's PPO on remote envs, with normalised observations and an evaluation of its own.

python sb3_ppo.py                              # starts a server by itself
python sb3_ppo.py --url http://gpu-box:8000    # or uses one: openenv-gym serve Pendulum-v1
"""

import argparse
import tempfile

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from openenv_gym import LocalServer, RemoteVecEnv
from openenv_gym.sb3 import SB3VecEnv


def make_env(url: str, token: str | None, num_envs: int, *, training: bool) -> VecNormalize:
    """Remote envs, normalised; `EvalCallback` gives an evaluation the statistics of the training."""
    env = VecMonitor(SB3VecEnv(RemoteVecEnv(url, num_envs=num_envs, token=token)))
    return VecNormalize(env, training=training, norm_reward=training)


def train(url: str, token: str | None, steps: int) -> float:
    """Train, and give the mean return of the best policy."""
    envs = make_env(url, token, 8, training=True)
    evaluation = make_env(url, token, 4, training=False)
    with tempfile.TemporaryDirectory() as folder:
        callback = EvalCallback(
            evaluation, eval_freq=max(steps // 5 // envs.num_envs, 1), best_model_save_path=folder, verbose=0
        )
        model = PPO("MlpPolicy", envs, n_steps=128, gamma=0.9, learning_rate=1e-3, use_sde=True, seed=0, device="cpu")
        model.learn(steps, callback=callback)
        best = PPO.load(f"{folder}/best_model", device="cpu")
    mean, _ = evaluate_policy(best, evaluation, n_eval_episodes=8)
    envs.close()
    evaluation.close()
    return mean


def main() -> None:
    """Read the arguments, find or start a server, train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server of Pendulum-v1; without one, a server is started")
    parser.add_argument("--token")
    parser.add_argument("--steps", type=int, default=100_000)
    arguments = parser.parse_args()
    if arguments.url:
        mean = train(arguments.url, arguments.token, arguments.steps)
    else:
        with LocalServer("Pendulum-v1") as server:
            mean = train(server.url, server.token, arguments.steps)
    print(f"mean return of the best policy: {mean:.1f}")


if __name__ == "__main__":
    main()
