"""S5: pure-Python envs that keep the processor busy, on one server process and on two."""

from __future__ import annotations

import contextlib

import gymnasium as gym
import numpy as np
from bench_envs import busy
from harness import Report, add_rows, alternate, rate

from openenv_gym import RemoteVecEnv


def s5(num_envs: int = 16) -> Report:
    """Env steps per second of 16 envs of 1 ms each."""
    actions = np.zeros(num_envs, np.int64)
    report = Report(f"S5: {num_envs} envs of 1 ms of pure Python a step, env steps per second")
    with contextlib.ExitStack() as stack:
        envs = {
            f"serve --workers {workers}": stack.enter_context(
                RemoteVecEnv.local("bench_envs:busy", num_envs, workers=workers)
            )
            for workers in (1, 2)
        }
        envs["SyncVectorEnv, in process"] = gym.vector.SyncVectorEnv([busy] * num_envs)
        for env in envs.values():
            env.reset(seed=0)
        results = alternate(
            {name: lambda env=env: rate(lambda: env.step(actions), num_envs) for name, env in envs.items()}
        )
    add_rows(report, results, "steps/s")
    report.compare(results, "serve --workers 2", "serve --workers 1", 1.6)
    report.compare(results, "serve --workers 2", "SyncVectorEnv, in process", 1.0)
    return report


if __name__ == "__main__":
    print(s5().markdown())
