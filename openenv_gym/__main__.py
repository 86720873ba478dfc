"""The command line: ``openenv-gym`` and ``python -m openenv_gym``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        from openenv_gym.cli import app
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("openenv_gym"):
            raise
        print(f"openenv-gym: {error.name} is missing: pip install 'openenv-gym[server,sb3]'", file=sys.stderr)
        sys.exit(2)
    app()


if __name__ == "__main__":
    main()
