"""A link in the batch dialect: a session that survives its connections.

When the connection breaks, the link dials again (see `openenv_gym.retry`) and resumes the session; a request that was
under way is neither lost nor run twice (see `openenv_gym.protocol`). Only when the server no longer knows the session,
or no connection succeeds in time, the session is lost, and what waits gets `SessionLost`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, Final

import gymnasium as gym
from websockets.exceptions import ConnectionClosed

from openenv_gym.codec import unpack
from openenv_gym.dial import Target, dial, lost
from openenv_gym.errors import (
    CapacityError,
    ConnectFailed,
    ConnectionLost,
    MessageTooLarge,
    OpenEnvGymError,
    ProtocolError,
    RemoteProtocolError,
    SessionLost,
    SpaceError,
    TransportError,
    remote_env_error,
)
from openenv_gym.link import Deliver, FrameConnection
from openenv_gym.messages import SUBPROTOCOL, WINDOW, Close, Failed, Hello, Received, Reply, Request, Reset, Welcome
from openenv_gym.outage import Outage
from openenv_gym.protocol import ClientProtocol
from openenv_gym.retry import insist, reason_of
from openenv_gym.spaces import build, restore_generators, same
from openenv_gym.traffic import Traffic

__all__ = ["BatchLink"]

_HANG_UP_S: Final = 2.0
_DIRECTIONS: Final = 100
"""Attempts to come to the right one of a server's processes: one or two, and more while others connect as well."""

logger = logging.getLogger(__name__)


class BatchLink:
    """One session with our server; see `openenv_gym.link.Link`.

    Guarantees: everything here runs on the loop thread.

    Args:
        target: the server.
        hello: what to ask for.
        reconnect_timeout_s: total limit for reconnecting, besides the server's grace time.
    """

    def __init__(self, target: Target, hello: Hello, *, reconnect_timeout_s: float) -> None:
        self.url = target.url
        self.slots = hello.num_envs
        self.counters = {"reconnects": 0, "sessions_lost": 0}
        self.notes: list[str] = []
        self.outages: list[Outage] = []
        self.traffic = Traffic()
        self._target = target
        self._hello = hello
        self._reconnect_timeout_s = reconnect_timeout_s
        self._protocol = ClientProtocol()
        self._connection: FrameConnection | None = None
        self._waiting: dict[int, Deliver] = {}
        self._gone: SessionLost | None = None
        self.loss: SessionLost | None = None
        self._forgotten = False  # whether the server said that it has no such session
        self._closing = False
        self._resuming: asyncio.Task[None] | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------------------- opening

    @property
    def server(self) -> str:
        """The name of the launcher's server that the session is on; empty without a launcher."""
        return self._target.seat.name if self._target.seat is not None else ""

    async def open(self, connection: FrameConnection | None = None) -> None:
        """Open the session on a fresh connection that selected our subprotocol; without one, dial.

        Raises:
            CapacityError: if the server has no room.
            RemoteEnvError: if the server can't build the envs, or refuses an option.
            TransportError: if the connection breaks or no answer comes in time.
            ProtocolError: if the peer doesn't keep to the protocol.
        """
        connection = connection or await self._dial(anew=True)
        self._forgotten = False
        self._protocol = ClientProtocol()
        await self._handshake(connection, self._protocol.hello(self._hello))
        welcome = self.welcome
        self.observation_space: gym.Space[Any] = build(welcome.observation_space)
        self.observation_spaces = self._each_space(welcome)
        self.action_space: gym.Space[Any] = build(welcome.action_space)
        if welcome.generators is not None:
            restore_generators(self.action_space, welcome.generators)
        self.metadata: dict[str, Any] = {key: unpack(value) for key, value in welcome.metadata.items()}
        self.env_name = welcome.env

    def _each_space(self, welcome: Welcome) -> list[gym.Space[Any]]:
        described = welcome.observation_spaces
        if described is None:
            return [self.observation_space] * self.slots
        if len(described) != self.slots:
            raise RemoteProtocolError(f"{len(described)} observation spaces came for {self.slots} envs")
        return [build(description) for description in described]

    @property
    def welcome(self) -> Welcome:
        """The server's answer to the opening."""
        assert self._protocol.welcome is not None
        return self._protocol.welcome

    async def _handshake(self, connection: FrameConnection, first: bytes) -> None:
        """Send the first frame, take the answer, and send and take what follows from it."""
        for _ in range(_DIRECTIONS):
            frames = await self._greet(connection, first)
            if frames is not None:
                break
            connection = await self._dial(anew=False)
        else:
            self._leave(connection)
            raise ConnectFailed(self.url, f"{_DIRECTIONS} connections came to the wrong process of the server")
        self._connection, self._gone = connection, None
        for frame in frames:
            connection.write(frame)
        connection.listen(self._take, lambda error: self._broken(connection, lost(self._target, error)))

    async def _greet(self, connection: FrameConnection, first: bytes) -> list[bytes] | None:
        """Send the first frame and take the answer; None if another process of the server expects it."""
        try:
            connection.write(first)
            frames = self._answered(await connection.first())
        except BaseException as error:
            self._leave(connection)
            if isinstance(error, ConnectionClosed):
                raise lost(self._target, error) from error
            raise
        if frames is None:
            self._leave(connection)
        return frames

    def _answered(self, frame: Received) -> list[bytes] | None:
        frames = self._protocol.answer(frame)
        if not isinstance(frames, Failed):
            return frames
        if frames.code == "MISDIRECTED":
            return None
        raise self._refusal(frames)

    def _refusal(self, failed: Failed) -> OpenEnvGymError:
        if failed.code == "CAPACITY_REACHED":
            return CapacityError(self.url, failed.facts.get("active"), failed.facts.get("maximum"), self.slots)
        if failed.code == "SESSION_EXPIRED":
            self._forgotten = True
            return SessionLost(self.url, failed.message)
        if failed.code == "SPACE_ERROR":
            return SpaceError(f"{self.url}: {failed.message}")
        if failed.code == "GOING_AWAY":
            return ConnectFailed(self.url, failed.message)
        return self._failed(failed)

    # ------------------------------------------------------------------------------------------ requests

    def start(self, request: Request, deliver: Deliver) -> None:
        """See `openenv_gym.link.Link.start`."""
        if isinstance(request, Reset) and len(self._protocol.pending) >= WINDOW:
            self._lose(SessionLost(self.url, f"{WINDOW} replies are late"))
        if self._gone is None:
            self._send(request, self._or_anew(request, deliver) if isinstance(request, Reset) else deliver)
        elif isinstance(request, Reset):
            self._reopening = self._background(self._reopen(request, deliver, self._reopening))
        else:
            deliver(self._gone)

    def _or_anew(self, request: Reset, deliver: Deliver) -> Deliver:
        """Reset new envs instead, where the server has lost the session: of those that it is for, nothing is needed."""

        def take(reply: Reply | Exception) -> None:
            if isinstance(reply, SessionLost) and self._forgotten:
                if request.slots is None or len(request.slots) == self.slots:
                    self.notes.append(f"{reply}; this happened between two episodes")
                self._reopening = self._background(self._reopen(request, deliver, self._reopening))
            else:
                deliver(reply)

        return take

    def _send(self, request: Request, deliver: Deliver) -> None:
        try:
            id, frame = self._protocol.send(request)
        except (ProtocolError, MessageTooLarge) as error:
            deliver(error)
            return
        self._waiting[id] = deliver
        self.traffic.sent(frame)
        if self._connection is not None:
            self._connection.write(frame)

    def _take(self, frame: Received) -> None:
        self.traffic.received(frame)
        try:
            reply = self._protocol.receive(frame)
        except ProtocolError as error:
            self._lose(error)
            return
        if isinstance(reply, Failed) and reply.code == "SESSION_EXPIRED":
            self._forgotten = True
            self._lose(SessionLost(self.url, reply.message))  # what waits for this reply is told there
        elif reply is not None:
            self._waiting.pop(reply.id)(self._failed(reply) if isinstance(reply, Failed) else reply)

    def _failed(self, failed: Failed) -> OpenEnvGymError:
        if failed.code == "MESSAGE_TOO_LARGE":
            size, limit = failed.facts.get("size"), failed.facts.get("limit", 0)
            return MessageTooLarge(size, limit, "max_message_size_mb")
        return remote_env_error(failed.code, failed.error, failed.message, None, failed.traceback)

    def abandon(self) -> None:
        """See `openenv_gym.link.Link.abandon`.

        The connection may be why replies are late: a half-open one never brings any. A new one costs nothing, since a
        resume loses nothing.
        """
        for id in self._waiting:
            self._protocol.abandon(id)
        self._waiting.clear()
        if self._reopening is not None:
            self._reopening.cancel()
        connection = self._connection
        if connection is not None:
            self._leave(connection)
            self._broken(connection, ConnectionLost(self.url, "a reply was late"))

    async def close(self, timeout_s: float) -> None:
        """See `openenv_gym.link.Link.close`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        self._closing = True
        if self._gone is None and self._protocol.welcome is not None:
            closed = asyncio.Event()
            self._send(Close(0), lambda _: closed.set())
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(closed.wait(), timeout_s)
        connection, self._connection = self._connection, None
        self._protocol.close()
        for task in self._tasks:
            task.cancel()
        waiting, self._waiting = self._waiting, {}
        for deliver in waiting.values():
            deliver(ConnectionLost(self.url, "closed by this side"))
        if connection is not None:
            await connection.hang_up(max(end - loop.time(), 0))

    # --------------------------------------------------------------------------------- broken connections

    def _broken(self, connection: FrameConnection, error: TransportError) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        # Resuming would bring a message that is too large once more.
        if self._closing or isinstance(error, MessageTooLarge):
            self._lose(error)
            return
        logger.info("%s; resuming", error)
        self._protocol.lost()
        self._resuming = self._background(self._resume(error))

    async def _resume(self, error: OpenEnvGymError) -> None:
        limit_s = min(self.welcome.grace_s, self._reconnect_timeout_s)
        try:
            await insist(self._redial, limit_s, self.url, error, outages=self.outages)
            self.counters["reconnects"] += 1
        except SessionLost as final:
            self._lose(SessionLost(self.url, f"{final.reason}, after {reason_of(error)}"))
        except Exception as final:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            self._lose(final)

    async def _dial(self, *, anew: bool) -> FrameConnection:
        self._target = await self._target.current(anew=anew)
        self.url = self._target.url
        connection = await dial(self._target, subprotocols=[SUBPROTOCOL], connection=FrameConnection)
        assert isinstance(connection, FrameConnection)
        if connection.subprotocol != SUBPROTOCOL:
            self._leave(connection)
            raise SessionLost(self.url, "another kind of server answers there now")
        return connection

    async def _redial(self) -> None:
        self._protocol.lost()
        await self._handshake(await self._dial(anew=False), self._protocol.resume())

    async def _reopen(self, request: Reset, deliver: Deliver, before: asyncio.Task[None] | None) -> None:
        """Open a new session, unless that was done ``before``, and reset its envs."""
        spaces = (self.observation_spaces, self.action_space)

        async def attempt() -> None:
            await self.open()

        try:
            if before is not None:
                await asyncio.wait([before])
            if self._gone is not None:
                limit_s, outages = self._reconnect_timeout_s, self.outages
                await insist(attempt, limit_s, self.url, self._gone, outages=outages, anew=True)
                self._keep(*spaces)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            self._lose(error)
            deliver(error)
        except asyncio.CancelledError:
            deliver(ConnectionLost(self.url, "closed by this side"))
            raise
        else:
            self._send(request, deliver)

    def _keep(self, observation_spaces: list[gym.Space[Any]], action_space: gym.Space[Any]) -> None:
        """Refuse a new session with other spaces than the one before."""
        kept = same(self.action_space, action_space) and all(map(same, self.observation_spaces, observation_spaces))
        self.observation_spaces, self.action_space = observation_spaces, action_space
        self.observation_space = observation_spaces[0]
        if not kept:
            raise SessionLost(self.url, "the server there now has other spaces")

    def _lose(self, error: Exception) -> None:
        """Give the session up: what waits gets the error, and only a reset goes on, with a new session."""
        gone = error if isinstance(error, SessionLost) else SessionLost(self.url, reason_of(error))
        gone.__cause__ = error if error is not gone else None
        if self._gone is None:
            self.counters["sessions_lost"] += 1
            self.loss = gone
        self._gone = gone
        self._protocol.close()
        if self._resuming is not None:
            self._resuming.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._leave(connection)
        waiting, self._waiting = self._waiting, {}
        for deliver in waiting.values():
            deliver(error if isinstance(error, MessageTooLarge) else self._gone)

    def _leave(self, connection: FrameConnection) -> None:
        """Read a connection no more from now on, and close it without waiting."""
        connection.ignore()
        self._background(connection.hang_up(_HANG_UP_S))

    def _background(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
