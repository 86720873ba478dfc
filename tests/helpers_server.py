"""A real server for tests: uvicorn on a free port, in a thread of the test's process; and an address without any."""

import socket
import threading
from contextlib import contextmanager

from openenv_gym.server.run import make_server


@contextmanager
def running(app, **config):
    """Serve `app`, and give its URL once it answers.

    Args:
        app: what `create_app` returned.
        config: more arguments for `make_server`.
    """
    started = threading.Event()
    server = make_server(app, app.state.registry.settings, on_started=started.set, **config)
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        while not started.wait(0.1):
            assert thread.is_alive(), "the server ended before it had started"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server didn't stop"


@contextmanager
def nobody():
    """A URL at which nobody listens, nor begins to as long as this lasts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
