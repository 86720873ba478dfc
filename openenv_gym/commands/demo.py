"""``openenv-gym demo``: PPO learns CartPole over a WebSocket."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openenv_gym.commands.common import refuse, refuse_missing
from openenv_gym.errors import OpenEnvGymError

__all__ = ["demo"]


def demo(
    timesteps: Annotated[int, typer.Option(min=1, help="Env steps to train for at most.")] = 100_000,
    num_envs: Annotated[int, typer.Option(min=1, max=1024, help="Envs to train on.")] = 8,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="The same seed gives the same returns.")] = 0,
    out: Annotated[Path, typer.Option(dir_okay=False, help="Where to write the learning curve.")] = Path(
        "demo_learning_curve.png"
    ),
) -> None:
    """Train PPO on CartPole over a WebSocket.

    It starts a server of its own. The exit code is 0 only if the env is solved: a mean return of 475 or more.

    Example: openenv-gym demo --out curve.png
    """
    if not out.parent.is_dir():
        refuse(f"--out: {out.parent} is no folder")
    try:
        from rich.console import Console

        from openenv_gym.demo import run
    except ModuleNotFoundError as error:
        refuse_missing(error, "server,sb3")
    try:
        solved = run(timesteps, num_envs, seed, out, Console(highlight=False))
    except OpenEnvGymError as error:
        refuse(str(error))
    raise typer.Exit(0 if solved else 1)
