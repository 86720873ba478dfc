"""What `scale.py` measured, as Markdown: the table, what it shows, and the model of a cluster that follows from it."""

from __future__ import annotations

import numpy as np

__all__ = ["markdown"]

COLUMNS = {
    "opening all": lambda r: f"{r['open_s']:g} s",
    "until open p50 / p99": lambda r: "{:g} / {:g} ms".format(*r["session_ms"]),
    "reset": lambda r: f"{r['reset_ms']:g} ms",
    "step p50 / p99 / slowest": lambda r: "{:g} / {:g} / {:g} ms".format(*r["step_ms"], r["slowest_ms"]),
    "env steps/s": lambda r: f"{r['steps_s']:,}",
    "KiB/env client / server": lambda r: f"{r['client_kib_per_env']} / {r['server_kib_per_env']}",
}
CLUSTERS = ((100_000, 100), (1_000_000, 1_000))


def markdown(results, machine):
    """The report.

    Args:
        results: kind, envs, sessions and servers of each case -> what was measured, or why nothing was, as text.
        machine: what it was measured on.
    """
    measured = {case: result for case, result in results.items() if isinstance(result, dict)}
    parts = ["## Measured", machine, "\n".join(table(results)), "What it shows:", "\n".join(findings(measured))]
    model = "\n".join(cluster(measured))
    if model:
        parts += ["## A model of a cluster", model]
    return "\n\n".join(parts) + "\n"


def table(results):
    """A row for each case."""
    yield f"| servers | envs | sessions | {' | '.join(COLUMNS)} |"
    yield "|---" * (3 + len(COLUMNS)) + "|"
    for (kind, envs, sessions, servers), result in results.items():
        if kind == "fleet" and not isinstance(result, str):
            continue  # its ratio is told below
        failed = [result, *[""] * (len(COLUMNS) - 1)] if isinstance(result, str) else None
        cells = failed or [show(result) for show in COLUMNS.values()]
        yield f"| {servers} {kind} | {envs:,} | {sessions:,} | {' | '.join(cells)} |"


def findings(measured):
    """One sentence for each thing that the cases show."""
    both = [envs for kind, envs, n, servers in measured if kind == "ours" and n == envs > 1 and servers == 1]
    for envs in sorted(envs for envs in both if ("ours", envs, 1, 1) in measured)[-1:]:
        one, each = measured["ours", envs, 1, 1], measured["ours", envs, envs, 1]
        yield (
            f"* **Few sessions with many envs each** are what scales. {envs:,} envs in one session take "
            f"{one['step_ms'][0]:g} ms for a vector step and {one['open_s']:g} s to open; in {envs:,} sessions "
            f"{each['step_ms'][0]:g} ms, {each['open_s']:g} s ({envs / each['open_s']:,.0f} sessions/s), and "
            f"{each['server_kib_per_env']} KiB of the server for each. `RemoteVecEnv` has one session for each server "
            "by default."
        )
    for envs in sorted(envs for kind, envs, _, _ in measured if kind == "simulated")[-1:]:
        rows = {n: result for (kind, size, n, _), result in measured.items() if (kind, size) == ("simulated", envs)}
        times = " and ".join(f"{result['step_ms'][0]:g} ms over {n} connections" for n, result in sorted(rows.items()))
        yield f"* **The learner's side** takes {envs:,} envs: {times} for a vector step."
    stock = [envs for kind, envs, _, _ in measured if kind == "stock"]
    for envs in sorted(envs for envs in stock if {("ours", envs, 1, 1), ("ours", envs, envs, 1)} <= measured.keys())[
        -1:
    ]:
        theirs, one, each = (
            measured[case] for case in (("stock", envs, envs, 1), ("ours", envs, 1, 1), ("ours", envs, envs, 1))
        )
        yield (
            f"* **A stock OpenEnv server** with {envs:,} sessions takes {theirs['open_s']:g} s to open them "
            f"({envs / theirs['open_s']:,.0f} sessions/s) and {theirs['step_ms'][0]:g} ms for a step of each. As many "
            f"sessions of ours open in {factor(each, theirs, 'open_s')} times that, and give "
            f"{factor(each, theirs, 'steps_s')} times the env steps/s; one session with {envs:,} envs opens in "
            f"{factor(one, theirs, 'open_s')} times that, and gives {factor(one, theirs, 'steps_s')} times the env "
            "steps/s."
        )
    for (kind, envs, _, servers), result in measured.items():
        if kind == "fleet":
            yield (
                f"* **A fleet** of {servers} server{'s' * (servers > 1)} on Ray takes {result['over_local']:.2f} times "
                f"as long for a vector step of {envs:,} envs as one `LocalServer`, stepped in turn with it."
            )


def factor(ours, theirs, name):
    """How many times as much of something one has as the other."""
    ratio = ours[name] / theirs[name]
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def cluster(measured):
    """The costs that a vector step has for the learner, by its connections and its envs, and what follows from them."""
    rows = [(n, envs, r) for (kind, envs, n, _), r in measured.items() if kind == "simulated"]
    if len({envs for _, envs, _ in rows}) < 2 or ("ours", 1000, 1, 1) not in measured:
        return
    costs = np.array([(n, envs) for n, envs, _ in rows], float)
    took = np.array([r["step_ms"][0] for _, _, r in rows])
    # Relative errors count, so that the small cases do too.
    found, *_ = np.linalg.lstsq(costs / took[:, None], np.ones(len(took)), rcond=None)
    per_connection, per_env = np.maximum(found, 0.0)
    largest = max(rows, key=lambda row: row[1])[2]
    server = measured["ours", 1000, 1, 1]
    yield (
        f"A vector step of the simulated rows costs the learner about {per_connection:.2g} ms for each connection and "
        f"{1000 * per_env:.2g} µs for each env (least squares of the relative errors). One server with 1,000 envs "
        f"takes {server['step_ms'][0]:g} ms, its learner included. From these, by arithmetic and not measured:"
    )
    yield ""
    yield "| | " + " | ".join(f"{envs:,} envs on {n:,} servers" for envs, n in CLUSTERS) + " |"
    yield "|---" * (1 + len(CLUSTERS)) + "|"
    steps = [(n * per_connection, envs * per_env) for envs, n in CLUSTERS]
    lines = {
        "learner, connections": [f"{connections:,.0f} ms" for connections, _ in steps],
        "learner, decoding and copying": [f"{copying:,.0f} ms" for _, copying in steps],
        "a server's own step, at most": [f"{server['step_ms'][0]:g} ms"] * len(CLUSTERS),
        "env steps/s for one learner": [
            f"{1000 * envs / (sum(step) + server['step_ms'][0]):,.0f}"
            for (envs, _), step in zip(CLUSTERS, steps, strict=True)
        ],
        f"bytes for a vector step, both ways ({server['bytes_per_env']:.0f} for an env)": [
            f"{envs * server['bytes_per_env'] / 1e6:,.1f} MB" for envs, _ in CLUSTERS
        ],
        f"learner's memory ({largest['client_kib_per_env']} KiB for an env)": [
            f"{envs * largest['client_kib_per_env'] / 1024:,.0f} MiB" for envs, _ in CLUSTERS
        ],
        "descriptors of the learner": [f"{n:,}" for _, n in CLUSTERS],
    }
    for name, cells in lines.items():
        yield f"| {name} | {' | '.join(cells)} |"
