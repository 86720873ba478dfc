"""A learner's rows over their links: opened together, asked together, with one hand-over to the loop thread for a call.

Errors are data here: a call returns each link's reply or error, in order. What to do about one is the vector env's
decision.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

import gymnasium as gym
import msgspec

from openenv_gym.batch_link import BatchLink
from openenv_gym.dial import Target, dial
from openenv_gym.errors import (
    ConnectFailed,
    LocalProtocolError,
    OptionError,
    ReplyTimeout,
    SpaceError,
)
from openenv_gym.json_form import JsonForm
from openenv_gym.json_link import JsonLink
from openenv_gym.link import FrameConnection, Link
from openenv_gym.loop import LoopThread, client_loop
from openenv_gym.messages import SUBPROTOCOL, Hello, Reply, Request
from openenv_gym.spaces import build, same

__all__ = ["Pool", "PoolSettings"]

_CLOSE_S: Final = 2.0


@dataclass(frozen=True)
class PoolSettings:
    """How a pool connects.

    Attributes:
        targets: the servers.
        num_envs: rows over all of them.
        connections: connections over all servers that speak the batch dialect; None for one for each server.
        hello: what to ask such a server for, except the number of envs.
        dialect: ``"openenv"`` to speak OpenEnv's dialect to our servers too; None for the best that each has.
        observation_space: one env's observation space, for servers that don't say it.
        action_space: one env's action space, for servers that don't say it.
        open_timeout_s: limit for opening all sessions, the building of their envs included.
        reconnect_timeout_s: limit for resuming a session.
    """

    targets: Sequence[Target]
    num_envs: int
    connections: int | None
    hello: Hello
    dialect: str | None = None
    observation_space: gym.Space[Any] | None = None
    action_space: gym.Space[Any] | None = None
    open_timeout_s: float = 60.0
    reconnect_timeout_s: float = 30.0


class _Call:
    """One request to some links, waited for on the caller's thread."""

    def __init__(self, count: int) -> None:
        self.results: list[Reply | Exception | None] = [None] * count
        self._left = count
        # A lock released by the last reply costs less than a future around a coroutine.
        self._done = threading.Lock()
        self._done.acquire()

    def deliver(self, index: int, result: Reply | Exception) -> None:
        self.results[index] = result
        self._left -= 1
        if self._left == 0:
            self._done.release()

    def wait(self, timeout_s: float) -> bool:
        return self._done.acquire(timeout=timeout_s)


class Pool:
    """The links of one vector env.

    Guarantees: public methods are called from one thread at a time, which isn't the loop thread.

    Args:
        settings: how to connect.

    Attributes:
        links: the links, in row order.
        rows: the rows of each link.

    Raises:
        ConnectFailed: or another error of `openenv_gym.errors`, after all connections were closed again.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self.links: list[Link] = []
        self.rows: list[range] = []
        self._settings = settings
        self._loop: LoopThread = client_loop()
        self._pid = os.getpid()
        opening = _Opening(settings)
        try:
            self._loop.run(opening.run(), settings.open_timeout_s)
        except TimeoutError:
            url = settings.targets[0].url
            raise ReplyTimeout("connect", url, settings.open_timeout_s) from None
        finally:
            if not opening.complete:
                self._loop.run(opening.undo())
        self.links = opening.links
        first = 0
        for link in self.links:
            self.rows.append(range(first, first + link.slots))
            first += link.slots

    # ------------------------------------------------------------------------------------------------ calls

    def call(self, requests: Sequence[tuple[int, Request]], phase: str, timeout_s: float) -> list[Reply | Exception]:
        """Send requests at the same time, and wait for all replies.

        Args:
            requests: link index and request; no link twice.
            phase: what to call it in an error.
            timeout_s: total limit.

        Returns:
            for each request its reply or error; `ReplyTimeout` where none came in time.

        Raises:
            KeyboardInterrupt: if interrupted; replies that come later are dropped.
        """
        return self.wait(self.start(requests), requests, phase, timeout_s)

    def start(self, requests: Sequence[tuple[int, Request]]) -> _Call:
        """Send requests, and return at once; `wait` takes what this returns."""
        if os.getpid() != self._pid:
            raise LocalProtocolError("this env was made before a fork; make a new one in the child process")
        call = _Call(len(requests))
        self._loop.call_soon(self._launch, call, requests)
        return call

    def wait(
        self, call: _Call, requests: Sequence[tuple[int, Request]], phase: str, timeout_s: float
    ) -> list[Reply | Exception]:
        """Wait for what `start` sent; see `call`."""
        try:
            in_time = call.wait(timeout_s)
        except BaseException:
            self._abandon(call, requests)
            raise
        if not in_time:
            self._abandon(call, requests)
        return [
            result if result is not None else ReplyTimeout(phase, self.links[i].url, timeout_s, tuple(self.rows[i]))
            for result, (i, _) in zip(list(call.results), requests, strict=True)
        ]

    def _launch(self, call: _Call, requests: Sequence[tuple[int, Request]]) -> None:
        for index, (i, request) in enumerate(requests):
            self.links[i].start(request, lambda result, index=index: call.deliver(index, result))  # type: ignore[misc]

    def _abandon(self, call: _Call, requests: Sequence[tuple[int, Request]]) -> None:
        late = [i for result, (i, _) in zip(list(call.results), requests, strict=True) if result is None]
        self._loop.call_soon(lambda: [self.links[i].abandon() for i in late])

    # ------------------------------------------------------------------------------------------------- ends

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Close all links at the same time, within the limit; never raises for a server that is gone."""
        if os.getpid() == self._pid:
            self._loop.run(_close_all(self.links, timeout_s), timeout_s + 1.0)

    def close_soon(self) -> None:
        """Start closing without waiting, for finalisers."""
        if os.getpid() == self._pid and not self._loop.loop.is_closed():
            self._loop.call_soon(lambda: asyncio.ensure_future(_close_all(self.links, _CLOSE_S)))


async def _close_all(links: Sequence[Link], timeout_s: float) -> None:
    await asyncio.gather(*(link.close(timeout_s) for link in links), return_exceptions=True)


class _Opening:
    """Opens all links or none."""

    def __init__(self, settings: PoolSettings) -> None:
        self.links: list[Link] = []
        self.complete = False
        self._settings = settings
        self._connections: list[FrameConnection] = []

    async def run(self) -> None:
        """Open the links; on an error what was opened is left for `undo`."""
        settings = self._settings
        firsts = await _all(self._connect(target, settings.dialect) for target in settings.targets)
        shares = _shares(settings.num_envs, len(firsts))
        per_server = _shares(max(settings.connections or 0, len(firsts)), len(firsts))
        groups = await _all(
            self._open_server(target, first, count, connections)
            for target, first, count, connections in zip(settings.targets, firsts, shares, per_server, strict=True)
        )
        links = [link for group in groups for link in group]
        _check_spaces(links)
        self.links = links
        self.complete = True

    async def undo(self) -> None:
        """Close what was opened."""
        await _close_all(self.links, _CLOSE_S)
        await asyncio.gather(*(c.close() for c in self._connections), return_exceptions=True)

    async def _connect(self, target: Target, dialect: str | None) -> FrameConnection:
        offered = [] if dialect == "openenv" else [SUBPROTOCOL]
        connection = await dial(target, subprotocols=offered, connection=FrameConnection)
        assert isinstance(connection, FrameConnection)
        self._connections.append(connection)
        return connection

    async def _open_server(
        self, target: Target, first: FrameConnection, count: int, connections: int
    ) -> list[Link]:
        if count == 0:
            await first.close()
            return []
        if first.subprotocol == SUBPROTOCOL:
            sizes = _shares(count, min(connections, count))
            return list(await _all(self._open_batch(target, first if i == 0 else None, k) for i, k in enumerate(sizes)))
        form = await _form(target, self._settings)
        return list(await _all(self._open_json(target, form, first if i == 0 else None) for i in range(count)))

    async def _open_batch(self, target: Target, connection: FrameConnection | None, slots: int) -> Link:
        hello = msgspec.structs.replace(self._settings.hello, num_envs=slots)
        link = BatchLink(target, hello, reconnect_timeout_s=self._settings.reconnect_timeout_s)
        self.links.append(link)
        await link.open(connection or await self._connect(target, None))
        return link

    async def _open_json(self, target: Target, form: JsonForm, connection: FrameConnection | None) -> Link:
        link = JsonLink(target, form, max_episode_steps=self._settings.hello.max_episode_steps)
        self.links.append(link)
        await link.open(connection or await self._connect(target, "openenv"))
        return link


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


def _shares(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` sizes that differ by one at most."""
    return [total // parts + (i < total % parts) for i in range(parts)]


def _check_spaces(links: Sequence[Link]) -> None:
    first = links[0]
    for other in links[1:]:
        for name in ("observation_space", "action_space"):
            ours, theirs = getattr(first, name), getattr(other, name)
            if not same(ours, theirs):
                raise SpaceError(f"{first.url} has {name} {ours}, but {other.url} has {theirs}")


# ------------------------------------------------------------------------------------- what a stock server says


async def _form(target: Target, settings: PoolSettings) -> JsonForm:
    """Spaces and field names for a server in the OpenEnv dialect."""
    observation_space, action_space = settings.observation_space, settings.action_space
    if observation_space is None or action_space is None:
        described = await _fetch(target, "/spaces")
        if described is None:
            missing = [n for n in ("observation_space", "action_space") if getattr(settings, n) is None]
            raise SpaceError(f"{target.url} is an OpenEnv server, which doesn't say its spaces: pass {' and '.join(missing)}")
        observation_space = observation_space or build(described["observation_space"])
        action_space = action_space or build(described["action_space"])
    return JsonForm.for_schema(await _fetch(target, "/schema") or {}, observation_space, action_space)


async def _fetch(target: Target, path: str) -> dict[str, Any] | None:
    """GET a JSON object beside the WebSocket endpoint; None if the server has none there."""
    parts = urlsplit(target.url)
    scheme = {"ws": "http", "wss": "https"}[parts.scheme]
    url = urlunsplit(SplitResult(scheme, parts.netloc, parts.path.removesuffix("/ws") + path, "", ""))
    request = urllib.request.Request(url, headers=target.all_headers())  # noqa: S310 - http or https, see above
    handlers: list[Any] = [urllib.request.ProxyHandler({})] if target.is_loopback else []
    if target.ssl is not None:
        handlers.append(urllib.request.HTTPSHandler(context=target.ssl))
    opener = urllib.request.build_opener(*handlers)

    def get() -> dict[str, Any] | None:
        with opener.open(request, timeout=target.connect_timeout_s) as response:
            data = json.loads(response.read(target.max_message_bytes))
        return data if isinstance(data, dict) else None

    try:
        return await asyncio.get_running_loop().run_in_executor(None, get)
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        raise ConnectFailed(url, f"{type(error).__name__}: {error}") from error
