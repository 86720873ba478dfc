"""Another Python process that finds the modules that this one finds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

__all__ = ["command"]

_CALL: Final = (
    "import importlib, sys; name, *path = sys.argv[1:]; sys.argv[1:], sys.path[:] = [], path; "
    "sys.exit(importlib.import_module(name).main())"
)


def command(module: str) -> list[str]:
    """The command that calls a module's ``main`` in a process of its own.

    ``python -m`` would look in the current folder first: in a checkout it would find another copy of this package than
    the one that is installed and asks. And ``$PYTHONPATH`` would reach the processes that an env starts.

    Args:
        module: its full name.
    """
    return [sys.executable, "-c", _CALL, module, *(entry or str(Path.cwd()) for entry in sys.path)]
