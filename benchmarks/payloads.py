"""S3, S4, S10: large observations, envs that wait, and keys that are trimmed away."""

from __future__ import annotations

import contextlib

import numpy as np
from harness import Report, add_anatomy, add_rows, alternate, milliseconds
from single_env import echo
from vector_steps import openenv_steps

from openenv_gym import RemoteVecEnv

IMAGES = 64 * 84 * 84 * 4

TRIED = """
* The time is in copies, of which there are eight: into the batch, the message, the frame, the kernel; out of it, into
  the stream, the frame, and the arrays that the caller owns. The echo has about twelve for twice the bytes, and waits
  for no env, nor for a thread that it runs in.
* Kept: the client's loop no longer copies the frame once more. 3.3 ms became 2.65 ms, and 0.55 of the echo 0.66.
* A frame's head and data written one after the other, past the library's join of the two: 4 %. Not kept, for it
  would be a second implementation of WebSocket frames.
* The client has 250 page faults in a step, and the server none: glibc gives the loop thread's memory back and takes it
  anew. What would change that is a setting of the whole process, which isn't ours.
* asyncio's own event loop in the client in place of uvloop: no difference.
"""


def s3() -> Report:
    """Megabytes per second of 64 images of (84, 84, 4)."""
    report = Report("S3: 64 observations of (84, 84, 4) uint8, megabytes of observations per second")
    actions = np.zeros(64, np.int64)
    with contextlib.ExitStack() as stack:
        remote = stack.enter_context(RemoteVecEnv.local("bench_envs:image", num_envs=64))
        remote.reset()
        bare = stack.enter_context(echo(IMAGES))
        lists = stack.enter_context(openenv_steps(64, "image"))
        results = alternate(
            {
                "RemoteVecEnv": lambda: IMAGES / 1000 / milliseconds(lambda: remote.step(actions)),
                # an echo carries the bytes both ways, a step only back
                "bare echo": lambda: 2 * IMAGES / 1000 / milliseconds(bare),
                "OpenEnv, as lists": lambda: IMAGES / 1000 / milliseconds(lists),
            }
        )
        add_rows(report, results, "MB/s")
        add_anatomy(report, remote, actions)
    report.compare(results, "RemoteVecEnv", "bare echo", 0.7)
    report.compare(results, "RemoteVecEnv", "OpenEnv, as lists", 50)
    report.tried = TRIED
    return report


def s4() -> Report:
    """Milliseconds of a vector step of 64 envs that wait 10 ms."""
    report = Report("S4: 64 envs that wait 10 ms in a step, default settings, milliseconds of one vector step")
    actions = np.zeros(64, np.int64)
    with RemoteVecEnv.local("bench_envs:blocking", num_envs=64) as remote:
        remote.reset()
        results = alternate({"RemoteVecEnv": lambda: milliseconds(lambda: remote.step(actions)), "15 ms": lambda: 15.0})
    add_rows(report, results, "ms")
    report.compare(results, "RemoteVecEnv", "15 ms", 1.0, at_most=True)
    return report


def s10() -> Report:
    """Milliseconds of a vector step with a key of 1 MB trimmed away, against an env without it."""
    report = Report("S10: N=16, a 1 MB observation key excluded, milliseconds of one vector step")
    actions = np.zeros(16, np.int64)
    with contextlib.ExitStack() as stack:
        trimmed, without, whole = (
            stack.enter_context(RemoteVecEnv.local("bench_envs:keyed", num_envs=16, **options))
            for options in ({"exclude": ["camera"]}, {"env_kwargs": {"megabyte": False}}, {})
        )
        for env in (trimmed, without, whole):
            env.reset()
        results = alternate(
            {
                "excluded": lambda: milliseconds(lambda: trimmed.step(actions)),
                "env without the key": lambda: milliseconds(lambda: without.step(actions)),
                "not excluded": lambda: milliseconds(lambda: whole.step(actions)),
            }
        )
    add_rows(report, results, "ms")
    report.compare(results, "excluded", "env without the key", 1.2, at_most=True)
    return report


if __name__ == "__main__":
    for benchmark in (s3, s4, s10):
        print(benchmark().markdown())
