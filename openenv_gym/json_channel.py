"""One connection in the OpenEnv dialect: a JSON message out, its reply's data or a typed error back.

Messages are those of OpenEnv (``openenv/core/env_server/types.py``, 0.10). Its servers are strict peers: any extra key or
binary frame is refused, and replies carry no id. So a reply that is late can't be told from the next one: after a timeout
the connection is retired, never read again, and its episode is gone.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from openenv_gym.dial import Target, dial, lost
from openenv_gym.errors import (
    CapacityError,
    ConnectionLost,
    OpenEnvGymError,
    RemoteEnvError,
    RemoteProtocolError,
    SessionLost,
    remote_env_error,
)
from openenv_gym.link import FrameConnection

__all__ = ["JsonChannel"]

_ENDS_SESSION: Final = frozenset({"SESSION_ERROR", "FACTORY_ERROR", "CAPACITY_REACHED"})
_REPLY_TYPES: Final = {"state": "state", "mcp": "mcp"}


class JsonChannel:
    """One session with a server that speaks JSON.

    Guarantees: everything here runs on one event loop, one question at a time.

    Args:
        target: the server.

    Attributes:
        target: the server.
        gone: why there is no session, or None while there is one.
        sessions_lost: sessions that ended before `close`.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.gone: OpenEnvGymError | None = SessionLost(target.url, "not connected")
        self.sessions_lost = 0
        self._connection: FrameConnection | None = None
        self._reply: asyncio.Future[bytes] | None = None
        self._unasked: bytes | None = None
        self._closings: set[asyncio.Task[None]] = set()

    async def open(self, connection: FrameConnection | None = None) -> None:
        """Start a session, and learn whether the server has room for it.

        Args:
            connection: a fresh connection; None dials one.

        Raises:
            CapacityError: if there is no room.
            RemoteEnvError: if the server can't build the env.
            TransportError: if it can't be reached, or ends the connection.
        """
        await self.drain()
        if connection is None:
            dialled = await dial(self.target, connection=FrameConnection)
            assert isinstance(dialled, FrameConnection)
            connection = dialled
        self._connection, self.gone, self._unasked = connection, None, None
        connection.listen(self._take, lambda error: self._broken(connection, lost(self.target, error)))
        # A server that is full accepts, says so in an error frame, and closes (OpenEnv's `websocket_endpoint`): one
        # question brings that out now, so that a vector env gets all its envs or none.
        try:
            await self.ask({"type": "state"})
        except RemoteEnvError as error:
            if error.code in _ENDS_SESSION:
                raise
        except BaseException as error:
            self.retire(SessionLost(self.target.url, str(error)))
            raise

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return its reply's data. If the wait is cancelled, the session is retired.

        Raises:
            RemoteEnvError: for an error reply, or `CapacityError` if that is the reason.
            SessionLost: if there is no session, or it ends first.
            RemoteProtocolError: for a reply that isn't one.
        """
        try:
            frame = await self._exchange(msgspec.json.encode(message))
        except asyncio.CancelledError:
            self.retire(SessionLost(self.target.url, "a reply was late, and OpenEnv's replies can't be told apart"))
            raise
        try:
            reply = msgspec.json.decode(frame, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise self._bad_reply(f"a reply that isn't JSON: {error}") from None
        kind, data = reply.get("type"), reply.get("data")
        if not isinstance(data, dict):
            raise self._bad_reply(f"a reply of type {kind!r} without data")
        if kind == "error":
            raise self._reported(data)
        expected = _REPLY_TYPES.get(message["type"], "observation")
        if kind != expected:
            raise self._bad_reply(f"{kind!r} instead of {expected!r}")
        return data

    async def _exchange(self, message: bytes) -> bytes:
        if self._unasked is not None:  # what a full server says before it closes, whether or not it can still be asked
            frame, self._unasked = self._unasked, None
            return frame
        if self._connection is None:
            raise self.gone or SessionLost(self.target.url, "not connected")
        self._reply = asyncio.get_running_loop().create_future()
        self._connection.write_text(message)
        return await self._reply

    def _reported(self, data: dict[str, Any]) -> OpenEnvGymError:
        code, text = str(data.get("code", "UNKNOWN")), str(data.get("message", ""))
        if data.get("errors"):
            text = f"{text}: {data['errors']}"
        if code in _ENDS_SESSION:
            self.retire(SessionLost(self.target.url, text))
        if code == "CAPACITY_REACHED":
            return CapacityError(self.target.url, data.get("active_sessions"), data.get("max_sessions"), 1)
        return remote_env_error(code, "", text)

    def _bad_reply(self, what: str) -> RemoteProtocolError:
        self.retire(SessionLost(self.target.url, f"the server sent {what}"))
        return RemoteProtocolError(f"{self.target.url} sent {what}")

    def _take(self, frame: bytes) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(frame)
        else:
            self._unasked = frame

    # ------------------------------------------------------------------------------------ ends of sessions

    def retire(self, error: OpenEnvGymError) -> None:
        """Never read the connection again, close it without waiting, and fail what waits."""
        if self.gone is None:
            self.sessions_lost += 1
        self.gone = error
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.ignore()
            task = asyncio.get_running_loop().create_task(_quietly_close(connection))
            self._closings.add(task)
            task.add_done_callback(self._closings.discard)
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)

    async def close(self) -> None:
        """End the session; the connection closes before this returns, within the library's close timeout."""
        if self._connection is not None:
            self._connection.write_text(b'{"type":"close"}')
            self.gone = SessionLost(self.target.url, "closed by this side")  # set first: this loss doesn't count
            self.retire(self.gone)
        await self.drain()

    async def drain(self) -> None:
        """Wait until retired connections are closed: their slots are free then."""
        if self._closings:
            await asyncio.wait(set(self._closings))

    def _broken(self, connection: FrameConnection, error: OpenEnvGymError) -> None:
        if connection is self._connection:
            reason = error.reason if isinstance(error, ConnectionLost) else str(error)
            self.retire(SessionLost(self.target.url, reason))


async def _quietly_close(connection: FrameConnection) -> None:
    await connection.close()
