"""A session's requests on real threads: affinity, overlap, limits, and what hostile requests get."""

import asyncio
import itertools
import threading

import numpy as np
import pytest
from helpers_core import STEP_S, run, run_out
from helpers_envs import Count, Factory, Gate, Meeting, raiser
from helpers_wait import LIMIT_S, until, wait_until

from openenv_gym.codec import pack, unpack
from openenv_gym.errors import FactoryError
from openenv_gym.messages import (
    Array,
    Call,
    Close,
    Closed,
    Failed,
    Get,
    Observed,
    Render,
    Reset,
    Returned,
    Set,
    State,
    Step,
    Stepped,
    Values,
)
from openenv_gym.server.adapters import EnvSource
from openenv_gym.server.encoding import BatchEncoding
from openenv_gym.server.executor import Executor
from openenv_gym.server.session import Session
from openenv_gym.server.settings import ServerSettings
from openenv_gym.server.slots import Slots

PLACES = [
    {"max_workers": None, "apart": False},
    {"max_workers": None, "apart": True},
    {"max_workers": 1, "apart": False},
    {"max_workers": 2, "apart": False},
]


def unbuilt(factory, count, *, max_workers=None, apart=False, **settings):
    """A session whose envs aren't built yet."""
    limited = settings.get("max_step_s") is not None
    executor = Executor(max_workers=max_workers, apart=apart or limited)
    encoding = BatchEncoding(Count.observation_space, Count.action_space)
    slots = Slots(EnvSource(factory), count, (Count.observation_space, Count.action_space), encoding)
    session = Session(slots, executor, ServerSettings(**settings))
    session.executor = executor
    return session


async def make_session(factory, count, **places_and_settings):
    """A session with its envs built."""
    session = unbuilt(factory, count, **places_and_settings)
    await session.build()
    return session


async def late(session, doing, *hanging):
    """What comes of something that a session does, and in which these envs don't return within the limit."""
    task = asyncio.ensure_future(doing)
    await asyncio.sleep(0)  # now it has begun
    await run_out(session, *hanging)
    return await task


def a_reset(slots=None, seeds=None, options=None):
    return Reset(1, slots, seeds, options)


def a_step(*actions, slots=None, mode="NextStep"):
    return Step(1, slots, [Array.of(np.array(actions))], mode)


def observed(reply):
    """The observations of a reply of `Count`s."""
    assert isinstance(reply, Observed | Stepped), reply
    return reply.observations[0].numpy().ravel().tolist()


class TestAffinity:
    """Playwright, GL and MuJoCo contexts belong to the thread that made them."""

    @pytest.mark.parametrize("place", PLACES, ids=str)
    def test_one_thread_for_all_that_an_env_does(self, place):
        factory = Factory(Count, {"length": 3})

        async def main():
            session = await make_session(factory, 8, **place, allow_call=None, allow_set=None)
            await session.execute(a_reset())
            for turn in range(100):
                numbers = [(turn * 3 + n) % 8 for n in range(1 + turn % 8)]
                await session.execute(a_step(*numbers, slots=numbers, mode=["NextStep", "SameStep"][turn % 2]))
            for request in (
                Call(1, None, "add", [1, 2], {}),
                Get(1, None, "level"),
                Set(1, None, "level", [3] * 8),
                Render(1, None),
                State(1, None),
                a_reset([5, 2]),
            ):
                assert (await session.execute(request)).failures == []
            await session.close()
            return session

        session = run(main())
        assert len(factory.all) == 8
        assert {len(env.threads) for env in factory.all} == {1}
        threads = [env.threads.pop() for env in factory.all]
        assert threading.get_ident() not in threads
        assert {env.count("close") for env in factory.all} == {1}
        workers = 8 if place["apart"] else place["max_workers"] or 1
        assert len(set(threads)) == workers
        assert session.executor.workers == 0

    def test_an_env_that_is_built_anew_stays_on_its_thread(self):
        factory = Factory(Count)

        async def main():
            session = await make_session(factory, 2, apart=True)
            factory.all[1].on["reset"] = raiser(ValueError())
            await session.execute(a_reset())
            await session.execute(a_reset())
            await session.close()

        run(main())
        first, second, third = factory.all
        assert {call.thread for env in (second, third) for call in env.calls} == second.threads
        assert first.threads != second.threads

    @pytest.mark.parametrize("place", PLACES, ids=str)
    def test_a_batch_is_one_job_for_each_thread(self, place):
        async def main():
            session = await make_session(Count, 8, **place)
            counts = []
            for worker in set(session.crew.workers):
                worker.submit = lambda job, submit=worker.submit: (counts.append(1), submit(job))
            await session.execute(a_reset())
            all_of_them = len(counts)
            counts.clear()
            await session.execute(a_step(0, slots=[3]))
            one_of_them = len(counts)
            await session.close()
            return all_of_them, one_of_them, len(set(session.crew.workers))

        all_of_them, one_of_them, workers = run(main())
        assert (all_of_them, one_of_them) == (workers, 1)


class TestOverlap:
    def test_envs_that_wait_do_so_at_the_same_time(self):
        """Each waits until all 64 are there, which none ever would be if one came after the other."""

        async def main():
            meeting = Meeting(64)
            session = await make_session(lambda: Count(habits={1: meeting}), 64, apart=True)
            await session.execute(a_reset())
            reply = await session.execute(a_step(*[1] * 64))
            await session.close()
            return reply

        assert run(main()).failures == []

    @pytest.mark.parametrize("count", [1, 64])
    def test_the_event_loop_goes_on_meanwhile(self, count):
        gate = Gate()

        async def main():
            session = await make_session(lambda: Count(habits={1: gate}), count, apart=True)
            await session.execute(a_reset())
            step = asyncio.create_task(session.execute(a_step(*[1] * count)))
            await until(gate.reached.is_set)
            assert session.busy
            for _ in range(100):  # each of them would be stuck behind a step on the loop's thread
                await asyncio.sleep(0)
            assert not step.done()
            gate.open()
            assert observed(await step) == [1.0] * count
            assert not session.busy
            await session.close()

        run(main())

    def test_requests_run_one_after_the_other_in_order(self):
        async def main():
            session = await make_session(lambda: Count(100), 3, apart=True)

            async def ask(request):  # a reply's arrays are valid until the next request, so each is read when it comes
                return observed(await session.execute(request))

            seen = await asyncio.gather(*[ask(request) for request in [a_reset(), *[a_step(0, 0, 0)] * 5]])
            await session.close()
            return seen

        assert run(main()) == [[float(n)] * 3 for n in range(6)]

    def test_an_env_may_run_an_event_loop_of_its_own(self):
        """Tool-calling envs do."""

        async def ask():
            await asyncio.sleep(0)

        async def main():
            session = await make_session(lambda: Count(habits={1: lambda env: asyncio.run(ask())}), 2)
            await session.execute(a_reset())
            reply = await session.execute(a_step(1, 1))
            await session.close()
            return reply

        assert run(main()).failures == []


class TestRequests:
    def test_everything(self):
        async def main():
            session = await make_session(
                lambda: Count(render_mode="rgb_array"), 2, allow_call={"add"}, allow_set={"level"}
            )
            assert observed(await session.execute(a_reset(None, [1, None], [pack({"a": (1,)}), None]))) == [0.0, 0.0]
            assert observed(await session.execute(a_step(0, slots=[1]))) == [1.0]
            assert observed(await session.execute(a_step(0, 0))) == [1.0, 2.0]
            call = await session.execute(Call(1, [1], "add", [1], {"b": 2}))
            assert call.values == [3]
            assert (await session.execute(Set(1, None, "level", [7, 8]))).values == [True, True]
            assert (await session.execute(Get(1, [1, 0], "level"))).values == [8, 7]
            frames = (await session.execute(Render(1, None))).values
            assert [unpack(frame)[0, 0, 0] for frame in frames] == [1, 2]
            state = await session.execute(State(1, [1]))
            assert state.values[0]["step_count"] == 2
            assert await session.execute(Close(9)) == Closed(9)
            assert session.counts.steps == 3
            await session.close()

        run(main())

    def test_options_are_each_envs_own(self):
        factory = Factory(Count)

        async def main():
            session = await make_session(factory, 2)
            options = {"a": [1]}
            await session.execute(a_reset(None, None, [options, options]))
            await session.close()

        run(main())
        first, second = [call.arguments[1] for env in factory.all for call in env.calls if call.name == "reset"]
        assert first == second == {"a": [1]}
        assert first is not second

    @pytest.mark.parametrize(
        "request_, text",
        [
            (a_step(0, slots=[2]), "slots are numbered from 0 to 1"),
            (a_step(0, slots=[-1]), "slots are numbered from 0 to 1"),
            (a_step(0, 0, slots=[1, 1]), "may be named once each"),
            (a_step(slots=[]), "0 slots of a session with 2"),
            (Get(1, [0] * 10**6, "level"), "1000000 slots of a session with 2"),
            (a_step(0), "the actions aren't for 2 envs"),
            (Step(1, None, [], "NextStep"), "0 leaves of actions"),
            (Step(1, None, [Array("<i8", (10**12,), memoryview(b""))], "NextStep"), "reshape"),
            (Step(1, None, [Array("<i8", (-1,), memoryview(bytes(16)))], "NextStep"), "negative size"),
            (Step(1, None, [Array("|O", (2,), memoryview(bytes(16)))], "NextStep"), "unknown dtype"),
            (Step(1, None, [Values([0])], "NextStep"), "the actions aren't for 2 envs"),
            (a_step(0, 0, mode="Sometimes"), "'Sometimes' is not a valid AutoresetMode"),
            (a_reset(None, [1]), "1 seeds and 2 options for 2 envs"),
            (a_reset(None, None, [{}] * 10**5), "2 seeds and 100000 options for 2 envs"),
            (a_reset(None, None, [[1], None]), "an env's options are a dict or None"),
            (Set(1, None, "level", [1]), "1 values for 2 envs"),
        ],
    )
    def test_what_does_not_fit_changes_nothing(self, request_, text):
        factory = Factory(Count)

        async def main():
            session = await make_session(factory, 2, allow_set=None)
            await session.execute(a_reset())
            calls = [list(env.calls) for env in factory.all]
            failed = await session.execute(request_)
            assert calls == [env.calls for env in factory.all]
            assert observed(await session.execute(a_step(0, 0))) == [1.0, 1.0]
            await session.close()
            return failed

        failed = run(main())
        assert isinstance(failed, Failed)
        assert (failed.id, failed.code) == (1, "VALIDATION_ERROR")
        assert text in failed.message
        assert len(failed.message) < 1000

    def test_permissions(self):
        async def main():
            session = await make_session(Count, 1)
            failed = [
                await session.execute(request) for request in (Call(1, None, "close", [], {}), Get(1, None, "_x"))
            ]
            await session.close()
            return failed

        for failed in run(main()):
            assert (failed.code, failed.error) == ("NOT_ALLOWED", "PermissionError")
            assert "may not" in failed.message

    @pytest.mark.parametrize("name", ["nothing", "add", "unwrapped"])
    def test_an_attribute_that_does_not_exist_or_is_no_data(self, name):
        async def main():
            session = await make_session(Count, 2)
            reply = await session.execute(Get(1, None, name))
            await session.close()
            return reply

        reply = run(main())
        assert isinstance(reply, Returned)
        assert [(failure.slot, failure.type) for failure in reply.failures] == [
            (0, "AttributeError"),
            (1, "AttributeError"),
        ]

    def test_a_mistake_of_ours_is_a_reply_too(self, caplog):
        async def main():
            session = await make_session(Count, 1)
            session.slots.step = None
            session._step = None
            failed = await session.execute(a_step(0))
            await session.close()
            return failed

        failed = run(main())
        assert (failed.id, failed.code, failed.error) == (1, "EXECUTION_ERROR", "TypeError")
        assert "could not be run" in caplog.text

    def test_a_request_that_is_cancelled_keeps_its_page(self):
        """Its job goes on writing; the next request's rows must not be what it writes."""
        gate = Gate()

        def habit(env):
            gate()
            raise ValueError("late")

        async def main():
            session = await make_session(lambda: Count(100, habits={1: habit}), 2, apart=True)
            await session.execute(a_reset())
            step = asyncio.create_task(session.execute(a_step(1, 0)))
            await until(gate.reached.is_set)
            step.cancel()
            await asyncio.wait([step])
            assert step.cancelled()
            after = asyncio.create_task(session.execute(a_step(0, 0)))
            await until(lambda: session.busy)
            gate.open()
            reply = await after
            assert (observed(reply), reply.failures) == ([2.0, 2.0], [])
            await session.close()

        run(main())


class TestStepsInTurn:
    @pytest.mark.parametrize("limit", [None, LIMIT_S])
    def test_until_it_is_enough(self, limit):
        seen = []

        def take(reply):
            seen.append(observed(reply)[0])
            return len(seen) < 3

        async def main():
            session = await make_session(lambda: Count(100), 1, max_step_s=limit)
            await session.execute(a_reset())
            assert await session.step_in_turn([a_step(0)] * 5, take) is None
            assert session.counts.steps == 3
            await session.close()
            return await session.step_in_turn([a_step(0)], take)

        assert run(main()).code == "SESSION_EXPIRED"
        assert seen == [1.0, 2.0, 3.0]

    @pytest.mark.parametrize("limit", [None, LIMIT_S])
    def test_what_take_raises(self, limit):
        def take(reply):
            raise KeyError("oops")

        async def main():
            session = await make_session(Count, 1, max_step_s=limit)
            await session.execute(a_reset())
            with pytest.raises(KeyError, match="oops"):
                await session.step_in_turn([a_step(0)], take)
            assert observed(await session.execute(a_step(0))) == [2.0]
            await session.close()

        run(main())

    def test_each_step_has_its_limit(self):
        gate, seen = Gate(), []

        async def main():
            session = await make_session(lambda: Count(100, habits={1: gate}), 1, max_step_s=STEP_S)
            await session.execute(a_reset())
            steps = [a_step(0), a_step(1)]
            stepping = session.step_in_turn(steps, lambda reply: seen.append(reply.failures) or True)
            stepping = asyncio.create_task(stepping)
            await until(gate.reached.is_set)
            await run_out(session, 0)
            await stepping
            gate.open()
            await session.close()

        run(main())
        assert seen[0] == []
        assert [failure.code for failure in seen[1]] == ["STEP_TIMEOUT"]


class TestLimits:
    """`max_step_s`: one env that hangs costs its own row, and nothing else."""

    async def begun(self, habit=None):
        """A session of three envs in which action 1 is this habit, after a reset."""
        factory = Factory(Count, {"length": 100, "habits": {1: habit or (lambda env: None)}, "on": {}})
        session = await make_session(factory, 3, max_step_s=STEP_S, allow_call=None)
        # Built at the same time on threads of their own, in any order.
        self.envs = [slot.env.env for slot in session.slots.slots]
        await session.execute(a_reset())
        self.old_worker = session.crew.workers[1]
        return session

    async def hung(self, habit, doing=None, hanging=(1,)):
        """A session in which env 1 has just been given up; its reply too."""
        session = await self.begun(habit)
        reply = await late(session, session.execute(doing or a_step(0, 1, 0)), *hanging)
        return session, reply

    def test_its_row_is_a_failure_and_the_others_are_normal(self):
        gate = Gate()

        async def main():
            session, reply = await self.hung(gate)
            (failure,) = reply.failures
            assert (failure.slot, failure.code, failure.type) == (1, "STEP_TIMEOUT", "TimeoutError")
            assert failure.message == (
                f"env 1 didn't return from 'step' within {STEP_S} second(s); reset it, to get a new one"
            )
            values = observed(reply)
            assert [values[0], values[2]] == [1.0, 1.0]
            assert set(reply.infos) == {0, 2}
            assert not gate.passed.is_set()  # the reply didn't wait for it
            gate.open()
            await session.close()

        run(main())

    def test_the_next_reset_builds_a_new_env_on_a_new_worker(self):
        gate = Gate()

        async def main():
            session, _ = await self.hung(gate)
            (needed,) = (await session.execute(a_step(0, 0, 0))).failures
            assert (needed.slot, needed.type) == (1, "ResetNeeded")
            assert (await session.execute(Call(1, [1], "add", [1], {}))).failures[0].type == "ResetNeeded"
            reply = await session.execute(a_reset([1], [7]))
            assert reply.failures == []
            new = session.slots.slots[1].env.env
            assert new is not self.envs[1]
            assert session.crew.workers[1] is not self.old_worker
            assert new.threads.isdisjoint(set().union(*[env.threads for env in self.envs]))
            assert observed(await session.execute(a_step(0, 0, 0))) == [3.0, 1.0, 3.0]
            assert session.executor.workers == 3
            gate.open()
            await session.close()
            assert session.executor.workers == 0

        run(main())

    def test_late_results_are_dropped(self):
        """Neither the new env's rows nor its episode know of what the old one still did."""
        gate = Gate()

        def habit(env):
            gate()
            return np.array([99.0]), 99.0, True, True, {"late": 99}

        async def main():
            session, reply = await self.hung(habit)
            before = reply.rewards.numpy().copy()
            await session.execute(a_reset([1]))
            page = session.slots.begin()
            session.slots.end(page)
            gate.open()
            assert self.old_worker.join(LIMIT_S)
            assert 99.0 not in page.rewards
            assert page.failures == []
            after = await session.execute(a_step(0, 0, 0))
            assert (observed(after)[1], after.rewards.numpy()[1], after.truncated.numpy()[1]) == (1.0, 1.0, False)
            assert {n: unpack(info) for n, info in after.infos.items()} == {0: {"i": 2}, 1: {"i": 1}, 2: {"i": 2}}
            assert before[0] == before[2] == 1.0
            await session.close()

        run(main())

    def test_the_old_env_is_closed_on_its_thread_if_it_returns(self):
        gate = Gate()

        async def main():
            session, _ = await self.hung(gate)
            old = self.envs[1]
            await session.execute(a_reset())
            await session.close()
            assert old.count("close") == 0
            gate.open()
            assert self.old_worker.join(LIMIT_S)
            assert old.count("close") == 1
            assert len(old.threads) == 1

        run(main())

    @pytest.mark.parametrize("error", [ValueError("late"), SystemExit(3)])
    def test_an_old_env_that_raises(self, error):
        gate = Gate()

        def habit(env):
            gate()
            raise error

        async def main():
            session, reply = await self.hung(habit)
            self.envs[1].on["close"] = raiser(ValueError("later"))
            gate.open()
            assert self.old_worker.join(LIMIT_S)
            assert [failure.code for failure in reply.failures] == ["STEP_TIMEOUT"]
            await session.close()
            assert self.envs[1].count("close") == 1

        run(main())

    def test_an_autoreset_that_hangs(self):
        """What the env still does after the limit includes a reset, and that of an old slot."""
        gate = Gate()

        async def main():
            session = await self.begun()
            self.envs[1].length, self.envs[1].on["reset"] = 1, gate
            reply = await late(session, session.execute(a_step(0, 0, 0, mode="SameStep")), 1)
            assert [failure.slot for failure in reply.failures] == [1]
            assert reply.final is None
            gate.open()
            assert self.old_worker.join(LIMIT_S)
            assert session.slots.state(1) == {"episode_id": None, "step_count": 0}
            await session.close()

        run(main())

    def test_a_reset_that_hangs(self):
        gate = Gate()

        async def main():
            session = await self.begun()
            self.envs[1].on["reset"] = gate
            reply = await late(session, session.execute(a_reset()), 1)
            (failure,) = reply.failures
            assert "env 1 didn't return from 'reset'" in failure.message
            assert [observed(reply)[n] for n in (0, 2)] == [0.0, 0.0]
            assert (await session.execute(a_reset())).failures == []
            gate.open()
            await session.close()

        run(main())

    def test_a_call_that_hangs(self):
        gate = Gate()

        async def main():
            session = await self.begun()
            self.envs[1].on["add"] = gate
            reply = await late(session, session.execute(Call(1, None, "add", [1], {"b": 2})), 1)
            assert reply.values == [3, None, 3]
            assert "'add'" in reply.failures[0].message
            gate.open()
            await session.close()

        run(main())

    def test_all_of_them_hang(self):
        gate = Gate()

        async def main():
            session, reply = await self.hung(gate, a_step(1, 1, 1), (0, 1, 2))
            assert [failure.slot for failure in reply.failures] == [0, 1, 2]
            assert (await session.execute(a_reset())).failures == []
            gate.open()
            await session.close()

        run(main())

    def test_slots_are_named_where_positions_differ(self):
        gate = Gate()

        async def main():
            session, reply = await self.hung(gate, a_step(1, 0, slots=[2, 0]), (2,))
            assert [failure.slot for failure in reply.failures] == [2]
            assert observed(reply)[1] == 1.0
            assert set(reply.infos) == {1}
            gate.open()
            await session.close()

        run(main())

    def test_a_job_that_starts_late(self):
        """Its worker didn't even begin within the limit; when it does, it finds the old slot and the old page."""
        gate = Gate()

        async def main():
            session = await self.begun()
            self.old_worker.submit(gate)
            await until(gate.reached.is_set)
            reply = await late(session, session.execute(a_step(0, 5, 0)), 1)
            assert [failure.slot for failure in reply.failures] == [1]
            await session.execute(a_reset([1]))
            gate.open()
            assert self.old_worker.join(LIMIT_S)
            assert self.envs[1].calls[-2].arguments == (5,)
            assert self.envs[1].calls[-1].name == "close"
            assert observed(await session.execute(a_step(0, 0, 0)))[1] == 1.0
            await session.close()

        run(main())

    def test_a_close_that_hangs(self, caplog):
        gate = Gate()

        async def main():
            session = await self.begun()
            self.envs[1].on["close"] = gate
            await late(session, session.close(), 1)
            assert [env.count("close") for env in self.envs] == [1, 1, 1]
            assert session.executor.workers == 0
            gate.open()
            assert self.old_worker.join(LIMIT_S)

        run(main())
        (record,) = (record for record in caplog.records if record.getMessage() == "an env was not closed in time")
        assert record.env == 1

    def test_nobody_is_given_up_in_time(self):
        async def main():
            session = await make_session(lambda: Count(100), 4, max_step_s=LIMIT_S)
            workers = list(session.crew.workers)
            await session.execute(a_reset())
            for _ in range(20):
                assert (await session.execute(a_step(0, 0, 0, 0))).failures == []
            assert session.crew.workers == workers
            await session.close()

        run(main())

    def test_a_job_may_outlive_the_event_loop(self, caplog):
        gate = Gate()

        async def main():
            session, _ = await self.hung(gate)
            await session.close()

        run(main())
        gate.open()
        assert self.old_worker.join(LIMIT_S)
        assert "Traceback" not in caplog.text


class TestClosing:
    def test_once(self):
        factory = Factory(Count)

        async def main():
            session = await make_session(factory, 3)
            await asyncio.gather(*[session.close() for _ in range(5)])
            assert [env.count("close") for env in factory.all] == [1, 1, 1]
            await session.close()

        run(main())
        assert [env.count("close") for env in factory.all] == [1, 1, 1]

    @pytest.mark.parametrize("place", PLACES, ids=str)
    @pytest.mark.parametrize("error", [ValueError("oops"), SystemExit(3)])
    def test_envs_that_raise_keep_none_open(self, place, error, caplog):
        factory = Factory(Count, {"on": {"close": raiser(error)}})

        async def main():
            session = await make_session(factory, 4, **place)
            await session.close()
            return session.executor.workers

        assert run(main()) == 0
        assert [env.count("close") for env in factory.all] == [1] * 4
        assert caplog.text.count("an env could not be closed") == 4

    def test_all_closes_wait_until_the_envs_are_closed(self):
        gate = Gate()

        async def main():
            session = await make_session(lambda: Count(on={"close": gate}), 1)
            first = asyncio.create_task(session.close())
            await until(gate.reached.is_set)
            second = asyncio.create_task(session.close())
            await asyncio.wait([second], timeout=0.02)
            assert not second.done()
            gate.open()
            await asyncio.gather(first, second)

        run(main())

    def test_requests_after_it(self):
        factory = Factory(Count)

        async def main():
            session = await make_session(factory, 1)
            await session.close()
            replies = [await session.execute(r) for r in (a_reset(), a_step(0), Get(1, None, "level"), State(1, None))]
            assert {reply.code for reply in replies} == {"SESSION_EXPIRED"}

        run(main())
        assert factory.all[0].calls[-1].name == "close"

    def test_what_runs_ends_first_and_what_waits_never_runs(self):
        gate, factory = Gate(), None
        factory = Factory(Count, {"habits": {1: gate}})

        async def main():
            session = await make_session(factory, 1)
            await session.execute(a_reset())
            running = asyncio.create_task(session.execute(a_step(1)))
            await until(gate.reached.is_set)
            waiting = asyncio.create_task(session.execute(a_step(5)))
            await asyncio.sleep(0)
            closing = asyncio.create_task(session.close())
            await asyncio.sleep(0)
            gate.open()
            assert observed(await running) == [1.0]
            assert (await waiting).code == "SESSION_EXPIRED"
            await closing

        run(main())
        assert [call.name for call in factory.all[0].calls] == ["init", "reset", "step", "close"]

    def test_a_hung_env_is_closed_when_it_returns_though_nobody_waits_any_more(self):
        gate = Gate()
        factory = Factory(Count, {"habits": {1: gate}})

        async def main():
            session = await make_session(factory, 1)
            await session.execute(a_reset())
            step = asyncio.create_task(session.execute(a_step(1)))
            await until(gate.reached.is_set)
            closing = asyncio.create_task(session.close())
            await asyncio.sleep(0)
            closing.cancel()
            step.cancel()
            await asyncio.wait([closing, step])
            (worker,) = session.crew.workers
            return worker

        worker = run(main())
        gate.open()
        assert worker.join(LIMIT_S)
        assert factory.all[0].count("close") == 1
        assert len(factory.all[0].threads) == 1


class TestBuilding:
    @pytest.mark.parametrize(
        "error", [OSError("no licence"), SystemExit("no licence"), KeyboardInterrupt("no licence")]
    )
    def test_the_first_error_is_raised_and_stops_the_rest(self, error):
        calls, called, told = itertools.count(), threading.Event(), threading.Event()

        def factory():
            first = next(calls) == 0
            called.set()
            if first:
                raise error
            assert told.wait(LIMIT_S)
            return Count()

        async def main():
            session = unbuilt(factory, 50, max_workers=2)
            building = asyncio.create_task(session.build())
            await until(called.is_set)
            for worker in set(session.crew.workers):
                worker.submit(told.set)  # once the one that failed is through, for the other one waits for it
            with pytest.raises(FactoryError, match="no licence"):
                await building
            await session.close()

        run(main())
        assert next(calls) <= 2  # one for each worker

    def test_an_env_that_takes_too_long_is_given_up_and_closed_when_it_is_there(self):
        gate = Gate()
        factory = Factory(lambda: Count(on={"init": gate}))

        async def main():
            with pytest.raises(FactoryError, match=r"not built within 0\.1 second"):
                await make_session(factory, 2, max_step_s=0.1)

        run(main())
        gate.open()
        wait_until(lambda: [env.count("close") for env in factory.all] == [1, 1])

    def test_a_session_that_is_closed_meanwhile(self):
        gate = Gate()
        factory = Factory(lambda: Count(on={"init": gate}))

        async def main():
            session = unbuilt(factory, 5)
            building = asyncio.create_task(session.build())
            await until(gate.reached.is_set)
            closing = asyncio.create_task(session.close())
            await asyncio.sleep(0)
            gate.open()
            await asyncio.gather(building, closing)

        run(main())
        assert [env.count("close") for env in factory.all] == [1]
