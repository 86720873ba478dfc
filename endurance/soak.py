"""`make soak`: 32 envs for ten minutes, with random faults, reconnects and env errors, on a server process.

After each round of faults all is let come to rest and both sides are measured. Fails unless memory, threads and
descriptors stay flat, every env is back where it belongs, and no env step was lost or taken twice.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import random
import statistics
import sys
import threading
import time
import urllib.request
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from helpers_faults import DEAF, DOWN, FIN, RST, UP, FaultProxy, ServerProcess
from helpers_wait import wait_until

from openenv_gym import RemoteVecEnv
from openenv_gym.errors import OpenEnvGymError

PATIENCE_S = 60
MAY_GROW = 0.05, 4.0
"""What may be added to the memory of the first half: a share, and MiB. Allocators keep what they once needed."""

DRIVERS = [
    {"num_envs": 16, "connections": 4, "autoreset_mode": "NextStep"},
    {"num_envs": 8, "autoreset_mode": "SameStep", "reopened_after_s": 3.0},
    {"num_envs": 8, "autoreset_mode": "NextStep", "dialect": "openenv"},
]
CONNECTIONS = 4 + 1 + 8
SERVER = {"max_envs": 40, "grace_s": 3, "max_step_s": 1, "opening_timeout_s": 2}
SERVER |= {"ping_interval_s": 1, "ping_timeout_s": 1}


class Driver(threading.Thread):
    """Steps a vector env with random actions, and checks that each of its envs counts on by one."""

    def __init__(self, url: str, counts: Counter[str], reopened_after_s: float = np.inf, **options: object) -> None:
        super().__init__(daemon=True)
        self._url, self._counts, self._options, self._reopened_after_s = url, counts, options, reopened_after_s
        self._may_run, self._rests, self.ends = threading.Event(), threading.Event(), False
        self.problem: BaseException | None = None
        self._over = np.zeros(0, bool)

    def run(self) -> None:
        try:
            while not self.ends:
                self._live()
        except BaseException as error:
            self.problem = error
            self._rests.set()

    def rest(self) -> None:
        """Stop between two steps."""
        self._may_run.clear()
        assert self._rests.wait(PATIENCE_S), f"{self._options} doesn't come to rest"
        if self.problem is not None:
            raise self.problem

    def go(self) -> None:
        self._rests.clear()
        self._may_run.set()

    def _live(self) -> None:
        """From one opening to the next."""
        try:
            env = RemoteVecEnv(
                self._url, message_timeout_s=3, reset_timeout_s=20, ping_interval_s=1, ping_timeout_s=1, **self._options
            )
        except OpenEnvGymError:
            self._counts["openings that failed"] += 1
            return
        with contextlib.closing(env):
            self._counts["openings"] += 1
            end = time.monotonic() + self._reopened_after_s
            expected, must_reset = None, True
            while time.monotonic() < end and not self.ends:
                if not self._may_run.is_set():
                    self._rests.set()
                    self._may_run.wait()
                try:
                    if must_reset:
                        expected, must_reset = env.reset()[0][:, 3], False
                        self._over = np.zeros(env.num_envs, bool)
                    else:
                        expected = self._check(env.step(np.random.default_rng().integers(0, 4, env.num_envs)), expected)
                except OpenEnvGymError as error:
                    self._counts[f"{type(error).__name__} raised"] += 1
                    must_reset = True

    def _check(self, step: tuple, before: np.ndarray) -> np.ndarray:
        """Whether each env took one step, or was reset; what is expected of the next one."""
        observations, _, terminated, truncated, infos = step
        lost = infos.get("connection_lost", np.zeros(len(before), bool))
        ended = (terminated | truncated) & ("final_obs" in infos)
        stepped = (observations[:, 1] > 0) | ended
        # In OpenEnv's dialect a session that is lost between two episodes costs nothing: the next one is another env's.
        replaced = self._over & (observations[:, 3] == 0) & (observations[:, 1] == 0)
        right = lost | np.isnan(before) | (observations[:, 3] == before + stepped) | replaced
        assert right.all(), f"{self._options}: counts {before.tolist()} became {observations[:, 3].tolist()} in {step}"
        self._counts["env steps compared"] += int((~lost & ~np.isnan(before)).sum())
        self._counts["rows truncated for a lost session"] += int(lost.sum())
        self._over = (terminated | truncated) & ("final_obs" not in infos)
        return np.where(lost, np.nan, observations[:, 3])


class Faults:
    """One random fault after the other."""

    def __init__(self, proxy: FaultProxy, seed: int) -> None:
        self._proxy, self._random = proxy, random.Random(seed)

    def one(self) -> None:
        choose = self._random.choice
        how = choose([RST, FIN, DEAF])
        choose([self._cut, self._cut, self._cut_after, self._cut_after, self._hold, self._slow, self._refuse])(how)
        time.sleep(self._random.uniform(0.05, 0.5))

    def _cut(self, how: str) -> None:
        self._proxy.cut(how)

    def _cut_after(self, how: str) -> None:
        self._proxy.cut_after(self._random.randrange(3000), self._random.choice([UP, DOWN, None]), how)

    def _hold(self, how: str) -> None:
        self._proxy.hold(*self._random.choice([(UP,), (DOWN,), (UP, DOWN)]))
        time.sleep(self._random.uniform(0.05, 0.5))
        self._proxy.stay_dead() if self._random.random() < 0.3 else self._proxy.release()

    def _slow(self, how: str) -> None:
        self._proxy.delay_s, self._proxy.jitter_s = self._random.choice([(0, 0), (0.001, 0.01)])
        self._proxy.piece = self._random.choice([None, 1, 100])

    def _refuse(self, how: str) -> None:
        self._proxy.refuse()
        time.sleep(self._random.uniform(0.05, 0.3))
        self._proxy.accept()

    def stop(self) -> None:
        self._proxy.put_out()
        self._proxy.release()
        self._proxy.bury()
        self._proxy.delay_s = self._proxy.jitter_s = 0
        self._proxy.piece = None


def measured(process: psutil.Process) -> dict[str, float]:
    """What a process holds now."""
    return {
        "MiB": process.memory_info().rss / 2**20,
        "threads": process.num_threads(),
        "descriptors": process.num_fds(),
    }


def growth(samples: list[dict[str, float]]) -> list[str]:
    """What is higher in the second half of the samples than in the first."""
    half = len(samples) // 2
    problems = []
    for what in samples[0]:
        before, after = ([sample[what] for sample in part] for part in (samples[:half], samples[half:]))
        share, extra = MAY_GROW
        if what == "MiB":
            grew = statistics.median(after) > statistics.median(before) * (1 + share) + extra
        else:
            grew = min(after) > max(before) or after[-1] > max(before) + 2
        if grew:
            problems.append(f"{what}: {before} -> {after}")
    return problems


class Soak:
    """One run.

    Attributes:
        counts: what happened.
        samples: what each side held after each round, once it had warmed up.
    """

    def __init__(self, server: ServerProcess, proxy: FaultProxy, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.samples: dict[str, list[dict[str, float]]] = {"client": [], "server": []}
        self._server, self._proxy, self._faults = server, proxy, Faults(proxy, seed)
        self._sides = {"client": psutil.Process(), "server": psutil.Process(server.pid)}
        self._drivers = [Driver(proxy.url, self.counts, **driver) for driver in DRIVERS]

    def run(self, rounds: int, seconds: float) -> None:
        """Rounds of faults, each followed by a rest."""
        for driver in self._drivers:
            driver.start()
        for number in range(rounds):
            self._disturb(seconds)
            now = {side: measured(process) for side, process in self._sides.items()}
            print(f"round {number + 1}/{rounds}: {_line(now)}; {self._proxy.cuts} cuts", flush=True)
            if number >= rounds // 5:  # before that, pools and caches fill
                for side, sample in now.items():
                    self.samples[side].append(sample)
        for driver in self._drivers:
            driver.ends = True
            driver.go()
        for driver in self._drivers:
            driver.join(PATIENCE_S)
        wait_until(lambda: self._active() == 0, "an empty server", PATIENCE_S)

    def _disturb(self, seconds: float) -> None:
        for driver in self._drivers:
            driver.go()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._faults.one()
            self.counts["faults"] += 1
        self._faults.stop()
        # Under way first, for a lost session is made anew by a step.
        wait_until(self._recovered, "the recovery", PATIENCE_S)
        for driver in self._drivers:
            driver.rest()
        wait_until(self._recovered, "rest", PATIENCE_S)
        gc.collect()

    def _recovered(self) -> bool:
        return self._proxy.open == CONNECTIONS and self._active() == 32

    def _active(self) -> int:
        with urllib.request.urlopen(f"{self._server.url}/health", timeout=10) as reply:
            return json.load(reply)["active_envs"]


def soak(minutes: float, seed: int) -> bool:
    """Run it; True if all stayed flat."""
    rounds = max(6, round(minutes * 60 / 15))
    with ServerProcess("helpers_tally:Fallible", **SERVER) as server, FaultProxy(server.url) as proxy:
        run = Soak(server, proxy, seed)
        run.run(rounds, minutes * 60 / rounds)
        run.counts["cuts"] = proxy.cuts
    for what, count in sorted(run.counts.items()):
        print(f"  {what}: {count:,}")
    problems = [f"{side} {problem}" for side, samples in run.samples.items() for problem in growth(samples)]
    first, last = ({side: samples[i] for side, samples in run.samples.items()} for i in (0, -1))
    print(f"after warming up: {_line(first)}", f"at the end:       {_line(last)}", sep="\n")
    print("flat" if not problems else "NOT FLAT: " + "; ".join(problems))
    return not problems


def _line(sides: dict[str, dict[str, float]]) -> str:
    return "; ".join(
        f"{side} " + ", ".join(f"{v:.0f} {k}" for k, v in sample.items()) for side, sample in sides.items()
    )


def main() -> int:
    """Soak for as long as is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
    given = parser.parse_args()
    logging.disable()  # env errors are told, and wanted here
    warnings.simplefilter("ignore")  # each lost session is told, which is what is provoked here
    return 0 if soak(given.minutes, given.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
