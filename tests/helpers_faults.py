"""Faults on demand: a TCP proxy that breaks connections, and server processes that freeze, die and come back."""

import asyncio
import atexit
import contextlib
import functools
import gc
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from helpers_wait import wait_until
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

UP, DOWN = "up", "down"
"""Directions: from the client to the server, and back."""

RST, FIN, DEAF = "rst", "fin", "deaf"
"""Ways to cut: both ends see a reset; both see an end of file; only the client sees a reset, the server nothing."""


def collect_unclosed():
    """Let go of connections whose event loop ended before they were closed, in the test that ignores the warning."""
    gc.collect()


def free_port():
    """A port that nobody listens on now, and that the system gives nobody who doesn't ask for it (ip(7))."""
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", random.SystemRandom().randrange(15_000, 32_768)))
            return s.getsockname()[1]


async def _stop_listening(server):
    """Close a server's sockets, once it has taken in what it accepted: asyncio would leave those sockets open."""
    for sock in server.sockets:
        asyncio.get_running_loop().remove_reader(sock.fileno())
    for _ in range(5):  # turns that an accepted connection needs until it has a transport and a task
        await asyncio.sleep(0)
    server.close()


async def _end_tasks():
    """Cancel what this thread's loop still does, so that every connection is closed before the loop is."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=5)
    await asyncio.sleep(0)  # transports are closed a turn later


@dataclass
class _Fuse:
    left: int
    directions: tuple[str, ...]
    how: str


@dataclass(eq=False)
class _Link:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    dead: set[str] = field(default_factory=set)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    double: asyncio.StreamWriter | None = None
    late: bytearray = field(default_factory=bytearray)

    def cut(self, how):
        for writer in (self.client,) if how == DEAF else (self.client, self.server):
            if how == FIN:
                writer.close()
            else:
                sock = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
        if how != DEAF:
            self.ended.set()


class FaultProxy:
    """A proxy on a free loopback port, on an event loop and a thread of its own. Its methods are for other threads.

    Args:
        upstream: the server's port, or its URL.

    Attributes:
        port: the proxy's port.
        delay_s: seconds to wait before each piece of data is passed on.
        jitter_s: most seconds to wait besides, chosen at random; connections overtake each other then.
        piece: the most bytes to write at once; None for all.
        accepted: connections so far.
        cuts: connections cut so far.
        bytes_up: bytes passed on to the server so far.
        bytes_down: bytes passed on to the client so far.
    """

    def __init__(self, upstream, *, seed=0):
        self.upstream = int(str(upstream).rstrip("/").rpartition(":")[2])
        self.delay_s = self.jitter_s = 0.0
        self.piece = None
        self.accepted = self.cuts = self.bytes_up = self.bytes_down = 0
        self._last = 0.0
        self._random = random.Random(seed)
        self._fuse = None
        self._doubled = False
        self._links = set()
        self._held = {UP: False, DOWN: False}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._thread.start()
        self._moved = self._call(self._new_event)
        self.port = free_port()  # which is still there to be listened on after a while without
        self.accept()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def settled(self):
        """Whether nothing was passed on for a fifth of a second."""
        return time.monotonic() - self._last > 0.2

    @property
    def open(self):
        """Connections through the proxy now."""
        return len(self._links)

    # ------------------------------------------------------------------------------------------------- faults

    def cut(self, how=RST):
        """Cut all connections now."""

        async def cut():
            for link in list(self._links):
                self._cut(link, how)

        self._call(cut)

    def cut_after(self, count, direction=None, how=RST):
        """Cut the next connection on which `count` more bytes were passed on in all, in a direction or in either."""

        async def light():
            self._fuse = _Fuse(count, (direction,) if direction else (UP, DOWN), how)

        self._call(light)

    @property
    def lit(self):
        """Whether a cut is still to come."""
        return self._fuse is not None

    def put_out(self):
        """Take a cut back that is still to come."""

        async def put_out():
            self._fuse = None

        self._call(put_out)

    def double(self):
        """Let the next connection reach the server twice: all that the client sends arrives on another one too.

        There it comes second: once the server has sent something on the first one.
        """
        self._doubled = True

    def hold(self, *directions):
        """Pass on nothing more, but keep the sockets: a half-open connection, for the ends."""
        self._let(dict.fromkeys(directions or (UP, DOWN), True))

    def release(self):
        """Pass on everything again, what was held back first."""
        self._let({UP: False, DOWN: False})

    def stay_dead(self):
        """Hold back for ever what is held back now, but nothing of connections that are still to come."""

        async def stay_dead():
            for link in self._links:
                link.dead |= {direction for direction, held in self._held.items() if held}
            self._held.update({UP: False, DOWN: False})

        self._call(stay_dead)

    def bury(self):
        """Cut the connections that were to stay dead."""

        async def bury():
            for link in [link for link in self._links if link.dead]:
                self._cut(link, RST)

        self._call(bury)

    def refuse(self):
        """Listen no more; connections that exist go on."""

        async def refuse():
            await _stop_listening(self._server)

        self._call(refuse)

    def accept(self):
        """Listen, again on the same port."""

        async def listen():
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

        self._call(listen)

    def close(self):
        """Cut everything and end the thread."""

        async def end():
            await _stop_listening(self._server)
            for link in list(self._links):
                link.cut(RST)
            await _end_tasks()

        self._call(end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    # ------------------------------------------------------------------------------------ on the loop's thread

    def _call(self, function):
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result(10)

    async def _new_event(self):
        return asyncio.Event()

    def _let(self, held):
        async def change():
            self._held.update(held)
            self._moved.set()
            self._moved = asyncio.Event()

        self._call(change)

    def _cut(self, link, how):
        self.cuts += 1
        link.cut(how)

    async def _serve(self, reader, writer):
        self.accepted += 1
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.upstream)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        link = _Link(writer, to_server)
        if self._doubled:
            self._doubled = False
            _, link.double = await asyncio.open_connection("127.0.0.1", self.upstream)
        self._links.add(link)
        pumps = [
            asyncio.ensure_future(self._pump(link, reader, to_server, UP)),
            asyncio.ensure_future(self._pump(link, from_server, writer, DOWN)),
        ]
        try:
            await link.ended.wait()
            for end in (writer, to_server):
                end.close()  # what is under way may still arrive
                with contextlib.suppress(OSError, asyncio.TimeoutError):
                    await asyncio.wait_for(end.wait_closed(), 1)
        finally:
            self._links.discard(link)
            for pump in pumps:
                pump.cancel()
            for end in filter(None, (writer, to_server, link.double)):
                end.transport.abort()

    async def _pump(self, link, reader, writer, direction):
        try:
            while data := await reader.read(2**16):
                while self._held[direction] or direction in link.dead:
                    await self._moved.wait()
                if self.delay_s or self.jitter_s:
                    await asyncio.sleep(self.delay_s + self._random.uniform(0, self.jitter_s))
                if not await self._pass_on(link, writer, direction, data) and (direction == UP or link.ended.is_set()):
                    return  # else it was a cut that the server hasn't noticed: its end is still to come
        except OSError:
            pass
        if direction == UP and link.client.transport.is_closing():  # cut on the client's side only
            return
        link.ended.set()

    async def _pass_on(self, link, writer, direction, data):
        """Write the data; False if the connection is cut there."""
        fuse = self._fuse
        burnt = fuse is not None and direction in fuse.directions and len(data) >= fuse.left
        if burnt:
            data, self._fuse = data[: fuse.left], None
        elif fuse is not None and direction in fuse.directions:
            fuse.left -= len(data)
        if direction == DOWN and link.double is not None:
            link.double.write(bytes(link.late))
            link.late.clear()
        size = self.piece or len(data) or 1  # read once: another thread may change it before all is written
        for start in range(0, len(data), size):
            writer.write(data[start : start + size])
            if direction == UP and link.double is not None:
                link.late += data[start : start + size]
            await writer.drain()
        self._last = time.monotonic()
        if direction == UP:
            self.bytes_up += len(data)
        else:
            self.bytes_down += len(data)
        if burnt:
            self._cut(link, fuse.how)
        return not burnt


class ScriptedServer:
    """A WebSocket server that does what a test says, on an event loop and a thread of its own.

    Args:
        script: a coroutine function that takes each connection; what it raises is in `errors`.
        subprotocol: what to select if it is offered.
    """

    def __init__(self, script, subprotocol=None, **options):
        self.errors = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-server")
        self._thread.start()

        async def handle(connection):
            try:
                await script(connection)
            except ConnectionClosed:
                pass
            except Exception as error:
                self.errors.append(error)

        async def listen():
            subprotocols = [subprotocol] if subprotocol else None
            return await serve(handle, "127.0.0.1", 0, subprotocols=subprotocols, compression=None, **options)

        self._server = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)
        self.url = f"http://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        async def close():
            await _stop_listening(self._server)
            await self._server.wait_closed()
            await _end_tasks()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        assert not self.errors, self.errors


class ServerProcess:
    """One of our servers in a process of its own, on a port that it keeps when it is started again.

    Args:
        env: a Gymnasium id or ``module:callable``; modules beside this one can be named.
        options: settings of the server.
    """

    def __init__(self, env, **options):
        self.env, self.options = env, options
        self.port = free_port()
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        """Start it (again), and wait until it answers."""
        self.pid = _nursery().bear({"env": self.env, "port": self.port, "options": self.options})

    def freeze(self):
        """Stop the process where it is."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self):
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self):
        """End it at once, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self):
        """End it in order: it closes its sessions and connections first."""
        self._end(signal.SIGTERM)

    def _end(self, number):
        pid, self.pid = self.pid, None
        os.kill(pid, number)
        wait_until(lambda: not _exists(pid), "the end of the server")

    def restart(self):
        """End it, and start it again: a server that knows nothing of its sessions."""
        self.kill()
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        if self.pid is not None:
            self.kill()


def _exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@functools.cache
def _nursery():
    return _Nursery()


class _Nursery:
    """A process that has imported the server, and forks one for each line of its input: many times faster."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        )
        atexit.register(self._end)

    def bear(self, configuration):
        self._process.stdin.write(json.dumps(configuration) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def _end(self):
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def _bear():
    """The process behind the nursery. It ends with its standard input, and its children end with it."""
    from openenv_gym.server.app import create_app
    from openenv_gym.server.run import make_server

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are nobody's zombies
    nursery = os.getpid()

    def started():
        print(os.getpid(), flush=True)
        threading.Thread(target=end_with_nursery, daemon=True).start()

    def end_with_nursery():
        while os.getppid() == nursery:
            time.sleep(0.1)
        os._exit(0)

    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            configuration = json.loads(line)
            app = create_app(configuration["env"], **configuration["options"])
            settings = app.state.registry.settings
            make_server(app, settings, port=configuration["port"], on_started=started).run()
            os._exit(0)


if __name__ == "__main__":
    _bear()
