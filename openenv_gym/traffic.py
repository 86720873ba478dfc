"""What a link has sent and received, and when: plain numbers that cost a message next to nothing."""

from __future__ import annotations

import time

__all__ = ["Traffic"]


class Traffic:
    """A link's messages.

    Attributes:
        bytes_up: bytes of the messages sent so far, without the WebSocket's framing.
        bytes_down: bytes of the messages received.
        sent_at: when the first message of the latest request was ready to be sent, on ``time.perf_counter``.
        received_at: when the last message was there.
    """

    def __init__(self) -> None:
        self.bytes_up = self.bytes_down = 0
        self.sent_at = self.received_at = 0.0
        self._fresh = True

    def begin(self) -> None:
        """Note that a request begins; in the OpenEnv dialect it may take several messages."""
        self._fresh = True

    def sent(self, message: bytes) -> None:
        """Note a message that is about to be sent."""
        self.bytes_up += len(message)
        if self._fresh:
            self._fresh, self.sent_at = False, time.perf_counter()

    def received(self, message: bytes | bytearray) -> None:
        """Note a message that has arrived."""
        self.received_at = time.perf_counter()
        self.bytes_down += len(message)
