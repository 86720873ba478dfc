"""The server's core without a network: registries, and connections that are queues."""

import asyncio
import contextlib
import threading

from helpers_wait import LIMIT_S, until

from openenv_gym import codec
from openenv_gym.messages import PROTOCOL_VERSION, Hello, Resume
from openenv_gym.server.adapters import EnvSource
from openenv_gym.server.batch_dialect import converse
from openenv_gym.server.encoding import BatchEncoding
from openenv_gym.server.registry import Registry
from openenv_gym.server.settings import ServerSettings


def run(coroutine):
    """Run a coroutine in an event loop of its own, within the limit."""
    return asyncio.run(asyncio.wait_for(coroutine, LIMIT_S))


STEP_S = 8
"""A limit that some env shall exceed and no other one ever does: tests don't wait for it, but `skip` it."""


def skip(seconds):
    """Let time pass for the running event loop: what it is to do by then, it does next."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds


async def run_out(session, *hanging):
    """Skip the limit of what a session does, once all of its envs but these have done their part."""
    for number, worker in enumerate(session.crew.workers):
        if number not in hanging:
            done = threading.Event()
            worker.submit(done.set)
            await until(done.is_set)
    skip(STEP_S)


def make_registry(env, **options):
    """The sessions of a server."""
    settings = ServerSettings(**options)
    return Registry(EnvSource(env, settings.env_kwargs, name=settings.env_name), settings)


def encoding_of(registry):
    """The batch dialect's encoding of a server's envs."""
    return BatchEncoding(registry.probe.observation_space, registry.probe.action_space)


class FakeConnection:
    """A WebSocket as the batch dialect sees it, and its client's side: two queues.

    Attributes:
        sent: frames that the server sent.
        closed: (code, reason) once the server closed it.
        broken: whether it is broken; sending then fails.
    """

    def __init__(self):
        self.sent = []
        self.closed = None
        self.broken = False
        self.stalled = None
        self.frames = asyncio.Queue()
        self._arrived = asyncio.Event()
        self._read = 0

    # the server's side

    async def send(self, frame):
        if self.stalled is not None:
            await self.stalled.wait()
        if self.broken or self.closed:
            raise ConnectionError("gone")
        self.sent.append(frame)
        self._arrived.set()

    async def close(self, code, reason):
        if self.stalled is not None:
            await self.stalled.wait()
        if self.closed is None:
            self.closed = (code, reason)
            self.frames.put_nowait(None)
            self._arrived.set()

    async def receive(self):
        frame = await self.frames.get()
        if frame is None:
            raise ConnectionError("gone")
        return frame

    # the client's side

    def write(self, frame):
        self.frames.put_nowait(frame if isinstance(frame, bytes) else codec.encode(frame))

    def cut(self):
        """Break it."""
        self.broken = True
        self.frames.put_nowait(None)

    async def read(self, decode=codec.decode_reply):
        """The next message of the server."""
        while len(self.sent) <= self._read:
            assert self.closed is None, f"closed: {self.closed}"
            self._arrived.clear()
            await self._arrived.wait()
        self._read += 1
        return decode(self.sent[self._read - 1])

    async def ask(self, request):
        """Send a request and give the reply."""
        self.write(request)
        return await self.read()


class Talk:
    """A connection that is being served.

    Attributes:
        connection: the connection.
        task: what serves it.
        welcome: the server's first message.
    """

    def __init__(self, registry):
        self.connection = FakeConnection()
        self.task = asyncio.ensure_future(converse(registry, self.connection, self.connection.receive))
        self.welcome = None

    @classmethod
    async def hello(cls, registry, num_envs=1, **fields):
        """Open a session; or fail to: then `welcome` is what the server said."""
        talk = cls(registry)
        talk.connection.write(Hello(**{"version": PROTOCOL_VERSION, "num_envs": num_envs, **fields}))
        talk.welcome = await talk.connection.read(codec.decode_answer)
        return talk

    @classmethod
    async def resume(cls, registry, welcome, received, **fields):
        """Resume a session; or fail to: then `welcome` is what the server said."""
        talk = cls(registry)
        shown = {"session": welcome.session, "secret": welcome.secret, "received": received}
        talk.connection.write(Resume(**{"version": PROTOCOL_VERSION, **shown, **fields}))
        talk.welcome = await talk.connection.read(codec.decode_answer)
        return talk

    async def ask(self, request):
        return await self.connection.ask(request)

    async def cut(self):
        """Break the connection, and wait until the server knows."""
        self.connection.cut()
        await self.ended()

    async def ended(self):
        """Wait until the connection is no longer served."""
        with contextlib.suppress(ConnectionError):
            await self.task
