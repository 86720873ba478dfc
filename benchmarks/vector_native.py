"""S6: a vector env on the server, EnvPool's CartPole-v1, and the same in process.

EnvPool is in no extra, since it and its data take 700 MB: ``pip install envpool``, on Linux.
"""

from __future__ import annotations

import contextlib
import importlib.util

import numpy as np
from bench_envs import pool
from harness import Report, add_rows, alternate, rate

from openenv_gym import RemoteVecEnv


def s6(num_envs: int = 1024) -> Report:
    """Env steps per second of a pool of 1024 envs."""
    report = Report(f"S6: EnvPool CartPole-v1, N={num_envs}, env steps per second")
    if importlib.util.find_spec("envpool") is None:
        report.rows.append(("EnvPool", "not installed, not measured"))
        return report
    actions = np.random.default_rng(0).integers(0, 2, num_envs)
    with contextlib.ExitStack() as stack:
        remote = stack.enter_context(RemoteVecEnv.local("bench_envs:pool", num_envs))
        local = stack.enter_context(contextlib.closing(pool(num_envs)))
        remote.reset()
        local.reset()
        results = alternate(
            {
                "RemoteVecEnv over EnvPool": lambda: rate(lambda: remote.step(actions), num_envs),
                "EnvPool, in process": lambda: rate(lambda: local.step(actions), num_envs),
            }
        )
    add_rows(report, results, "steps/s")
    report.compare(results, "RemoteVecEnv over EnvPool", "EnvPool, in process", 0.4)
    return report


if __name__ == "__main__":
    print(s6().markdown())
