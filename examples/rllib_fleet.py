"""RLlib's PPO on envs of a fleet: Ray runs the learner, its env runners and the servers; steps go over WebSockets.

    pip install '.[ray]' torch dm-tree lz4 ormsgpack pyarrow scipy tensorboardX
    python examples/rllib_fleet.py

Each env runner connects to one of the servers. The packages are those of RLlib's own extra, which can't be used itself:
it wants one old version of Gymnasium.
"""

import argparse
import logging

import gymnasium as gym
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

from openenv_gym.fleet import RayFleet

ENVS_PER_RUNNER = 4


def remote_env(config):
    """One env for an env runner, on the server that is the runner's by its number."""
    urls = config["urls"]
    url = urls[config.worker_index % len(urls)]
    return gym.make("openenv_gym:openenv/Remote-v0", base_url=url, token=config["token"])


def train(address, iterations, servers, runners):
    """Train, and print each iteration's mean return."""
    with RayFleet(
        "CartPole-v1",
        servers=servers,
        envs_per_server=(runners // servers + 1) * ENVS_PER_RUNNER,
        num_cpus=0.5,
        address=address,
        start_timeout_s=120,
    ) as fleet:
        register_env("fleet", remote_env)
        config = (
            PPOConfig()
            .environment("fleet", env_config={"urls": fleet.urls, "token": fleet.token})
            .env_runners(num_env_runners=runners, num_envs_per_env_runner=ENVS_PER_RUNNER, num_cpus_per_env_runner=0.5)
            .training(train_batch_size=512, minibatch_size=128, num_epochs=4, lr=1e-3)
        )
        algorithm = config.build_algo()
        try:
            for iteration in range(iterations):
                result = algorithm.train()["env_runners"]
                steps, mean = result["num_env_steps_sampled_lifetime"], result["episode_return_mean"]
                print(f"iteration {iteration + 1}: {steps:.0f} env steps, mean return {mean:.1f}", flush=True)
        finally:
            algorithm.stop()


def main():
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train RLlib's PPO on a fleet.")
    parser.add_argument("--address", help="the Ray cluster to join; none starts one here")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--runners", type=int, default=2)
    arguments = parser.parse_args()
    logging.getLogger("ray").setLevel(logging.ERROR)
    train(arguments.address, arguments.iterations, arguments.servers, arguments.runners)


if __name__ == "__main__":
    main()
