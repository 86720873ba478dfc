"""uvicorn's WebSocket protocol, with memory that no peer can use up by odd frames."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

__all__ = ["BoundedWebSocket"]

_PIECE: Final = 2**16


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """One WebSocket of a server.

    Guarantees: a message takes about as much memory as its size, in however many fragments it comes; and a peer that
    reads nothing gets no pongs, which would pile up here.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._joined = bytearray()

    def handle_cont(self, event: Frame) -> None:
        """Join small fragments: uvicorn keeps a list of them, which takes many times what is in them."""
        self._joined += event.data
        if event.fin or len(self._joined) >= _PIECE:
            data, self._joined = bytes(self._joined), bytearray()
            super().handle_cont(dataclasses.replace(event, data=data))

    def handle_ping(self) -> None:
        """Answer, unless there is still something that the peer hasn't taken."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # dropped
