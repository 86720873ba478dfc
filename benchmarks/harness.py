"""What all benchmarks share: alternating runs, medians, ratios, and a table that says what it was measured on.

Every figure is a ratio of alternating runs in one process tree, because machines are noisy: absolute times are printed
for orientation only.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from openenv_gym import RemoteVecEnv

RUNS = 5
PACKAGES = ("gymnasium", "numpy", "websockets", "msgspec", "fastapi", "uvicorn", "stable-baselines3", "openenv")


@dataclass
class Goal:
    """One comparison.

    Attributes:
        name: what is compared, such as ``S1 vs SyncVectorEnv``.
        ratio: the measured ratio.
        goal: the ratio to reach.
        at_most: whether smaller is better.
    """

    name: str
    ratio: float
    goal: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.ratio <= self.goal if self.at_most else self.ratio >= self.goal


@dataclass
class Report:
    """One benchmark's result.

    Attributes:
        title: what was measured.
        rows: name, median and range of each candidate, with the unit.
        goals: the comparisons.
        tried: what was tried to reach the goals, and what it did, in Markdown; shown where one is missed.
    """

    title: str
    rows: list[tuple[str, str]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    tried: str = ""

    def compare(
        self, results: dict[str, list[float]], ours: str, theirs: str, goal: float, *, at_most: bool = False
    ) -> None:
        """Add a comparison of two candidates."""
        self.goals.append(Goal(f"{ours} / {theirs}", ratio(results, ours, theirs), goal, at_most))

    def markdown(self) -> str:
        """The report as Markdown."""
        lines = [f"## {self.title}", "", "| what | median (range) |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in self.rows]
        if self.goals:
            lines += ["", "| comparison | ratio | goal | |", "|---|---|---|---|"]
            for goal in self.goals:
                sign, mark = ("≤" if goal.at_most else "≥"), ("met" if goal.met else "**missed**")
                lines.append(f"| {goal.name} | {goal.ratio:.3g} | {sign} {goal.goal:g} | {mark} |")
        if self.tried and not all(goal.met for goal in self.goals):
            lines += ["", "What was tried:", "", self.tried.strip()]
        return "\n".join(lines) + "\n"


def alternate(candidates: dict[str, Callable[[], float]], runs: int = RUNS) -> dict[str, list[float]]:
    """Measure each candidate in turn, ``runs`` times, after one round that doesn't count."""
    results: dict[str, list[float]] = {name: [] for name in candidates}
    for run in range(runs + 1):
        for name, measure in candidates.items():
            value = measure()
            if run:
                results[name].append(value)
    return results


def ratio(results: dict[str, list[float]], ours: str, theirs: str) -> float:
    """Median of the ratios of the pairs of runs."""
    return statistics.median(a / b for a, b in zip(results[ours], results[theirs], strict=True))


def add_rows(report: Report, results: dict[str, list[float]], unit: str) -> None:
    """Put medians and ranges into a report."""
    for name, values in results.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        report.rows.append((name, f"{middle:,.4g} {unit} ({low:,.4g} to {high:,.4g})"))


def add_anatomy(report: Report, env: RemoteVecEnv, actions: NDArray[Any], steps: int = 1000) -> None:
    """Put into a report where the time of a vector step goes."""
    env.stats(collect=True)
    for _ in range(steps):
        env.step(actions)
    shares = env.stats().shares()
    report.rows += [(f"mean µs of a vector step: {part.name}", f"{part.mean_us:.0f}") for part, _ in shares]


def rate(step: Callable[[], object], per_step: int, seconds: float = 1.0) -> float:
    """Env steps per second of ``step``, which takes ``per_step`` env steps."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(4):
            step()
        count += 4
    return count * per_step / (time.perf_counter() - start)


def milliseconds(step: Callable[[], object], seconds: float = 1.0) -> float:
    """Milliseconds that one ``step`` takes."""
    return 1000.0 / rate(step, 1, seconds)


def machine() -> str:
    """What the figures were measured on."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{platform.system()} {platform.machine()}, {cores} cores, Python {platform.python_version()}; "
        + ", ".join(versions)
        + f"\n\n`{' '.join(['python', *sys.argv])}`\n"
    )
