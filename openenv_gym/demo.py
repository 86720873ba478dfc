"""The demo: a server in its own process, Stable-Baselines3's PPO learning CartPole from its envs, and what it cost.

The time is measured where it is spent: `Stopwatch` stands directly on the remote envs, so what it counts is all that
the network, the server and the envs cost; the rest of the training is the policy and its updates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from openenv_gym.local import LocalServer
from openenv_gym.sb3 import SB3VecEnv
from openenv_gym.vector_env import RemoteVecEnv

__all__ = ["ENV_ID", "SOLVED", "Stopwatch", "run"]

ENV_ID: Final = "CartPole-v1"
SOLVED: Final = 475.0
"""The mean return at which Gymnasium counts this env as solved; 500 is the most there is."""

_EPISODES: Final = 20
_RECENT: Final = 20
_IN_A_ROW: Final = 40
"""So many solved episodes, one after the other and with exploration, leave nothing to learn: the training ends."""
_ROLLOUT: Final = 256
_Report: TypeAlias = Callable[[int, float, float], None]
"""Takes the timesteps so far, those a second, and the recent mean return."""


@dataclass
class Training:
    """What a training showed.

    Attributes:
        ends: at which timestep each episode ended.
        returns: each episode's return.
        timesteps: env steps in all.
        seconds: how long it took.
        waiting_s: how much of that passed between sending actions and having the observations.
        vector_steps: how often that was.
    """

    ends: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    timesteps: int = 0
    seconds: float = 0.0
    waiting_s: float = 0.0
    vector_steps: int = 0

    @property
    def steps_per_s(self) -> float:
        """Env steps a second, learning included."""
        return self.timesteps / self.seconds

    @property
    def recent_return(self) -> float:
        """The mean return of the latest episodes; NaN before the first has ended."""
        return float(np.mean(self.returns[-_RECENT:])) if self.returns else float("nan")

    @property
    def has_mastered(self) -> bool:
        """Whether so many episodes in a row were solved that there is nothing left to learn."""
        return len(self.returns) >= _IN_A_ROW and min(self.returns[-_IN_A_ROW:]) >= SOLVED


class Stopwatch(VecEnvWrapper):
    """Measures how long a ``VecEnv`` keeps its caller waiting.

    Args:
        venv: the envs.

    Attributes:
        seconds: time in ``step_async`` and ``step_wait``.
        steps: vector steps.
    """

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self.seconds = 0.0
        self.steps = 0

    def reset(self) -> Any:
        """Reset the envs; not measured, for it happens once."""
        return self.venv.reset()

    def step_async(self, actions: NDArray[Any]) -> None:
        """Send actions."""
        start = time.perf_counter()
        self.venv.step_async(actions)
        self.seconds += time.perf_counter() - start

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for what the actions did."""
        start = time.perf_counter()
        result = self.venv.step_wait()
        self.seconds += time.perf_counter() - start
        self.steps += 1
        return result


class _Watch(BaseCallback):
    """Collects the episodes, and reports after each rollout."""

    def __init__(self, training: Training, report: _Report) -> None:
        super().__init__()
        self._result = training
        self._report = report
        self._start = time.perf_counter()

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self._result.ends.append(self.num_timesteps)
                self._result.returns.append(float(info["episode"]["r"]))
        return not self._result.has_mastered

    def _on_rollout_end(self) -> None:
        speed = self.num_timesteps / (time.perf_counter() - self._start)
        self._report(self.num_timesteps, speed, self._result.recent_return)


def run(timesteps: int, num_envs: int, seed: int, out: Path, console: Console) -> bool:
    """Train, evaluate, and say what came out; the last line is for programs.

    Args:
        timesteps: env steps to train for, rounded up to whole rollouts.
        num_envs: envs to train on.
        seed: seed of everything random: the same seed gives the same returns.
        out: where the learning curve is written, as PNG.
        console: where to print.

    Returns:
        whether the env is solved.
    """
    with LocalServer(ENV_ID, max_envs=num_envs + _EPISODES) as server:
        console.print(
            f"{ENV_ID} is served at {server.url} by process {server.pid}; PPO trains on {num_envs} envs over one "
            "WebSocket.",
            soft_wrap=True,
        )
        with _reporting(console, timesteps) as report:
            model, training = _train(server, timesteps, num_envs, seed, report)
        if training.has_mastered:
            console.print(f"The last {_IN_A_ROW} episodes were all solved: the training ends here.")
        mean_return = _evaluate(server, model, seed)
    _draw(training, out)
    console.print(_table(training, mean_return))
    console.print(f"The learning curve is in {out}.", soft_wrap=True)
    console.out(
        f"demo: mean_return={mean_return:.1f} timesteps={training.timesteps} steps_per_s={training.steps_per_s:.1f}",
        highlight=False,
    )
    return mean_return >= SOLVED


def _train(server: LocalServer, timesteps: int, num_envs: int, seed: int, report: _Report) -> tuple[PPO, Training]:
    torch.set_num_threads(1)  # the network is so small that more threads cost more than they bring
    training = Training()
    stopwatch = Stopwatch(SB3VecEnv(RemoteVecEnv(server.url, num_envs, token=server.token)))
    env = VecMonitor(stopwatch)
    n_steps = -(-_ROLLOUT // num_envs)
    model = PPO(  # RL Baselines3 Zoo's numbers for CartPole: hyperparams/ppo.yml
        "MlpPolicy",
        env,
        n_steps=n_steps,
        batch_size=n_steps * num_envs,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=_falling_from(0.001),
        clip_range=_falling_from(0.2),
        seed=seed,
        device="cpu",
    )
    try:
        start = time.perf_counter()
        model.learn(timesteps, callback=_Watch(training, report))
        training.seconds = time.perf_counter() - start
    finally:
        env.close()
    training.timesteps = model.num_timesteps
    training.waiting_s, training.vector_steps = stopwatch.seconds, stopwatch.steps
    return model, training


def _falling_from(start: float) -> Callable[[float], float]:
    """A schedule that falls to 0 in a straight line, from the share of the training that remains."""
    return lambda remaining: start * remaining


def _evaluate(server: LocalServer, model: PPO, seed: int) -> float:
    """The mean return of episodes in fresh envs, without exploration."""
    env = VecMonitor(SB3VecEnv(RemoteVecEnv(server.url, _EPISODES, token=server.token)))
    try:
        env.seed(seed + 1_000_000)  # starts that the training hasn't seen
        mean, _ = evaluate_policy(model, env, n_eval_episodes=_EPISODES, deterministic=True)
    finally:
        env.close()
    return float(np.mean(mean))  # what it returns is typed as a mean or a list


# -------------------------------------------------------------------------------------------------- what is shown


@contextmanager
def _reporting(console: Console, timesteps: int) -> Iterator[_Report]:
    """A live bar on a terminal; elsewhere a line for each tenth of the training."""
    if not console.is_terminal:
        yield _Lines(console, timesteps)
        return
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:,.0f} steps/s, mean return {task.fields[mean]:.1f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=timesteps, speed=0.0, mean=float("nan"))

        def report(done: int, speed: float, mean: float) -> None:
            progress.update(task, completed=min(done, timesteps), speed=speed, mean=mean)

        yield report


class _Lines:
    def __init__(self, console: Console, timesteps: int) -> None:
        self._console = console
        self._timesteps = timesteps
        self._next = 1

    def __call__(self, done: int, speed: float, mean: float) -> None:
        if done * 10 >= self._timesteps * self._next:
            self._next = done * 10 // self._timesteps + 1
            self._console.out(f"{done:>9,} steps  {speed:,.0f} steps/s  mean return {mean:.1f}", highlight=False)


def _table(training: Training, mean_return: float) -> Table:
    waiting = training.waiting_s / training.seconds
    table = Table("what", "how much", title=f"{ENV_ID}, PPO over a WebSocket")
    table.columns[1].justify = "right"
    table.add_row(f"mean return of {_EPISODES} episodes ({SOLVED:g} is solved)", f"{mean_return:.1f}")
    table.add_row("timesteps", f"{training.timesteps:,}")
    table.add_row("steps per second, learning included", f"{training.steps_per_s:,.0f}")
    table.add_row("milliseconds for a vector step", f"{1000 * training.waiting_s / training.vector_steps:.2f}")
    table.add_row("time spent waiting for the envs", f"{waiting:.0%}")
    table.add_row("time spent on the policy and its learning", f"{1 - waiting:.0%}")
    return table


def _draw(training: Training, out: Path) -> None:
    figure = Figure(figsize=(8, 4.5), layout="constrained")  # no pyplot: it would look for a display
    axes = figure.add_subplot()
    axes.plot(training.ends, training.returns, ".", color="tab:blue", alpha=0.25, label="one episode")
    means = [float(np.mean(training.returns[max(0, i - _RECENT) : i])) for i in range(1, len(training.returns) + 1)]
    axes.plot(training.ends, means, color="tab:blue", label=f"mean of the last {_RECENT}")
    axes.axhline(SOLVED, color="tab:green", linestyle="--", label="solved")
    axes.set(xlabel="timesteps", ylabel="return", title=f"PPO on a remote {ENV_ID}", ylim=(0, 520))
    axes.legend(loc="lower right")
    figure.savefig(out, format="png", dpi=120)
