"""How Gymnasium records and reports that an env is made, without what nobody but its maker should see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Final

from openenv_gym.errors import OptionError

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

__all__ = ["without_secrets", "without_type_errors"]

_SECRETS: Final = frozenset({"token", "headers", "ssl"})
"""The last may hold a client's key; nor can it be copied, as wrappers copy a spec."""


def without_secrets(spec: EnvSpec | None) -> EnvSpec | None:
    """A spec without ``token``, ``headers`` and ``ssl``; what is made from it takes ``$OPENENV_GYM_TOKEN`` for a token.

    Args:
        spec: what ``gym.make`` recorded; it stays as it is.
    """
    if spec is None or _SECRETS.isdisjoint(spec.kwargs):
        return spec
    clean = copy(spec)
    clean.kwargs = {key: value for key, value in spec.kwargs.items() if key not in _SECRETS}
    return clean


@contextmanager
def without_type_errors() -> Iterator[None]:
    """Make ``TypeError`` an `OptionError`: ``gym.make`` adds all arguments to the former, and so a token."""
    try:
        yield
    except TypeError as error:
        raise OptionError(str(error)) from error
