"""What is known of a fleet's servers: where each one is, in which life, and when it was last heard of. No Ray here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from openenv_gym.launcher import ServerAddress

__all__ = ["NAMESPACE", "REPORT_S", "FleetStatus", "Report", "Roster", "ServerStatus", "server_name"]

NAMESPACE: Final = "openenv-gym"
"""Ray's namespace of all fleets."""

REPORT_S: Final = 1.0
"""Seconds between two reports of a server."""

_SILENCE_S: Final = 4 * REPORT_S
"""Seconds without a report after which a server counts as lost."""


def server_name(number: int) -> str:
    """A server's name in its fleet."""
    return f"server-{number}"


@dataclass(frozen=True)
class Report:
    """What a server says of itself.

    Attributes:
        number: its number in the fleet.
        life: differs each time that it is started.
        url: its URL in this life.
        node: its node's address.
        pid: its process.
        draining: whether it ends soon, and takes no new sessions.
        envs: envs that exist on it.
        max_envs: envs that it has room for.
        sessions: sessions on it.
    """

    number: int
    life: str
    url: str
    node: str
    pid: int
    draining: bool = False
    envs: int = 0
    max_envs: int = 0
    sessions: int = 0


@dataclass(frozen=True)
class ServerStatus:
    """A server of a fleet.

    Attributes:
        name: its name, which stays when it is started anew.
        state: ``starting``, ``running``, ``draining``, or ``lost`` if nothing was heard of it for some seconds.
        url: its URL; empty before it has one, as are the following.
        epoch: how often it was started, from 1.
        node: its node's address.
        pid: its process.
        envs: envs that exist on it.
        max_envs: envs that it has room for.
        sessions: sessions on it.
    """

    name: str
    state: str = "starting"
    url: str = ""
    epoch: int = 0
    node: str = ""
    pid: int = 0
    envs: int = 0
    max_envs: int = 0
    sessions: int = 0


@dataclass(frozen=True)
class FleetStatus:
    """A fleet.

    Attributes:
        name: its name.
        env: its environment's name.
        servers: its servers.
    """

    name: str
    env: str
    servers: list[ServerStatus]

    @property
    def healthy(self) -> bool:
        """Whether all servers run."""
        return all(server.state == "running" for server in self.servers)


@dataclass
class _Entry:
    report: Report
    epoch: int
    heard: float


class Roster:
    """A fleet's servers by number. It can be lost: the servers' reports fill a new one."""

    def __init__(self) -> None:
        self._expected: set[int] = set()
        self._entries: dict[int, _Entry] = {}
        self._ended: set[str] = set()

    def expect(self, numbers: Iterable[int]) -> None:
        """Note servers that are being started."""
        self._expected.update(numbers)

    def take(self, report: Report, now: float) -> None:
        """Note a report, at a time in seconds. One of a life that has ended, and was overtaken, is dropped."""
        if report.life in self._ended:
            return
        old = self._entries.get(report.number)
        epoch = 1 if old is None else old.epoch + (old.report.life != report.life)
        if old is not None and old.report.life != report.life:
            self._ended.add(old.report.life)
        self._expected.add(report.number)
        self._entries[report.number] = _Entry(report, epoch, now)

    def remove(self, number: int) -> None:
        """Forget a server that has ended, or is about to."""
        self._expected.discard(number)
        entry = self._entries.pop(number, None)
        if entry is not None:
            self._ended.add(entry.report.life)

    def addresses(self) -> dict[str, ServerAddress]:
        """Where the servers are, or were last, in the order of their numbers."""
        found = ((number, self._entries[number].report) for number in sorted(self._entries))
        return {server_name(number): ServerAddress(report.url, report.draining) for number, report in found}

    def numbers(self) -> list[int]:
        """The servers that there are or will be, without those that are draining."""
        return sorted(n for n in self._expected if n not in self._entries or not self._entries[n].report.draining)

    def known(self) -> list[int]:
        """The servers that there are or will be, those that are draining among them."""
        return sorted(self._expected)

    def statuses(self, now: float) -> list[ServerStatus]:
        """How the servers are, in the order of their numbers."""
        return [self._status(number, now) for number in sorted(self._expected)]

    def _status(self, number: int, now: float) -> ServerStatus:
        entry = self._entries.get(number)
        if entry is None:
            return ServerStatus(server_name(number))
        report = entry.report
        state = "draining" if report.draining else "running"
        return ServerStatus(
            server_name(number),
            "lost" if now - entry.heard > _SILENCE_S else state,
            report.url,
            entry.epoch,
            report.node,
            report.pid,
            report.envs,
            report.max_envs,
            report.sessions,
        )
