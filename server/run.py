"""Runs an application under uvicorn, with the settings that make WebSockets fast and shutdown bounded."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from openenv_gym.server.registry import Registry
from openenv_gym.server.settings import ServerSettings
from openenv_gym.server.websocket import BoundedWebSocket

if sys.platform == "linux":
    import fcntl
    import termios

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["SPARE_S", "Server", "listen", "make_server"]

SPARE_S: Final = 3.0
"""What an orderly end takes at most, besides ``shutdown_s``: clients are told, and their connections closed."""

logger = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """A uvicorn server that says when it answers, and that closes the envs' sessions before it closes sockets.

    Args:
        config: uvicorn's configuration.
        registry: the application's sessions.
        on_started: called once it listens and the application has started.
        interruptible: whether SIGINT (Ctrl-C) ends it.
        last_resort: once it was asked to stop, end the whole process within ``shutdown_s`` and `SPARE_S`, even if
            something that an env left behind, such as a thread, would keep it alive.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        registry: Registry,
        on_started: Callable[[], None] | None = None,
        *,
        interruptible: bool = True,
        last_resort: bool = False,
    ) -> None:
        super().__init__(config)
        self._registry = registry
        self._on_started = on_started
        self._interruptible = interruptible
        self._last_resort = last_resort
        self._waiting: dict[tuple[Any, Any], float] = {}
        self._unsent: dict[Any, tuple[int, float]] = {}
        self._adopting: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See ``uvicorn.Server``."""
        await super().startup(sockets)
        if self._on_started is not None:
            self._on_started()

    async def on_tick(self, counter: int) -> bool:
        """See ``uvicorn.Server``: called ten times a second."""
        if counter % 10 == 0:
            self._drop_the_silent()
            self._drop_the_deaf()
        return await super().on_tick(counter)

    def _drop_the_silent(self) -> None:
        """Drop connections that don't bring the head of a request, for which uvicorn waits for ever."""
        now = time.monotonic()
        cycles = ((c, c.cycle) for c in self.server_state.connections if hasattr(c, "cycle"))  # not the WebSockets
        waiting = (pair for pair in cycles if pair[1] is None or pair[1].response_complete)
        self._waiting = {pair: self._waiting.get(pair, now) for pair in waiting}
        for (connection, _), since in self._waiting.items():
            if now - since > self._registry.settings.opening_timeout_s:
                connection.transport.abort()

    def _drop_the_deaf(self) -> None:
        """Drop connections that take nothing of what they are sent: while something is left, they can't be closed."""
        now, limit_s = time.monotonic(), self._registry.settings.ping_timeout_s
        looked: dict[Any, tuple[int, float]] = {}
        for connection in self.server_state.connections:
            size = _size_unsent(connection.transport)
            before, since = self._unsent.get(connection, (0, now))
            looked[connection] = size, since if 0 < before <= size else now
        self._unsent = looked
        for connection, (_, since) in looked.items():
            if limit_s is not None and now - since > limit_s:
                connection.transport.abort()

    def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that another process accepted, as if it had come to a socket of this server's own."""
        task = asyncio.get_running_loop().create_task(self._adopt(connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _adopt(self, connection: socket.socket) -> None:
        connection.setblocking(False)

        def protocol() -> asyncio.Protocol:  # as uvicorn.Server.startup makes them
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        try:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection, ssl=self.config.ssl)
        except OSError as error:  # a client that is gone already, or that speaks no TLS
            logger.debug("a connection could not be taken over: %s", error)
            connection.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See ``uvicorn.Server``."""
        if self._last_resort:
            threading.Thread(
                target=_exit_after,
                args=(self._registry.settings.shutdown_s + SPARE_S,),
                name="last-resort",
                daemon=True,
            ).start()
        # uvicorn would close the sockets, wait for running steps, and only then let the application stop them: the
        # replies of steps that do end were lost, and those that don't were waited for twice.
        await self._registry.stop()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See ``uvicorn.Server``."""
        if sig != signal.SIGINT or self._interruptible:
            super().handle_exit(sig, frame)


def _size_unsent(transport: asyncio.WriteTransport) -> int:
    """Bytes that a transport holds back, with what the kernel still has before them; 0 if it holds none back.

    The kernel takes megabytes at a time, and no more before a good part of them is gone: without its share a slow
    reader would seem to take nothing for as long as that lasts.
    """
    size = transport.get_write_buffer_size()
    opened = transport.get_extra_info("socket")
    if sys.platform == "linux" and size and opened is not None:  # elsewhere the request has no meaning for sockets
        (waiting,) = struct.unpack("i", fcntl.ioctl(opened.fileno(), termios.TIOCOUTQ, bytes(4)))  # tcp(7), SIOCOUTQ
        size += waiting
    return size


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; made here, for uvicorn would report a failure in its own way.

    Raises:
        OSError: if the address can't be had.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)  # without the protocol asyncio doesn't set TCP_NODELAY
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def _exit_after(seconds: float) -> None:
    time.sleep(seconds)
    logger.warning("something keeps this process alive; it is ended")
    os._exit(1)


def _is_news(record: logging.LogRecord) -> bool:
    """False for uvicorn's error at each WebSocket that is refused with an HTTP status, which was refused in order."""
    return record.getMessage() != "ASGI callable returned without completing handshake."


def make_server(
    app: FastAPI,
    settings: ServerSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    log_level: str | None = "warning",
    on_started: Callable[[], None] | None = None,
    interruptible: bool = True,
    last_resort: bool = False,
    **config: Any,
) -> Server:
    """A server for an application, ready to run.

    Args:
        app: what `openenv_gym.server.create_app` returned.
        settings: the application's settings.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        log_level: uvicorn's log level; None leaves its loggers as they are, if ``log_config`` is None too.
        on_started: called once the server answers.
        interruptible: whether SIGINT (Ctrl-C) ends it.
        last_resort: see `Server`.
        **config: more of ``uvicorn.Config``, such as ``ssl_certfile``.
    """
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level=log_level,
            access_log=False,
            ws=BoundedWebSocket,
            ws_per_message_deflate=False,
            ws_max_size=settings.max_message_bytes,
            ws_ping_interval=settings.ping_interval_s,
            ws_ping_timeout=settings.ping_timeout_s,
            timeout_graceful_shutdown=1,  # running steps had their time before, see `Server.shutdown`
            **config,
        ),
        app.state.registry,
        on_started,
        interruptible=interruptible,
        last_resort=last_resort,
    )
