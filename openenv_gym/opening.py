"""Opens a learner's sessions, on all servers at the same time: all of them, or none."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import msgspec

from openenv_gym.batch_link import BatchLink
from openenv_gym.dial import Target, dial
from openenv_gym.discovery import Discovery, Reading, discover
from openenv_gym.errors import CapacityError, ReplyTimeout, SpaceError
from openenv_gym.json_channel import JsonChannel
from openenv_gym.json_link import JsonLink
from openenv_gym.link import FrameConnection, Link
from openenv_gym.messages import CONNECTIONS_HEADER, PROCESS_HEADER, SUBPROTOCOL, Hello
from openenv_gym.placement import Placement, shares
from openenv_gym.resharding import follow
from openenv_gym.retry import await_room
from openenv_gym.spaces import alike, same, trim

__all__ = ["PoolSettings", "close_links", "open_links"]

_CLOSE_S: Final = 2.0


@dataclass(frozen=True)
class PoolSettings:
    """How a pool connects.

    Attributes:
        targets: the servers.
        num_envs: rows over all of them.
        connections: connections over all servers that speak the batch dialect; None for as many as each server says,
            which is one for each of its processes.
        hello: what to ask such a server for, except the number of envs; servers that don't know the batch dialect send
            everything, and their observations and infos are trimmed here.
        dialect: ``"openenv"`` to speak OpenEnv's dialect to our servers too; None for the best that each has.
        observation_space: one env's observation space, for servers that don't say it, or say another one.
        action_space: one env's action space, for the same.
        reading: what else the user said about the values of such servers.
        open_timeout_s: limit for opening all sessions, the building of their envs included.
        reconnect_timeout_s: limit for resuming a session.
        room_timeout_s: how long to wait where a server is full.
        openenv_sessions: use OpenEnv's session API where a server has it.
        placement: the launcher's servers, for the envs to follow; None if the servers are fixed.
        truncates: whether the rows of a lost session are truncated, rather than the loss raised.
    """

    targets: Sequence[Target]
    num_envs: int
    connections: int | None
    hello: Hello
    dialect: str | None = None
    observation_space: gym.Space[Any] | None = None
    action_space: gym.Space[Any] | None = None
    reading: Reading | None = None
    open_timeout_s: float = 60.0
    reconnect_timeout_s: float = 30.0
    room_timeout_s: float = 0.0
    openenv_sessions: bool = True
    placement: Placement | None = None
    truncates: bool = True


async def open_links(settings: PoolSettings) -> list[Link]:
    """Open all links or none; where a server is full, wait for room without holding any.

    Args:
        settings: how to connect.

    Raises:
        CapacityError: if there is no room.
        OpenEnvGymError: as `_Opening.run`.
    """
    return await await_room(lambda: _Opening(settings).run(), settings.room_timeout_s)


class _Opening:
    """Opens all links or none.

    Args:
        settings: how to connect.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._links: list[Link] = []
        self._connections: list[FrameConnection] = []
        self._late: dict[range, str] = {}

    async def run(self) -> list[Link]:
        """Open the links within the limit, or close again what was opened.

        Raises:
            ReplyTimeout: at the limit.
            OpenEnvGymError: what the first link raised that couldn't be opened.
            SpaceError: if the servers' spaces differ.
        """
        limit_s = self._settings.open_timeout_s
        try:
            return await asyncio.wait_for(self._open_all(), limit_s)
        except BaseException as error:
            await close_links(self._links, _CLOSE_S)
            await asyncio.gather(*(connection.hang_up(_CLOSE_S) for connection in self._connections))
            if not isinstance(error, (TimeoutError, asyncio.TimeoutError)):
                raise
            rows, url = next(iter(self._late.items()))
            raise ReplyTimeout("connect", url, limit_s, tuple(rows)) from None

    async def _open_all(self) -> list[Link]:
        settings = self._settings
        sizes = shares(settings.num_envs, len(settings.targets))
        rows = [range(end - share, end) for share, end in zip(sizes, itertools.accumulate(sizes), strict=True)]
        self._late = {mine: target.url for mine, target in zip(rows, settings.targets, strict=True)}
        firsts = await _all(self._connect(target, settings.dialect) for target in settings.targets)
        per_server: Sequence[int | None] = [None] * len(firsts)
        if settings.connections is not None:
            per_server = shares(max(settings.connections, len(firsts)), len(firsts))
        groups = await _all(
            self._open_server(target, first, mine, connections)
            for target, first, mine, connections in zip(settings.targets, firsts, rows, per_server, strict=True)
        )
        links = [link for group in groups for link in group]
        _check_spaces(links, alike if settings.hello.varied else same)
        if settings.placement is None:
            return links
        return follow(links, settings.placement, settings.hello, settings.reconnect_timeout_s, settings.truncates)

    async def _connect(self, target: Target, dialect: str | None) -> FrameConnection:
        offered = [] if dialect == "openenv" else [SUBPROTOCOL]
        connection = await dial(target, subprotocols=offered, connection=FrameConnection)
        assert isinstance(connection, FrameConnection)
        self._connections.append(connection)
        return connection

    async def _open_server(
        self, target: Target, first: FrameConnection, rows: range, connections: int | None
    ) -> list[Link]:
        count = len(rows)
        if count == 0:
            await first.hang_up(_CLOSE_S)
            return []
        links: list[Link] | None = None
        if first.subprotocol == SUBPROTOCOL:
            sizes = shares(count, min(connections or _said(first, CONNECTIONS_HEADER, 1), count))
            links = await self._open_batches(target, first, sizes)
            first = first if links else await self._connect(target, "openenv")
        if links is None:
            dialled: Iterator[FrameConnection | None] = itertools.chain([first], itertools.repeat(None))
            found, used = await self._discover(target, first)
            if used:  # its session has begun an episode that nobody asked for
                dialled = itertools.repeat(None)
            elif found.lasting:  # those sessions are made otherwise, and this one's room may be the only one
                await _give_back(target, first)
            links = await self._open_each(target, found, [next(dialled) for _ in rows])
        del self._late[rows]
        return links

    async def _open_each(
        self, target: Target, found: Discovery, dialled: Sequence[FrameConnection | None]
    ) -> list[Link]:
        """A link in OpenEnv's dialect for each env."""
        try:
            return await _all(self._open_json(target, found, connection) for connection in dialled)
        except CapacityError as error:  # each asks for its own env, and the user asked for all of them
            wanted = len(dialled)
            raise CapacityError(error.url, error.active, error.maximum, wanted, error.keeps_sessions) from None

    async def _open_batches(self, target: Target, first: FrameConnection, sizes: Sequence[int]) -> list[Link] | None:
        """Links in the batch dialect, with the server's processes in turn.

        Returns:
            the links; None if the server has other spaces there than those that the user wants.
        """
        process = _said(first, PROCESS_HEADER, 0)
        try:
            links = await _all(
                self._open_batch(target, None if i else first, size, process + i) for i, size in enumerate(sizes)
            )
            if all(map(self._heeded, links)):
                return links
        except SpaceError:
            if not self._chosen:
                raise
            return None  # where the user's choice makes no sense, OpenEnv's dialect will say so
        await close_links(links, _CLOSE_S)
        return None

    @property
    def _chosen(self) -> bool:
        """Whether the user said anything about the spaces."""
        settings, hello = self._settings, self._settings.hello
        said = (settings.observation_space, settings.action_space, hello.obs_key, hello.action_key, hello.mask_key)
        return any(choice is not None for choice in said)

    def _heeded(self, link: BatchLink) -> bool:
        """Whether a server has what the user said about the spaces."""
        settings, hello = self._settings, self._settings.hello
        if (hello.obs_key, hello.action_key) != (None, None) and not link.welcome.chosen:
            return False
        if hello.mask_key != link.welcome.mask_key:
            return False
        observation_space, action_space = settings.observation_space, settings.action_space
        if observation_space is not None:
            observation_space = trim(
                observation_space, include=hello.include, exclude=hello.exclude, dtype=hello.obs_dtype
            )
        wanted, there = (observation_space, action_space), (link.observation_space, link.action_space)
        return all(want is None or same(want, have) for want, have in zip(wanted, there, strict=True))

    async def _discover(self, target: Target, first: FrameConnection) -> tuple[Discovery, bool]:
        """What a server says, and whether its first connection was used up for that."""
        settings, used = self._settings, False

        async def sample() -> dict[str, Any]:
            nonlocal used
            used = True
            return await _first_observation(target, first)

        found = await discover(target, settings.observation_space, settings.action_space, settings.reading, sample)
        try:
            form = found.form.trimmed(settings.hello)
        except SpaceError as error:
            raise SpaceError(f"{target.url}: {error}") from None  # as a server of ours would say it
        return dataclasses.replace(found, form=form, lasting=found.lasting and settings.openenv_sessions), used

    async def _open_batch(self, target: Target, connection: FrameConnection | None, slots: int, process: int) -> Link:
        hello = msgspec.structs.replace(self._settings.hello, num_envs=slots, process=process)
        link = BatchLink(target, hello, reconnect_timeout_s=self._settings.reconnect_timeout_s)
        self._links.append(link)
        await link.open(connection or await self._connect(target, None))
        return link

    async def _open_json(self, target: Target, found: Discovery, connection: FrameConnection | None) -> Link:
        link = JsonLink(
            target,
            found.form,
            lasting=found.lasting,
            reconnect_timeout_s=self._settings.reconnect_timeout_s,
            max_episode_steps=self._settings.hello.max_episode_steps,
            typed=self._settings.hello.typed,
            metadata=found.metadata,
            render_mode=self._settings.hello.render_mode,
        )
        self._links.append(link)
        if not found.lasting and connection is None:
            connection = await self._connect(target, "openenv")
        await link.open(None if found.lasting else connection)
        return link


def _said(connection: FrameConnection, header: str, usual: int) -> int:
    """A number in the server's handshake; a proxy may have left it out."""
    assert connection.response is not None
    text = connection.response.headers.get(header, "")
    return int(text) if text.isdecimal() else usual


async def _first_observation(target: Target, connection: FrameConnection) -> dict[str, Any]:
    """The fields of one real observation, from a session that is closed again."""
    channel = JsonChannel(target)
    await channel.open(connection)
    try:
        data = await channel.ask({"type": "reset", "data": {}})
    finally:
        await channel.close()
    fields = data.get("observation")
    return fields if isinstance(fields, dict) else {}


async def _give_back(target: Target, connection: FrameConnection) -> None:
    """End a fresh connection such that its room on an OpenEnv server is free afterwards."""
    channel = JsonChannel(target)
    await channel.open(connection)
    await channel.close()


async def close_links(links: Sequence[Link], timeout_s: float) -> None:
    """Close links at the same time; never raises."""
    await asyncio.gather(*(link.close(timeout_s) for link in links), return_exceptions=True)


async def _all(coroutines: Any) -> list[Any]:
    """Run together; on the first error cancel the others, wait for them, and raise it."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _check_spaces(links: Sequence[Link], agree: Callable[[gym.Space[Any], gym.Space[Any]], bool]) -> None:
    first = links[0]
    for other in links[1:]:
        for name, equal in (("observation_space", agree), ("action_space", same)):
            ours, theirs = getattr(first, name), getattr(other, name)
            if not equal(ours, theirs):
                raise SpaceError(f"{first.url} has {name} {ours}, but {other.url} has {theirs}")
