"""What pydantic finds wrong with data, in words. No I/O here."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["in_words"]

_MOST: Final = 8


def in_words(errors: Any) -> str:
    """Pydantic's list of what is wrong as one line; whatever else is there, as it is.

    Args:
        errors: dicts with ``type``, ``loc`` and ``msg``, as pydantic has them or as they travelled.
    """
    if not isinstance(errors, list) or not all(isinstance(error, dict) and "loc" in error for error in errors):
        return str(errors)
    texts = []
    for error in errors[:_MOST]:
        name = ".".join(map(str, error["loc"])) if isinstance(error["loc"], (list, tuple)) else str(error["loc"])
        words = {"extra_forbidden": f"there is no field {name!r}", "missing": f"the field {name!r} is missing"}
        texts.append(words.get(str(error.get("type")), f"{name}: {error.get('msg', error)}"))
    return "; ".join(texts) + ("; …" if len(errors) > _MOST else "")
