"""The rules of one session in the batch dialect, for both roles and without I/O: ids, order, resume.

Theory of operation. A session's requests are numbered 1, 2, 3, … without a gap, and the server runs them in that
order, each once. Every request has exactly one reply with its id, and replies leave in order too. A connection can
break at any moment, so either side may not know how much the other has received. Therefore

* the client keeps the frame of each request until its reply is there (`ClientProtocol.pending`),
* the server keeps the frames of its last `WINDOW` replies (`ServerProtocol.replies`), which is enough because
  a client never has more requests outstanding than that, and of large ones only as many as fit a limit,
* on a new connection the client says which reply it received last, the server which request, and each sends
  again what the other misses. A request that arrives twice is recognised by its id and not run twice.

So each step is executed exactly once, however often the connection breaks. A reply that nobody waits for any more
(after a timeout or an interrupt) is recognised by its id and dropped, so it can't be taken for another's.

Client states::

    NEW ─hello→ OPENING ─welcome→ READY ─lost→ LOST ─resume→ OPENING ─resumed→ READY
    OPENING ─lost→ LOST     OPENING ─refused→ CLOSED     any ─close→ CLOSED
"""

from __future__ import annotations

import enum
import sys
from typing import Final

import msgspec

from openenv_gym import codec
from openenv_gym.errors import LocalProtocolError, MessageTooLarge, ProtocolVersionError, RemoteProtocolError
from openenv_gym.messages import (
    PROTOCOL_VERSION,
    WINDOW,
    Failed,
    Hello,
    Received,
    Reply,
    Request,
    Resume,
    Resumed,
    Welcome,
)

__all__ = ["ClientProtocol", "ClientState", "ServerProtocol"]


class ClientState(enum.Enum):
    """Where a client's session is."""

    NEW = "new"
    OPENING = "opening"
    READY = "ready"
    LOST = "lost"
    CLOSED = "closed"


_MOVES: Final = {
    ClientState.NEW: {"hello": ClientState.OPENING},
    ClientState.OPENING: {
        "send": ClientState.OPENING,
        "answer": ClientState.READY,
        "misdirected": ClientState.OPENING,
        "refused": ClientState.CLOSED,
        "lost": ClientState.LOST,
    },
    ClientState.READY: {"send": ClientState.READY, "receive": ClientState.READY, "lost": ClientState.LOST},
    ClientState.LOST: {"send": ClientState.LOST, "resume": ClientState.OPENING, "lost": ClientState.LOST},
    ClientState.CLOSED: {"lost": ClientState.CLOSED},
}


class ClientProtocol:
    """One session, as its client sees it.

    Attributes:
        state: where the session is.
        welcome: the server's answer, once there was one.
        pending: frames of the requests without a reply, by id, in order.
        received: id of the last reply.
    """

    def __init__(self) -> None:
        self.state = ClientState.NEW
        self.welcome: Welcome | None = None
        self.pending: dict[int, bytes] = {}
        self.received = 0
        self._last_id = 0
        self._abandoned: set[int] = set()

    def hello(self, hello: Hello) -> bytes:
        """The first frame of a new session."""
        self._move("hello")
        return codec.encode(hello)

    def resume(self) -> bytes:
        """The first frame on a new connection after the old one broke."""
        if self.welcome is None:
            raise LocalProtocolError("a session that was never welcomed can't be resumed")
        self._move("resume")
        return codec.encode(
            Resume(
                version=PROTOCOL_VERSION,
                session=self.welcome.session,
                secret=self.welcome.secret,
                received=self.received,
            )
        )

    def answer(self, frame: Received) -> Failed | list[bytes]:
        """Take the server's answer to `hello` or `resume`.

        Args:
            frame: the connection's first frame.

        Returns:
            the refusal, after which the session is closed, unless it is ``MISDIRECTED``: then the same first frame is
            for another connection; or the frames to send (again), in order.

        Raises:
            RemoteProtocolError: if the answer isn't one.
            ProtocolVersionError: if the server speaks another version.
        """
        answer = codec.decode_answer(frame)
        if isinstance(answer, Failed):
            self._move("misdirected" if answer.code == "MISDIRECTED" else "refused")
            if answer.code == "VERSION_MISMATCH":
                raise ProtocolVersionError(PROTOCOL_VERSION, answer.facts.get("version", 0))
            return answer
        if isinstance(answer, Welcome) is not (self.welcome is None):
            raise RemoteProtocolError(f"unexpected {type(answer).__name__}")
        if isinstance(answer, Resumed):
            if not self.received <= answer.received <= self._last_id:
                raise RemoteProtocolError(f"the server says that it received request {answer.received}")
            self._move("answer")
            return [frame for id, frame in self.pending.items() if id > answer.received]
        if answer.version != PROTOCOL_VERSION:
            self._move("refused")
            raise ProtocolVersionError(PROTOCOL_VERSION, answer.version)
        self._move("answer")
        self.welcome = answer
        return list(self.pending.values())

    def send(self, request: Request) -> tuple[int, bytes]:
        """Number a request.

        Args:
            request: its own id is ignored.

        Returns:
            its id and its frame. Unless the session is ready, the frame is among those that `answer` will return.

        Raises:
            LocalProtocolError: if the session isn't open, `WINDOW` requests have no reply yet, or the request can't be
                encoded.
            MessageTooLarge: if the server wouldn't read it; the session goes on without it.
        """
        self._move("send")
        if len(self.pending) >= WINDOW:
            raise LocalProtocolError(f"{WINDOW} requests are without a reply; receive one first")
        id = self._last_id + 1
        try:
            frame = codec.encode(msgspec.structs.replace(request, id=id))
        except codec.PackError as error:
            raise LocalProtocolError(str(error)) from None
        if self.welcome is not None and len(frame) > self.welcome.max_message_bytes:
            raise MessageTooLarge(len(frame), self.welcome.max_message_bytes, "max_message_size_mb")
        self._last_id = id
        self.pending[id] = frame
        return id, frame

    def receive(self, frame: Received) -> Reply | None:
        """Take a reply.

        Args:
            frame: any frame after the answer.

        Returns:
            the reply, or None if nobody waits for it any more.

        Raises:
            RemoteProtocolError: if it isn't the reply to this session's next request.
        """
        self._move("receive")
        reply = codec.decode_reply(frame)
        if reply.id <= self.received and reply.id > 0:
            return None  # sent again after a resume, though the first copy had arrived
        if reply.id != self.received + 1 or self.pending.pop(reply.id, None) is None:
            reason = reply.message if isinstance(reply, Failed) else f"reply {reply.id} follows reply {self.received}"
            raise RemoteProtocolError(reason)
        self.received = reply.id
        if reply.id in self._abandoned:
            self._abandoned.discard(reply.id)
            return None
        return reply

    def abandon(self, id: int) -> None:
        """Stop waiting for a reply: when it comes, `receive` drops it."""
        if id in self.pending:
            self._abandoned.add(id)

    def lost(self) -> None:
        """Note that the connection broke."""
        self._move("lost")

    def close(self) -> None:
        """End the session on this side."""
        self.state = ClientState.CLOSED

    def _move(self, event: str) -> None:
        after = _MOVES[self.state].get(event)
        if after is None:
            raise LocalProtocolError(f"`{event}` isn't possible while the session is {self.state.value}")
        self.state = after


class ServerProtocol:
    """One session, as its server sees it.

    Args:
        kept_bytes: what the kept frames may hold together; the newest is kept whatever its size.

    Attributes:
        received: id of the last request.
        replies: frames of the last replies, by id.
    """

    def __init__(self, kept_bytes: int = sys.maxsize) -> None:
        self._kept_bytes = kept_bytes
        self.received = 0
        self.replies: dict[int, bytes] = {}

    def receive(self, frame: Received) -> Request | None:
        """Take a request.

        Args:
            frame: any frame after the opening.

        Returns:
            the request to run, or None if it is being run or was run before.

        Raises:
            RemoteProtocolError: if it is no request, or one is missing before it; the session can go on.
        """
        request = codec.decode_request(frame)
        if 0 < request.id <= self.received:
            return None
        if request.id != self.received + 1:
            raise RemoteProtocolError(f"request {request.id} follows request {self.received}")
        self.received = request.id
        return request

    def reply(self, reply: Reply) -> bytes:
        """A reply's frame, kept in case that the client doesn't receive it.

        Args:
            reply: the reply to the request of the same id; replies leave in order. Where it can't be encoded, the frame
                is that of a `Failed` which says so: every request has a reply.
        """
        try:
            frame = codec.encode(reply)
        except codec.PackError as error:
            frame = codec.encode(Failed(reply.id, "SERIALIZATION_ERROR", "PackError", str(error)))
        self.replies[reply.id] = frame
        self.replies.pop(reply.id - WINDOW, None)
        # A client that waits for each reply misses the newest one at most.
        while len(self.replies) > 1 and sum(map(len, self.replies.values())) > self._kept_bytes:
            del self.replies[min(self.replies)]
        return frame

    def resume(self, received: int) -> list[bytes]:
        """What to send first on a new connection.

        Args:
            received: `Resume.received`.

        Returns:
            the frames of `Resumed` and of the replies that the client misses, in order.

        Raises:
            RemoteProtocolError: if a reply that the client misses is no longer kept, or it claims one that wasn't made.
        """
        last = max(self.replies, default=0)
        missing = range(received + 1, last + 1)
        if received > last or any(id not in self.replies for id in missing):
            raise RemoteProtocolError(f"reply {received + 1} isn't kept")
        return [codec.encode(Resumed(received=self.received)), *(self.replies[id] for id in missing)]
