"""A session in the OpenEnv dialect: a JSON message out, its reply's data or a typed error back.

Messages are those of OpenEnv (``openenv/core/env_server/types.py``, 0.10). Its servers are strict peers: any extra key
or binary frame is refused, and replies carry no id. So a reply that is late can't be told from the next one: after a
timeout the connection is retired, never read again, and its episode is gone.

A session ends with its connection, except a lasting one (see `openenv_gym.openenv_sessions`). There a broken
connection costs no more than the reply that was under way: `ReplyLost` says so, and the next question goes out on a new
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from openenv_gym import openenv_sessions
from openenv_gym.dial import Target, dial, lost
from openenv_gym.errors import (
    CapacityError,
    ConnectionLost,
    LocalProtocolError,
    MessageTooLarge,
    OpenEnvGymError,
    RemoteEnvError,
    RemoteProtocolError,
    SessionLost,
    TransportError,
    remote_env_error,
)
from openenv_gym.link import FrameConnection
from openenv_gym.messages import Received
from openenv_gym.outage import Outage
from openenv_gym.refusals import in_words
from openenv_gym.retry import insist, reason_of
from openenv_gym.traffic import Traffic

__all__ = ["JsonChannel", "ReplyLost", "reported"]

_CLOSE_S: Final = 2.0
_ENDS_SESSION: Final = frozenset({"SESSION_ERROR", "FACTORY_ERROR", "CAPACITY_REACHED"})
_REPLY_TYPES: Final = {"state": "state", "mcp": "mcp"}
_STATE: Final = {"type": "state"}


class ReplyLost(ConnectionLost):
    """Raised when a connection broke whose session lives on: whether the question was heard, nobody knows."""


class JsonConnection:
    """One WebSocket, and the question that was asked on it.

    Guarantees: one question at a time; a frame that is no reply to the last one is never taken for one.

    Args:
        target: the server.
        carrier: the open WebSocket.
        on_end: called once, when it has ended.

    Attributes:
        ended: why it has ended, or None.
    """

    def __init__(
        self,
        target: Target,
        carrier: FrameConnection,
        on_end: Callable[[JsonConnection, TransportError], None],
        traffic: Traffic,
    ) -> None:
        self.carrier = carrier
        self._traffic = traffic
        self._target = target
        self._on_end = on_end
        self._reply: asyncio.Future[Received] | None = None
        self._unasked: Received | None = None
        self.ended: TransportError | None = None
        carrier.listen(self._take, lambda error: self._end(lost(target, error)))

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return its reply's data.

        Raises:
            RemoteEnvError: for an error reply, or `CapacityError` if that is the reason.
            RemoteProtocolError: for a reply that isn't one.
            TransportError: if the connection ends first.
            LocalProtocolError: if another question has no reply yet, or the message can't be written as JSON.
        """
        unasked, self._unasked = self._unasked, None
        # A full server says so before it closes (OpenEnv's `websocket_endpoint`), whether or not it was asked.
        kind, data = self._decoded(unasked if unasked is not None else await self._exchange(message))
        if kind == "error":
            raise reported(self._target, data)
        expected = _REPLY_TYPES.get(message["type"], "observation")
        if unasked is not None or kind != expected:
            what = "a message that nobody asked for" if unasked is not None else f"{kind!r} instead of {expected!r}"
            raise RemoteProtocolError(f"{self._target.url} sent {what}")
        return data

    async def _exchange(self, message: dict[str, Any]) -> Received:
        if self.ended is not None:
            raise self.ended
        if self._reply is not None and not self._reply.done():
            raise LocalProtocolError("one question at a time: the last one has no reply yet")
        try:
            frame = msgspec.json.encode(message)
        except (TypeError, ValueError, OverflowError) as error:
            raise LocalProtocolError(f"this {message['type']} can't be sent as JSON: {error}") from None
        self._reply = asyncio.get_running_loop().create_future()
        self._traffic.sent(frame)
        self.carrier.write_text(frame)
        return await self._reply

    def _decoded(self, frame: Received) -> tuple[Any, dict[str, Any]]:
        try:
            reply = msgspec.json.decode(frame, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise RemoteProtocolError(f"{self._target.url} sent a reply that isn't JSON: {error}") from None
        kind, data = reply.get("type"), reply.get("data")
        if not isinstance(data, dict):
            raise RemoteProtocolError(f"{self._target.url} sent a reply of type {kind!r} without data")
        return kind, data

    def _take(self, frame: Received) -> None:
        self._traffic.received(frame)
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(frame)
        else:
            self._unasked = frame

    def _end(self, error: TransportError) -> None:
        if self.ended is None:
            self.ended = error
            self.fail(error)
            self._on_end(self, error)

    def fail(self, error: Exception) -> None:
        """Give whoever waits for a reply an error instead."""
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)


class JsonChannel:
    """One session with a server that speaks JSON.

    Guarantees: a connection is used on the event loop that it was opened on.

    Args:
        target: the server.
        lasting: make sessions that outlive a broken connection.
        reconnect_timeout_s: total limit for attaching to one again.

    Attributes:
        target: the server.
        gone: why there is no session, or None while there is one.
        sessions_lost: sessions that ended before `close`.
        loss: why the last of them did.
        reconnects: how often a broken connection was replaced.
        traffic: what was sent and received.
        outages: its waits for the server that last now.
    """

    def __init__(self, target: Target, *, lasting: bool = False, reconnect_timeout_s: float = 0.0) -> None:
        self.target = target
        self.gone: OpenEnvGymError | None = SessionLost(target.url, "not connected")
        self.sessions_lost = self.reconnects = 0
        self.loss: SessionLost | None = None
        self.traffic = Traffic()
        self.outages: list[Outage] = []
        self._lasting = lasting
        self._reconnect_timeout_s = reconnect_timeout_s
        self._session: openenv_sessions.LastingSession | None = None
        self._connection: JsonConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closings: set[asyncio.Task[None]] = set()

    async def open(self, fresh: FrameConnection | None = None) -> None:
        """Start a session, and learn whether the server has room for it.

        Args:
            fresh: a connection, for a session that isn't lasting; None dials one.

        Raises:
            CapacityError: if there is no room.
            RemoteEnvError: if the server can't build the env.
            TransportError: if it can't be reached, or ends the connection.
        """
        self.enter()
        await self.drain()
        if fresh is None:
            self.target = await self.target.current(anew=True)
        if self._lasting:
            self._session = await self._create()
        try:
            await self._attach(fresh)
        except BaseException as error:
            self._leave(SessionLost(self.target.url, reason_of(error)), _hang_up)
            raise
        self.gone = None

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return its reply's data. If the wait is cancelled, the session is retired.

        Raises:
            RemoteEnvError: for an error reply, or `CapacityError` if that is the reason.
            SessionLost: if there is no session, or it ends first.
            ReplyLost: if the connection of a lasting session breaks first.
            RemoteProtocolError: for a reply that isn't one.
            LocalProtocolError: if another question wasn't answered, or the connection belongs to another event loop.
        """
        self.enter()
        if self.gone is not None:
            raise self.gone
        try:
            while (connection := self._connection) is None:  # it may break again before this is told of it
                await insist(self._attach_again, self._reconnect_timeout_s, self.target.url, outages=self.outages)
            return await connection.ask(message)
        except ConnectionLost as error:
            lives_on = self._session is not None and not isinstance(error, SessionLost)
            raise ReplyLost(self.target.url, error.reason) if lives_on else self.retire(error) from error
        except (asyncio.CancelledError, RemoteProtocolError, MessageTooLarge) as error:
            self.retire(error)
            raise
        except RemoteEnvError as error:
            if error.code in _ENDS_SESSION:
                self.retire(error)
            raise

    def enter(self) -> None:
        """Make the running event loop this channel's. A connection on a loop that has ended is lost.

        Raises:
            LocalProtocolError: if the loop before still runs.
        """
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and self._loop.is_running():
            raise LocalProtocolError("this client is in use on another event loop; make one for each loop")
        if self._connection is not None:
            self.sessions_lost += 1
            self.gone = self.loss = SessionLost(self.target.url, "its event loop has ended")
            self._connection.carrier.forsake()
        self._loop, self._connection = loop, None
        self._closings.clear()

    # ----------------------------------------------------------------------------------------- connections

    async def _attach(self, fresh: FrameConnection | None = None) -> None:
        if fresh is None:
            target = self.target
            if self._session is not None:
                target = openenv_sessions.attached(target, self._session.name)
            dialled = await dial(target, connection=FrameConnection)
            assert isinstance(dialled, FrameConnection)
            fresh = dialled
        connection = JsonConnection(self.target, fresh, self._broken, self.traffic)
        try:
            await self._try_out(connection)
        except BaseException:
            self._background(_hang_up(fresh))
            raise
        if connection.ended is not None:  # with its first reply; nobody will tell this again
            raise connection.ended
        self._connection = connection

    async def _try_out(self, connection: JsonConnection) -> None:
        """Bring out whether the server is full, or refuses the session, before anything depends on it."""
        try:
            await connection.ask(_STATE)
        except RemoteEnvError as error:
            if error.code in _ENDS_SESSION:
                raise
            if error.code != "VALIDATION_ERROR":
                return  # a state that can't be had is no reason against episodes
            try:  # this may be about the state too, or about the session, such as a query parameter
                await connection.ask(_STATE)
            except RemoteEnvError:
                return
            except TransportError:
                raise error from None

    async def _create(self) -> openenv_sessions.LastingSession:
        """Make a lasting session; if the wait for it is cancelled, it is closed as soon as it is known."""
        making = asyncio.ensure_future(openenv_sessions.create(self.target))

        async def unmake() -> None:
            with contextlib.suppress(OpenEnvGymError):
                await openenv_sessions.destroy(self.target, await making, _CLOSE_S)

        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._background(unmake())
            raise

    async def _attach_again(self) -> None:
        """One attempt to get a connection to the session that lives on."""
        if self.gone is not None:
            raise SessionLost(self.target.url, reason_of(self.gone))
        try:
            await self._attach()
        except RemoteEnvError as error:
            if "Unknown session_id" in error.message:
                raise SessionLost(self.target.url, error.message) from error
            # The server hasn't noticed yet that the old connection is gone.
            raise ConnectionLost(self.target.url, error.message) from error
        self.reconnects += 1

    def _broken(self, connection: JsonConnection, error: TransportError) -> None:
        if connection is self._connection:
            self._connection = None
            if self._session is None or isinstance(error, MessageTooLarge):
                self.retire(error)

    # ------------------------------------------------------------------------------------ ends of sessions

    def retire(self, error: BaseException) -> OpenEnvGymError:
        """Never read the connection again, end it without waiting, fail what waits, and return why all that."""
        if self.gone is not None:
            return self.gone
        late = isinstance(error, asyncio.CancelledError)
        reason = "a reply was late, and OpenEnv's replies can't be told apart" if late else reason_of(error)
        self.sessions_lost += 1
        self.loss = self._leave(SessionLost(self.target.url, reason), _hang_up)
        return self.loss

    async def close(self, timeout_s: float = _CLOSE_S) -> None:
        """End the session, and wait within the limit until the server has freed its slot and closed the connection."""

        async def take_leave(carrier: FrameConnection) -> None:
            carrier.write_text(b'{"type":"close"}')
            try:
                await asyncio.wait([asyncio.ensure_future(carrier.wait_closed())], timeout=timeout_s)
            finally:
                carrier.transport.abort()

        self.enter()
        self._leave(SessionLost(self.target.url, "closed by this side"), take_leave)
        await self.drain(timeout_s)

    async def drain(self, timeout_s: float = 2 * _CLOSE_S) -> None:
        """Wait until sessions that were left are closed, and their slots free."""
        if self._closings:
            await asyncio.wait(set(self._closings), timeout=timeout_s)

    def _leave(self, reason: SessionLost, end: Callable[[FrameConnection], Coroutine[Any, Any, None]]) -> SessionLost:
        connection, self._connection = self._connection, None
        session, self._session = self._session, None
        self.gone = reason

        async def leave() -> None:
            ends: list[Coroutine[Any, Any, None]] = []
            if session is not None:  # at the same time, for nobody knows how much there is left of it
                ends.append(openenv_sessions.destroy(self.target, session, _CLOSE_S))
            if connection is not None:
                ends.append(end(connection.carrier))
            await asyncio.gather(*ends)

        if connection is not None:
            connection.carrier.ignore()
            connection.fail(ConnectionLost(self.target.url, reason.reason))
        if connection is not None or session is not None:
            self._background(leave())
        return reason

    def _background(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(closing)
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)


async def _hang_up(carrier: FrameConnection) -> None:
    await carrier.hang_up(_CLOSE_S)


def reported(target: Target, data: dict[str, Any], env_index: int | None = None) -> OpenEnvGymError:
    """The error that an error reply stands for, or one of a batch's results; type and traceback only ours have."""
    code, text = str(data.get("code", "UNKNOWN")), str(data.get("message", ""))
    if data.get("errors"):  # of which our servers have the first one in the text too
        text = f"{text.split(':', 1)[0]}: {in_words(data['errors'])}"
    if code == "CAPACITY_REACHED":
        return CapacityError(target.url, data.get("active_sessions"), data.get("max_sessions"), 1, keeps_sessions=True)
    kind, trace = data.get("type"), data.get("traceback")
    trace = trace if isinstance(trace, str) else None
    return remote_env_error(code, kind if isinstance(kind, str) else "", text, env_index, trace)
