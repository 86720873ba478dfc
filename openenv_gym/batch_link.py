"""A link in the batch dialect: a session that survives its connections.

When the connection breaks, the link dials again, with growing, fully jittered pauses, and resumes the session; a request
that was under way is neither lost nor run twice (see `openenv_gym.protocol`). Only when the server no longer
knows the session, or no connection succeeds in time, the session is lost, and what waits gets `SessionLost`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
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
    RemoteEnvError,
    SessionLost,
    TransportError,
    Unauthorized,
    remote_env_error,
)
from openenv_gym.link import Deliver, FrameConnection
from openenv_gym.messages import SUBPROTOCOL, Close, Failed, Hello, Request, Reset, Welcome
from openenv_gym.protocol import ClientProtocol, ClientState
from openenv_gym.spaces import build, same

__all__ = ["BatchLink"]

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 5.0

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
        self._target = target
        self._hello = hello
        self._reconnect_timeout_s = reconnect_timeout_s
        self._protocol = ClientProtocol()
        self._connection: FrameConnection | None = None
        self._waiting: dict[int, Deliver] = {}
        self._gone: OpenEnvGymError | None = None
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------------------- opening

    async def open(self, connection: FrameConnection) -> None:
        """Open the session on a fresh connection that selected our subprotocol.

        Raises:
            CapacityError: if the server has no room.
            RemoteEnvError: if the server can't build the envs, or refuses an option.
            TransportError: if the connection breaks or no answer comes in time.
            ProtocolError: if the peer doesn't keep to the protocol.
        """
        self._protocol = ClientProtocol()
        await self._handshake(connection, self._protocol.hello(self._hello))
        welcome = self.welcome
        self.observation_space: gym.Space[Any] = build(welcome.observation_space)
        self.action_space: gym.Space[Any] = build(welcome.action_space)
        self.metadata: dict[str, Any] = {key: unpack(value) for key, value in welcome.metadata.items()}
        self.env_name = welcome.env
        self._gone = None

    @property
    def welcome(self) -> Welcome:
        """The server's answer to the opening."""
        assert self._protocol.welcome is not None
        return self._protocol.welcome

    async def _handshake(self, connection: FrameConnection, first: bytes) -> None:
        """Send the first frame, take the answer, and send and take what follows from it."""
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        early: list[bytes] = []

        def on_message(frame: bytes) -> None:
            if answered.done():
                early.append(frame)
            else:
                answered.set_result(frame)

        def on_lost(error: ConnectionClosed) -> None:
            if not answered.done():
                answered.set_exception(lost(self._target, error))

        connection.listen(on_message, on_lost)
        connection.write(first)
        try:
            frames = self._protocol.answer(await answered)
            if isinstance(frames, Failed):
                raise self._refusal(frames)
        except BaseException:
            connection.ignore()
            self._background(_quietly_close(connection))
            raise
        self._connection = connection
        for frame in frames:
            connection.write(frame)
        for frame in early:
            self._take(frame)
        connection.listen(self._take, lambda error: self._broken(connection, lost(self._target, error)))

    def _refusal(self, failed: Failed) -> OpenEnvGymError:
        if failed.code == "CAPACITY_REACHED":
            return CapacityError(self.url, failed.facts.get("active"), failed.facts.get("maximum"), self.slots)
        if failed.code == "SESSION_EXPIRED":
            return SessionLost(self.url, failed.message)
        if failed.code == "GOING_AWAY":
            return ConnectFailed(self.url, failed.message)
        return self._failed(failed)

    # ------------------------------------------------------------------------------------------ requests

    def start(self, request: Request, deliver: Deliver) -> None:
        """See `openenv_gym.link.Link.start`."""
        if self._gone is not None and isinstance(request, Reset):
            self._background(self._reopen(request, deliver))
        elif self._gone is not None:
            deliver(self._gone)
        else:
            self._send(request, deliver)

    def _send(self, request: Request, deliver: Deliver) -> None:
        try:
            id, frame = self._protocol.send(request)
        except (ProtocolError, MessageTooLarge) as error:
            deliver(error)
            return
        self._waiting[id] = deliver
        if self._connection is not None:
            self._connection.write(frame)

    def _take(self, frame: bytes) -> None:
        try:
            reply = self._protocol.receive(frame)
        except ProtocolError as error:
            self._lose(error)
            return
        if reply is not None:
            self._waiting.pop(reply.id)(self._failed(reply) if isinstance(reply, Failed) else reply)

    def _failed(self, failed: Failed) -> OpenEnvGymError:
        if failed.code == "MESSAGE_TOO_LARGE":
            size, limit = failed.facts.get("size"), failed.facts.get("limit", 0)
            return MessageTooLarge(size, limit, "max_message_size_mb")
        if failed.code == "SESSION_EXPIRED":
            self._gone = SessionLost(self.url, failed.message)
            return self._gone
        return remote_env_error(failed.code, failed.error, failed.message, None, failed.traceback)

    def abandon(self) -> None:
        """See `openenv_gym.link.Link.abandon`."""
        for id in self._waiting:
            self._protocol.abandon(id)
        self._waiting.clear()

    async def close(self, timeout_s: float) -> None:
        """See `openenv_gym.link.Link.close`."""
        self._closing = True
        connection, self._connection = self._connection, None
        if connection is not None and self._protocol.state is ClientState.READY:
            closed = asyncio.get_running_loop().create_future()
            self._connection = connection
            self._send(Close(0), lambda reply: closed.done() or closed.set_result(None))
            await asyncio.wait([closed], timeout=timeout_s)
            self._connection = None
        self._protocol.close()
        for task in self._tasks:
            task.cancel()
        for deliver in self._waiting.values():
            deliver(ConnectionLost(self.url, "closed by this side"))
        self._waiting.clear()
        if connection is not None:
            connection.ignore()
            try:
                await asyncio.wait_for(_quietly_close(connection), timeout_s)
            except (TimeoutError, asyncio.TimeoutError):
                connection.transport.abort()

    # --------------------------------------------------------------------------------- broken connections

    def _broken(self, connection: FrameConnection, error: TransportError) -> None:
        if connection is not self._connection or self._closing:
            return
        self._connection = None
        if isinstance(error, MessageTooLarge):  # resuming would only bring the same message again
            self._lose(error)
            return
        logger.info("%s; resuming", error)
        self._protocol.lost()
        self._background(self._resume(error))

    async def _resume(self, error: OpenEnvGymError) -> None:
        limit_s = min(self.welcome.grace_s, self._reconnect_timeout_s)
        try:
            await self._insist(self._redial, limit_s, error)
            self.counters["reconnects"] += 1
        except OpenEnvGymError as final:
            self._lose(final)

    async def _insist(
        self, attempt: Callable[[], Awaitable[None]], limit_s: float, error: OpenEnvGymError | None = None
    ) -> None:
        """Try until it works or the limit is reached; raise what can't get better by waiting."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await asyncio.wait_for(attempt(), max(end - loop.time(), 0.001))
            except (SessionLost, CapacityError, Unauthorized, ProtocolError, RemoteEnvError):
                raise
            except (OpenEnvGymError, TimeoutError, asyncio.TimeoutError) as failure:
                error = failure if isinstance(failure, OpenEnvGymError) else error
            if loop.time() >= end:
                raise SessionLost(self.url, f"not reconnected within {limit_s:g} second(s): {error}")
            # Full jitter: after a server's restart its clients must not come back all at once.
            await asyncio.sleep(random.uniform(0, min(pause_s, max(end - loop.time(), 0))))  # noqa: S311
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _dial(self) -> FrameConnection:
        connection = await dial(self._target, subprotocols=[SUBPROTOCOL], connection=FrameConnection)
        assert isinstance(connection, FrameConnection)
        if connection.subprotocol != SUBPROTOCOL:
            self._background(_quietly_close(connection))
            raise SessionLost(self.url, "another kind of server answers there now")
        return connection

    async def _redial(self) -> None:
        self._protocol.lost()
        await self._handshake(await self._dial(), self._protocol.resume())

    async def _reopen(self, request: Reset, deliver: Deliver) -> None:
        """Open a new session, and reset its envs."""
        spaces = (self.observation_space, self.action_space)

        async def attempt() -> None:
            await self.open(await self._dial())

        try:
            await self._insist(attempt, self._reconnect_timeout_s, self._gone)
            if not all(same(a, b) for a, b in zip(spaces, (self.observation_space, self.action_space), strict=True)):
                raise SessionLost(self.url, "the server there now has other spaces")
        except OpenEnvGymError as error:
            deliver(error)
        except asyncio.CancelledError:
            deliver(ConnectionLost(self.url, "closed by this side"))
            raise
        else:
            self._send(request, deliver)

    def _lose(self, error: OpenEnvGymError) -> None:
        """Give the session up: what waits gets the error, and only a reset goes on, with a new session."""
        if self._gone is None:
            self.counters["sessions_lost"] += 1
        reason = error.reason if isinstance(error, ConnectFailed | ConnectionLost) else str(error)
        self._gone = error if isinstance(error, SessionLost) else SessionLost(self.url, reason)
        self._gone.__cause__ = error if error is not self._gone else None
        self._protocol.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.ignore()
            self._background(_quietly_close(connection))
        waiting, self._waiting = self._waiting, {}
        for deliver in waiting.values():
            deliver(error if isinstance(error, MessageTooLarge) else self._gone)

    def _background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _quietly_close(connection: FrameConnection) -> None:
    await connection.close()
