"""What the user should be told about a learner's rows: each thing once, and of many lost rows together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gymnasium as gym

from openenv_gym.errors import SessionLost, ranges
from openenv_gym.link import Link
from openenv_gym.outage import reports

__all__ = ["Notices", "warn"]


class Notices:
    """Tells the user.

    Args:
        warn: called with each text.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._told: set[str] = set()
        self._lost_rows: dict[str, list[int]] = {}

    def tell(self, text: str, key: str | None = None) -> None:
        """Tell the user something, unless it was told before, or something else with this key."""
        if (key or text) not in self._told:
            self._told.add(key or text)
            self._warn(text)

    def tell_outages(self, links: Sequence[Link]) -> None:
        """Tell of servers that have been away for a while; to be called again and again while something waits."""
        for text in reports([outage for link in links for outage in tuple(link.outages)]):
            self._warn(text)

    def note_lost(self, error: SessionLost, rows: Sequence[int]) -> None:
        """Note rows that are truncated since their session is gone; `tell_noted` tells."""
        self._lost_rows.setdefault(str(error), []).extend(rows)

    def tell_noted(self, links: Sequence[Link]) -> None:
        """Tell what was noted here, and by the links."""
        for cause, rows in self._lost_rows.items():  # one warning, though each row may have a connection of its own
            which = f"row {rows[0]} is" if len(rows) == 1 else f"rows {ranges(rows)} are"
            self.tell(f"{cause}: {which} truncated", key=cause)
        self._lost_rows.clear()
        for link in links:
            while link.notes:
                self.tell(link.notes.pop())


def warn(text: str) -> None:
    """Tell the user something with Gymnasium's logger, which formats what it is given."""
    gym.logger.warn("%s", text)
