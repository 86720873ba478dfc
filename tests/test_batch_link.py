"""A link in the batch dialect against servers that do what a test says."""

import asyncio

import pytest
from helpers_faults import RST, FaultProxy, ScriptedServer
from helpers_server import running
from helpers_tally import Tally
from helpers_wait import until, wait_until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from openenv_gym import codec
from openenv_gym.batch_link import BatchLink
from openenv_gym.dial import Target, dial, websocket_url
from openenv_gym.errors import (
    CapacityError,
    ConnectFailed,
    ConnectionLost,
    MessageTooLarge,
    ProtocolVersionError,
    RemoteEnvError,
    SessionLost,
)
from openenv_gym.link import FrameConnection
from openenv_gym.messages import (
    PROTOCOL_VERSION,
    SUBPROTOCOL,
    WINDOW,
    Closed,
    Failed,
    Hello,
    Observed,
    Reset,
    Resume,
    Resumed,
    Returned,
    State,
    Welcome,
)
from openenv_gym.server import create_app
from openenv_gym.spaces import describe

HELLO = Hello(version=PROTOCOL_VERSION, num_envs=1)
RESET = Reset(0, None, None, None)
STATE = State(0, None)


TALLY = Tally()


def welcome(version=PROTOCOL_VERSION, observation_space=TALLY.observation_space):
    return codec.encode(
        Welcome(
            version=version,
            server="scripted",
            env="scripted",
            session="name",
            secret="secret",
            observation_space=describe(observation_space),
            action_space=describe(Tally.action_space),
            metadata={},
            grace_s=60.0,
            max_message_bytes=10_000_000,
        )
    )


def returned(id, value):
    return codec.encode(Returned(id, [value], []))


def observed(id):
    return codec.encode(Observed(id, [], {}, []))


async def greet(connection, frame=None):
    """Take the Hello and answer it."""
    assert isinstance(codec.decode_opening(await connection.recv()), Hello)
    await connection.send(frame or welcome())


async def next_request(connection):
    return codec.decode_request(await connection.recv())


async def open_link(url, reconnect_timeout_s=5.0, hello=HELLO, **options):
    target = Target(websocket_url(url), **options)
    link = BatchLink(target, hello, reconnect_timeout_s=reconnect_timeout_s)
    await link.open(await dial(target, subprotocols=[SUBPROTOCOL], connection=FrameConnection))
    return link


def start(link, request):
    """Send a request, and give the future of what is delivered; to deliver twice is an error."""
    answer = asyncio.get_running_loop().create_future()
    link.start(request, answer.set_result)
    return answer


async def ask(link, request):
    return await asyncio.wait_for(start(link, request), 10)


def against(script, test, **options):
    """Run a test's coroutine with a link to a server that follows a script."""

    async def run(url):
        link = await open_link(url, **options)
        try:
            await test(link)
        finally:
            await link.close(0.2)

    with ScriptedServer(script, SUBPROTOCOL) as server:
        asyncio.run(run(server.url))


class TestOpening:
    @pytest.mark.parametrize(
        "frame, error, text",
        [
            (Failed(0, "CAPACITY_REACHED", "", "full", {"active": 3, "maximum": 4}), CapacityError, "3 of 4"),
            (Failed(0, "FACTORY_ERROR", "", "no such env"), RemoteEnvError, "no such env"),
            (Failed(0, "VERSION_MISMATCH", "", "old", {"version": 7}), ProtocolVersionError, "version 7"),
            (Failed(0, "GOING_AWAY", "", "shutting down"), ConnectFailed, "shutting down"),
            (Failed(0, "SESSION_EXPIRED", "", "unknown session"), SessionLost, "unknown session"),
            (Resumed(received=0), RuntimeError, "unexpected Resumed"),
        ],
    )
    def test_a_refusal_is_told(self, frame, error, text):
        async def refuse(connection):
            await greet(connection, codec.encode(frame))
            await connection.wait_closed()

        with ScriptedServer(refuse, SUBPROTOCOL) as server, pytest.raises(error, match=text):
            asyncio.run(open_link(server.url))

    def test_another_version_is_refused(self):
        async def future(connection):
            await greet(connection, welcome(version=99))
            await connection.wait_closed()

        with ScriptedServer(future, SUBPROTOCOL) as server, pytest.raises(ProtocolVersionError, match="99"):
            asyncio.run(open_link(server.url))

    @pytest.mark.parametrize("how", ["close", "abort"])
    def test_a_connection_may_end_before_the_answer(self, how):
        async def leave(connection):
            await connection.recv()
            if how == "abort":
                connection.transport.abort()
            else:
                await connection.close(1013, "try again later")

        with ScriptedServer(leave, SUBPROTOCOL) as server, pytest.raises(ConnectionLost) as lost:
            asyncio.run(open_link(server.url))
        assert how == "abort" or "try again later" in str(lost.value)

    def test_what_follows_the_welcome_at_once_must_be_a_reply(self):
        async def babble(connection):
            await greet(connection)
            await connection.send(returned(1, "nobody asked"))
            await connection.wait_closed()

        async def test(link):
            await until(lambda: link.counters["sessions_lost"])
            assert isinstance(await ask(link, STATE), SessionLost)

        against(babble, test)


class TestReplies:
    def test_each_goes_to_its_request(self):
        async def script(connection):
            await greet(connection)
            for _ in range(2):
                first, second = await next_request(connection), await next_request(connection)
                await connection.send(returned(first.id, "first"))
                await connection.send(returned(second.id, "second"))

        async def test(link):
            for _ in range(2):
                first, second = start(link, STATE), start(link, STATE)
                assert (await second).values == ["second"]
                assert first.result().values == ["first"]

        against(script, test)

    def test_one_that_comes_twice_is_dropped(self):
        async def script(connection):
            await greet(connection)
            for n in (1, 2):
                request = await next_request(connection)
                await connection.send(returned(request.id, n))
                await connection.send(returned(request.id, "again"))

        async def test(link):
            assert [(await ask(link, STATE)).values for _ in range(2)] == [[1], [2]]
            assert link.counters["sessions_lost"] == 0

        against(script, test)

    @pytest.mark.parametrize(
        "frame", [returned(9, "no such request"), b"", b"\xff\x00", welcome(), returned(0, "none")]
    )
    def test_what_is_no_reply_costs_the_session(self, frame):
        connections = []

        async def script(connection):
            connections.append(connection)
            await greet(connection)
            request = await next_request(connection)
            if len(connections) == 1:
                await connection.send(frame)
                await connection.wait_closed()
            await connection.send(observed(request.id))
            await next_request(connection)

        async def test(link):
            error = await ask(link, STATE)
            assert isinstance(error, SessionLost)
            assert await ask(link, STATE) is error
            assert isinstance(await ask(link, RESET), Observed)
            assert link.counters == {"reconnects": 0, "sessions_lost": 1}

        against(script, test)

    def test_a_session_that_expired_is_lost_and_its_connection_is_read_no_more(self):
        first = []

        async def script(connection):
            await greet(connection)
            request = await next_request(connection)
            if not first:
                first.append(connection)
                await connection.send(codec.encode(Failed(request.id, "SESSION_EXPIRED", "", "it was closed")))
                while True:  # the ids of the next session begin at 1 too
                    await connection.send(returned(1, "from the old session"))
                    await asyncio.sleep(0)
            await connection.ping()
            await connection.send(observed(request.id))
            await connection.send(returned((await next_request(connection)).id, "new"))
            await next_request(connection)

        async def test(link):
            expired = await ask(link, STATE)
            assert isinstance(expired, SessionLost)
            assert expired.reason == "it was closed"
            assert isinstance(await ask(link, RESET), Observed)
            assert (await ask(link, STATE)).values == ["new"]
            assert link.counters["sessions_lost"] == 1

        against(script, test)

    def test_one_that_is_too_large_is_told(self):
        async def script(connection):
            await greet(connection)
            request = await next_request(connection)
            facts = {"size": 123_456, "limit": 1000}
            await connection.send(codec.encode(Failed(request.id, "MESSAGE_TOO_LARGE", "", "too large", facts)))
            await next_request(connection)

        async def test(link):
            error = await ask(link, STATE)
            assert isinstance(error, MessageTooLarge)
            assert "123,456" in str(error)
            assert link.counters["sessions_lost"] == 0

        against(script, test)

    def test_one_over_this_sides_limit_is_told_and_not_asked_for_again(self):
        connections = []

        async def script(connection):
            connections.append(connection)
            await greet(connection)
            request = await next_request(connection)
            await connection.send(returned(request.id, "x" * 100_000))
            await connection.wait_closed()

        async def test(link):
            error = await ask(link, STATE)
            assert isinstance(error, MessageTooLarge)
            assert error.limit == 50_000
            assert isinstance(await ask(link, STATE), SessionLost)
            assert len(connections) == 1

        against(script, test, max_message_bytes=50_000)


class TestResuming:
    def test_requests_that_did_not_arrive_are_sent_again_and_replies_are_not_used_twice(self):
        log = []

        async def script(connection):
            opening = codec.decode_opening(await connection.recv())
            if isinstance(opening, Hello):
                await connection.send(welcome())
                log.extend([(await next_request(connection)).id for _ in range(2)])
                await connection.send(returned(1, "one"))
                connection.transport.abort()
                return
            assert isinstance(opening, Resume)
            log.append(("resume", opening.session, opening.secret, opening.received))
            await connection.send(codec.encode(Resumed(received=2)))
            await connection.send(returned(1, "one again"))
            await connection.send(returned(2, "two"))
            log.append((await next_request(connection)).id)
            await connection.send(returned(3, "three"))
            await next_request(connection)

        async def test(link):
            answers = [start(link, STATE) for _ in range(2)]
            assert (await answers[0]).values == ["one"]
            answers.append(start(link, STATE))  # on a connection that is broken, or about to be
            assert [(await answer).values for answer in answers] == [["one"], ["two"], ["three"]]
            assert log in ([1, 2, ("resume", "name", "secret", n), 3] for n in (0, 1))
            await until(lambda: link.counters["reconnects"])  # it is counted a moment after the replies
            assert link.counters == {"reconnects": 1, "sessions_lost": 0}

        against(script, test)

    def test_a_request_may_be_made_while_a_resume_is_answered(self):
        resuming, asked = asyncio.Event(), asyncio.Event()

        async def script(connection):
            opening = codec.decode_opening(await connection.recv())
            if isinstance(opening, Hello):
                await connection.send(welcome())
                connection.transport.abort()
                return
            main.call_soon_threadsafe(resuming.set)
            await until(asked.is_set)
            await connection.send(codec.encode(Resumed(received=0)))
            await connection.send(returned((await next_request(connection)).id, "here"))
            await next_request(connection)

        async def test(link):
            await resuming.wait()
            answer = start(link, STATE)
            asked.set()
            assert (await answer).values == ["here"]

        async def run(url):
            nonlocal main
            main = asyncio.get_running_loop()
            link = await open_link(url)
            await test(link)
            await link.close(0.2)

        main = None
        with ScriptedServer(script, SUBPROTOCOL) as server:
            asyncio.run(run(server.url))

    def test_a_server_without_the_session_says_so(self):
        async def script(connection):
            opening = codec.decode_opening(await connection.recv())
            if isinstance(opening, Hello):
                await connection.send(welcome())
                await connection.close(1012, "restarting")
            else:
                await connection.send(codec.encode(Failed(0, "SESSION_EXPIRED", "", "unknown session")))
                await connection.wait_closed()

        async def test(link):
            await until(lambda: link.counters["sessions_lost"])
            error = await ask(link, STATE)
            assert error.reason == "unknown session, after close code 1012, restarting"

        against(script, test)

    def test_another_kind_of_server_is_no_place_to_resume(self):
        async def run(first, second):
            with FaultProxy(first) as proxy:
                link = await open_link(proxy.url)
                proxy.upstream = int(second.rpartition(":")[2])
                proxy.cut(RST)
                await until(lambda: link.counters["sessions_lost"])
                assert "another kind of server" in (await ask(link, STATE)).reason
                await link.close(0.2)

        async def welcoming(connection):
            await greet(connection)
            await connection.wait_closed()

        with ScriptedServer(welcoming, SUBPROTOCOL) as ours, ScriptedServer(welcoming) as other:
            asyncio.run(run(ours.url, other.url))

    def test_a_token_that_is_refused_now_ends_it(self):
        async def run(first, second):
            with FaultProxy(first) as proxy:
                link = await open_link(proxy.url, token="right")
                proxy.upstream = int(second.rpartition(":")[2])
                proxy.cut(RST)
                await until(lambda: link.counters["sessions_lost"])
                error = await ask(link, STATE)
                assert "401" in error.reason
                assert "right" not in str(error)
                await link.close(0.2)

        with running(create_app(Tally, token="right")) as first, running(create_app(Tally, token="other")) as second:
            asyncio.run(run(first, second))

    def test_a_connection_that_ends_before_its_handshake_is_tried_again(self, monkeypatch):
        """It does so where a proxy accepts for a server that is just being started."""
        dialled = []

        async def script(connection):
            opening = codec.decode_opening(await connection.recv())
            if isinstance(opening, Hello):
                await connection.send(welcome())
                connection.transport.abort()
                return
            await connection.send(codec.encode(Resumed(received=0)))
            await connection.send(returned((await next_request(connection)).id, "here"))
            await next_request(connection)

        async def test(link):
            async def end_at_once(*args, **kwargs):
                dialled.append(args)
                if len(dialled) < 3:
                    raise ConnectionClosedError(None, None)
                return await connect(*args, **kwargs)

            monkeypatch.setattr("openenv_gym.dial.connect", end_at_once)
            assert (await ask(link, STATE)).values == ["here"]
            assert len(dialled) == 3

        against(script, test)

    def test_a_mistake_of_ours_leaves_nobody_waiting(self, monkeypatch):
        async def script(connection):
            await greet(connection)
            await next_request(connection)
            connection.transport.abort()

        async def test(link):
            async def fail(*args, **kwargs):
                raise KeyError("a mistake")

            answer = start(link, STATE)
            monkeypatch.setattr("openenv_gym.batch_link.dial", fail)
            assert "a mistake" in (await answer).reason
            assert isinstance(await ask(link, RESET), KeyError)

        against(script, test)

    def test_a_connection_that_is_left_is_read_no_more_from_that_moment(self):
        async def script(connection):
            opening = codec.decode_opening(await connection.recv())
            if isinstance(opening, Hello):
                await connection.send(welcome())
                await connection.wait_closed()
            await connection.send(codec.encode(Resumed(received=1)))
            await connection.send(returned(1, "late"))
            await connection.send(returned((await next_request(connection)).id, "new"))
            await next_request(connection)

        async def test(link):
            left = link._connection
            start(link, STATE)
            link.abandon()
            left._tell(returned(1, "late"))  # arrived in the same turn of the loop
            assert (await ask(link, STATE)).values == ["new"]
            await until(lambda: link.counters["reconnects"])  # it is counted a moment after the resume
            assert link.counters == {"reconnects": 1, "sessions_lost": 0}

        against(script, test)


class TestReopening:
    def test_other_spaces_are_refused_and_the_link_keeps_its_own(self):
        spaces = iter([Tally(), Tally(width=9), Tally()])

        async def script(connection):
            await greet(connection, welcome(observation_space=next(spaces).observation_space))
            request = await next_request(connection)
            if isinstance(request, State):
                await connection.send(b"junk")
            elif isinstance(request, Reset):
                await connection.send(observed(request.id))
            await next_request(connection)

        async def test(link):
            assert isinstance(await ask(link, STATE), SessionLost)
            refused = await ask(link, RESET)
            assert isinstance(refused, SessionLost)
            assert "other spaces" in str(refused)
            assert link.observation_space == Tally().observation_space
            assert isinstance(await ask(link, STATE), SessionLost)  # and that session is not used
            assert isinstance(await ask(link, RESET), Observed)

        against(script, test)

    def test_a_reset_that_nobody_waits_for_opens_nothing(self):
        hellos = []

        async def script(connection):
            await connection.recv()
            hellos.append(connection)
            if len(hellos) == 2:
                await connection.wait_closed()
                return
            await connection.send(welcome())
            request = await next_request(connection)
            await connection.send(b"junk" if len(hellos) == 1 else observed(request.id))
            await next_request(connection)

        async def test(link):
            assert isinstance(await ask(link, STATE), SessionLost)
            start(link, RESET)
            await until(lambda: len(hellos) == 2)
            link.abandon()
            assert isinstance(await ask(link, RESET), Observed)
            await until(lambda: hellos[1].state.name == "CLOSED")

        against(script, test, reconnect_timeout_s=60)  # or the first attempt would end by itself

    def test_a_full_window_of_late_replies_does_too(self):
        async def script(connection):
            opening = codec.decode_opening(await connection.recv())
            if isinstance(opening, Resume):
                await connection.send(codec.encode(Resumed(received=WINDOW)))
                await connection.wait_closed()
            await connection.send(welcome())
            sessions.append(connection)
            while True:
                request = await next_request(connection)
                if len(sessions) == 2:
                    await connection.send(observed(request.id))

        sessions = []

        async def test(link):
            for _ in range(WINDOW):
                start(link, STATE)
                link.abandon()
            assert isinstance(await ask(link, STATE), RuntimeError)
            assert isinstance(await ask(link, RESET), Observed)

        against(script, test)


class TestClosing:
    def test_it_says_goodbye_and_waits_for_the_answer(self):
        log = []

        async def script(connection):
            await greet(connection)
            request = await next_request(connection)
            log.append(type(request).__name__)
            await (await connection.ping())  # a round trip, in which an impatient client would be gone
            log.append("answer")
            await connection.send(codec.encode(Closed(request.id)))
            await connection.wait_closed()

        async def run(url):
            link = await open_link(url)
            await link.close(5)
            assert log == ["Close", "answer"]

        with ScriptedServer(script, SUBPROTOCOL) as server:
            asyncio.run(run(server.url))

    def test_it_is_bounded_and_tells_whoever_waits(self):
        async def script(connection):
            await greet(connection)
            await connection.wait_closed()

        async def run(url):
            link = await open_link(url)
            answer = start(link, STATE)
            started = asyncio.get_running_loop().time()
            await link.close(0.3)
            assert asyncio.get_running_loop().time() - started < 10
            assert isinstance(answer.result(), ConnectionLost)

        with ScriptedServer(script, SUBPROTOCOL) as server:
            asyncio.run(run(server.url))

    def test_it_does_not_wait_for_an_answer_on_a_connection_that_ends(self):
        async def script(connection):
            await greet(connection)
            await next_request(connection)
            connection.transport.abort()

        async def run(url):
            link = await open_link(url)
            started = asyncio.get_running_loop().time()
            await link.close(60)
            assert asyncio.get_running_loop().time() - started < 20

        with ScriptedServer(script, SUBPROTOCOL) as server:
            asyncio.run(run(server.url))

    def test_a_session_that_is_being_resumed_is_closed_on_the_server_too(self):
        app = create_app(Tally)

        async def run(url):
            with FaultProxy(url) as proxy:
                link = await open_link(proxy.url)
                assert app.state.registry.capacity.active == 1
                proxy.refuse()
                proxy.cut(RST)
                await until(lambda: link._connection is None)
                proxy.accept()
                await link.close(30)
                assert app.state.registry.capacity.active == 0

        with running(app) as url:
            asyncio.run(run(url))

    def test_nothing_is_left_on_the_loop(self):
        async def script(connection):
            opening = codec.decode_opening(await connection.recv())
            await connection.send(welcome() if isinstance(opening, Hello) else codec.encode(Resumed(received=0)))
            await connection.wait_closed()

        async def run(url):
            link = await open_link(url)
            start(link, STATE)
            link.abandon()
            await link.close(0.1)
            await until(lambda: len(asyncio.all_tasks()) == 1)  # this one

        with ScriptedServer(script, SUBPROTOCOL) as server:
            asyncio.run(run(server.url))


def test_an_opening_that_breaks_leaves_nothing_on_the_server():
    """Cut at each part of the opening: the envs that were built are closed again."""
    app = create_app(Tally, grace_s=0.1)

    async def run(url):
        with FaultProxy(url) as proxy:
            for count in (300, 400, 500, 600, 700, 800, 900):
                proxy.cut_after(count)
                try:
                    link = await open_link(proxy.url)
                except (ConnectFailed, ConnectionLost):
                    continue
                await link.close(1)
            proxy.put_out()

    with running(app) as url:
        asyncio.run(run(url))
        wait_until(lambda: app.state.registry.capacity.active == 0)
