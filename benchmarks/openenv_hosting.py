"""The same OpenEnv environment under OpenEnv's server and client, and under this project's: env steps a second.

    python benchmarks/openenv_hosting.py [--envs 64] [--seconds 4] [--rounds 5]

Both servers run in a process of their own with their own defaults, the clients in this one; rounds alternate, so that
what else the machine does hits both. The environment costs next to nothing: measured is what is around it. OpenEnv's
client sends one message for each env, all of them at the same time (``asyncio.gather``); actions are the same on both
sides, and the rewards of both are compared.
"""

import argparse
import asyncio
import math
import socket
import subprocess
import sys
import time

import numpy as np
from harness import Report, add_rows, machine
from openenv.core.env_server import Action, Environment, Observation, State
from pydantic import Field

TRIED = """
* Of a vector step the envs' loop takes a half, and the environments and their models alone a third. The rest is the way
  through the threads, see S1. OpenEnv's server is never idle here; ours is for half of the time, and has the caches of
  the processor to fill again after each wait.
* Lists of numbers are packed into the batch by `struct` rather than made an array first: a sixth of the loop.
* Writing down the observations after all steps rather than after each changed nothing that could be measured.
"""


class PushAction(Action):
    """Which way to push."""

    push: int = Field(default=0, ge=0, le=1)


class SwingObservation(Observation):
    """Where the pendulum is."""

    pose: list[float] = Field(default_factory=lambda: [0.0] * 4)


class Swing(Environment[PushAction, SwingObservation, State]):
    """A pendulum that is pushed from two sides; an episode ends after 500 steps."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()
        self.angle, self.speed = 0.1, 0.0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=episode_id)
        self.angle, self.speed = 0.1, 0.0
        return self._observation(None)

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        self.speed += 0.02 * (9.8 * math.sin(self.angle) + (1.0 if action.push else -1.0))
        self.angle += 0.02 * self.speed
        return self._observation(math.cos(self.angle))

    def _observation(self, reward):
        pose = [self.angle, self.speed, math.sin(self.angle), math.cos(self.angle)]
        return SwingObservation(pose=pose, reward=reward, done=self._state.step_count >= 500)

    @property
    def state(self):
        return self._state


def serve(which, port, envs):
    """Run one of the servers; it ends with its process."""
    if which == "stock":
        import uvicorn
        from openenv.core.env_server import create_app

        app = create_app(Swing, PushAction, SwingObservation, max_concurrent_envs=envs)
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")
    else:
        from openenv_gym.server import create_app
        from openenv_gym.server.run import make_server

        app = create_app(Swing, PushAction, SwingObservation, max_concurrent_envs=envs)
        make_server(app, app.state.registry.settings, port=port, log_level="error").run()


def start(which, envs):
    """Start a server in a process of its own; return it and its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, __file__, "--serve", which, "--port", str(port), "--envs", str(envs)])
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"http://127.0.0.1:{port}"
        time.sleep(0.1)
    raise SystemExit(f"the {which} server didn't start")


def actions_of(tick, envs):
    """The same pushes for both."""
    return [(tick * 7 + env * 3) % 5 > 2 for env in range(envs)]


async def run_stock(url, envs, seconds):
    """Steps a second of OpenEnv's own client, and the rewards of its first 20 steps."""
    from openenv import GenericEnvClient

    clients = [GenericEnvClient(base_url=url) for _ in range(envs)]
    await asyncio.gather(*(client.connect() for client in clients))
    try:
        await asyncio.gather(*(client.reset() for client in clients))
        rewards, tick, begin = [], 0, time.perf_counter()
        while time.perf_counter() - begin < seconds or tick < 20:
            pushes = actions_of(tick, envs)
            results = await asyncio.gather(
                *(client.step({"push": int(push)}) for client, push in zip(clients, pushes, strict=True))
            )
            if tick < 20:
                rewards.append([result.reward for result in results])
            ended = [client for client, result in zip(clients, results, strict=True) if result.done]
            if ended:
                await asyncio.gather(*(client.reset() for client in ended))
            tick += 1
        return tick * envs / (time.perf_counter() - begin), np.array(rewards)
    finally:
        await asyncio.gather(*(client.close() for client in clients))


def run_ours(url, envs, seconds):
    """Steps a second of `RemoteVecEnv`, and the rewards of its first 20 steps."""
    from openenv_gym import RemoteVecEnv

    with RemoteVecEnv(url, num_envs=envs, autoreset_mode="SameStep") as vec:
        vec.reset()
        rewards, tick, begin = [], 0, time.perf_counter()
        while time.perf_counter() - begin < seconds or tick < 20:
            _, reward, *_ = vec.step(np.array(actions_of(tick, envs), np.int64))
            if tick < 20:
                rewards.append(reward)
            tick += 1
        return tick * envs / (time.perf_counter() - begin), np.array(rewards)


def hosting(envs=64, seconds=4.0, rounds=5):
    """Measure both, in turn."""
    processes, urls = [], {}
    stock, ours = "OpenEnv's server and client", "create_app and RemoteVecEnv"
    results = {stock: [], ours: []}
    try:
        for which in ("stock", "ours"):
            process, urls[which] = start(which, envs)
            processes.append(process)
        for _ in range(rounds):
            rate, expected = asyncio.run(run_stock(urls["stock"], envs, seconds))
            results[stock].append(rate)
            rate, rewards = run_ours(urls["ours"], envs, seconds)
            results[ours].append(rate)
            np.testing.assert_array_equal(rewards, expected)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(10)
    report = Report(f"The same OpenEnv environment hosted by both, N={envs}, env steps per second")
    add_rows(report, results, "steps/s")
    report.compare(results, ours, stock, 10)
    report.tried = TRIED
    return report


def main():
    """Measure, or be one of the servers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.port, args.envs)
    else:
        print(machine())
        print(hosting(args.envs, args.seconds, args.rounds).markdown())


if __name__ == "__main__":
    main()
