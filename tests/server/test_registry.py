"""All sessions of a server: capacity, grace, idleness, shutdown."""

import asyncio

import numpy as np
import pytest
from helpers_core import STEP_S, FakeConnection, encoding_of, make_registry, run, skip
from helpers_envs import Busy, Count, Factory, Gate, Sleeper, raiser
from helpers_wait import LIMIT_S, until

from openenv_gym.errors import FactoryError, SpaceError
from openenv_gym.messages import Array, Reset, Step
from openenv_gym.server import registry as registry_module
from openenv_gym.server import session as session_module
from openenv_gym.server.capacity import CapacityReached
from openenv_gym.server.registry import GoingAway

RESET = Reset(1, None, None, None)


def a_step(*actions):
    return Step(1, None, [Array.of(np.array(actions))], "NextStep")


def opened(registry, count=1, **kwargs):
    return registry.open(count, encoding_of(registry), **kwargs)


class TestPlaces:
    """Without a setting, envs that wait have a thread each, and those that compute share one."""

    @pytest.mark.parametrize(
        "env, settings, workers",
        [
            (Busy, {}, 1),
            (Sleeper, {}, 6),
            (Busy, {"max_workers": 2}, 2),
            (Sleeper, {"max_workers": 2}, 2),
            (Busy, {"max_step_s": LIMIT_S}, 6),
        ],
    )
    def test_workers(self, env, settings, workers):
        async def main():
            registry = make_registry(env, **settings)
            session = await opened(registry, 6)
            assert registry.workers == workers
            await registry.end(session)
            assert registry.workers == 0

        run(main())


class TestCapacity:
    def test_fifty_clients_at_once(self):
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory, max_envs=30)
            outcomes = await asyncio.gather(*[opened(registry, 3) for _ in range(50)], return_exceptions=True)
            sessions = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
            assert len(sessions) == 10
            assert {type(outcome) for outcome in outcomes if outcome not in sessions} == {CapacityReached}
            assert registry.capacity.active == 30
            await asyncio.gather(*[registry.end(session) for session in sessions])
            assert (registry.capacity.active, registry.sessions, registry.workers) == (0, {}, 0)

        run(main())
        assert len(factory.envs) == 30
        assert {env.count("close") for env in factory.envs} == {1}

    def test_nothing_is_allocated_before(self):
        class Untouchable:
            def writer(self, count, final=False):
                raise AssertionError("allocated")

        async def main():
            registry = make_registry(Count, max_envs=4)
            for count in (5, 10**9, 10**30):
                with pytest.raises(CapacityReached):
                    await registry.open(count, Untouchable())
            assert registry.capacity.active == 0

        run(main())

    @pytest.mark.parametrize("settings", [{"max_workers": 1}, {"max_workers": 3}])
    @pytest.mark.parametrize("failing", [(1,), (2,), (4,), (1, 2, 3, 4)])
    def test_factories_that_fail(self, settings, failing):
        factory = Factory(Count, failing=failing)

        async def main():
            registry = make_registry(factory, max_envs=4, **settings)
            with pytest.raises(FactoryError, match="no licence"):
                await opened(registry, 4)
            assert (registry.capacity.active, registry.sessions, registry.workers) == (0, {}, 0)
            factory.failing = ()
            await registry.end(await opened(registry, 4))

        run(main())
        assert {env.count("close") for env in factory.envs} == {1}
        assert {len(env.threads) for env in factory.envs} == {1}

    def test_spaces_that_differ(self):
        sizes = iter([3, 3, 4])

        def env():
            made = Count()
            made.action_space = type(made.action_space)(next(sizes))
            return made

        async def main():
            registry = make_registry(env, max_workers=1)
            with pytest.raises(SpaceError, match=r"Discrete\(4\), but this server's are .* Discrete\(3\)"):
                await opened(registry, 2)
            assert (registry.capacity.active, registry.workers) == (0, 0)

        run(main())

    def test_a_system_without_threads_to_spare(self, monkeypatch):
        async def main():
            registry = make_registry(Count, max_envs=4)

            def place(count, **_):
                raise RuntimeError("can't start new thread")

            monkeypatch.setattr(registry._executor, "place", place)
            with pytest.raises(RuntimeError, match="can't start"):
                await opened(registry, 4)
            assert (registry.capacity.active, registry.sessions) == (0, {})

        run(main())

    @pytest.mark.parametrize("workers", [1, 4])
    def test_an_opening_that_is_cancelled(self, workers):
        """Its client is gone. What is being built is closed, and what isn't yet never is built."""
        gate = Gate()
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory, max_envs=4, max_workers=workers)
            factory.kwargs["on"] = {"init": gate}
            opening = asyncio.create_task(opened(registry, 4))
            await until(gate.reached.is_set)
            opening.cancel()
            await until(lambda: not registry.sessions)
            assert registry.capacity.active == 4  # they still are there
            gate.open()
            await asyncio.wait([opening])
            assert opening.cancelled()
            assert (registry.capacity.active, registry.sessions, registry.workers) == (0, {}, 0)

        run(main())
        assert 1 <= len(factory.envs) <= workers
        assert {env.count("close") for env in factory.envs} == {1}

    def test_an_opening_that_is_cancelled_twice(self):
        gate = Gate()
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory)
            factory.kwargs["on"] = {"init": gate}
            opening = asyncio.create_task(opened(registry, 2))
            await until(gate.reached.is_set)
            opening.cancel()
            await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])
            await until(lambda: not registry.sessions)
            gate.open()
            await until(lambda: registry.capacity.active == 0)

        run(main())
        assert [env.count("close") for env in factory.envs] == [1]

    def test_building_holds_up_nobody(self):
        gate = Gate()
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory, max_workers=2)
            other = await opened(registry)
            factory.kwargs["on"] = {"init": gate}
            opening = asyncio.create_task(opened(registry))
            await until(gate.reached.is_set)
            await other.execute(RESET)
            assert (await other.execute(a_step(0))).failures == []  # on the loop's thread, or on one for all, it waited
            assert not opening.done()
            gate.open()
            await opening
            await registry.stop()

        run(main())

    @pytest.mark.parametrize("error", [ValueError("oops"), SystemExit(3)])
    def test_envs_that_can_not_be_closed(self, error):
        factory = Factory(Count, {"on": {"close": raiser(error)}})

        async def main():
            registry = make_registry(factory)
            session = await opened(registry, 4)
            await registry.end(session)
            await registry.end(session)
            assert (registry.capacity.active, registry.workers) == (0, 0)

        run(main())
        assert [env.count("close") for env in factory.envs] == [1] * 4

    def test_room_is_given_back_once(self):
        async def main():
            registry = make_registry(Count)
            session, _ = await opened(registry, 4), await opened(registry, 2)
            await asyncio.gather(*[registry.end(session) for _ in range(5)])
            assert registry.capacity.active == 2
            await registry.stop()
            assert registry.capacity.active == 0

        run(main())

    def test_every_end_waits_until_the_envs_are_closed(self):
        gate = Gate()

        async def main():
            registry = make_registry(factory)
            factory.kwargs["on"] = {"close": gate}
            session = await opened(registry)
            first = asyncio.create_task(registry.end(session))
            await until(gate.reached.is_set)
            second = asyncio.create_task(registry.end(session))
            await asyncio.wait([second], timeout=0.02)
            assert not second.done()
            assert registry.capacity.active == 1
            gate.open()
            await asyncio.gather(first, second)
            assert registry.capacity.active == 0

        factory = Factory(Count)
        run(main())


class TestGrace:
    def test_find(self):
        async def main():
            registry = make_registry(Count)
            session, other = await opened(registry), await opened(registry)
            assert registry.find(session.name, session.secret) is session
            for name, secret in [
                (session.name, other.secret),
                (session.name, ""),
                (session.name, session.secret + "x"),
                (session.name, "ü"),
                ("", session.secret),
                (session.secret, session.secret),
            ]:
                assert registry.find(name, secret) is None
            await registry.stop()
            assert registry.find(session.name, session.secret) is None

        run(main())

    def test_names_and_secrets_are_all_different(self):
        async def main():
            registry = make_registry(Count)
            sessions = [await opened(registry) for _ in range(20)]
            assert len({text for s in sessions for text in (s.name, s.secret)}) == 40
            assert all(len(session.secret) >= 32 for session in sessions)
            await registry.stop()

        run(main())

    def test_a_session_ends_after_its_grace_time(self):
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory, grace_s=0.01)
            session = await opened(registry)
            registry.disconnected(session)
            await until(lambda: registry.capacity.active == 0)
            assert registry.find(session.name, session.secret) is None

        run(main())
        assert factory.envs[0].count("close") == 1

    def test_not_if_its_client_came_back(self):
        async def main():
            registry = make_registry(Count, grace_s=0.03)
            session, other = await opened(registry), await opened(registry)
            registry.disconnected(session)
            registry.connected(session)
            registry.disconnected(other)
            await until(lambda: registry.capacity.active == 1)
            assert list(registry.sessions) == [session.name]
            await registry.stop()

        run(main())

    def test_asking_alone_does_not_prolong_it(self):
        """A client with the right secret but a hopeless request must not keep the envs for ever."""

        async def main():
            registry = make_registry(Count, grace_s=0.03)
            session = await opened(registry)
            registry.disconnected(session)
            assert registry.find(session.name, session.secret) is session
            assert registry.find(session.name, "wrong") is None
            await until(lambda: registry.capacity.active == 0)

        run(main())

    def test_a_step_that_runs_ends_first(self):
        gate = Gate()
        factory = Factory(Count, {"habits": {1: gate}})

        async def main():
            registry = make_registry(factory, grace_s=0.01, max_workers=1)
            session = await opened(registry)
            await session.execute(RESET)
            step = asyncio.create_task(session.execute(a_step(1)))
            await until(gate.reached.is_set)
            registry.disconnected(session)
            await until(lambda: not registry.sessions)
            assert registry.capacity.active == 1
            gate.open()
            await step
            await until(lambda: registry.capacity.active == 0)

        run(main())
        assert [call.name for call in factory.envs[0].calls][-2:] == ["step", "close"]

    def test_a_session_that_has_ended_has_no_grace(self):
        async def main():
            registry = make_registry(Count, grace_s=60)
            session = await opened(registry)
            await registry.end(session)
            registry.disconnected(session)
            assert registry._graces == {}

        run(main())


class TestIdleness:
    @pytest.fixture
    def clock(self, monkeypatch):
        """The clock that sessions are idle by; the test sets it."""

        class Clock:
            now = 0.0

            def monotonic(self):
                return self.now

            def later(self, env=None):
                self.now += 10

        clock = Clock()
        monkeypatch.setattr(registry_module, "time", clock)
        monkeypatch.setattr(session_module, "time", clock)
        return clock

    def test_it_is_limited_by_default(self):
        async def main():
            registry = make_registry(Count)
            registry.start()
            assert registry._reaper is not None
            await registry.stop()

        run(main())

    def test_an_idle_session_is_closed_and_its_connection_told(self):
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory, idle_timeout_s=0.02)
            registry.start()
            session, connection = await opened(registry), FakeConnection()
            await session.attach(connection, [])
            await until(lambda: connection.closed)
            assert connection.closed == (4408, "idle for too long")
            assert registry.capacity.active == 0
            assert registry.find(session.name, session.secret) is None
            assert (await session.execute(RESET)).code == "SESSION_EXPIRED"
            await registry.stop()

        run(main())
        assert [call.name for call in factory.envs[0].calls] == ["init", "close"]

    def test_a_step_that_takes_long_is_not_idle(self, clock):
        gate = Gate()

        async def main():
            registry = make_registry(lambda: Count(habits={1: gate}), idle_timeout_s=0.02, max_workers=9)
            registry.start()
            busy, idle = await opened(registry), await opened(registry)
            await busy.execute(RESET)
            step = asyncio.create_task(busy.execute(a_step(1)))
            await until(gate.reached.is_set)
            for _ in range(3):  # each time the reaper sees both
                clock.later()
                await until(lambda: idle.name not in registry.sessions)
                idle = await opened(registry)
            assert busy.name in registry.sessions
            gate.open()
            assert (await step).failures == []
            assert registry._idle(0.02) == []  # the time began anew
            clock.later()
            await until(lambda: not registry.sessions)
            await registry.stop()

        run(main())

    def test_what_counts(self, clock):
        """Neither the time for building nor that for a request; both begin it anew."""
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory, max_workers=1)
            factory.kwargs.update(on={"init": clock.later}, habits={1: clock.later})
            session = await opened(registry)
            assert clock.now == 10
            assert registry._idle(5) == []
            clock.later()
            assert registry._idle(5) == [session]
            assert registry._idle(15) == []
            await session.execute(RESET)
            assert registry._idle(5) == []
            await session.execute(a_step(1))
            assert registry._idle(5) == []
            clock.later()
            assert registry._idle(5) == [session]
            await registry.end(session)

        run(main())

    def test_building_is_not_idle(self, clock):
        gate = Gate()
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory, idle_timeout_s=0.02, max_workers=2)
            idle = await opened(registry)
            factory.kwargs["on"] = {"init": gate}
            registry.start()
            opening = asyncio.create_task(opened(registry))
            await until(gate.reached.is_set)
            clock.later()
            await until(lambda: idle.name not in registry.sessions)
            gate.open()
            session = await opening
            assert session.name in registry.sessions
            assert registry._idle(0.02) == []
            await registry.stop()

        run(main())

    def test_one_that_hangs_while_closing_keeps_no_other(self):
        gate = Gate()
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory, idle_timeout_s=0.02, max_workers=2)
            registry.start()
            factory.kwargs["on"] = {"close": gate}
            await opened(registry)
            await until(gate.reached.is_set)
            factory.kwargs["on"] = {}
            await opened(registry)
            await until(lambda: registry.capacity.active == 1)
            gate.open()
            await registry.stop()

        run(main())

    def test_no_limit(self):
        async def main():
            registry = make_registry(Count, idle_timeout_s=None)
            registry.start()
            assert registry._reaper is None
            await registry.stop()

        run(main())


class TestShutdown:
    def test_all_sessions_end_and_their_connections_are_told(self):
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory)
            registry.start()
            connections = []
            for _ in range(3):
                connections.append(FakeConnection())
                await (await opened(registry, 2)).attach(connections[-1], [])
            await registry.stop()
            assert {connection.closed for connection in connections} == {(1012, "the server is shutting down")}
            assert (registry.capacity.active, registry.sessions, registry.workers) == (0, {}, 0)
            await registry.stop()

        run(main())
        assert [env.count("close") for env in factory.envs] == [1] * 6

    def test_no_new_sessions(self):
        async def main():
            registry = make_registry(Count)
            await registry.stop()
            assert registry.draining
            with pytest.raises(GoingAway, match="the server is shutting down"):
                await opened(registry)
            assert registry.capacity.active == 0

        run(main())

    def test_a_session_that_is_being_opened(self):
        gate = Gate()
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory, max_workers=1)
            factory.kwargs["on"] = {"init": gate}
            opening = asyncio.create_task(opened(registry, 3))
            await until(gate.reached.is_set)
            stopping = asyncio.create_task(registry.stop())
            await until(lambda: not registry.sessions)
            gate.open()
            with pytest.raises(GoingAway):
                await opening
            await stopping
            assert (registry.capacity.active, registry.workers) == (0, 0)

        run(main())
        assert [env.count("close") for env in factory.envs] == [1]

    def test_a_step_that_runs_ends_and_its_reply_is_ready_before_the_connection_is_closed(self):
        gate = Gate()
        factory = Factory(Count, {"habits": {1: gate}})

        async def main():
            registry = make_registry(factory, max_workers=1)
            session, connection = await opened(registry), FakeConnection()
            await session.attach(connection, [])
            await session.execute(RESET)
            step = asyncio.create_task(session.execute(a_step(1)))
            await until(gate.reached.is_set)
            stopping = asyncio.create_task(registry.stop())
            await asyncio.wait([stopping], timeout=0.02)
            assert connection.closed is None
            gate.open()
            assert (await step).failures == []
            await stopping
            assert connection.closed == (1012, "the server is shutting down")

        run(main())
        assert factory.envs[0].count("close") == 1

    def test_an_env_that_hangs_is_left_behind(self, caplog):
        gate = Gate()
        factory = Factory(Count, {"habits": {1: gate}})

        async def main():
            registry = make_registry(factory, shutdown_s=STEP_S, max_workers=2)
            session, connection = await opened(registry), FakeConnection()
            other = await opened(registry)
            await session.attach(connection, [])
            await session.execute(RESET)
            step = asyncio.create_task(session.execute(a_step(1)))
            await until(gate.reached.is_set)
            stopping = asyncio.create_task(registry.stop())
            await until(lambda: registry.capacity.active == 1, "the end of the other one")
            skip(STEP_S)
            await stopping
            assert connection.closed == (1012, "the server is shutting down")
            assert (registry.capacity.active, registry.workers) == (0, 0)
            assert other.closed
            step.cancel()
            (worker,) = session.crew.workers
            return worker

        worker = run(main())
        (record,) = (record for record in caplog.records if record.getMessage() == "sessions did not end in time")
        assert (record.sessions, record.limit_s) == (1, STEP_S)
        gate.open()
        assert worker.join(LIMIT_S)
        assert [env.count("close") for env in factory.envs] == [1, 1]

    @pytest.mark.parametrize("how", ["grace", "client", "cancelled"])
    def test_what_began_to_end_before_is_waited_for(self, how):
        """Also if the client left, and uvicorn cancels what served its connection."""
        gate = Gate()
        factory = Factory(Count)

        async def main():
            registry = make_registry(factory, grace_s=0)
            factory.kwargs["on"] = {"close": gate}
            session = await opened(registry)
            if how == "grace":
                registry.disconnected(session)
                await until(gate.reached.is_set)
            else:
                ending = asyncio.create_task(registry.end(session))
                await until(gate.reached.is_set)
                if how == "cancelled":
                    ending.cancel()
            stopping = asyncio.create_task(registry.stop())
            await asyncio.wait([stopping], timeout=0.02)
            assert not stopping.done()
            gate.open()
            await stopping
            assert registry.capacity.active == 0

        run(main())
