"""S1, S8, S11: CartPole in vector envs: ours, Gymnasium's, Stable-Baselines3's and OpenEnv's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import gymnasium as gym
import numpy as np
from harness import Report, add_anatomy, add_rows, alternate, milliseconds, rate
from openenv_peer import stock_server
from single_env import echo
from stable_baselines3.common.vec_env import SubprocVecEnv

from openenv_gym import RemoteVecEnv, codec
from openenv_gym.messages import Array, Step, Stepped
from openenv_gym.protocol import ClientProtocol, ClientState, ServerProtocol

TRIED = """
* Kept: no look-ups for each step that are only needed for each episode. The envs' loop took 493 µs of CPU time for 64
  CartPoles, and takes 434, as SyncVectorEnv's does; the bare envs take 354.
* A step passes six threads: the caller's, the client's loop, the server's loop, the env's thread, and back. The sum of
  their CPU times is the whole wall time, at N=1 too, where 0.4 ms are spent on 25 µs of work as a tight loop measures
  it. What costs is waking up, and code and data that are no longer in the caches.
* Sending from the caller's thread, past the client's loop: 25 µs of 910 at N=64, nothing at N=1. Not kept: with a
  socket that two threads write to, resume and pings are hard to prove right.
* Taking frames straight from uvicorn's protocol object, past ASGI and Starlette: 10 µs. Not kept.
* An env thread that polls its queue before it sleeps: slower, 1,030 to 1,070 µs instead of 916, because of the GIL.
* No garbage collection on the server: no difference.
* Writing all rows at once after the loop (np.concatenate): about 10 µs. Not kept: envs that share one buffer would get
  each other's observations.
"""


def make_cartpole() -> gym.Env:
    """One env."""
    return gym.make("CartPole-v1")


def s1(num_envs: int = 64) -> Report:
    """Env steps per second at 64 envs."""
    actions = np.random.default_rng(0).integers(0, 2, num_envs)
    report = Report(f"S1: CartPole-v1, N={num_envs}, random actions, env steps per second")
    with contextlib.ExitStack() as stack:
        # The subprocesses come first: they are forked, which is quick, while this process has no other threads.
        subprocesses = gym.vector.AsyncVectorEnv([make_cartpole] * num_envs, context="fork")
        stack.callback(subprocesses.close)
        sb3 = SubprocVecEnv([make_cartpole] * num_envs, start_method="fork")
        stack.callback(sb3.close)
        local = gym.vector.SyncVectorEnv([make_cartpole] * num_envs)
        remote = stack.enter_context(RemoteVecEnv.local("CartPole-v1", num_envs=num_envs))
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
        add_anatomy(report, remote, actions)
    for name, goal in (
        ("SyncVectorEnv, in process", 0.65),
        ("AsyncVectorEnv", 8),
        ("SB3 SubprocVecEnv", 8),
        ("OpenEnv's server and client", 25),
    ):
        report.compare(results, "RemoteVecEnv", name, goal)
    report.tried = TRIED
    return report


@contextlib.contextmanager
def openenv_steps(num_envs: int, kind: str = "cartpole") -> Iterator:
    """One step of each of ``num_envs`` OpenEnv clients, together; see `stock_server` for the kinds."""
    from openenv.core import GenericEnvClient

    with stock_server(kind) as url:
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
    costs, wholes, echoes = [], [], []
    for size in sizes:
        with RemoteVecEnv.local("CartPole-v1", num_envs=size) as remote, echo(64) as bare:
            local = gym.vector.SyncVectorEnv([make_cartpole] * size)
            actions = np.zeros(size, np.int64)
            remote.reset(seed=0)
            local.reset(seed=0)
            results = alternate(
                {
                    f"N={size}": lambda r=remote, a=actions: milliseconds(lambda: r.step(a), 0.3),
                    f"SyncVectorEnv N={size}": lambda e=local, a=actions: milliseconds(lambda: e.step(a), 0.3),
                    "bare echo": lambda e=bare: milliseconds(e, 0.3),
                },
                runs=5,
            )
            if size == 1:
                add_anatomy(report, remote, actions)
        echoes += results.pop("bare echo")
        add_rows(report, results, "ms")
        wholes.append(float(np.median(results[f"N={size}"])))
        costs.append(wholes[-1] - float(np.median(results[f"SyncVectorEnv N={size}"])))
    add_rows(report, {"bare echo": echoes}, "ms")
    # Each size counts the same; otherwise the largest would decide alone, and its noise is larger than a.
    slope, fixed = np.polyfit(sizes, costs, 1, w=1 / np.array(wholes))
    report.rows.append(("overhead over SyncVectorEnv, a + b·N", f"a = {fixed:.3f} ms, b = {1000 * slope:.2f} µs"))
    each = ", ".join(f"{1000 * (cost - fixed) / size:.1f}" for cost, size in zip(costs[2:], sizes[2:], strict=True))
    report.rows.append((f"(overhead - a) / N for N = {sizes[2:]}, µs", each))
    limit = "0.4 ms, or twice the echo"
    either = {"a": [float(fixed)] * len(echoes), limit: [max(0.4, 2 * echoed) for echoed in echoes]}
    report.compare(either, "a", limit, 1, at_most=True)
    report.tried = "See S1."
    return report


def s11(num_envs: int = 64) -> Report:
    """What ids, kept replies and the order of requests cost, as a share of a vector step.

    They can't be switched off, so what they add is measured: the messages of a step through both ends' rules of a
    session, against the same messages through the codec alone.
    """
    batch = [Array.of(np.zeros(num_envs, np.int64))]
    flags = Array.of(np.zeros(num_envs, np.bool_))
    observations, rewards = [Array.of(np.zeros((num_envs, 4), np.float32))], Array.of(np.zeros(num_envs))
    step = Step(1, None, batch, "NextStep")
    client, server = ClientProtocol(), ServerProtocol()
    client.state = ClientState.READY

    def stepped(id: int) -> Stepped:
        return Stepped(id, observations, rewards, flags, flags, {}, None, [])

    def session() -> None:
        _, frame = client.send(step)
        request = server.receive(frame)
        client.receive(server.reply(stepped(request.id)))

    def bare() -> None:
        codec.decode_request(codec.encode(step))
        codec.decode_reply(codec.encode(stepped(1)))

    report = Report(f"S11: exactly-once bookkeeping, N={num_envs}, milliseconds of a vector step")
    with RemoteVecEnv.local("CartPole-v1", num_envs=num_envs) as remote:
        remote.reset(seed=0)
        actions = np.zeros(num_envs, np.int64)
        results = alternate(
            {
                "a vector step": lambda: milliseconds(lambda: remote.step(actions)),
                "its messages with the rules of a session": lambda: milliseconds(session, 0.3),
                "its messages, codec alone": lambda: milliseconds(bare, 0.3),
            }
        )
    add_rows(report, results, "ms")
    whole, with_rules, without = results.values()
    results["bookkeeping"] = [a - b for a, b in zip(with_rules, without, strict=True)]
    results["vector step"] = whole
    report.compare(results, "bookkeeping", "vector step", 0.03, at_most=True)
    return report


if __name__ == "__main__":
    for benchmark in (s1, s8, s11):
        print(benchmark().markdown())
