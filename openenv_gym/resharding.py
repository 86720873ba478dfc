"""Lets a learner's envs follow a launcher's servers as these come and go, in even shares."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from openenv_gym.batch_link import BatchLink
from openenv_gym.errors import ConnectFailed, OpenEnvGymError, SpaceError
from openenv_gym.launcher import ServerAddress
from openenv_gym.legs import Leg
from openenv_gym.link import Link
from openenv_gym.messages import Hello
from openenv_gym.placement import Placement, moves
from openenv_gym.shard import Shard
from openenv_gym.spaces import same

__all__ = ["follow"]

WATCH_S: Final = 1.0
"""Seconds between two looks at the servers."""

_CLOSE_S: Final = 2.0

logger = logging.getLogger(__name__)


def follow(
    links: Sequence[Link], placement: Placement, hello: Hello, reconnect_timeout_s: float, truncates: bool
) -> list[Link]:
    """The same links, with envs that move to other servers at their resets; called on the loop thread.

    Links in OpenEnv's dialect stay as they are: their envs move only when their sessions are lost.

    Args:
        links: a learner's links.
        placement: the launcher's servers.
        hello: what to ask servers for, except the number of envs.
        reconnect_timeout_s: limit for resuming a session.
        truncates: whether the rows of a lost session are truncated, rather than the loss raised.
    """
    batch_links = [link for link in links if isinstance(link, BatchLink)]
    if len(batch_links) < len(links):
        return list(links)
    shards = [Shard(link, truncates=truncates) for link in batch_links]
    watch = asyncio.get_running_loop().create_task(_Watch(shards, placement, hello, reconnect_timeout_s).run())
    for shard in shards:
        shard.watch = watch
    return list(shards)


class _Watch:
    def __init__(self, shards: Sequence[Shard], placement: Placement, hello: Hello, reconnect_timeout_s: float) -> None:
        self._shards = shards
        self._placement = placement
        self._hello = hello
        self._reconnect_timeout_s = reconnect_timeout_s

    async def run(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                await self._follow(await self._placement.servers())
            except ConnectFailed as error:  # a launcher that doesn't answer, or has no servers now
                logger.debug("the servers can't be followed now: %s", error)
            except OpenEnvGymError as error:  # no room, for one: the envs stay where they are, and it is tried again
                self._shards[0].notes.append(f"envs can't move to another server yet: {error}")

    async def _follow(self, servers: Mapping[str, ServerAddress]) -> None:
        """Have an env ready on its new server for each row that has to move."""
        wanted = iter(self._wanted(self._placement.open(servers)))
        for shard in self._shards:
            names = [next(wanted) for _ in range(shard.slots)]
            await self._bind(shard, names, servers)
            await shard.drop_empty(_CLOSE_S)

    def _wanted(self, names: Sequence[str]) -> list[str | None]:
        """The server that each row has to move to; None for those that stay."""
        homes = [home for shard in self._shards for home in shard.legs.homes]
        found = moves(homes, names)
        return [found.get(row) for row in range(len(homes))]

    async def _bind(self, shard: Shard, names: Sequence[str | None], servers: Mapping[str, ServerAddress]) -> None:
        for slot, leg in list(shard.legs.bound.items()):
            if leg.server != names[slot]:
                shard.legs.unbind(slot)
        todo: dict[str, list[int]] = {}
        for slot, name in enumerate(names):
            if name is not None and slot not in shard.legs.bound:
                todo.setdefault(name, []).append(slot)
        for name, slots in todo.items():
            legs = await self._legs(shard, name, len(slots), servers)
            # Rows may have moved in the meantime, but only those that were bound, and these weren't.
            for slot in slots:
                shard.legs.bind(slot, next(leg for leg in legs if leg.free))

    async def _legs(self, shard: Shard, name: str, count: int, servers: Mapping[str, ServerAddress]) -> list[Leg]:
        """Sessions on a server with this many free envs in all; what is missing is opened."""
        legs = [leg for leg in shard.legs.all if leg.server == name and leg.free]
        missing = count - sum(leg.free for leg in legs)
        if missing > 0:
            hello = msgspec.structs.replace(self._hello, num_envs=missing)
            target = self._placement.target(name, servers)
            link = BatchLink(target, hello, reconnect_timeout_s=self._reconnect_timeout_s)
            await link.open()
            if not (
                same(link.observation_space, shard.observation_space) and same(link.action_space, shard.action_space)
            ):
                await link.close(_CLOSE_S)
                raise SpaceError(f"{link.url} has other spaces than {shard.url}")
            legs.append(shard.adopt(link))
        return legs
