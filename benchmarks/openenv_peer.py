"""OpenEnv's own server around CartPole, in a process of its own, to be measured against."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import gymnasium as gym

__all__ = ["stock_server"]


@contextlib.contextmanager
def stock_server(kind: str = "cartpole") -> Iterator[str]:
    """A stock server's URL; ``kind`` is ``cartpole`` or ``image`` an (84, 84, 4) image as lists."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, __file__, kind, str(port)])
    try:
        _wait(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"{url}/health", timeout=1).close()
            return
        time.sleep(0.05)
    raise RuntimeError("OpenEnv's server did not start")


def _serve(kind: str, port: int) -> None:
    import uvicorn
    from openenv.core.env_server import Action, Environment, Observation, State, create_app

    class Push(Action):
        push: int = 0

    class Values(Observation):
        values: list

    class CartPole(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.env = gym.make("CartPole-v1")
            self.image = [[[7] * 4 for _ in range(84)] for _ in range(84)]

        def observe(self, values, **result) -> Values:
            return Values(values=self.image if kind == "image" else values.tolist(), **result)

        def reset(self, seed=None, episode_id=None, **kwargs) -> Values:
            return self.observe(self.env.reset(seed=seed)[0])

        def step(self, action, timeout_s=None, **kwargs) -> Values:
            values, reward, terminated, truncated, _ = self.env.step(action.push)
            return self.observe(values, reward=float(reward), done=terminated or truncated)

        @property
        def state(self) -> State:
            return State()

    app = create_app(CartPole, Push, Values, env_name="cartpole", max_concurrent_envs=20_000)
    uvicorn.run(app, port=port, log_level="error")


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
