"""The process behind a `LocalServer`.

It reads its configuration as one line of JSON from standard input, answers with one on standard output, and ends with
its parent (see `openenv_gym.server.parent`). With several workers it is their supervisor.
"""

from __future__ import annotations

import os
import signal

from openenv_gym.errors import OpenEnvGymError
from openenv_gym.server.drawing import draw_unseen
from openenv_gym.server.parent import Parent, application
from openenv_gym.server.run import listen, make_server
from openenv_gym.server.supervisor import Supervisor

__all__ = ["main"]


def main() -> int:
    """Serve until standard input ends.

    Returns:
        0, or 2 if the environment can't be served.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes this process
    parent = Parent()
    if not parent.configuration:
        return 0  # it was gone before it said what to serve
    draw_unseen(os.environ)
    try:
        _serve(parent)
    except (OpenEnvGymError, TypeError, ValueError) as error:
        parent.tell({"error": str(error)})
        return 2
    return 0


def _serve(parent: Parent) -> None:
    app, workers = application(parent.configuration), parent.configuration.get("workers", 1)
    settings = app.state.registry.settings
    # The socket listens before the parent learns its port, so no other process can take it in between.
    listener = listen("127.0.0.1", 0)

    def started() -> None:
        parent.tell({"port": listener.getsockname()[1]})

    if workers == 1:
        server = make_server(app, settings, on_started=started, interruptible=False)
        parent.watch(lambda: setattr(server, "should_exit", True), settings.shutdown_s)
        server.run(sockets=[listener])
    else:
        supervisor = Supervisor(parent.configuration, workers, listener, settings, on_started=started)
        parent.watch(supervisor.end, settings.shutdown_s)
        supervisor.run()
