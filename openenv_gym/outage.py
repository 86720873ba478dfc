"""Servers that can't be used at the moment: what is waited for, how long, and when to say so."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

__all__ = ["QUIET_S", "Outage", "reports"]

QUIET_S: Final = 2.0
"""How long a server may be away before it is worth a word; a server that is restarted may be back by then."""


@dataclass(eq=False)
class Outage:
    """One wait for a server.

    Attributes:
        url: the server's WebSocket endpoint.
        limit_s: how long is waited in all.
        reason: why the last attempt failed, in a few words.
        anew: whether a new session is wanted, since the one before is gone.
        since: when it began, on ``time.monotonic``.
        told: whether the user knows.
    """

    url: str
    limit_s: float
    reason: str
    anew: bool = False
    since: float = field(default_factory=time.monotonic)
    told: bool = False

    def __str__(self) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(time.time() - time.monotonic() + self.since))
        what = "waiting for a new session" if self.anew else "reconnecting"
        return (
            f"{self.url} can't be used now ({self.reason}): {what} for up to {self.limit_s:g} second(s) since {clock}"
        )


def reports(outages: Iterable[Outage]) -> list[str]:
    """What to tell the user now: each outage of a server once, however many connections it has."""
    servers: dict[tuple[str, bool], list[Outage]] = {}
    for outage in outages:
        servers.setdefault((outage.url, outage.anew), []).append(outage)
    texts = []
    for waits in servers.values():
        first = min(waits, key=lambda outage: outage.since)
        told = any(outage.told for outage in waits)
        if not told and time.monotonic() - first.since < QUIET_S:
            continue
        if not told:
            texts.append(str(first))
        for outage in waits:
            outage.told = True
    return texts
