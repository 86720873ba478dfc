"""The command line: the commands of `openenv_gym.commands`, as ``openenv-gym``.

What the user can repair is said in one line on standard error, with exit code 2.
"""

from __future__ import annotations

from typing import Annotated

import typer

from openenv_gym.commands.bench import bench
from openenv_gym.commands.demo import demo
from openenv_gym.commands.doctor import doctor
from openenv_gym.commands.fleet import fleet
from openenv_gym.commands.serve import serve
from openenv_gym.version import __version__

__all__ = ["app"]

app = typer.Typer(
    name="openenv-gym",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain text: what is wrong in one line, not in a box
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"openenv-gym {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train on an environment anywhere as if it ran in your own process."""


for command in (serve, doctor, bench, demo):
    app.command()(command)
app.add_typer(fleet)
