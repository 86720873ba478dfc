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
from typing import Any

import gymnasium as gym

from openenv_gym.errors import OpenEnvGymError
from openenv_gym.server.app import create_app
from openenv_gym.server.run import Server, make_server

__all__ = ["main"]


def main() -> int:
    """Serve until standard input ends.

    Returns:
        0, or 2 if the environment can't be served.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes this process
    configuration: dict[str, Any] = json.loads(sys.stdin.readline())
    # What envs print belongs on the terminal, not into the parent's pipe.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        if configuration["spec"] is not None:
            _register(configuration["spec"])
        app = create_app(configuration["env"], **configuration["options"])
    except (OpenEnvGymError, TypeError, ValueError) as error:
        _answer(answers, {"error": str(error)})
        return 2
    # The socket listens before the parent learns its port, so no other process can take it in between.
    server = make_server(app, app.state.registry.settings, on_started=lambda: _started(answers, server))
    threading.Thread(target=_end_with_parent, args=(server,), name="parent-watch", daemon=True).start()
    server.run()
    return 0


def _started(answers: Any, server: Server) -> None:
    _answer(answers, {"port": server.servers[0].sockets[0].getsockname()[1]})


def _register(spec: str) -> None:
    """Make an id known that the parent process knows."""
    parsed = gym.envs.registration.EnvSpec.from_json(spec)
    if parsed.id not in gym.registry:
        gym.registry[parsed.id] = parsed


def _answer(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _end_with_parent(server: Server) -> None:
    while sys.stdin.readline():
        pass
    server.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
