"""The same OpenEnv environment under OpenEnv's server and client, and under this project's, measured side by side.

python examples/openenv_hosting.py --envs 64 --seconds 5
"""

import argparse
import asyncio
import time

from openenv.core import GenericEnvClient
from openenv_servers import OURS, STOCK, serving

from openenv_gym import RemoteVecEnv


async def stock_steps(url, envs, seconds):
    """Steps a second with OpenEnv's own client: a session for each env, all of them stepped at the same time."""
    clients = [GenericEnvClient(base_url=url) for _ in range(envs)]
    await asyncio.gather(*(client.connect() for client in clients))
    await asyncio.gather(*(client.reset() for client in clients))
    rounds, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        await asyncio.gather(*(client.step({"to": "left"}) for client in clients))
        rounds += 1
    took = time.perf_counter() - begin
    await asyncio.gather(*(client.close() for client in clients))
    return rounds * envs / took


def our_steps(url, envs, seconds):
    """Steps a second with `RemoteVecEnv`: all envs in one round trip."""
    with RemoteVecEnv(url, num_envs=envs) as env:
        env.reset()
        rounds, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            env.step([0] * envs)
            rounds += 1
        return rounds * envs / (time.perf_counter() - begin)


def main():
    """Measure the four pairs of a server and a client."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    with serving(*STOCK) as stock, serving(*OURS) as ours:
        print(f"env steps/s of {args.envs} envs")
        for name, url in (("OpenEnv's server", stock), ("this server", ours)):
            theirs = asyncio.run(stock_steps(url, args.envs, args.seconds))
            mine = our_steps(url, args.envs, args.seconds)
            print(f"{name:>18}   OpenEnv's client {theirs:8,.0f}   RemoteVecEnv {mine:8,.0f}")


if __name__ == "__main__":
    main()
