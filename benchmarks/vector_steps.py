"""S1, S8: CartPole in vector envs: ours, Gymnasium's, Stable-Baselines3's and OpenEnv's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import gymnasium as gym
import numpy as np
from harness import Report, add_rows, alternate, milliseconds, rate
from openenv_peer import stock_server
from stable_baselines3.common.vec_env import SubprocVecEnv

from openenv_gym import RemoteVecEnv


def make_cartpole() -> gym.Env:
    """One env."""
    return gym.make("CartPole-v1")


def s1(num_envs: int = 64) -> Report:
    """Env steps per second at 64 envs."""
    actions = np.random.default_rng(0).integers(0, 2, num_envs)
    report = Report(f"S1: CartPole-v1, N={num_envs}, random actions, env steps per second")
    with contextlib.ExitStack() as stack:
        remote = stack.enter_context(RemoteVecEnv.local("CartPole-v1", num_envs=num_envs))
        local = gym.vector.SyncVectorEnv([make_cartpole] * num_envs)
        subprocesses = gym.vector.AsyncVectorEnv([make_cartpole] * num_envs)
        stack.callback(subprocesses.close)
        sb3 = SubprocVecEnv([make_cartpole] * num_envs)
        stack.callback(sb3.close)
        openenv = stack.enter_context(openenv_steps(num_envs))
        for env in (remote, local, subprocesses):
            env.reset(seed=0)
        sb3.reset()
        results = alternate(
            {
                "RemoteVecEnv": lambda: rate(lambda: remote.step(actions), num_envs),
                "SyncVectorEnv, in process": lambda: rate(lambda: local.step(actions), num_envs),
                "AsyncVectorEnv": lambda: rate(lambda: subprocesses.step(actions), num_envs),
                "SB3 SubprocVecEnv": lambda: rate(lambda: sb3.step(actions), num_envs),
                "OpenEnv's server and client": lambda: rate(openenv, num_envs),
            }
        )
    add_rows(report, results, "steps/s")
    for name, goal in (
        ("SyncVectorEnv, in process", 0.65),
        ("AsyncVectorEnv", 8),
        ("SB3 SubprocVecEnv", 8),
        ("OpenEnv's server and client", 25),
    ):
        report.compare(results, "RemoteVecEnv", name, goal)
    return report


@contextlib.contextmanager
def openenv_steps(num_envs: int) -> Iterator:
    """One step of each of ``num_envs`` OpenEnv clients, together."""
    from openenv.core import GenericEnvClient

    with stock_server() as url:
        loop = asyncio.new_event_loop()
        clients = [GenericEnvClient(base_url=url) for _ in range(num_envs)]

        async def everyone(method: str, *args: object) -> list:
            return await asyncio.gather(*(getattr(client, method)(*args) for client in clients))

        async def step() -> None:
            results = await everyone("step", {"push": 0})
            over = [c for c, r in zip(clients, results, strict=True) if r.done]
            await asyncio.gather(*(client.reset() for client in over))

        loop.run_until_complete(everyone("connect"))
        loop.run_until_complete(everyone("reset"))
        try:
            yield lambda: loop.run_until_complete(step())
        finally:
            loop.run_until_complete(everyone("close"))
            loop.close()


def s8() -> Report:
    """Milliseconds of a vector step by the number of envs, and the line through them."""
    report = Report("S8: milliseconds of one vector step, by the number of envs")
    sizes = [1, 16, 64, 256, 1024, 4096]
    costs = []
    for size in sizes:
        with RemoteVecEnv.local("CartPole-v1", num_envs=size) as remote:
            local = gym.vector.SyncVectorEnv([make_cartpole] * size)
            actions = np.zeros(size, np.int64)
            remote.reset(seed=0)
            local.reset(seed=0)
            results = alternate(
                {
                    f"N={size}": lambda r=remote, a=actions: milliseconds(lambda: r.step(a), 0.3),
                    f"SyncVectorEnv N={size}": lambda e=local, a=actions: milliseconds(lambda: e.step(a), 0.3),
                },
                runs=5,
            )
        add_rows(report, results, "ms")
        costs.append(float(np.median(results[f"N={size}"]) - np.median(results[f"SyncVectorEnv N={size}"])))
    slope, fixed = np.polyfit(sizes, costs, 1)
    report.rows.append(("overhead over SyncVectorEnv, a + b·N", f"a = {fixed:.3f} ms, b = {1000 * slope:.2f} µs"))
    report.rows.append(("overhead at N=1", f"{costs[0]:.3f} ms"))
    return report


if __name__ == "__main__":
    for benchmark in (s1, s8):
        print(benchmark().markdown())
