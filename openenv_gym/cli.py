"""The command line: the commands of `openenv_gym.commands`, as ``openenv-gym``.

What the user can repair is said in one line on standard error, with exit code 2.
"""

from __future__ import annotations

import typer

from openenv_gym.commands.bench import bench
from openenv_gym.commands.demo import demo
from openenv_gym.commands.doctor import doctor
from openenv_gym.commands.fleet import fleet
from openenv_gym.commands.serve import serve

__all__ = ["app"]

app = typer.Typer(
    name="openenv-gym",
    help="Train on an environment anywhere as if it ran in your own process.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain text: what is wrong in one line, not in a box
    pretty_exceptions_enable=False,
)
for command in (serve, doctor, bench, demo):
    app.command()(command)
app.add_typer(fleet)
