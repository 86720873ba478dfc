"""The command line: ``openenv-gym`` and ``python -m openenv_gym``."""

from __future__ import annotations

import sys

from openenv_gym.extras import missing

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        from openenv_gym.cli import app
    except ModuleNotFoundError as error:
        told = missing(error, "server,sb3")
        if told is error:
            raise
        print(f"openenv-gym: {told}", file=sys.stderr)
        sys.exit(2)
    app()


if __name__ == "__main__":
    main()
