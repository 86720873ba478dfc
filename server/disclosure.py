"""What is told of an error's text; clients are told all but where this machine keeps its files. No threads, no I/O."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["disclosed", "sendable", "text_of"]

_FOLDERS: Final = re.compile(
    r"""
    (?<=['"]) (?:[A-Za-z]:)? [\\/] [^'"\n]* [\\/]                           # in quotes there may be spaces
    | file:// [^\s'"]* /
    | (?<![\w./\\]) (?:[A-Za-z]:)? [\\/] (?:[^\s'"\\/:;,()<>|]+ [\\/]+)+   # no URL, and nothing like "and/or"
    """,
    re.VERBOSE,
)


def disclosed(text: str, *, debug: bool) -> str:
    """An error's text, in which of an absolute path only its last part is left.

    Args:
        text: the text, which may hold anything that a client sent, and is read in linear time.
        debug: leave it as it is.
    """
    return text if debug else _FOLDERS.sub("…/", text)


def text_of(error: BaseException) -> str:
    """An exception's text, whatever its ``__str__`` does, as it can be sent and logged."""
    try:
        return sendable(str(error))
    except Exception:  # noqa: BLE001 - a `__str__` that raises must not hide what was raised
        return "(this exception's text can't be made)"


def sendable(text: str) -> str:
    """Without lone surrogates, which stand for bytes that are no text and can't be sent as such."""
    return text.encode("utf-8", "replace").decode()
