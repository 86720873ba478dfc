"""Makes the calls that a process owes when it ends, even if it is killed: another process waits for that.

No code of a process runs when it is killed, and an OpenEnv server would keep its sessions for ever. So, as with
``multiprocessing``'s resource tracker, a small process reads from a pipe, whose end means that the first one is gone,
and then makes the calls that are still owed. It is this file, run as a script, with the standard library alone.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from typing import Any

__all__ = ["owe", "settled"]

_CALL_S = 5.0
_EXIT_S = 2.0
_watchers: dict[int, subprocess.Popen[str]] = {}
"""The process that waits for the end of each process: a fork needs its own."""


def owe(name: str, address: tuple[str, int], host: str | None, request: bytes) -> None:
    """Note a call that is to be made when this process ends. Where no process can be started, nobody will make it.

    Args:
        name: for `settled`.
        address: host and port, as numbers.
        host: the name that the server's certificate is for, with TLS; None without.
        request: what to send.
    """
    pid = os.getpid()
    if pid not in _watchers and not getattr(sys, "frozen", False):  # there the executable is no interpreter
        with contextlib.suppress(OSError):
            _watchers[pid] = subprocess.Popen(  # noqa: S603 - this file
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C, and the end of a terminal, are for this one
            )
    _tell([name, [address, host, request.decode("latin-1")]])


def settled(name: str) -> None:
    """Forget a call."""
    _tell([name, None])


def _tell(message: list[Any]) -> None:
    watcher = _watchers.get(os.getpid())
    if watcher is not None and watcher.stdin is not None:
        with contextlib.suppress(OSError):  # somebody ended it
            watcher.stdin.write(json.dumps(message) + "\n")
            watcher.stdin.flush()


def _leave_to_parent() -> None:
    """In a forked process: its copy of the pipe would hide the end of its parent."""
    for watcher in _watchers.values():
        if watcher.stdin is not None:
            watcher.stdin.close()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_leave_to_parent)


@atexit.register
def _end() -> None:
    watcher = _watchers.get(os.getpid())
    if watcher is not None and watcher.stdin is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            watcher.stdin.close()
            watcher.wait(_EXIT_S)


# ------------------------------------------------------------------------------------------ the other process


def _wait_and_call() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may go to all processes of a job
    owed: dict[str, Any] = {}
    for line in sys.stdin:
        name, call = json.loads(line)
        if call is None:
            owed.pop(name, None)
        else:
            owed[name] = call
    for call in owed.values():
        threading.Thread(target=_call, args=call).start()


def _call(address: list[Any], host: str | None, request: str) -> None:
    with socket.create_connection((address[0], address[1]), _CALL_S) as plain:
        connection = plain if host is None else ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        connection.sendall(request.encode("latin-1"))
        while connection.recv(65536):
            pass


if __name__ == "__main__":
    _wait_and_call()
