"""The process behind a `LocalServer`: ``python -m openenv_gym.server.child``.

It reads its configuration as one line of JSON from standard input, so that the token is in no argument list and no
environment, answers with one line of JSON on standard output, and ends when standard input does: with its
parent, however that ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any, Final

from openenv_gym.errors import OpenEnvGymError
from openenv_gym.registered import register_spec
from openenv_gym.server.app import create_app
from openenv_gym.server.run import Server, make_server

__all__ = ["main"]

_SPARE_S: Final = 3.0
"""What an orderly end takes at most, besides ``shutdown_s``."""


def main() -> int:
    """Serve until standard input ends.

    Returns:
        0, or 2 if the environment can't be served.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes this process
    line = sys.stdin.readline()
    if not line:
        return 0  # the parent was gone before it said what to serve
    configuration: dict[str, Any] = json.loads(line)
    # What envs print belongs on the terminal, not into the parent's pipe.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        if configuration["spec"] is not None:
            register_spec(configuration["spec"])
        app = create_app(configuration["env"], **configuration["options"])
    except (OpenEnvGymError, TypeError, ValueError) as error:
        _answer(answers, {"error": str(error)})
        return 2
    # The socket listens before the parent learns its port, so no other process can take it in between.
    settings = app.state.registry.settings
    server = make_server(app, settings, on_started=lambda: _started(answers, server), interruptible=False)
    watch = threading.Thread(target=_end_with_parent, args=(server, settings.shutdown_s), daemon=True)
    watch.start()
    server.run()
    return 0


def _started(answers: Any, server: Server) -> None:
    _answer(answers, {"port": server.servers[0].sockets[0].getsockname()[1]})


def _answer(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _end_with_parent(server: Server, shutdown_s: float) -> None:
    # Not sys.stdin: a thread that waits there holds its lock, which the interpreter wants when it ends.
    while os.read(0, 4096):
        pass
    server.should_exit = True
    time.sleep(shutdown_s + _SPARE_S)
    os._exit(1)  # something that an env left behind, such as a thread, keeps this process alive


if __name__ == "__main__":
    sys.exit(main())
