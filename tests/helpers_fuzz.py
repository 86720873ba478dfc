"""Clients that do anything, in any order, to a real session, and know what must come of it.

What they do is read from bytes, so that Hypothesis and a coverage-guided fuzzer (fuzz/) can both play them.
"""

import asyncio
import json

import msgspec
import numpy as np
from helpers_core import FakeConnection, Talk, make_registry
from helpers_tally import Tally

from openenv_gym import codec
from openenv_gym.errors import RemoteProtocolError
from openenv_gym.messages import (
    PROTOCOL_VERSION,
    Array,
    Call,
    Close,
    Closed,
    Failed,
    Get,
    Hello,
    Observed,
    Render,
    Reset,
    Resume,
    Resumed,
    Returned,
    Set,
    State,
    Step,
    Stepped,
    Values,
)
from openenv_gym.server import openenv_dialect
from openenv_gym.server.json_sessions import JsonSessions
from openenv_gym.server.openenv_messages import CloseMessage, DialectError

REPLY_S = 20
"""Seconds after which a reply that doesn't come is a hang."""

WORDS = (
    b"type",
    b"reset",
    b"step",
    b"batch_step",
    b"state",
    b"close",
    b"data",
    b"\xc7",
    b"\xdd\xff\xff\xff\xff",
    b"{[",
)


class Dice:
    """Choices read from bytes; all are the first one when the bytes are used up."""

    def __init__(self, data):
        self._data, self._at = data, 0

    @property
    def over(self):
        return self._at >= len(self._data)

    def below(self, limit):
        value = self._data[self._at] if not self.over else 0
        self._at += 1
        return value % limit

    def one_of(self, choices):
        return choices[self.below(len(choices))]

    def bytes(self):
        count = self.below(48)
        self._at += count
        return self._data[self._at - count : self._at]

    def damaged(self, frame):
        """A frame with one to three changes."""
        for _ in range(1 + self.below(3)):
            at = (self.below(256) << 8 | self.below(256)) % (len(frame) + 1)
            insert = self.one_of([self.bytes, lambda: bytes([self.below(256)]), lambda: self.one_of(WORDS)])()
            frame = frame[:at] + insert + frame[at + self.one_of([0, 1, len(insert), len(frame)]) :]
        return frame


class Toy(Tally):
    """A `Tally` with a method that may be called, and an attribute that may be set."""

    metadata = {"render_modes": []}
    mark = 0

    def echo(self, *args, **kwargs):
        return [*args, kwargs]

    def render(self):
        return np.zeros((2, 2, 3), np.uint8)


def registry_for_fuzzing():
    """A server's sessions, with little room and no patience."""
    return make_registry(Toy, max_envs=4, max_workers=2, allow_call={"echo"}, allow_set={"mark"}, grace_s=1000)


class BatchClient:
    """A client of the batch dialect; `play` it.

    Attributes:
        messages: frames sent so far.
    """

    ENVS = 2

    def __init__(self, registry):
        self.registry = registry
        self.messages = 0
        self._received = 0  # replies, and so requests
        self._frames = []
        self._alive = True
        self._executed = {}

    async def play(self, dice):
        """Do what the dice say, then see that the session still lives, and that nothing is left of it."""
        self._talk = await Talk.hello(self.registry, self.ENVS)
        self._welcome = self._talk.welcome
        deeds = [self._ask] * 3 + [self._damage, self._garbage, self._repeat, self._misnumber]
        deeds += [self._cut, self._lose_a_reply, self._take_over, self._impostor]
        while self._alive and not dice.over:
            await dice.one_of(deeds)(dice)
        if self._alive:
            assert isinstance(await self._send(State(self._received + 1, None)), Returned)
            await self._send(Close(self._received + 1))
        assert not self._alive
        await asyncio.wait_for(self._talk.ended(), REPLY_S)
        assert (self.registry.sessions, self.registry.capacity.active) == ({}, 0)

    async def _send(self, message):
        """Send a frame, and check the one reply that it must have, or that it has none."""
        frame = message if isinstance(message, bytes) else codec.encode(message)
        self._frames.append(frame)
        self.messages += 1
        self._talk.connection.write(frame)
        request = self._read(frame)
        if request is not None and 0 < request.id <= self._received:
            return None  # it is dropped; a reply would be taken for the next request's
        reply = await self._reply()
        if request is None or request.id != self._received + 1:
            assert isinstance(reply, Failed)
            assert reply.id == 0
            return reply
        self._received += 1
        assert reply.id == request.id
        self._alive = not isinstance(request, Close)
        assert self._alive or isinstance(reply, Closed)
        self._check(request, reply)
        return reply

    def _read(self, frame):
        try:
            return codec.decode_request(frame)
        except RemoteProtocolError:
            return None

    async def _reply(self):
        return await asyncio.wait_for(self._talk.connection.read(), REPLY_S)

    def _check(self, request, reply):
        """No env's step is lost or taken twice."""
        if not isinstance(reply, (Observed, Stepped)):
            return
        slots = list(range(self.ENVS)) if request.slots is None else request.slots
        failed = {failure.slot for failure in reply.failures}
        for position, slot in enumerate(slots):
            if slot in failed:
                self._executed.pop(slot, None)
                continue
            row = reply.observations[0].numpy()[position]
            executed, t, before = int(row[3]), int(row[1]), self._executed.get(slot)
            stepped = isinstance(reply, Stepped) and (t > 0 or (reply.final and position in reply.final.positions))
            assert before is None or executed == before + bool(stepped)
            self._executed[slot] = executed

    def _request(self, dice):
        id = self._received + 1
        slots = dice.one_of([None, None, [0], [1], [1, 0]])
        count = self.ENVS if slots is None else len(slots)
        return dice.one_of(
            [
                lambda: Reset(id, slots, [dice.below(256)] * count, None),
                lambda: Step(id, slots, [Array.of(np.zeros(count, np.int64))], dice.one_of(["NextStep", "SameStep"])),
                lambda: Step(id, slots, [Array.of(np.full(count, dice.below(6)))], dice.one_of(["Disabled", None])),
                lambda: Step(id, slots, [Values([codec.pack(dice.bytes())] * count)], "NextStep"),
                lambda: Reset(id, slots, None, [codec.pack({"a": (1, dice.bytes())})] * count),
                lambda: Call(id, slots, dice.one_of(["echo", "close"]), [codec.pack(dice.bytes())], {"k": 2}),
                lambda: Get(id, slots, dice.one_of(["t", "np_random", "_private", "no_such_thing"])),
                lambda: Set(id, slots, dice.one_of(["mark", "t"]), [codec.pack({1: (2,)})] * count),
                lambda: Render(id, slots),
                lambda: State(id, slots),
                lambda: Close(id),
            ]
        )()

    async def _ask(self, dice):
        await self._send(self._request(dice))

    async def _damage(self, dice):
        await self._send(dice.damaged(codec.encode(self._request(dice))))

    async def _garbage(self, dice):
        await self._send(dice.bytes())

    async def _repeat(self, dice):
        if self._frames:
            await self._send(self._frames[-1 - dice.below(len(self._frames))])

    async def _misnumber(self, dice):
        await self._send(msgspec.structs.replace(self._request(dice), id=dice.one_of([0, -1, 2**63, 10**6])))

    async def _cut(self, dice):
        await self._talk.cut()
        await self._resume()

    async def _lose_a_reply(self, dice):
        """Cut after a request was sent; its reply comes with the resume, once."""
        request = self._request(dice)
        if isinstance(request, Close):
            return
        self.messages += 1
        self._talk.connection.write(request)
        await self._talk.cut()
        await self._resume(ran=1)
        reply = await self._reply()
        self._received += 1
        assert reply.id == self._received
        self._check(request, reply)

    async def _take_over(self, dice):
        old = self._talk
        await self._resume()
        await asyncio.wait_for(old.ended(), REPLY_S)
        assert old.connection.closed == (4409, "resumed on another connection")

    async def _resume(self, ran=0):
        self._talk = await asyncio.wait_for(Talk.resume(self.registry, self._welcome, self._received), REPLY_S)
        assert self._talk.welcome == Resumed(received=self._received + ran)

    async def _impostor(self, dice):
        """Another connection that opens with anything; it is refused, or gets a session of its own."""
        secret = dice.one_of(["", "x", self._welcome.secret[:-1]])
        opening = dice.one_of(
            [
                Resume(version=PROTOCOL_VERSION, session=self._welcome.session, secret=secret, received=0),
                Hello(version=dice.below(3), num_envs=dice.one_of([1, 3, 0, -1, 2**62]), include=dice.one_of([["a"]])),
            ]
        )
        frame = dice.one_of([lambda: codec.encode(opening), lambda: dice.damaged(codec.encode(opening)), dice.bytes])()
        self.messages += 1
        talk = Talk(self.registry)
        talk.connection.write(frame)
        answer = await asyncio.wait_for(talk.connection.read(codec.decode_answer), REPLY_S)
        if not isinstance(answer, Failed):
            assert self._welcome.session != getattr(answer, "session", None)
            talk.connection.write(Close(1))
        await asyncio.wait_for(talk.ended(), REPLY_S)


class JsonClient:
    """A client of OpenEnv's dialect; `play` it.

    Attributes:
        messages: messages sent so far.
    """

    def __init__(self, registry):
        self.registry = registry
        self.messages = 0

    async def play(self, dice):
        """Do what the dice say, then see that the session still lives, and that nothing is left of it."""
        query = dice.one_of([{}, {}, {"num_envs": "2"}])
        self._connection = FakeConnection()
        talk = openenv_dialect.converse(JsonSessions(self.registry), self._connection, self._connection.receive, query)
        task = asyncio.ensure_future(talk)
        alive = True
        while alive and not dice.over:
            alive = await self._send(self._message(dice))
        if alive:
            await self._send(b'{"type": "state"}', expected="state")
            self._connection.frames.put_nowait('{"type": "close"}')
        await asyncio.wait_for(task, REPLY_S)
        assert (self.registry.sessions, self.registry.capacity.active) == ({}, 0)

    def _message(self, dice):
        action = {"action": dice.one_of([0, 1, 9, -1, 0.5, "up", None, [1]])}
        message = dice.one_of(
            [
                {"type": "reset", "data": {"seed": dice.one_of([0, 2**70, -1, "a"])}},
                {"type": "reset", "data": dice.one_of([{"options": {"a": 1}}, {"include": ["a"]}, {"render": True}])},
                {"type": "step", "data": action},
                {"type": "step", "data": action},
                {"type": "batch_step", "data": {"actions": [action] * dice.below(4)}},
                {"type": "state"},
                {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}},
                {"type": "close"},
            ]
        )
        text = json.dumps(message).encode()
        return dice.one_of([lambda: text, lambda: text, lambda: dice.damaged(text), dice.bytes])()

    async def _send(self, data, expected=None):
        """Send a message, and check its one reply; False if it said `close`."""
        try:
            message = data.decode()
        except UnicodeDecodeError:
            message = data  # a binary frame
        self.messages += 1
        self._connection.frames.put_nowait(message)
        try:
            closes = isinstance(openenv_dialect._read(message, exact=False), CloseMessage)
        except DialectError:
            closes = False
        if closes:
            return False
        reply = await asyncio.wait_for(self._connection.read(json.loads), REPLY_S)
        assert reply["type"] in ((expected,) if expected else ("observation", "state", "mcp", "error"))
        assert isinstance(reply["data"], dict)
        return True
