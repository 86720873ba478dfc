"""One of a server's several processes.

It is a whole server, except that it accepts no connections: its supervisor does so and hands each over with its file
descriptor, so that nothing stands between a client and the process that serves it (see
`openenv_gym.server.supervisor`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import Any

from openenv_gym.server.intercom import Intercom
from openenv_gym.server.logs import configure
from openenv_gym.server.parent import Parent, application
from openenv_gym.server.registry import Registry
from openenv_gym.server.run import Server, make_server
from openenv_gym.server.siblings import Siblings

__all__ = ["main"]


def main() -> int:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor, which then ends all its processes
    parent = Parent()
    if not parent.configuration:
        return 0
    if "log" in parent.configuration:
        configure(**parent.configuration["log"])
    app = application(parent.configuration)
    registry: Registry = app.state.registry
    member: dict[str, Any] = parent.configuration["member"]
    handover = socket.socket(fileno=member["handover"])

    intercom = Intercom(parent.write, registry.answers)
    registry.company = Siblings(
        intercom, registry.capacity, member["process"], member["processes"], life=member["life"]
    )

    def started() -> None:
        loop = asyncio.get_running_loop()

        def take(line: bytes) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: this process ends
                loop.call_soon_threadsafe(intercom.take, line)

        parent.watch(lambda: setattr(server, "should_exit", True), registry.settings.shutdown_s, take)
        loop.add_reader(handover.fileno(), _take_over, server, handover)
        intercom.tell("started")

    server = make_server(
        app, registry.settings, on_started=started, interruptible=False, **parent.configuration["server"]
    )
    server.run(sockets=[])
    return 0


def _take_over(server: Server, handover: socket.socket) -> None:
    """Serve the next connection that was handed over: one byte, with its descriptor."""
    _, descriptors, _, _ = socket.recv_fds(handover, 1, 1)
    if not descriptors:  # the supervisor is gone
        asyncio.get_running_loop().remove_reader(handover.fileno())
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # an env's subprocess shall not keep the connection open
        server.adopt(socket.socket(fileno=descriptor))
