"""What carries a learner's rows to a server: a connection in either dialect, as the pool sees it.

Everything here runs on the client's loop thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import gymnasium as gym
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, State

from openenv_gym.errors import SessionLost
from openenv_gym.messages import WINDOW, Received, Reply, Request
from openenv_gym.outage import Outage
from openenv_gym.traffic import Traffic

__all__ = ["Deliver", "FrameConnection", "Link"]

Deliver: TypeAlias = "Callable[[Reply | Exception], None]"
"""Takes the reply to one request, or the error in its place; called exactly once, on the loop thread."""

_PONG: Final = b"\x8a"
"""How a pong begins on the wire."""


class Link(Protocol):
    """One connection with its slots.

    Attributes:
        url: the server's WebSocket endpoint.
        slots: the number of envs.
        observation_space: one env's observation space.
        observation_spaces: each env's.
        action_space: one env's action space.
        metadata: the env's metadata.
        env_name: the environment's name, if the server says it.
        loss: why all of its episodes went with a session, when they last did; another object each time.
        counters: events since the start, such as ``reconnects`` and ``sessions_lost``.
        notes: what the user should be told once; whoever tells it empties the list.
        outages: its waits for the server that last now.
        traffic: what was sent and received.
    """

    slots: int
    observation_space: gym.Space[Any]
    observation_spaces: list[gym.Space[Any]]
    action_space: gym.Space[Any]
    metadata: dict[str, Any]
    env_name: str
    notes: list[str]
    outages: list[Outage]
    traffic: Traffic

    @property
    def url(self) -> str:
        """See the class."""

    @property
    def loss(self) -> SessionLost | None:
        """See the class."""

    @property
    def counters(self) -> dict[str, int]:
        """See the class."""

    def start(self, request: Request, deliver: Deliver) -> None:
        """Send a request. A `Reset` on a lost session opens a new one; anything else there fails with `SessionLost`."""

    def abandon(self) -> None:
        """Stop waiting for all replies: what comes late is dropped."""

    async def close(self, timeout_s: float) -> None:
        """End the session and the connection; never raises."""


class FrameConnection(ClientConnection):
    """A WebSocket that hands each message to a callback as it arrives, not to a coroutine one loop turn later.

    Guarantees: what a peer sends without being asked doesn't pile up here, be it pings or messages.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_message: Callable[[Received], None] | None = None
        self._on_lost: Callable[[ConnectionClosed], None] | None = None
        self._early: list[Received] = []
        self._full = False
        self._fragments: bytearray | None = None
        self._cause: Exception | None = None

    def listen(self, on_message: Callable[[Received], None], on_lost: Callable[[ConnectionClosed], None]) -> None:
        """Set or change who is told; messages that came before there was anybody are told now.

        Args:
            on_message: takes each message's bytes.
            on_lost: takes what ended the connection, once.
        """
        self._on_message, self._on_lost = on_message, on_lost
        while self._early and self._on_message is not None:
            self._on_message(self._early.pop(0))
        self._read_on()
        if self.protocol.state is State.CLOSED:
            self._tell_lost()

    async def first(self) -> Received:
        """The next message; those that follow it wait for `listen`.

        Raises:
            ConnectionClosed: if the connection ends first.
        """
        message: asyncio.Future[Received] = asyncio.get_running_loop().create_future()

        def take(frame: Received) -> None:
            self._on_message = None
            if not message.done():
                message.set_result(frame)

        def fail(error: ConnectionClosed) -> None:
            if not message.done():
                message.set_exception(error)

        self.listen(take, fail)
        return await message

    def ignore(self) -> None:
        """Tell nobody any more."""
        self._on_message, self._on_lost = _ignore, None
        self._read_on()

    async def hang_up(self, timeout_s: float) -> None:
        """Close within a limit, and let go of the socket in any case; never raises."""
        self.ignore()
        try:
            await asyncio.wait_for(self.close(), timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            pass  # the peer doesn't answer; that is what the limit is for
        finally:
            self.transport.abort()

    def forsake(self) -> None:
        """Tell the peer that nobody is here, without the event loop, which has ended."""
        bare = self.transport.get_extra_info("socket")  # None on uvloop, which closes its sockets with the loop
        if bare is not None:
            with contextlib.suppress(OSError, TypeError):
                bare.shutdown(socket.SHUT_RDWR)

    def write(self, message: bytes) -> None:
        """Send a binary message now. On a connection that has ended it is dropped, and ``on_lost`` tells."""
        if self.protocol.state is State.OPEN:
            self.protocol.send_binary(message)
            self.send_data()

    def write_text(self, message: bytes) -> None:
        """Send a text message, given as UTF-8."""
        if self.protocol.state is State.OPEN:
            self.protocol.send_text(message)
            self.send_data()

    def send_data(self) -> None:
        """See ``websockets.asyncio.client.ClientConnection``. A peer that takes nothing gets no pongs."""
        if self.paused:
            self.protocol.writes = [frame for frame in self.protocol.writes if not frame.startswith(_PONG)]
        super().send_data()

    def process_event(self, event: Event) -> None:
        """See ``websockets.asyncio.client.ClientConnection``: the place to take frames from."""
        if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            self._collect(event)
        else:
            super().process_event(event)

    def _collect(self, frame: Frame) -> None:
        data = frame.data
        assert not isinstance(data, memoryview)  # which websockets has for frames that it sends
        if self._fragments is not None:
            self._fragments += data
            data = self._fragments
        if frame.fin:
            self._fragments = None
            self._tell(data)  # as it is: a copy of 2 MB takes a quarter of a millisecond, for its pages are new
        elif self._fragments is None:
            self._fragments = bytearray(data)

    def _tell(self, message: Received) -> None:
        if self._on_message is not None:
            self._on_message(message)
            return
        self._early.append(message)
        limit = self.protocol.max_message_size
        if len(self._early) > WINDOW or (limit is not None and sum(map(len, self._early)) > limit):
            self._full = True  # that is more than what a resume brings
            self.transport.pause_reading()

    def _read_on(self) -> None:
        if self._full:  # else there is nothing to do, and perhaps no transport any more
            self._full = False
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the transport has ended."""
        super().connection_lost(exc)
        self._cause = exc
        self._tell_lost()

    def _tell_lost(self) -> None:
        # The protocol is closed at the end of the stream, a moment before asyncio says that the transport is.
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            error = self.protocol.close_exc
            if self._cause is not None:  # more telling than the protocol's own, that the stream ended
                error.__cause__ = self._cause
            on_lost(error)


def _ignore(message: Received) -> None:
    """Drop a message that nobody waits for."""
