"""The parent of a server's process: says what to serve on standard input, is answered on standard output.

So a token is in no argument list and no environment, and the process ends with its parent, however that ends: standard
input ends then.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from openenv_gym.registered import register_spec
from openenv_gym.server.app import create_app
from openenv_gym.server.run import SPARE_S

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["Parent", "application"]


class Parent:
    """The other end of this process's pipes.

    Attributes:
        configuration: the first line that it said; empty if it was gone before.
    """

    def __init__(self) -> None:
        self._lines = _lines(0)  # not sys.stdin, whose lock the interpreter wants when it ends
        self.configuration: dict[str, Any] = json.loads(next(self._lines, b"{}"))
        # What envs print belongs on the terminal, not into the parent's pipe.
        self._answers = os.dup(1)
        os.dup2(2, 1)

    def write(self, line: bytes) -> None:
        """Write a line, newline included. Raises OSError if nobody reads any more."""
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._answers, rest) :]

    def tell(self, message: dict[str, Any]) -> None:
        """Write a message."""
        self.write(json.dumps(message).encode() + b"\n")

    def watch(self, end: Callable[[], None], shutdown_s: float, take: Callable[[bytes], None] | None = None) -> None:
        """Read on a thread of its own, until the parent is gone; then end this process, in order or not.

        Args:
            end: begins the orderly end.
            shutdown_s: what that takes.
            take: takes each line.
        """

        def read() -> None:
            for line in self._lines:
                if take is not None:
                    take(line)
            end()
            time.sleep(shutdown_s + SPARE_S)
            os._exit(1)  # something that an env left behind, such as a thread, keeps this process alive

        threading.Thread(target=read, daemon=True).start()


def _lines(descriptor: int) -> Iterator[bytes]:
    rest = b""
    while chunk := os.read(descriptor, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def application(configuration: dict[str, Any]) -> FastAPI:
    """The application to serve.

    Args:
        configuration: ``env`` and ``options`` for `openenv_gym.server.create_app`, and ``spec``, which is what
            Gymnasium's registry holds for an id; or an ``app``, as ``module:attribute``.

    Raises:
        OpenEnvGymError, TypeError, ValueError: as ``create_app`` does.
    """
    if configuration.get("app"):
        module, _, attribute = configuration["app"].partition(":")
        app: FastAPI = getattr(importlib.import_module(module), attribute)
        return app
    if configuration["spec"] is not None:
        register_spec(configuration["spec"])
    return create_app(configuration["env"], **configuration["options"])
