"""PPO in one file, in the manner of CleanRL, on remote envs.

Nothing here knows that the envs are remote: exchange `RemoteVecEnv.local(...)` for `gym.make_vec(...)` and the numbers
stay the same, bit for bit.

Two things that are easily done wrong are done right here. Under Gymnasium's default autoreset, `NextStep`, the step
after an episode's end only resets: its transition is no experience, and is masked out. And an episode that was
truncated, by a time limit or a lost connection, goes on in principle: its last value is bootstrapped, which is zero
only after a termination.
"""

import argparse
from collections import deque

import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn
from torch.distributions import Categorical

from openenv_gym import RemoteVecEnv

GAMMA, LAMBDA, CLIP, ENTROPY, EPOCHS, MINIBATCHES, ROLLOUT = 0.98, 0.8, 0.2, 0.0, 20, 4, 32


class Agent(nn.Module):
    """A policy and a value function."""

    def __init__(self, observation_size: int, actions: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(observation_size, 64), nn.Tanh(), nn.Linear(64, actions))
        self.value = nn.Sequential(nn.Linear(observation_size, 64), nn.Tanh(), nn.Linear(64, 1))

    def act(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sampled actions and their log-probabilities."""
        distribution = Categorical(logits=self.policy(observation))
        action = distribution.sample()
        return action, distribution.log_prob(action)


def advantages_of(rewards, values, next_values, terminated, over):
    """Generalised advantage estimates; all arrays have shape (steps, envs).

    Args:
        rewards: rewards.
        values: values of the observations before the steps.
        next_values: values of the observations after them, which under `NextStep` are those of the same episode.
        terminated: where the episode terminated: nothing follows.
        over: where it ended, in either way: what follows belongs to another one.
    """
    advantages = torch.zeros_like(rewards)
    following = torch.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + GAMMA * next_values[t] * ~terminated[t] - values[t]
        following = delta + GAMMA * LAMBDA * ~over[t] * following
        advantages[t] = following
    return advantages


def train(envs: RecordEpisodeStatistics, steps: int, seed: int) -> float:
    """Train, and give the mean return of the last 20 episodes."""
    torch.manual_seed(seed)
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)
    returns: deque[float] = deque(maxlen=20)
    observation = torch.as_tensor(envs.reset(seed=seed)[0])
    resetting = torch.zeros(envs.num_envs, dtype=torch.bool)  # rows whose next step only resets
    for _ in range(max(steps // (ROLLOUT * envs.num_envs), 1)):
        rows = []
        for _ in range(ROLLOUT):
            with torch.no_grad():
                action, log_prob = agent.act(observation)
            following, reward, terminated, truncated, info = envs.step(action.numpy())
            following = torch.as_tensor(following)
            terminated, truncated = torch.as_tensor(terminated), torch.as_tensor(truncated)
            reward = torch.as_tensor(reward, dtype=torch.float32)
            rows.append(
                (observation, action, log_prob, reward, following, terminated, terminated | truncated, ~resetting)
            )
            returns.extend(np.asarray(info["episode"]["r"])[info["_episode"]].tolist() if "episode" in info else ())
            observation, resetting = following, terminated | truncated
        update(agent, optimizer, *(torch.stack(column) for column in zip(*rows, strict=True)))
    return float(np.mean(returns)) if returns else float("nan")


def update(agent, optimizer, observations, actions, log_probs, rewards, following, terminated, over, real):
    """Some epochs of clipped gradient steps on one rollout."""
    with torch.no_grad():
        values, next_values = agent.value(observations).squeeze(-1), agent.value(following).squeeze(-1)
        advantages = advantages_of(rewards, values, next_values, terminated, over)
    targets = advantages + values
    batch = [column[real] for column in (observations, actions, log_probs, advantages, targets)]
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(batch[0])).chunk(MINIBATCHES):
            observation, action, old, advantage, target = (column[chosen] for column in batch)
            distribution = Categorical(logits=agent.policy(observation))
            ratio = (distribution.log_prob(action) - old).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy_loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            value_loss = (agent.value(observation).squeeze(-1) - target).square().mean()
            loss = policy_loss + 0.5 * value_loss - ENTROPY * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def main() -> None:
    """Read the arguments, connect, train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server of CartPole-v1; without one, a server is started")
    parser.add_argument("--token")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.url:
        remote = RemoteVecEnv(arguments.url, num_envs=8, token=arguments.token)
    else:
        remote = RemoteVecEnv.local("CartPole-v1", num_envs=8)
    envs = RecordEpisodeStatistics(remote)
    mean = train(envs, arguments.steps, arguments.seed)
    envs.close()
    print(f"mean return of the last episodes: {mean:.1f}")


if __name__ == "__main__":
    main()
