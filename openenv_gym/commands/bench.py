"""``openenv-gym bench``: where the time of a server's vector steps goes."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium as gym
import typer

from openenv_gym.commands.common import (
    CaFile,
    Server,
    TokenEnv,
    TokenFile,
    import_namespace,
    read_token,
    refuse,
    refuse_missing,
)
from openenv_gym.errors import CapacityError, OpenEnvGymError, Unauthorized

if TYPE_CHECKING:
    from openenv_gym.bench import Bench

__all__ = ["bench"]


def bench(
    url: Server = None,
    *,
    num_envs: Annotated[int, typer.Option(min=1, help="Envs to step together.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Vector steps to measure, with random actions.")] = 1000,
    connections: Annotated[int | None, typer.Option(min=1, help="Connections.", show_default="one")] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="ENV_OR_FACTORY",
            help="Measure local vector envs of CartPole-v1, module:EnvId or module:callable in the same run.",
        ),
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

    Example: openenv-gym bench http://localhost:8000 --num-envs 16 --compare CartPole-v1
    """
    token = read_token(token_env, token_file)
    draw = _drawer(plot)
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
    except Unauthorized as error:
        refuse(str(error).replace("token=…", "--token-env or --token-file"))
    except CapacityError as error:
        refuse(f"{error} (--num-envs)")
    except OpenEnvGymError as error:
        refuse(str(error))
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2))
    else:
        # What reads a pipe or a file has no width.
        _show(result, Console(highlight=False, width=None if sys.stdout.isatty() else 110))
    if draw is not None:
        try:
            draw(result, samples)
        except OSError as error:
            refuse(f"--plot: {plot} can't be written: {error}")


def _drawer(plot: Path | None) -> Callable[..., None] | None:
    """What draws the picture; what can't be drawn is said before anything is measured."""
    if plot is None:
        return None
    if not plot.parent.is_dir():
        refuse(f"--plot: {plot.parent} is no folder")
    try:
        from openenv_gym.bench_plot import check_format, draw

        check_format(plot)
    except ModuleNotFoundError as error:
        refuse_missing(error, "plot")
    except ValueError as error:
        refuse(f"--plot: {error}")
    return functools.partial(draw, out=plot)


@contextlib.contextmanager
def _local(env: str | None, num_envs: int) -> Iterator[list[Any]]:
    if env is None:
        yield []
        return
    from openenv_gym.bench import local_envs

    opening = contextlib.ExitStack()
    try:
        envs = opening.enter_context(local_envs(_maker(env), num_envs))
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        refuse(f"--compare: can't make {env} here: {type(error).__name__}: {error}")
    with opening:
        yield envs


def _maker(env: str) -> Callable[[], gym.Env[Any, Any]]:
    """What makes an env that is named as for ``serve``."""
    import_namespace(env)
    sys.path.insert(0, str(Path.cwd()))
    module, colon, name = env.partition(":")
    found: Callable[[], gym.Env[Any, Any]] | None = None
    if colon:
        found = getattr(importlib.import_module(module), name, None)
    if callable(found):
        return found
    gym.spec(env)  # or many processes would say that there is none
    return functools.partial(gym.make, env)


def _show(result: Bench, console: Any) -> None:
    from rich import box
    from rich.table import Table

    from openenv_gym.stats import MEANINGS

    what = f"{result.env or 'an OpenEnv server'} at {result.url}"
    size = f"{result.num_envs} envs, {result.connections} connection(s), {result.steps:,} vector steps"
    speed = f"{result.steps_per_s:,.0f} env steps/s"
    console.print(f"{what}\n{size}: {speed}", soft_wrap=True)
    parts = Table(box=box.SIMPLE_HEAD)
    for title in ("µs a step", "mean", "share", "p50", "p95", "p99"):
        parts.add_column(title, justify="left" if title.startswith("µs") else "right", no_wrap=True)
    parts.add_column()
    for part, share in result.stats.shares():
        if part is result.stats.whole:
            parts.add_section()
        times = [f"{us:,.1f}" for us in (part.mean_us, part.p50_us, part.p95_us, part.p99_us)]
        parts.add_row(part.name, times[0], f"{share:.1%}", *times[1:], MEANINGS[part.name])
    console.print(parts)
    for local in result.local:
        ratio = f"RemoteVecEnv is {local.ratio:.2f} times as fast"
        console.print(f"{local.name} here: {local.steps_per_s:,.0f} env steps/s; {ratio}", soft_wrap=True)
    up, down = result.bytes_up_per_step, result.bytes_down_per_step
    console.print(f"One vector step sends {up:,.0f} bytes and receives {down:,.0f}.")
