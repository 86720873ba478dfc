"""``openenv-gym bench``: where the time of a server's vector steps goes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium as gym
import typer

from openenv_gym.commands.common import (
    CaFile,
    TokenEnv,
    TokenFile,
    import_namespace,
    read_token,
    refuse,
    refuse_missing,
)
from openenv_gym.errors import OpenEnvGymError

if TYPE_CHECKING:
    from openenv_gym.bench import Bench

__all__ = ["bench"]


def bench(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, such as http://localhost:8000.")],
    *,
    num_envs: Annotated[int, typer.Option(min=1, help="Envs to step together.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Vector steps to measure, with random actions.")] = 1000,
    connections: Annotated[int | None, typer.Option(min=1, help="Connections.", show_default="one")] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="ENV_ID", help="Measure local vector envs of this id in the same run.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", dir_okay=False, help="Draw the parts of the steps.")
    ] = None,
    token_env: TokenEnv = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Measure where the time of vector steps goes.

    Without a token option the token is taken from $OPENENV_GYM_TOKEN.
    """
    if plot is not None and not plot.parent.is_dir():
        refuse(f"--plot: {plot.parent} is no folder")
    token = read_token(token_env, token_file)
    try:
        if plot is not None:
            from openenv_gym.bench_plot import draw
    except ModuleNotFoundError as error:
        refuse_missing(error, "plot")
    from rich.console import Console

    from openenv_gym.bench import measure
    from openenv_gym.vector_env import RemoteVecEnv

    try:
        with (
            _local(compare, num_envs) as local,
            RemoteVecEnv(url, num_envs, connections=connections, token=token, ca_file=ca_file) as envs,
        ):
            result = measure(envs, steps, local)
            samples = envs.rollout.recorder.samples()
    except OpenEnvGymError as error:
        refuse(str(error))
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2))
    else:
        _show(result, Console(highlight=False))
    if plot is not None:
        try:
            draw(result, samples, plot)
        except (OSError, ValueError) as error:
            refuse(f"--plot: {plot} can't be written: {error}")


@contextlib.contextmanager
def _local(env_id: str | None, num_envs: int) -> Iterator[list[Any]]:
    if env_id is None:
        yield []
        return
    from openenv_gym.bench import local_envs

    opening = contextlib.ExitStack()
    try:
        import_namespace(env_id)
        sys.path.insert(0, str(Path.cwd()))
        gym.spec(env_id)
        envs = opening.enter_context(local_envs(env_id, num_envs))
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        refuse(f"--compare: can't make {env_id} here: {type(error).__name__}: {error}")
    with opening:
        yield envs


def _show(result: Bench, console: Any) -> None:
    from rich import box
    from rich.table import Table

    what = f"{result.env or 'an OpenEnv server'} at {result.url}"
    size = f"{result.num_envs} envs, {result.connections} connection(s), {result.steps:,} vector steps"
    console.print(f"{what}\n{size}", soft_wrap=True)
    parts = Table(box=box.SIMPLE_HEAD)
    for title in ("µs of a vector step", "mean", "share", "p50", "p95", "p99"):
        parts.add_column(title, justify="left" if title.startswith("µs") else "right", no_wrap=True)
    for part, share in result.stats.shares():
        if part is result.stats.whole:
            parts.add_section()
        times = [f"{us:,.1f}" for us in (part.mean_us, part.p50_us, part.p95_us, part.p99_us)]
        parts.add_row(part.name, times[0], f"{share:.1%}", *times[1:])
    console.print(parts)
    speeds = Table(box=box.SIMPLE_HEAD)
    for title in ("", "env steps/s", "RemoteVecEnv is"):
        speeds.add_column(title, justify="right" if title else "left", no_wrap=True)
    speeds.add_row("RemoteVecEnv", f"{result.steps_per_s:,.0f}", "")
    for local in result.local:
        speeds.add_row(local.name, f"{local.steps_per_s:,.0f}", f"{local.ratio:.2f} times as fast")
    console.print(speeds)
    up, down = result.bytes_up_per_step, result.bytes_down_per_step
    console.print(f"One vector step sends {up:,.0f} bytes and receives {down:,.0f}.")
