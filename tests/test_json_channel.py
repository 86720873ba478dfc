"""A session in the OpenEnv dialect against servers that do what a test says."""

import asyncio
import json
import re

import pytest
from helpers_faults import FIN, RST, FaultProxy, ScriptedServer, collect_unclosed
from helpers_wait import LIMIT_S, until

from openenv_gym import json_channel, openenv_sessions
from openenv_gym.dial import Target, websocket_url
from openenv_gym.errors import (
    CapacityError,
    ConnectFailed,
    ConnectionLost,
    LocalProtocolError,
    MessageTooLarge,
    RemoteEnvError,
    RemoteProtocolError,
    SessionLost,
)
from openenv_gym.json_channel import JsonChannel, JsonConnection, ReplyLost
from openenv_gym.retry import insist

STATE = {"type": "state"}
STEP = {"type": "step", "data": {"action": 1}}


def reply(kind, **data):
    return json.dumps({"type": kind, "data": data})


def error(code, message="no", **facts):
    return reply("error", code=code, message=message, **facts)


def observation(n):
    return reply("observation", observation={"n": n}, reward=1.0, done=False)


def channel_to(server, **options):
    return JsonChannel(Target(websocket_url(getattr(server, "url", server)), **options))


async def hear(connection, kind):
    message = json.loads(await connection.recv())
    assert message["type"] == kind
    return message


async def greet(connection):
    """Answer the question that a channel asks first."""
    await hear(connection, "state")
    await connection.send(reply("state", step_count=0))


def against(script, test, **options):
    async def run(server):
        channel = channel_to(server, **options)
        await channel.open()
        try:
            await test(channel)
        finally:
            await channel.close(0.3)

    with ScriptedServer(script) as server:
        asyncio.run(run(server))


# ------------------------------------------------------------------------------------------------ opening


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize(
    "frame, kind, text",
    [
        (error("CAPACITY_REACHED", active_sessions=2, max_sessions=2), CapacityError, "2 of 2 are in use"),
        (error("CAPACITY_REACHED"), CapacityError, "it is full"),
        (error("FACTORY_ERROR", "no display"), RemoteEnvError, "no display"),
        (error("SESSION_ERROR", "what?"), RemoteEnvError, "what"),
    ],
)
def test_a_refusal_is_told_also_if_the_server_closes_before_it_is_asked(frame, kind, text, asked):
    async def refuse(connection):
        if asked:
            await connection.recv()
        await connection.send(frame)
        await connection.close()

    with ScriptedServer(refuse) as server:
        channel = channel_to(server)
        with pytest.raises(kind, match=text):
            asyncio.run(channel.open())
        assert channel.gone is not None
        assert channel.sessions_lost == 0


def test_a_state_that_cannot_be_had_is_no_obstacle():
    async def script(connection):
        await connection.recv()
        await connection.send(error("EXECUTION_ERROR", "this env has no state"))
        await hear(connection, "step")
        await connection.send(observation(1))
        await connection.wait_closed()

    async def test(channel):
        assert (await channel.ask(STEP))["observation"] == {"n": 1}

    against(script, test)


def test_a_connection_that_ends_at_once_is_told():
    async def leave(connection):
        await connection.close(1013, "later")

    with ScriptedServer(leave) as server, pytest.raises(ConnectionLost, match="later"):
        asyncio.run(channel_to(server).open())


def test_no_question_goes_out_before_there_is_a_session():
    async def run():
        with pytest.raises(SessionLost, match="not connected"):
            await channel_to("http://127.0.0.1:1").ask(STATE)
        with pytest.raises(ConnectFailed):
            await channel_to("http://127.0.0.1:1").open()

    asyncio.run(run())


# ---------------------------------------------------------------------------------------------- questions


def test_an_error_of_the_env_leaves_the_session():
    async def script(connection):
        await greet(connection)
        await hear(connection, "step")
        await connection.send(error("VALIDATION_ERROR", "bad action", errors=[{"loc": ["action"]}]))
        await hear(connection, "step")
        await connection.send(observation(1))
        await connection.wait_closed()

    async def test(channel):
        with pytest.raises(RemoteEnvError, match=r"bad action.*loc") as told:
            await channel.ask(STEP)
        assert told.value.code == "VALIDATION_ERROR"
        assert (await channel.ask(STEP))["reward"] == 1.0

    against(script, test)


@pytest.mark.parametrize("closes", [True, False])
def test_an_error_of_the_session_ends_it(closes):
    async def script(connection):
        await greet(connection)
        await connection.recv()
        await connection.send(error("SESSION_ERROR", "this one is broken"))
        if closes:
            await connection.close()
        await connection.wait_closed()

    async def test(channel):
        with pytest.raises(RemoteEnvError, match="this one is broken"):
            await channel.ask(STEP)
        with pytest.raises(SessionLost, match="this one is broken"):
            await channel.ask(STEP)
        assert channel.sessions_lost == 1

    against(script, test)


@pytest.mark.parametrize(
    "frame",
    ["no JSON", "[]", '"text"', "{}", '{"type": "observation"}', '{"type": "observation", "data": 3}', reply("state")],
)
def test_what_is_no_reply_to_the_question_ends_the_session(frame):
    async def script(connection):
        await greet(connection)
        await connection.recv()
        await connection.send(frame)
        await connection.wait_closed()

    async def test(channel):
        with pytest.raises(RemoteProtocolError):
            await channel.ask(STEP)
        with pytest.raises(SessionLost, match="sent"):
            await channel.ask(STEP)

    against(script, test)


def test_a_second_reply_is_not_taken_for_the_next_one():
    async def script(connection):
        await greet(connection)
        await hear(connection, "step")
        await connection.send(observation(1))
        await connection.send(observation("the same step again"))
        await connection.wait_closed()

    async def test(channel):
        assert (await channel.ask(STEP))["observation"] == {"n": 1}
        await until(lambda: channel._connection._unasked is not None)
        with pytest.raises(RemoteProtocolError, match="nobody asked for"):
            await channel.ask(STEP)
        with pytest.raises(SessionLost):
            await channel.ask(STEP)

    against(script, test)


def test_a_late_reply_is_never_read():
    connections = []

    async def script(connection):
        connections.append(connection)
        await greet(connection)
        await hear(connection, "step")
        if len(connections) == 1:
            await until(lambda: len(connections) == 2)
            await connection.send(observation("late"))
        await connection.send(observation("new"))
        await connection.wait_closed()

    async def test(channel):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(channel.ask(STEP), 0.05)
        with pytest.raises(SessionLost, match="late"):
            await channel.ask(STEP)
        await channel.open()
        assert (await channel.ask(STEP))["observation"] == {"n": "new"}
        assert channel.sessions_lost == 1

    against(script, test)


def test_two_questions_at_once_are_refused():
    async def script(connection):
        await greet(connection)
        await hear(connection, "step")
        await connection.send(observation(1))
        await connection.wait_closed()

    async def test(channel):
        first = asyncio.ensure_future(channel.ask(STEP))
        await asyncio.sleep(0)
        with pytest.raises(LocalProtocolError, match="one question at a time"):
            await channel.ask(STEP)
        assert (await first)["observation"] == {"n": 1}

    against(script, test)


def test_a_reply_over_the_limit_is_told():
    async def script(connection):
        await greet(connection)
        await connection.recv()
        await connection.send(observation("x" * 20_000))
        await connection.wait_closed()

    async def test(channel):
        with pytest.raises(MessageTooLarge, match="10,000"):
            await channel.ask(STEP)
        with pytest.raises(SessionLost, match="10,000"):
            await channel.ask(STEP)

    against(script, test, max_message_bytes=10_000)


@pytest.mark.parametrize("asking", [True, False])
@pytest.mark.parametrize("how", [RST, FIN])
def test_a_connection_that_breaks_ends_the_session(how, asking):
    async def script(connection):
        await greet(connection)
        await connection.recv()

    async def run(server):
        with FaultProxy(server.url) as proxy:
            channel = channel_to(proxy)
            await channel.open()
            question = asyncio.ensure_future(channel.ask(STEP)) if asking else None
            await asyncio.sleep(0)
            proxy.cut(how)
            if question is not None:
                with pytest.raises(SessionLost):
                    await question
            await until(lambda: channel.gone is not None)
            with pytest.raises(SessionLost):
                await channel.ask(STEP)
            assert channel.sessions_lost == 1
            await channel.open()
            await channel.close()

    with ScriptedServer(script) as server:
        asyncio.run(run(server))


# --------------------------------------------------------------------------------------------------- ends


def test_closing_waits_until_the_server_has_freed_the_slot():
    log = []

    async def script(connection):
        await greet(connection)
        await hear(connection, "close")
        await (await connection.ping())  # a round trip, in which an impatient client would be gone
        log.append("freed")
        await connection.close()

    async def run(server):
        channel = channel_to(server)
        await channel.open()
        await channel.close(LIMIT_S)
        log.append("closed")
        await channel.close(LIMIT_S)

    with ScriptedServer(script) as server:
        asyncio.run(run(server))
    assert log == ["freed", "closed"]


def test_closing_is_bounded_and_tells_whoever_waits():
    async def script(connection):
        await greet(connection)
        await connection.wait_closed()

    async def run(server):
        loop = asyncio.get_running_loop()
        channel = channel_to(server)
        await channel.open()
        question = asyncio.ensure_future(channel.ask(STEP))
        await asyncio.sleep(0)
        started = loop.time()
        await channel.close(0.2)
        assert loop.time() - started < 10  # the server would never end it
        with pytest.raises(SessionLost, match="closed by this side"):
            await question
        assert channel.sessions_lost == 0
        await until(lambda: len(asyncio.all_tasks()) == 1)  # this one

    with ScriptedServer(script) as server:
        asyncio.run(run(server))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the connection that nobody closed
def test_a_connection_ends_with_its_event_loop():
    async def script(connection):
        await greet(connection)
        await hear(connection, "step")
        await connection.send(observation(1))
        await connection.recv()

    async def step(channel):
        return (await channel.ask(STEP))["observation"]

    async def reopen(channel):
        await channel.open()
        observed = await step(channel)
        await channel.close()
        return observed

    with ScriptedServer(script) as server:
        channel = channel_to(server)
        asyncio.run(channel.open())
        with pytest.raises(SessionLost, match="its event loop has ended") as told:
            asyncio.run(step(channel))
        assert asyncio.run(reopen(channel)) == {"n": 1}
    del told
    collect_unclosed()


def test_two_running_loops_do_not_share_a_connection():
    async def script(connection):
        await greet(connection)
        await connection.wait_closed()

    async def run(server):
        channel = channel_to(server)
        await channel.open()
        with pytest.raises(LocalProtocolError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, channel.ask(STATE))
        await channel.close(0.2)

    with ScriptedServer(script) as server:
        asyncio.run(run(server))


# -------------------------------------------------------------------------------------------- lasting ones


class Lasting:
    """A server whose sessions outlive their connections, as OpenEnv's do."""

    def __init__(self, monkeypatch):
        self.attached, self.destroyed, self.count, self.refusals = [], [], 0, []

        async def create(target):
            return openenv_sessions.LastingSession("s1", ("127.0.0.1", 1))

        async def destroy(target, session, timeout_s):
            self.destroyed.append(session.name)

        monkeypatch.setattr(openenv_sessions, "create", create)
        monkeypatch.setattr(openenv_sessions, "destroy", destroy)

    async def script(self, connection):
        self.attached.append(connection.request.path)
        while True:
            kind = json.loads(await connection.recv())["type"]
            if kind == "close":
                return
            if self.refusals and len(self.attached) > 1:
                await connection.send(error("SESSION_ERROR", self.refusals.pop()))
                await connection.close()
            elif kind == "state":
                await connection.send(reply("state", step_count=self.count))
            elif self.count < 0:
                connection.transport.abort()
            else:
                self.count += 1
                await connection.send(observation(self.count))


@pytest.fixture
def lasting(monkeypatch):
    return Lasting(monkeypatch)


def with_lasting(lasting, test):
    async def run(server):
        with FaultProxy(server.url) as proxy:
            channel = JsonChannel(Target(websocket_url(proxy.url)), lasting=True, reconnect_timeout_s=LIMIT_S)
            await channel.open()
            await test(channel, proxy)
            await channel.close(1)

    with ScriptedServer(lasting.script) as server:
        asyncio.run(run(server))


def test_a_lasting_session_is_attached_to_again(lasting):
    async def test(channel, proxy):
        await channel.ask(STEP)
        lasting.refusals = ["Session s1 already has an attached WebSocket"] * 2
        proxy.cut()
        await until(lambda: channel._connection is None)
        assert channel.gone is None
        assert (await channel.ask(STEP))["observation"] == {"n": 2}
        assert (channel.reconnects, channel.sessions_lost) == (1, 0)

    with_lasting(lasting, test)
    assert set(lasting.attached) == {"/ws?session_id=s1"}
    assert lasting.destroyed == ["s1"]


@pytest.mark.parametrize("when", ["with its first reply", "before it is used"])
def test_a_new_connection_may_break_at_once(lasting, monkeypatch, when):
    cuts = iter([True, False])

    class Brief(JsonConnection):
        def _take(self, frame):
            super()._take(frame)
            if when == "with its first reply" and len(lasting.attached) == 2:
                self._end(ConnectionLost("ws://there", "no close frame"))

    async def test(channel, proxy):
        async def insisted(*arguments, **options):
            await insist(*arguments, **options)
            if when == "before it is used" and next(cuts):
                proxy.cut()
                await until(lambda: channel._connection is None)

        monkeypatch.setattr(json_channel, "insist", insisted)
        proxy.cut()
        await until(lambda: channel._connection is None)
        assert (await channel.ask(STEP))["observation"] == {"n": 1}
        assert (len(lasting.attached), channel.sessions_lost) == (3, 0)

    monkeypatch.setattr(json_channel, "JsonConnection", Brief)
    with_lasting(lasting, test)


def test_a_session_may_end_while_it_is_attached_to_again(lasting, monkeypatch):
    async def test(channel, proxy):
        async def insisted(*arguments, **options):
            await insist(*arguments, **options)
            channel.retire(ConnectionLost("ws://there", "a message was too large"))

        monkeypatch.setattr(json_channel, "insist", insisted)
        proxy.cut()
        await until(lambda: channel._connection is None)
        with pytest.raises(SessionLost, match="too large"):
            await channel.ask(STEP)
        assert (len(lasting.attached), channel.sessions_lost) == (2, 1)

    with_lasting(lasting, test)


def test_a_lasting_session_says_that_a_reply_was_lost(lasting):
    async def test(channel, proxy):
        await channel.ask(STEP)
        lasting.count = -1
        with pytest.raises(ReplyLost):
            await channel.ask(STEP)
        lasting.count = 5
        assert (await channel.ask(STATE))["step_count"] == 5

    with_lasting(lasting, test)


def test_a_lasting_session_may_be_unknown_one_day(lasting):
    async def test(channel, proxy):
        lasting.refusals = ["Unknown session_id: s1"]
        proxy.cut()
        await until(lambda: channel._connection is None)
        with pytest.raises(SessionLost, match="Unknown session_id"):
            await channel.ask(STEP)
        assert channel.sessions_lost == 1
        await channel.open()
        assert (await channel.ask(STEP))["observation"] == {"n": 1}

    with_lasting(lasting, test)


def test_a_lasting_session_is_closed_when_a_reply_is_late(lasting):
    async def test(channel, proxy):
        proxy.hold()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(channel.ask(STEP), 0.05)
        proxy.release()
        await until(lambda: lasting.destroyed == ["s1"])

    with_lasting(lasting, test)


@pytest.mark.parametrize(
    "errors, text",
    [
        (
            [
                {"type": "extra_forbidden", "loc": ["too"], "msg": "Extra inputs are not permitted", "input": 1},
                {"type": "missing", "loc": ["to"], "msg": "Field required", "url": "https://errors.pydantic.dev"},
            ],
            "no: there is no field 'too'; the field 'to' is missing",
        ),
        ([{"type": "int_type", "loc": ["arm", 0], "msg": "Input should be a valid integer"}], "no: arm.0: Input"),
        ([{"type": "missing", "loc": [str(n)]} for n in range(9)], r"'7' is missing; …$"),
        ("whatever", "no: whatever"),
        ([1, {}], r"no: \[1, {}\]"),
    ],
    ids=["names", "nested", "many", "text", "other"],
)
def test_what_is_wrong_with_an_action_is_told_in_words(errors, text):
    error = json_channel.reported(Target("ws://a/ws"), {"code": "VALIDATION_ERROR", "message": "no", "errors": errors})
    assert isinstance(error, RemoteEnvError)
    assert re.match(text, error.message) if text.startswith("no") else re.search(text, error.message)
    assert "pydantic.dev" not in str(error)
