"""How far many envs go on one machine: connecting, resetting, stepping, memory; and the learner's side beyond that.

Every case runs in a fresh process, with servers in processes of their own. `simulate` has servers that run no envs and
answer at once, so that what is measured is the learner's side alone.

    python benchmarks/scale.py                               # 100 and 1,000 envs
    python benchmarks/scale.py --envs 10000 --simulate 100000

`--out benchmarks/SCALE.md` writes the report that docs/scale.md shows; the command for it stands there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parent))

from scale_report import markdown, table

STEPS, WARM_UP, STOCK_STEPS = 50, 5, 10
STEPPING_S = 60.0
"""No further step is taken after so long, so that a step of seconds is measured a few times, and not fifty."""


def percentiles(seconds):
    """Median and 99th percentile, in milliseconds."""
    return [round(float(value) * 1000, 2) for value in np.percentile(seconds, [50, 99])]


def run_steps(envs, num_envs):
    """What stepping costs, and the number of steps."""
    actions = np.zeros(num_envs, np.int64)
    took, begun = [], time.perf_counter()
    while len(took) < WARM_UP + STEPS and (len(took) <= WARM_UP or time.perf_counter() - begun < STEPPING_S):
        start = time.perf_counter()
        envs.step(actions)
        took.append(time.perf_counter() - start)
    warm = took[WARM_UP:]
    return {
        "step_ms": percentiles(warm),
        "slowest_ms": round(max(warm) * 1000, 2),
        "steps_s": round(num_envs * len(warm) / sum(warm)),
    }, len(took)


def note_openings():
    """A list that gets the moment at which each session is open."""
    from openenv_gym.batch_link import BatchLink

    moments, plain = [], BatchLink.open

    async def noted(link, *args):
        await plain(link, *args)
        moments.append(time.perf_counter())

    BatchLink.open = noted
    return moments


def memory(processes):
    """Bytes that processes occupy."""
    return sum(process.memory_info().rss for process in processes)


def grown(before, processes, num_envs):
    """KiB for each env that this process and the servers' have grown by."""
    after = memory([psutil.Process()]), memory(processes)
    kib = [round((late - early) / 1024 / num_envs, 1) for late, early in zip(after, before, strict=True)]
    return {"client_kib_per_env": kib[0], "server_kib_per_env": kib[1]}


def measure(urls, pids, num_envs, connections):
    """Connect, reset and step on some servers."""
    from openenv_gym import RemoteVecEnv

    limits = {"connect_timeout_s": 300.0, "message_timeout_s": 300.0, "reset_timeout_s": 600.0}
    with RemoteVecEnv(urls, len(urls), **limits) as envs:  # what is only done once is no cost of many envs
        envs.reset(seed=1)
        envs.step([0] * len(urls))
    percentiles([0.0])
    openings, there = note_openings(), [psutil.Process(pid) for pid in pids]
    before = memory([psutil.Process()]), memory(there)
    begun = start = time.perf_counter()
    with RemoteVecEnv(urls, num_envs, connections=connections, **limits) as envs:
        opened = time.perf_counter() - start
        start = time.perf_counter()
        envs.reset(seed=1)
        reset = time.perf_counter() - start
        result = {"open_s": round(opened, 2), "session_ms": percentiles([moment - begun for moment in openings])}
        result["reset_ms"] = round(reset * 1000, 1)
        early = envs.stats()
        stepped, steps = run_steps(envs, num_envs)
        result |= stepped
        late = envs.stats()
        moved = late.bytes_up - early.bytes_up + late.bytes_down - early.bytes_down
        result["bytes_per_env"] = round(moved / num_envs / steps, 2)
        return result | grown(before, there, num_envs)


async def drive_stock(url, num_envs):
    """Connect, reset and step with OpenEnv's own client: each env a session, all at the same time."""
    from openenv.core import GenericEnvClient

    percentiles([0.0])
    there = psutil.Process().children()
    before = memory([psutil.Process()]), memory(there)

    async def timed(coroutine, took):
        start = time.perf_counter()
        await coroutine
        took.append(time.perf_counter() - start)

    opened, took, start = [], [], time.perf_counter()
    clients = [
        GenericEnvClient(base_url=url, connect_timeout_s=300.0, message_timeout_s=300.0) for _ in range(num_envs)
    ]
    await asyncio.gather(*(timed(client.connect(), opened) for client in clients))
    result = {"open_s": round(time.perf_counter() - start, 2), "session_ms": percentiles(opened)}
    start = time.perf_counter()
    await asyncio.gather(*(client.reset() for client in clients))
    result["reset_ms"] = round((time.perf_counter() - start) * 1000, 1)
    for _ in range(STOCK_STEPS):
        await timed(asyncio.gather(*(client.step({"push": 0}) for client in clients)), took)
    result |= grown(before, there, num_envs)
    await asyncio.gather(*(client.close() for client in clients))
    return result | {
        "step_ms": percentiles(took),
        "slowest_ms": round(max(took) * 1000, 2),
        "steps_s": round(num_envs * STOCK_STEPS / sum(took)),
    }


def stock(num_envs):
    """A stock OpenEnv server and its client."""
    from openenv_peer import stock_server

    with stock_server() as url:
        return asyncio.run(drive_stock(url, num_envs))


def fleet(num_envs, servers):
    """How much longer a vector step takes on a fleet than on one server of this machine, alternating."""
    from harness import alternate, milliseconds, ratio

    from openenv_gym import LocalServer, RemoteVecEnv
    from openenv_gym.fleet import RayFleet

    runtime_env = {"working_dir": str(Path(__file__).parent)}
    room = {"envs_per_server": num_envs, "num_cpus": 0.5, "start_timeout_s": 120.0}
    actions = np.zeros(num_envs, np.int64)
    with (
        RayFleet("bench_envs:tiny", servers=servers, runtime_env=runtime_env, **room) as there,
        LocalServer("bench_envs:tiny", max_envs=num_envs) as here,
        there.make_vec(num_envs) as remote,
        RemoteVecEnv(here.url, num_envs, token=here.token) as local,
    ):
        remote.reset(seed=1)
        local.reset(seed=1)
        took = alternate(
            {
                "fleet": lambda: milliseconds(lambda: remote.step(actions)),
                "local": lambda: milliseconds(lambda: local.step(actions)),
            }
        )
    return {"over_local": ratio(took, "fleet", "local")}


# ------------------------------------------------------------------------------------------------- servers


def _serve(port, ready, max_envs):
    """One of our servers."""
    from openenv_gym.server import create_app
    from openenv_gym.server.run import make_server

    def started():
        port.value = server.servers[0].sockets[0].getsockname()[1]
        ready.set()

    app = create_app("bench_envs:tiny", max_envs=max_envs)
    server = make_server(app, app.state.registry.settings, on_started=started)
    server.run()


def _simulate(port, ready, _):
    """A server without envs: the same answer each time, of the size that was asked for."""
    from bench_envs import tiny
    from websockets.asyncio.server import serve

    from openenv_gym import codec
    from openenv_gym.messages import (
        PROTOCOL_VERSION,
        SUBPROTOCOL,
        Array,
        Closed,
        Observed,
        Reset,
        Step,
        Stepped,
        Welcome,
    )
    from openenv_gym.protocol import ServerProtocol
    from openenv_gym.spaces import describe

    env = tiny()

    async def handle(connection):
        hello = codec.decode_opening(await connection.recv())
        n = hello.num_envs
        welcome = Welcome(
            version=PROTOCOL_VERSION,
            server="simulation",
            env="simulation",
            session="s",
            secret="s",
            observation_space=describe(env.observation_space),
            action_space=describe(env.action_space),
            metadata={},
            grace_s=60.0,
            max_message_bytes=1 << 27,
        )
        await connection.send(codec.encode(welcome))
        observations = [Array.of(np.zeros((n, *env.observation_space.shape), np.float32))]
        rewards, no = Array.of(np.ones(n)), Array.of(np.zeros(n, np.bool_))
        protocol = ServerProtocol()
        async for frame in connection:
            request = protocol.receive(frame)
            if isinstance(request, Reset):
                reply = Observed(request.id, observations, {}, [])
            elif isinstance(request, Step):
                reply = Stepped(request.id, observations, rewards, no, no, {}, None, [])
            else:
                reply = Closed(request.id)
            await connection.send(protocol.reply(reply))

    async def main():
        async with serve(
            handle, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL], compression=None, max_size=None, ping_interval=None
        ) as server:
            port.value = next(iter(server.sockets)).getsockname()[1]
            ready.set()
            await asyncio.Future()

    asyncio.run(main())


def run(serve, num_envs, connections, servers):
    """Measure servers in processes of their own."""
    context = multiprocessing.get_context("spawn")
    started = []
    try:
        for _ in range(servers):
            port, ready = context.Value("i", 0), context.Event()
            process = context.Process(target=serve, args=(port, ready, num_envs), daemon=True)
            process.start()
            started.append((process, port))
            if not ready.wait(60):
                raise TimeoutError("a server didn't start")
        urls = [f"http://127.0.0.1:{port.value}" for _, port in started]
        return measure(urls, [process.pid for process, _ in started], num_envs, connections)
    finally:
        for process, _ in started:
            process.terminate()
            process.join(20)


# --------------------------------------------------------------------------------------------------- cases


def cases(sizes, stock_sizes, simulated, fleets):
    """Kind, envs, connections and servers of each case."""
    for size in sizes:
        yield "ours", size, 1, 1
        yield "ours", size, 2, 2
        yield "ours", size, size, 1
        yield "ours", size, size, 2
    for size in stock_sizes:
        yield "stock", size, size, 1
    for size in simulated:
        yield "simulated", size, 10, 1
        yield "simulated", size, 100, 1
    for size in fleets:
        yield "fleet", size, 1, 1
        yield "fleet", size, 2, 2


def one(kind, num_envs, connections, servers):
    """One case, in this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if kind == "stock":
        return stock(num_envs)
    if kind == "fleet":
        return fleet(num_envs, servers)
    return run(_serve if kind == "ours" else _simulate, num_envs, connections, servers)


def measured(case, timeout_s):
    """What a process of its own measures in a case, or a text that says why it doesn't."""
    command = [sys.executable, __file__, "--case", *map(str, case)]
    # A session of its own, so that the servers of a case that takes too long end with it.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            printed, complaints = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"not done within {timeout_s:g} s"
    try:
        return json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        return f"failed: {(complaints.splitlines() or ['?'])[-1][:150]}"


def about_this_machine():
    """What it is measured on, and how busy that is."""
    from harness import machine

    return f"{machine()}\nThe load was {os.getloadavg()[0]:.1f} at the beginning; everything goes over loopback."


def main():
    """Run the cases, print a table, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--envs", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--stock", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--simulate", type=int, nargs="*", default=[10_000])
    parser.add_argument("--fleet", type=int, nargs="*", default=[1000], help="envs on a Ray fleet; needs Ray")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a case")
    parser.add_argument("--out", type=Path, help="file for the report")
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        kind, *numbers = arguments.case
        print(json.dumps(one(kind, *map(int, numbers))))
        return
    about, results = about_this_machine(), {}
    for case in cases(arguments.envs, arguments.stock, arguments.simulate, arguments.fleet):
        results[case] = measured(case, arguments.timeout)
        print(case, json.dumps(results[case]), file=sys.stderr, flush=True)
    print("\n".join(table(results)))
    if arguments.out is not None:
        arguments.out.write_text(markdown(results, about), "utf-8")


if __name__ == "__main__":
    main()
