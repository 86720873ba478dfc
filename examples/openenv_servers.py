"""Servers of the openenv_*.py examples, each in a process of its own."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

STOCK = ["uvicorn", "openenv_walk:stock", "--log-level", "error"]
"""OpenEnv's own server."""

OURS = ["openenv_gym", "serve", "openenv_walk:Walk", "--log-level", "error"]
"""This project's server around the same environment."""


@contextmanager
def serving(module, *arguments, **environment):
    """Run ``python -m module …`` on a free port, and give its URL once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments, "--port", str(port)],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
    )
    try:
        while process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        if process.poll() is not None:
            raise SystemExit(f"the server ended with exit code {process.returncode}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
