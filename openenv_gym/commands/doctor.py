"""``openenv-gym doctor``: what is wrong with a server, and what to do about it."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from openenv_gym.commands.common import CaFile, Server, TokenEnv, TokenFile, read_token
from openenv_gym.doctor import diagnose
from openenv_gym.examination import Finding, Level

__all__ = ["doctor"]

_LEVELS: Final[list[Level]] = ["ok", "warning", "error"]
_STYLES: Final = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "bold red")}


def doctor(
    url: Server = None,
    *,
    token_env: TokenEnv = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    limit_s: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds for each connection and reply.")] = 10.0,
    idle_s: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds to leave a connection alone.")] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what is wrong with a server, and how to mend it.

    One of its envs is played a little. Without a token option the token is taken from $OPENENV_GYM_TOKEN.

    The exit code is 0 if all is well, 1 if there are warnings, and 2 if there is an error.

    Example: openenv-gym doctor http://localhost:8000
    """
    findings: list[Finding] = []
    console = Console(highlight=False, soft_wrap=True)
    token = read_token(token_env, token_file)
    for finding in diagnose(url, token=token, ca_file=ca_file, limit_s=limit_s, idle_s=idle_s):
        findings.append(finding)
        if not as_json:
            console.print(_line(finding))
    worst = max((_LEVELS.index(finding.level) for finding in findings), default=0)
    if as_json:
        found = {"level": _LEVELS[worst], "findings": [dataclasses.asdict(finding) for finding in findings]}
        typer.echo(json.dumps(found, indent=2))
    raise typer.Exit(worst)


def _line(finding: Finding) -> Text:
    sign, style = _STYLES[finding.level]
    line = Text.assemble((f"{sign} ", style), (f"{finding.check:17}", "bold"), finding.text)
    if finding.fix:
        line.append(f"\n  {'':17}→ {finding.fix}", style)
    return line
