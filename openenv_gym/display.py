"""What notebooks show of the objects here: small tables in HTML, everything in them escaped."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

__all__ = ["table"]

_LONGEST = 300


def table(title: str, rows: Mapping[str, object]) -> str:
    """A table with a title.

    Args:
        title: shown above.
        rows: names and values; long values are cut.
    """
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(_cut(str(value)))}'
        "</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
