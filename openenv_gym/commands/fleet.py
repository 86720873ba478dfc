"""``openenv-gym fleet up|status|scale|down``: servers on a Ray cluster that is there already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from openenv_gym.commands.common import TokenEnv, TokenFile, keyword_arguments, read_token, refuse, refuse_missing
from openenv_gym.errors import OpenEnvGymError

if TYPE_CHECKING:
    from openenv_gym.fleet import RayFleet

__all__ = ["fleet"]

_NAME: Final = "fleet"

Name: TypeAlias = Annotated[str, typer.Option(help="The fleet's name on the cluster.")]
Address: TypeAlias = Annotated[str, typer.Option(help="The Ray cluster; auto: the one that runs on this machine.")]

fleet = typer.Typer(name="fleet", help="Run environment servers on a Ray cluster.", no_args_is_help=True)


@fleet.command()
def up(
    env: Annotated[str, typer.Argument(metavar="ENV_OR_FACTORY", help="CartPole-v1, module:EnvId or module:callable.")],
    *,
    servers: Annotated[int, typer.Option(help="Servers to start.")] = 1,
    envs_per_server: Annotated[int, typer.Option(help="Envs that a server has room for.")] = 32,
    name: Name = _NAME,
    address: Address = "auto",
    num_cpus: Annotated[float, typer.Option(help="CPUs that a server takes.")] = 1.0,
    num_gpus: Annotated[float, typer.Option(help="GPUs that a server takes.")] = 0.0,
    resource: Annotated[list[str] | None, typer.Option(metavar="NAME=AMOUNT", help="Custom resource.")] = None,
    working_dir: Annotated[Path | None, typer.Option(help="Folder to send to the servers, to import from.")] = None,
    pip: Annotated[list[str] | None, typer.Option(metavar="PACKAGE", help="Package to install there.")] = None,
    env_kwargs: Annotated[str, typer.Option(metavar="JSON", help="Keyword arguments for the env.")] = "{}",
    token_env: TokenEnv = None,
    token_file: TokenFile = None,
    start_timeout_s: Annotated[float, typer.Option(help="Seconds within which all servers must run.")] = 60.0,
    drain_s: Annotated[float, typer.Option(help="Seconds for the sessions of a server that isn't wanted.")] = 60.0,
) -> None:
    """Start a fleet, which runs on when this command has ended, until `fleet down`."""
    with _refusals():
        from openenv_gym.fleet import RayFleet

        packages = {"working_dir": str(working_dir) if working_dir is not None else None, "pip": pip}
        started = RayFleet(
            env,
            servers=servers,
            envs_per_server=envs_per_server,
            address=address,
            name=name,
            detached=True,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=dict(map(_amount, resource or ())),
            runtime_env={key: value for key, value in packages.items() if value} or None,
            token=read_token(token_env, token_file),
            env_kwargs=keyword_arguments(env_kwargs),
            start_timeout_s=start_timeout_s,
            drain_s=drain_s,
        )
        _show(started)
        typer.echo(f'RayFleet.attach("{name}") in a learner on this cluster gives its envs.')


@fleet.command()
def status(name: Name = _NAME, address: Address = "auto") -> None:
    """Show a fleet's servers. The exit code is 0 only if all of them run."""
    with _refusals():
        if not _show(_attached(name, address)):
            raise typer.Exit(1)


@fleet.command()
def scale(
    servers: Annotated[int, typer.Argument(help="Servers that there shall be.")],
    *,
    name: Name = _NAME,
    address: Address = "auto",
) -> None:
    """Change the number of servers. Those that are no longer wanted end when their sessions have."""
    with _refusals():
        found = _attached(name, address)
        found.scale(servers)
        _show(found)


@fleet.command()
def down(name: Name = _NAME, address: Address = "auto") -> None:
    """End a fleet with all its servers."""
    with _refusals():
        _attached(name, address).down()
        typer.echo(f"fleet {name} has ended")


def _attached(name: str, address: str) -> RayFleet:
    from openenv_gym.fleet import RayFleet

    return RayFleet.attach(name, address=address)


def _show(found: RayFleet) -> bool:
    """Print a fleet's servers; whether all of them run."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    now = found.status()
    table = Table(title=f"fleet {now.name}: {now.env}", box=box.SIMPLE, title_justify="left")
    for heading in ("server", "state", "url", "epoch", "node", "pid", "envs", "sessions"):
        table.add_column(heading, justify="right" if heading in {"epoch", "pid", "envs", "sessions"} else "left")
    for server in now.servers:
        envs = f"{server.envs}/{server.max_envs}"
        cells = (server.name, server.state, server.url, server.epoch, server.node, server.pid, envs, server.sessions)
        table.add_row(*map(str, cells))
    Console(highlight=False, soft_wrap=True).print(table)
    return now.healthy


def _amount(text: str) -> tuple[str, float]:
    name, equals, amount = text.partition("=")
    try:
        return name, float(amount if equals else "")
    except ValueError:
        refuse(f"--resource {text}: write it like licence=2")


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        refuse_missing(error, "ray")
    except (OpenEnvGymError, ImportError) as error:
        refuse(str(error))
