"""A piece of network that can be cut: passes TCP connections on, until it is told otherwise."""

import contextlib
import socket
import threading


class Scissors:
    """Listens on a free port of this machine and passes everything on to a server.

    Args:
        upstream: the server's port, which may change while this runs.

    Attributes:
        port: the port to connect to.
    """

    def __init__(self, upstream):
        self.upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Cut all connections, as a router that is switched off and on again does."""
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self):
        """Cut all connections, and take no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self):
        with contextlib.suppress(OSError):  # the end of listening
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.upstream))
                except OSError:  # nobody is there
                    client.close()
                    continue
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
