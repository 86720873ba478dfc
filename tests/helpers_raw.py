"""A WebSocket client that sends any bytes and reads only when it is told to, as no library's would."""

import base64
import os
import socket
import struct

from helpers_wait import LIMIT_S

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def frame(opcode, data=b"", *, fin=True, first_bits=0):
    """One frame, masked with zeros as clients must mask; ``first_bits`` go into its first byte."""
    size = len(data)
    head = bytes([(0x80 if fin else 0) | first_bits | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 2**16:
        head += bytes([0x80 | 126]) + struct.pack("!H", size)
    else:
        head += bytes([0x80 | 127]) + struct.pack("!Q", size)
    return head + bytes(4) + data


def request(path="/ws", headers=(), *, subprotocol=None):
    """The head of a handshake."""
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        "Sec-WebSocket-Version: 13",
        *([f"Sec-WebSocket-Protocol: {subprotocol}"] if subprotocol else []),
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class Raw:
    """A connection to a server; a context manager.

    Args:
        url: the server.
        room: the most bytes that are taken without being read, about.
    """

    def __init__(self, url, *, room=None):
        self._socket = socket.socket()
        self._socket.settimeout(LIMIT_S)
        if room is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        self._socket.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        self._read = b""

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._socket.close()

    def vanish(self):
        """End the connection as a crash would, with a reset and no close frame."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def send(self, data):
        self._socket.sendall(data)

    def shake_hands(self, *args, **kwargs):
        """Ask for a WebSocket, and give the head of the answer."""
        self.send(request(*args, **kwargs))
        return self.head()

    def head(self):
        """The head of an HTTP answer, as text."""
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        return head.decode("latin-1")

    def next(self, *opcodes):
        """The data of the next frame with one of the opcodes; others are passed over."""
        while True:
            opcode, data = self._frame()
            if opcode in opcodes:
                return data

    def take(self, size):
        """Read some bytes."""
        while len(self._read) < size:
            self._more()
        taken, self._read = self._read[:size], self._read[size:]
        return taken

    def rest(self):
        """Read until the server ends the connection, and give how many bytes that was."""
        size = len(self._read)
        while True:
            try:
                self._read = b""
                self._more()
            except ConnectionError:
                return size
            size += len(self._read)

    def _frame(self):
        first, second = self.take(2)
        size = second & 127
        if size == 126:
            (size,) = struct.unpack("!H", self.take(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self.take(8))
        return first & 15, self.take(size)

    def _more(self):
        data = self._socket.recv(2**16)
        if not data:
            raise ConnectionError("the server has ended the connection")
        self._read += data
