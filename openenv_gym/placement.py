"""Which server a learner's sessions are on, while a launcher's servers come, move and go."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence

from openenv_gym.dial import Target, websocket_url
from openenv_gym.errors import ConnectFailed
from openenv_gym.launcher import Launcher, ServerAddress

__all__ = ["Placement", "moves", "shares"]


def shares(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` sizes that differ by one at most."""
    return [total // parts + (i < total % parts) for i in range(parts)]


def moves(homes: Sequence[str], names: Sequence[str]) -> dict[int, str]:
    """Which rows have to move where, for an even share on each server; as few as possible, the same each time.

    Args:
        homes: the server that each row is on.
        names: the servers that take sessions, at least one.

    Returns:
        the new server of each row that moves.
    """
    room = dict(zip(names, shares(len(homes), len(names)), strict=True))
    homeless = []
    for row, home in enumerate(homes):
        if room.get(home, 0) > 0:
            room[home] -= 1
        else:
            homeless.append(row)
    free = [name for name in names for _ in range(room[name])]
    return dict(zip(homeless, free, strict=True))


class Placement:
    """A launcher's servers, as targets to dial.

    Guarantees: besides `targets`, everything here runs on the client's loop thread.

    Args:
        launcher: who knows the servers.
        template: how to talk to each of them; its URL doesn't matter.
    """

    def __init__(self, launcher: Launcher, template: Target) -> None:
        self._launcher = launcher
        self._template = template
        self._asking: asyncio.Future[Mapping[str, ServerAddress]] | None = None

    def targets(self) -> list[Target]:
        """One target for each server that takes sessions now.

        Raises:
            ConnectFailed: if there is none.
        """
        servers = self._launcher.servers()
        return [self.target(name, servers) for name in self.open(servers)]

    def target(self, name: str, servers: Mapping[str, ServerAddress]) -> Target:
        """A target that stays with a server as long as that is there, wherever it moves."""
        seat = _Seat(self, name, list(servers).index(name))
        return dataclasses.replace(self._template, url=websocket_url(servers[name].url), seat=seat)

    async def servers(self) -> Mapping[str, ServerAddress]:
        """Ask the launcher, without holding up the loop; who asks meanwhile gets the same answer.

        Raises:
            ConnectFailed: if the launcher fails.
        """
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(asyncio.to_thread(self._launcher.servers))
        try:
            return await asyncio.shield(self._asking)
        except Exception as error:
            raise ConnectFailed(repr(self._launcher), f"it failed: {error}") from error

    def open(self, servers: Mapping[str, ServerAddress]) -> Sequence[str]:
        """The names of those that take sessions.

        Raises:
            ConnectFailed: if there is none.
        """
        names = [name for name, server in servers.items() if not server.draining]
        if not names:
            raise ConnectFailed(repr(self._launcher), "none takes sessions now")
        return names

    async def move(self, seat: _Seat, *, anew: bool) -> str:
        """The URL for a seat's next connection; see `openenv_gym.dial.Target.current`."""
        servers = await self.servers()
        if seat.name not in servers or (anew and servers[seat.name].draining):
            names = self.open(servers)
            seat.name = names[seat.index % len(names)]  # the seats of several servers that went don't crowd on one
        return websocket_url(servers[seat.name].url)


class _Seat:
    """A place on a server: its name, and its number among them when the seat was taken."""

    def __init__(self, placement: Placement, name: str, index: int) -> None:
        self.name = name
        self.index = index
        self._placement = placement

    async def resolve(self, *, anew: bool) -> str:
        return await self._placement.move(self, anew=anew)
