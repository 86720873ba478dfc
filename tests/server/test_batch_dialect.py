"""A connection in the batch dialect, without a network."""

import asyncio

import msgspec
import numpy as np
import pytest
from helpers_core import STEP_S, FakeConnection, Talk, make_registry, run, run_out
from helpers_envs import Count, Factory, Gate, Trimmed
from helpers_wait import until

from openenv_gym import codec
from openenv_gym.codec import unpack
from openenv_gym.messages import (
    PROTOCOL_VERSION,
    WINDOW,
    Array,
    Call,
    Close,
    Closed,
    Failed,
    Get,
    Hello,
    Observed,
    Reset,
    Resume,
    Resumed,
    Step,
    Stepped,
    Welcome,
)
from openenv_gym.server import batch_dialect
from openenv_gym.server.batch_dialect import converse
from openenv_gym.spaces import build


def a_reset(id):
    return Reset(id, None, None, None)


def a_step(id, *actions):
    return Step(id, None, [Array.of(np.array(actions or (0,)))], "NextStep")


def observed(reply):
    assert isinstance(reply, Observed | Stepped), reply
    return reply.observations[0].numpy().ravel().tolist()


def refusal(env=Count, *, first=None, settings=None, registry=None, **fields):
    """What a client is told that isn't let in: the message, and the connection's close."""

    async def main():
        there = registry or make_registry(env, **(settings or {}))
        connection = FakeConnection()
        connection.write(first or Hello(**{"version": PROTOCOL_VERSION, "num_envs": 1, **fields}))
        await converse(there, connection, connection.receive)
        assert (there.capacity.active, there.sessions, there.workers) == (0, {}, 0)
        await there.stop()
        (frame,) = connection.sent
        return codec.decode_answer(frame), connection.closed

    failed, closed = run(main())
    assert isinstance(failed, Failed)
    assert failed.id == 0
    assert closed[1] == failed.code
    return failed, closed[0]


class TestOpening:
    def test_welcome(self):
        async def main():
            registry = make_registry(Count, grace_s=7, max_message_size_mb=2, env_name="counting")
            talk = await Talk.hello(registry, 3)
            assert registry.capacity.active == 3
            await registry.stop()
            return talk.welcome

        welcome = run(main())
        assert isinstance(welcome, Welcome)
        assert (welcome.version, welcome.env, welcome.grace_s) == (PROTOCOL_VERSION, "counting", 7)
        assert welcome.max_message_bytes == 2 * 1024 * 1024
        assert build(welcome.observation_space) == Count.observation_space
        assert build(welcome.action_space) == Count.action_space
        metadata = {key: unpack(value) for key, value in welcome.metadata.items()}
        assert metadata == {"render_modes": ["rgb_array"], "render_fps": 4, "render_mode": None}

    def test_metadata_that_is_no_plain_data_stays_at_home(self):
        class Odd(Count):
            metadata = {**Count.metadata, "viewer": object()}

        async def main():
            registry = make_registry(Odd)
            talk = await Talk.hello(registry)
            await registry.stop()
            return talk.welcome.metadata

        assert "viewer" not in run(main())

    def test_what_the_client_wants_to_see(self):
        async def main():
            registry = make_registry(Trimmed)
            talk = await Talk.hello(registry, include=["arm"], obs_dtype="float16", info_keys=[])
            reply = await talk.ask(a_reset(1))
            await registry.stop()
            return build(talk.welcome.observation_space), reply

        space, reply = run(main())
        assert list(space["arm"]) == ["a", "b"]
        assert "camera" not in space.spaces
        assert [leaf.dtype for leaf in reply.observations] == ["<f2", "<i8"]

    def test_render_mode_and_limit(self):
        async def main():
            registry = make_registry(Count)
            talk = await Talk.hello(registry, render_mode="rgb_array", max_episode_steps=1)
            await talk.ask(a_reset(1))
            reply = await talk.ask(a_step(2))
            await registry.stop()
            return unpack(talk.welcome.metadata["render_mode"]), reply.truncated.numpy().tolist()

        assert run(main()) == ("rgb_array", [True])

    @pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1, 99])
    def test_another_version(self, version):
        failed, close = refusal(version=version)
        assert (failed.code, failed.facts, close) == ("VERSION_MISMATCH", {"version": PROTOCOL_VERSION}, 4400)
        assert f"version {PROTOCOL_VERSION}, the client {version}" in failed.message

    @pytest.mark.parametrize("count", [3, 10**9, 2**63])
    def test_no_room(self, count):
        failed, close = refusal(settings={"max_envs": 2}, num_envs=count)
        assert (failed.code, failed.facts, close) == ("CAPACITY_REACHED", {"active": 0, "maximum": 2}, 4429)

    @pytest.mark.parametrize(
        "fields, text",
        [
            ({"num_envs": 0}, "num_envs must be at least 1, not 0"),
            ({"num_envs": -(2**62)}, "num_envs must be at least 1"),
            ({"max_episode_steps": 0}, "max_episode_steps must be at least 1, not 0"),
        ],
    )
    def test_what_makes_no_sense(self, fields, text):
        failed, close = refusal(**fields)
        assert (failed.code, close) == ("VALIDATION_ERROR", 4400)
        assert text in failed.message

    @pytest.mark.parametrize(
        "fields, text",
        [
            ({"include": ["camera"]}, "'camera' names nothing here"),
            ({"obs_dtype": "float99"}, "unknown dtype"),
            ({"obs_dtype": {"x": "float16"}}, "'x' names nothing here"),
        ],
    )
    def test_trimming_that_cannot_be_done(self, fields, text):
        failed, close = refusal(**fields)
        assert (failed.code, close) == ("SPACE_ERROR", 4400)
        assert text in failed.message

    @pytest.mark.parametrize(
        "first",
        [
            b"",
            b"\xc1",
            b"\x90",
            codec.encode(a_step(1)),
            codec.encode(Close(1)),
            msgspec.msgpack.encode([10, 1]),
            msgspec.msgpack.encode([10, 1, "many"]),
            msgspec.msgpack.encode([10, 1, 1.5]),
            msgspec.msgpack.encode([10, 1, 1, "x"]),
            msgspec.msgpack.encode([10, 1, 1, [1]]),
            msgspec.msgpack.encode([12, 1, 7, 7, 7]),
            msgspec.msgpack.encode({"tag": 10, "version": 1, "num_envs": 1}),
            b"\x91" * 100_000,
            codec.encode(Hello(version=PROTOCOL_VERSION, num_envs=1))[:-1],
        ],
    )
    def test_what_is_no_opening(self, first):
        connection = refusal(first=first or b"\x00")
        assert connection[0].code == "VALIDATION_ERROR"

    def test_a_factory_that_fails(self):
        failed, close = refusal(Factory(Count, failing=(1,)))
        assert (failed.code, close) == ("FACTORY_ERROR", 4400)
        assert failed.message == "can't create the environment 'Factory': OSError: no licence"

    def test_spaces_that_differ(self):
        calls = []

        class Growing(Count):
            def __init__(self):
                super().__init__()
                calls.append(1)
                self.action_space = type(self.action_space)(len(calls))

        failed, _ = refusal(Growing)
        assert (failed.code, "this server's are" in failed.message) == ("VALIDATION_ERROR", True)

    def test_a_server_that_is_shutting_down(self):
        async def main():
            registry = make_registry(Count)
            await registry.stop()
            return registry

        failed, close = refusal(registry=asyncio.run(main()))
        assert (failed.code, close) == ("GOING_AWAY", 1012)

    def test_an_error_that_nobody_foresaw(self, monkeypatch, caplog):
        def broken(count, **_):
            raise RuntimeError("can't start new thread")

        async def main():
            registry = make_registry(Count)
            monkeypatch.setattr(registry._executor, "place", broken)
            return registry

        failed, close = refusal(registry=asyncio.run(main()))
        assert (failed.code, close) == ("SESSION_ERROR", 1011)
        assert "can't start new thread" in failed.message
        assert "could not be opened" in caplog.text

    def test_an_error_that_nobody_foresaw_about_the_spaces(self, monkeypatch):
        def broken(*_):
            raise RuntimeError("no schema")

        monkeypatch.setattr(batch_dialect, "choose", broken)
        failed, close = refusal(Count)
        assert (failed.code, failed.message, close) == ("SESSION_ERROR", "RuntimeError: no schema", 1011)

    def test_a_client_that_says_nothing(self):
        async def main():
            registry = make_registry(Count, opening_timeout_s=0.01)
            connection = FakeConnection()
            await converse(registry, connection, connection.receive)
            return connection.closed

        assert run(main()) == (4408, "no opening in time")

    def test_a_client_that_is_gone_before_it_is_welcomed(self):
        """Nobody knows the session's secret, so nobody could ever come back for it."""
        gate, factory = Gate(), Factory(Count)

        async def main():
            registry = make_registry(factory, max_workers=1)
            factory.kwargs["on"] = {"init": gate}
            talk = Talk(registry)
            talk.connection.write(Hello(version=PROTOCOL_VERSION, num_envs=2))
            await until(gate.reached.is_set)
            talk.connection.cut()
            gate.open()
            await talk.ended()
            assert (registry.capacity.active, registry.sessions, registry.workers) == (0, {}, 0)

        run(main())
        assert [env.count("close") for env in factory.envs] == [1, 1]

    def test_a_welcome_that_can_not_be_written(self, monkeypatch):
        def broken(*args):
            raise KeyError("oops")

        async def main():
            registry = make_registry(Count)
            monkeypatch.setattr(batch_dialect, "_welcome", broken)
            talk = Talk(registry)
            talk.connection.write(Hello(version=PROTOCOL_VERSION, num_envs=2))
            with pytest.raises(KeyError):
                await talk.task
            assert (registry.capacity.active, registry.sessions) == (0, {})

        run(main())


class TestRequests:
    def test_an_episode(self):
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory)
            talk = await Talk.hello(registry, 2)
            assert observed(await talk.ask(a_reset(1))) == [0.0, 0.0]
            assert observed(await talk.ask(a_step(2, 0, 0))) == [1.0, 1.0]
            assert (await talk.ask(Get(3, None, "level"))).values == [1, 1]
            reply = await talk.ask(Close(4))
            # Before the client hears of it, all is done.
            assert reply == Closed(4)
            assert [env.count("close") for env in factory.envs] == [1, 1]
            assert (registry.capacity.active, registry.sessions, registry.workers) == (0, {}, 0)
            await talk.ended()
            assert registry._graces == {}

        run(main())

    def test_the_envs_are_closed_before_the_client_hears_of_it(self):
        gate, factory = Gate(), Factory(Count)

        async def main():
            registry = make_registry(factory)
            factory.kwargs["on"] = {"close": gate}
            talk = await Talk.hello(registry)
            sent = len(talk.connection.sent)
            talk.connection.write(Close(1))
            await until(gate.reached.is_set)
            assert len(talk.connection.sent) == sent
            gate.open()
            assert await talk.connection.read() == Closed(1)
            await talk.ended()

        run(main())

    @pytest.mark.parametrize(
        "frame",
        [
            b"",
            b"\xc1",
            b"\x91" * 100_000,
            b"\xdd\xff\xff\xff\xff",
            codec.encode(Hello(version=PROTOCOL_VERSION, num_envs=1)),
            codec.encode(Closed(1)),
            codec.encode(a_step(9)),
            codec.encode(a_reset(1))[:-1],
            msgspec.msgpack.encode([21, 1, None, "actions", None]),
            msgspec.msgpack.encode([21, 1, ["a"], [], None]),
            msgspec.msgpack.encode([21, "1", None, [], None]),
            msgspec.msgpack.encode([21, 1, None, [[0, "<f4", "shape", b""]], None]),
            msgspec.msgpack.encode([22, 1, None, "name", [], {1: 2}]),
            msgspec.msgpack.encode([99, 1]),
        ],
    )
    def test_a_bad_frame_costs_a_reply_and_not_the_session(self, frame):
        async def main():
            registry = make_registry(Count)
            talk = await Talk.hello(registry)
            failed = await talk.ask(frame)
            assert (failed.id, failed.code) == (0, "VALIDATION_ERROR")
            assert len(failed.message) < 500
            assert observed(await talk.ask(a_reset(1))) == [0.0]
            await registry.stop()

        run(main())

    def test_a_seed_that_is_no_integer(self):
        async def main():
            registry = make_registry(Count)
            talk = await Talk.hello(registry)
            failed = await talk.ask(Reset(1, None, [1.5], None))
            assert (failed.id, failed.code) == (1, "VALIDATION_ERROR")
            assert observed(await talk.ask(a_reset(2))) == [0.0]
            await registry.stop()

        run(main())

    def test_data_that_is_nested_too_deep(self):
        deep = []
        for _ in range(300):
            deep = [deep]

        async def main():
            registry = make_registry(Count, allow_call=None)
            talk = await Talk.hello(registry)
            failed = await talk.ask(Call(1, None, "add", deep, {}))
            assert (failed.id, failed.code) == (1, "VALIDATION_ERROR")
            assert observed(await talk.ask(a_reset(2))) == [0.0]
            await registry.stop()

        run(main())

    def test_a_million_slots(self):
        async def main():
            registry = make_registry(Count)
            talk = await Talk.hello(registry)
            talk.connection.write(Reset(1, [0] * 10**6, None, None))
            failed = await talk.connection.read()
            assert (failed.id, failed.code) == (1, "VALIDATION_ERROR")
            assert len(talk.connection.sent[-1]) < 1000
            await registry.stop()

        run(main())

    def test_what_is_not_allowed(self):
        async def main():
            registry = make_registry(Count)
            talk = await Talk.hello(registry)
            failed = await talk.ask(Call(1, None, "close", [], {}))
            assert (failed.code, failed.error) == ("NOT_ALLOWED", "PermissionError")
            await registry.stop()

        run(main())

    def test_a_request_that_comes_twice_runs_once(self):
        factory = Factory(Count, {"length": 100})

        async def main():
            registry = make_registry(factory)
            talk = await Talk.hello(registry)
            await talk.ask(a_reset(1))
            for _ in range(3):
                talk.connection.write(a_step(2))
            assert (await talk.connection.read()).id == 2
            reply = await talk.ask(a_step(3))
            assert (reply.id, observed(reply)) == (3, [2.0])
            await registry.stop()

        run(main())
        assert factory.envs[0].count("step") == 2

    def test_requests_in_flight_are_answered_in_order(self):
        async def main():
            registry = make_registry(lambda: Count(100))
            talk = await Talk.hello(registry)
            talk.connection.write(a_reset(1))
            for id in range(2, 10):
                talk.connection.write(a_step(id))
            replies = [await talk.connection.read() for _ in range(9)]
            assert [(reply.id, *observed(reply)) for reply in replies] == [(id, id - 1.0) for id in range(1, 10)]
            await registry.stop()

        run(main())


class TestSizes:
    def test_a_reply_over_the_clients_limit(self):
        factory = Factory(Count, {"length": 100})

        async def main():
            registry = make_registry(factory, allow_set=None)
            talk = await Talk.hello(registry, max_message_bytes=1000)
            await talk.ask(a_reset(1))
            factory.envs[0].level = "x" * 2000
            failed = await talk.ask(Get(2, None, "level"))
            assert (failed.id, failed.code) == (2, "MESSAGE_TOO_LARGE")
            assert failed.facts["limit"] == 1000
            assert failed.facts["size"] > 2000
            assert observed(await talk.ask(a_step(3))) == [1.0]
            await talk.cut()
            again = await Talk.resume(registry, talk.welcome, 1)
            assert (await again.connection.read()).code == "MESSAGE_TOO_LARGE"
            await registry.stop()

        run(main())

    @pytest.mark.parametrize("asked", [None, 0, 10**12])
    def test_the_servers_limit_holds_for_all(self, asked):
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory, max_message_size_mb=0.01)
            talk = await Talk.hello(registry, max_message_bytes=asked)
            factory.envs[0].level = "x" * 20_000
            failed = await talk.ask(Get(1, None, "level"))
            await registry.stop()
            return failed

        assert run(main()).facts["limit"] == int(0.01 * 1024 * 1024)

    def test_a_reply_that_can_not_be_encoded(self, caplog):
        async def main():
            registry = make_registry(Count)
            talk = await Talk.hello(registry)
            session = registry.sessions[talk.welcome.session]
            encode = session.protocol.reply

            def reply(reply):
                if isinstance(reply, Observed):
                    raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")
                return encode(reply)

            session.protocol.reply = reply
            failed = await talk.ask(a_reset(1))
            assert (failed.id, failed.code, failed.error) == (1, "SERIALIZATION_ERROR", "UnicodeEncodeError")
            assert observed(await talk.ask(a_step(2))) == [1.0]
            await registry.stop()

        run(main())
        assert "could not be encoded" in caplog.text


class TestResume:
    def test_with_nothing_missing(self):
        async def main():
            registry = make_registry(lambda: Count(100))
            talk = await Talk.hello(registry)
            await talk.ask(a_reset(1))
            await talk.ask(a_step(2))
            await talk.cut()
            assert list(registry._graces) == [talk.welcome.session]
            again = await Talk.resume(registry, talk.welcome, 2)
            assert again.welcome == Resumed(received=2)
            assert registry._graces == {}
            assert observed(await again.ask(a_step(3))) == [2.0]
            await registry.stop()

        run(main())

    def test_replies_that_were_missed_come_again(self):
        factory = Factory(Count, {"length": 100})

        async def main():
            registry = make_registry(factory)
            talk = await Talk.hello(registry)
            await talk.ask(a_reset(1))
            for id in range(2, WINDOW + 2):
                await talk.ask(a_step(id))
            await talk.cut()
            again = await Talk.resume(registry, talk.welcome, 1)
            replies = [await again.connection.read() for _ in range(WINDOW)]
            assert [(reply.id, *observed(reply)) for reply in replies] == [(i, i - 1.0) for i in range(2, WINDOW + 2)]
            await registry.stop()

        run(main())
        assert factory.envs[0].count("step") == WINDOW

    def test_a_step_that_runs_while_the_connection_breaks(self):
        """Exactly once, and its reply goes to the new connection."""
        gate = Gate()
        factory = Factory(Count, {"length": 100, "habits": {1: gate}})

        async def main():
            registry = make_registry(factory, max_workers=1)
            talk = await Talk.hello(registry)
            await talk.ask(a_reset(1))
            talk.connection.write(a_step(2, 1))
            await until(gate.reached.is_set)
            talk.connection.cut()
            again = await Talk.resume(registry, talk.welcome, 1)
            assert again.welcome == Resumed(received=2)
            again.connection.write(a_step(2, 1))  # a client may well not know that it arrived
            gate.open()
            reply = await again.connection.read()
            assert (reply.id, observed(reply)) == (2, [1.0])
            assert observed(await again.ask(a_step(3))) == [2.0]
            await talk.ended()
            assert registry._graces == {}  # the old connection's end is not the session's
            await registry.stop()

        run(main())
        assert factory.envs[0].count("step") == 2

    def test_a_step_that_ends_while_nobody_is_there(self):
        gate = Gate()
        factory = Factory(Count, {"habits": {1: gate}})

        async def main():
            registry = make_registry(factory, max_workers=1)
            talk = await Talk.hello(registry)
            await talk.ask(a_reset(1))
            talk.connection.write(a_step(2, 1))
            await until(gate.reached.is_set)
            talk.connection.cut()
            gate.open()
            await talk.ended()
            assert list(registry._graces) == [talk.welcome.session]
            again = await Talk.resume(registry, talk.welcome, 1)
            assert observed(await again.connection.read()) == [1.0]
            await registry.stop()

        run(main())
        assert factory.envs[0].count("step") == 1

    def test_the_older_connection_is_closed(self):
        async def main():
            registry = make_registry(Count)
            talk = await Talk.hello(registry)
            await talk.ask(a_reset(1))
            again = await Talk.resume(registry, talk.welcome, 1)
            await talk.ended()
            assert talk.connection.closed[0] == 4409
            assert observed(await again.ask(a_step(2))) == [1.0]
            assert registry._graces == {}
            await again.cut()
            assert len(registry._graces) == 1
            await registry.stop()

        run(main())

    @pytest.mark.parametrize(
        "shown", [{"secret": "guess"}, {"secret": ""}, {"session": "nobody"}, {"received": 7}, {"received": -1}]
    )
    def test_what_is_refused(self, shown):
        async def main():
            registry = make_registry(Count)
            talk = await Talk.hello(registry)
            for id in range(1, WINDOW + 3):
                await talk.ask(a_reset(id))
            await talk.cut()
            given = {"received": WINDOW + 9} if shown == {"received": 7} else shown
            refused = await Talk.resume(registry, talk.welcome, **{"received": 1, **given})
            assert isinstance(refused.welcome, Failed)
            assert refused.welcome.code == "SESSION_EXPIRED"
            await refused.ended()
            assert refused.connection.closed == (4404, "SESSION_EXPIRED")
            assert len(registry._graces) == 1  # and it prolongs nothing
            again = await Talk.resume(registry, talk.welcome, WINDOW + 2)
            assert again.welcome == Resumed(received=WINDOW + 2)
            await registry.stop()

        run(main())

    def test_a_secret_is_no_help_for_another_session(self):
        async def main():
            registry = make_registry(Count)
            one, two = await Talk.hello(registry), await Talk.hello(registry)
            refused = await Talk.resume(registry, one.welcome, 0, secret=two.welcome.secret)
            assert refused.welcome.code == "SESSION_EXPIRED"
            assert observed(await one.ask(a_reset(1))) == [0.0]  # its connection wasn't touched
            await registry.stop()

        run(main())

    def test_another_version(self):
        first = Resume(version=99, session="", secret="", received=0)
        assert refusal(first=codec.encode(first))[0].code == "VERSION_MISMATCH"

    def test_a_new_connection_that_breaks_at_once(self):
        """Its session stays for its grace time, and no longer."""

        async def main():
            registry = make_registry(Count, grace_s=60)
            talk = await Talk.hello(registry)
            await talk.ask(a_reset(1))
            await talk.cut()
            broken = FakeConnection()
            shown = {"session": talk.welcome.session, "secret": talk.welcome.secret, "received": 0}
            broken.write(Resume(version=PROTOCOL_VERSION, **shown))
            broken.broken = True
            with pytest.raises(ConnectionError):
                await converse(registry, broken, broken.receive)
            assert list(registry._graces) == [talk.welcome.session]
            again = await Talk.resume(registry, talk.welcome, 0)
            assert observed(await again.connection.read()) == [0.0]
            await registry.stop()

        run(main())

    def test_after_the_grace_time(self):
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory, grace_s=0.01)
            talk = await Talk.hello(registry)
            await talk.ask(a_reset(1))
            await talk.cut()
            await until(lambda: registry.capacity.active == 0)
            refused = await Talk.resume(registry, talk.welcome, 1)
            assert refused.welcome.code == "SESSION_EXPIRED"

        run(main())
        assert factory.envs[0].count("close") == 1

    def test_after_it_was_idle(self):
        async def main():
            registry = make_registry(Count, idle_timeout_s=0.05)
            registry.start()
            talk = await Talk.hello(registry)
            await talk.ended()
            assert talk.connection.closed == (4408, "idle for too long")
            refused = await Talk.resume(registry, talk.welcome, 0)
            assert refused.welcome.code == "SESSION_EXPIRED"
            assert registry._graces == {}
            await registry.stop()

        run(main())

    def test_after_a_close(self):
        async def main():
            registry = make_registry(Count)
            talk = await Talk.hello(registry)
            await talk.ask(Close(1))
            refused = await Talk.resume(registry, talk.welcome, 0)
            assert refused.welcome.code == "SESSION_EXPIRED"

        run(main())

    def test_a_hundred_cuts(self):
        """Whenever the connection breaks, the trajectory is the one of an uncut connection."""
        factory = Factory(Count, {"length": 7})
        random = np.random.default_rng(3)

        async def main():
            registry = make_registry(factory)
            talk = await Talk.hello(registry, 2)
            welcome, received, trajectory = talk.welcome, 0, []
            for id in range(1, 101):
                request = a_reset(id) if id == 1 else a_step(id, 0, 0)
                talk.connection.write(request)
                if random.random() < 0.5:
                    await until(lambda id=id: registry.sessions[welcome.session].protocol.received == id)
                talk.connection.cut()
                talk = await Talk.resume(registry, welcome, received)
                if talk.welcome.received < id:
                    talk.connection.write(request)
                reply = await talk.connection.read()
                assert reply.id == id
                received = id
                trajectory.append(observed(reply)[0])
            await registry.stop()
            return trajectory

        assert run(main()) == [float(n % 8) for n in range(100)]
        assert factory.envs[0].count("step") + factory.envs[0].count("reset") == 100


class TestLimits:
    def test_an_env_that_hangs(self):
        gate = Gate()

        async def main():
            registry = make_registry(lambda: Count(habits={1: gate}), max_step_s=STEP_S)
            talk = await Talk.hello(registry, 2)
            await talk.ask(a_reset(1))
            talk.connection.write(a_step(2, 1, 0))
            await until(gate.reached.is_set)
            await run_out(registry.sessions[talk.welcome.session], 0)
            reply = await talk.connection.read()
            assert [(f.slot, f.code, f.type) for f in reply.failures] == [(0, "STEP_TIMEOUT", "TimeoutError")]
            assert observed(reply)[1] == 1.0
            assert observed(await talk.ask(a_reset(3))) == [0.0, 0.0]
            assert observed(await talk.ask(a_step(4, 0, 0))) == [1.0, 1.0]
            await talk.ask(Close(5))
            assert (registry.capacity.active, registry.workers) == (0, 0)
            gate.open()

        run(main())
