"""S7: envs of which one in twenty steps takes long: `send` and `recv` of those that are ready first, against `step`."""

from __future__ import annotations

import contextlib
import time

import numpy as np
from harness import Report, add_rows, alternate, rate

from openenv_gym import RemoteVecEnv

WAYS = {
    "send, recv(min_ready=32)": {},
    "the same, 4 connections": {"connections": 4},
    "the same, 64 connections": {"connections": 64},
}


def first_ready(env: RemoteVecEnv, min_ready: int, seconds: float = 2.0) -> float:
    """Env steps per second; all envs are sent on as soon as they are received."""
    actions = np.zeros(env.num_envs, np.int64)
    env.send(actions)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        ready = env.recv(min_ready)[4]["env_id"]
        count += len(ready)
        env.send(actions[: len(ready)], ready)
    elapsed = time.perf_counter() - start
    env.recv()
    return count / elapsed


def s7(num_envs: int = 64, min_ready: int = 32) -> Report:
    """Env steps per second of envs with a heavy tail."""
    report = Report(f"S7: N={num_envs}, a step takes 5 ms, one in twenty 100 ms; env steps per second")
    actions = np.zeros(num_envs, np.int64)
    with contextlib.ExitStack() as stack:
        envs = {
            name: stack.enter_context(RemoteVecEnv.local("bench_envs:heavy_tailed", num_envs=num_envs, **options))
            for name, options in {**WAYS, "step": {}}.items()
        }
        for env in envs.values():
            env.reset(seed=0)
        candidates = {name: lambda env=envs[name]: first_ready(env, min_ready) for name in WAYS}
        results = alternate({**candidates, "step": lambda: rate(lambda: envs["step"].step(actions), num_envs, 2.0)})
    add_rows(report, results, "steps/s")
    report.compare(results, next(iter(WAYS)), "step", 3)
    return report


if __name__ == "__main__":
    print(s7().markdown())
