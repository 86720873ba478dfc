"""What to install where a package is missing: the client alone needs none of the extras."""

from __future__ import annotations

__all__ = ["install", "missing"]


def install(extras: str) -> str:
    """How to get some extras of this package, such as ``server,sb3``."""
    return f"install openenv-gym[{extras}]; in a checkout: pip install '.[{extras}]'"


def missing(error: ImportError, extras: str) -> ImportError:
    """What to raise for a failed import: an error that says which extras have what isn't there.

    A missing module of this package is a mistake of ours, and such an error is returned as it is.
    """
    name = error.name or "openenv_gym"
    if name.startswith("openenv_gym"):
        return error
    package = name.partition(".")[0]
    return ModuleNotFoundError(f"{package} is missing: {install(extras)}", name=package)
