"""What the commands have in common: what the user can repair is said in one line, and tokens stay out of sight."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeAlias

import typer

from openenv_gym.extras import missing

__all__ = [
    "CaFile",
    "Server",
    "TokenEnv",
    "TokenFile",
    "import_namespace",
    "keyword_arguments",
    "read_token",
    "refuse",
    "refuse_missing",
]

CaFile: TypeAlias = Annotated[
    Path | None, typer.Option(help="PEM file with the certificate authorities to trust.", show_default="the system's")
]
Server: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="The server.", show_default="$OPENENV_BASE_URL, else http://localhost:8000"),
]
TokenEnv: TypeAlias = Annotated[str | None, typer.Option(help="Environment variable that holds the token.")]
TokenFile: TypeAlias = Annotated[Path | None, typer.Option(help="File that holds the token.")]

_NAMESPACES: Final = {"ALE": "ale_py"}
"""Packages that register their envs only when they are imported, by the namespace of their ids."""


def import_namespace(env_id: str) -> None:
    """Import the package that registers an id, if it is one of those that must be, and is installed."""
    package = _NAMESPACES.get(env_id.partition("/")[0])
    if package is not None and importlib.util.find_spec(package) is not None:
        importlib.import_module(package)


def refuse(text: str) -> NoReturn:
    """Say in one line on standard error what is wrong, and end with exit code 2."""
    typer.secho(f"openenv-gym: {' '.join(text.split())}", err=True, fg="red")
    raise typer.Exit(2)


def refuse_missing(error: ModuleNotFoundError, extras: str) -> NoReturn:
    """Say which extras a command needs; a missing module of this package is a mistake of ours, and raised."""
    told = missing(error, extras)
    if told is error:
        raise error
    refuse(str(told))


def read_token(variable: str | None, path: Path | None) -> str | None:
    """The token in an environment variable or a file; None if neither is named."""
    if variable is not None and path is not None:
        refuse("--token-env and --token-file are two ways to give one token: leave one out")
    if variable is not None:
        token = os.environ.get(variable, "").strip()
        where = f"--token-env: the variable {variable}"
    elif path is not None:
        where = f"--token-file: {path}"
        try:
            token = path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            refuse(f"{where} can't be read: {getattr(error, 'strerror', None) or error}")
    else:
        return None
    if not token:
        refuse(f"{where} is empty or not set")
    if not (token.isascii() and token.isprintable() and " " not in token):  # it travels in a header
        refuse(f"{where} holds a token with spaces or with characters that aren't ASCII")
    return token


def keyword_arguments(text: str) -> dict[str, Any]:
    """The value of ``--env-kwargs``."""
    try:
        value = json.loads(text)
    except ValueError as error:
        refuse(f"--env-kwargs is no JSON: {error}; write it like '{{\"size\": 3}}'")
    if not isinstance(value, dict):
        refuse(f'--env-kwargs must be a JSON object, such as \'{{"render_mode": "rgb_array"}}\', not {text}')
    return value
