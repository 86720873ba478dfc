"""TorchRL collects experience from remote envs, in batches for any of its losses.

    python torchrl_collect.py                              # starts a server by itself
    python torchrl_collect.py --url http://gpu-box:8000    # or uses one: openenv-gym serve CartPole-v1

TorchRL resets envs by itself, so autoreset is off; it then resets only the envs that ended. It wraps the env,
`GymWrapper(env)`: `GymEnv(id)` passes on options of its own, which an env with checked options refuses.
"""

import argparse

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, RewardSum, TransformedEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor

from openenv_gym import RemoteVecEnv


def collect(envs: RemoteVecEnv, frames: int) -> torch.Tensor:
    """Collect with a fresh policy, and give the returns of the episodes that ended."""
    env = TransformedEnv(GymWrapper(envs), RewardSum())
    network = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    policy = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
    )
    returns = []
    collector = Collector(env, policy, frames_per_batch=256, total_frames=frames, auto_register_policy_transforms=True)
    for batch in collector:  # of shape (envs, steps)
        following = batch["next"]
        returns.append(following["episode_reward"][following["done"]])
        print(f"{tuple(batch.batch_size)} {sorted(batch.keys())}: {len(returns[-1])} episodes ended")
    collector.shutdown()  # closes the envs too
    return torch.cat(returns)


def main() -> None:
    """Read the arguments, connect, collect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server of CartPole-v1; without one, a server is started")
    parser.add_argument("--token")
    parser.add_argument("--frames", type=int, default=10_240)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    options = {"num_envs": 8, "autoreset_mode": "Disabled"}
    if arguments.url:
        envs = RemoteVecEnv(arguments.url, token=arguments.token, **options)
    else:
        envs = RemoteVecEnv.local("CartPole-v1", **options)
    returns = collect(envs, arguments.frames)
    print(f"{arguments.frames} frames, {len(returns)} episodes, mean return {returns.mean():.1f}")


if __name__ == "__main__":
    main()
