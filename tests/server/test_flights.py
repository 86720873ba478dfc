"""Launched steps: each env by itself, each transition collected once, and no request that waits for a slow env."""

import asyncio

import numpy as np
import pytest
from helpers_core import STEP_S, Talk, make_registry, run, skip
from helpers_envs import Count, Factory, Gate, raiser
from helpers_wait import until

from openenv_gym.codec import unpack
from openenv_gym.messages import (
    Array,
    Closed,
    Collect,
    Collected,
    Failed,
    Get,
    Launch,
    Launched,
    Observed,
    Reset,
    Step,
    Stepped,
)
from openenv_gym.messages import Close as CloseMessage


class Asking:
    """A client of a server in this process, which numbers its requests."""

    def __init__(self, talk):
        self.talk, self.id = talk, 0

    def write(self, kind, *fields):
        self.id += 1
        self.talk.connection.write(kind(self.id, *fields))

    async def read(self):
        return await self.talk.connection.read()

    async def ask(self, kind, *fields):
        self.write(kind, *fields)
        return await self.read()

    async def launch(self, slots, *actions, mode="NextStep"):
        return await self.ask(Launch, slots, [Array.of(np.array(actions))], mode)

    async def collect(self, at_least):
        collected = await self.ask(Collect, at_least)
        assert isinstance(collected, Collected), collected
        return collected.slots, values(collected.steps)


def values(steps):
    """The observations of a reply of `Count`s."""
    return steps.observations[0].numpy().ravel().tolist()


def serve(use, env=Count, num_envs=3, *, apart=True, reset=True, **settings):
    """Run ``use(client, registry)`` with a session; with ``apart`` each env has a thread of its own."""

    async def main():
        registry = make_registry(env, **{"max_workers": 64 if apart else 1, **settings})
        asking = Asking(await Talk.hello(registry, num_envs))
        if reset:
            assert isinstance(await asking.ask(Reset, None, None, None), Observed)
        await use(asking, registry)
        await registry.stop()

    run(main())


@pytest.mark.parametrize("apart", [True, False])
def test_what_was_launched_is_collected_once(apart):
    async def use(client, registry):
        assert isinstance(await client.launch([2, 0], 0, 0), Launched)
        assert await client.collect(2) == ([0, 2], [1.0, 1.0])
        assert await client.collect(1) == ([], [])  # nothing more can come
        await client.launch(None, 0, 0, 0)
        collected = await client.ask(Collect, 3)
        assert (collected.slots, values(collected.steps)) == ([0, 1, 2], [2.0, 1.0, 2.0])
        assert collected.steps.rewards.numpy().tolist() == [1.0] * 3
        assert [unpack(collected.steps.infos[at]) for at in range(3)] == [{"i": 2}, {"i": 1}, {"i": 2}]
        (session,) = registry.sessions.values()
        assert (session.counts.steps, session.busy) == (5, False)

    serve(use, apart=apart)


def test_a_slow_env_holds_up_nobody():
    gate = Gate()

    async def use(client, registry):
        await client.launch(None, 1, 0, 0)
        assert await client.collect(2) == ([1, 2], [1.0, 1.0])
        await client.launch([2], 0)
        assert await client.collect(1) == ([2], [2.0])
        (session,) = registry.sessions.values()
        assert session.busy
        client.write(Collect, 1)  # waits, until the next request comes
        assert isinstance(await client.launch([1], 0), Collected)
        assert isinstance(await client.read(), Launched)
        assert await client.collect(1) == ([1], [2.0])
        client.write(Collect, 1)
        empty, got = await client.ask(Get, [2], "t"), await client.read()
        assert (empty.slots, got.values) == ([], [2])
        gate.open()
        assert await client.collect(1) == ([0], [1.0])

    serve(use, Factory(Count, {"length": 100, "habits": {1: gate}}))


def test_autoreset_in_all_modes():
    async def use(client, registry):
        for mode, slot in (("NextStep", 0), ("SameStep", 1), ("Disabled", 2)):
            await client.launch([slot], 0, mode=mode)
            (first,) = (await client.ask(Collect, 1),)
            assert first.steps.terminated.numpy().tolist() == [True]
            if mode == "SameStep":
                assert values(first.steps) == [0.0]
                assert first.steps.final.positions == [0]
                assert first.steps.final.observations[0].numpy().tolist() == [[1.0]]
            await client.launch([slot], 0, mode=mode)
            second = (await client.ask(Collect, 1)).steps
            if mode == "Disabled":
                assert [failure.type for failure in second.failures] == ["ResetNeeded"]
            else:
                assert (values(second), second.failures) == ([0.0], [])
                assert second.final is None or mode == "SameStep"

    serve(use, lambda: Count(1))


def test_errors_stay_with_their_env_and_are_told_once():
    async def use(client, registry):
        await client.launch(None, 0, 5, 0)
        collected = await client.ask(Collect, 3)
        assert (collected.slots, values(collected.steps)) == ([0, 2], [1.0, 1.0])
        assert [(f.slot, f.type) for f in collected.steps.failures] == [(1, "KeyError")]
        await client.launch(None, 0, 0, 0)
        assert (await client.ask(Collect, 3)).steps.failures == []

    serve(use, lambda: Count(100, habits={5: raiser(KeyError("oops"))}))


def test_bad_requests_change_nothing():
    async def use(client, registry):
        await client.launch([1], 0)
        for refused in (
            await client.launch([0, 1], 0, 0),
            await client.launch([7], 0),
            await client.launch([0], 0, mode="Never"),
            await client.launch([0], 0, 0),
            await client.ask(Step, None, [Array.of(np.zeros(3, np.int64))], None),
        ):
            assert isinstance(refused, Failed)
            assert refused.code == "VALIDATION_ERROR"
        assert await client.collect(3) == ([1], [1.0])
        assert await client.collect(3) == ([], [])
        assert isinstance(await client.ask(Step, None, [Array.of(np.zeros(3, np.int64))], None), Stepped)

    serve(use, lambda: Count(100))


@pytest.mark.parametrize("ended", [True, False])
def test_a_reset_drops_the_steps_of_its_envs(ended):
    gate = Gate()

    async def use(client, registry):
        await client.launch(None, 0, 0 if ended else 1, 0)
        (session,) = registry.sessions.values()
        if ended:
            await until(lambda: not session.busy)
        client.write(Reset, [1], None, None)
        gate.open()
        assert isinstance(await client.read(), Observed)
        assert await client.collect(3) == ([0, 2], [1.0, 1.0])
        await client.launch([1], 0)
        assert await client.collect(3) == ([1], [1.0])

    serve(use, Factory(Count, {"length": 100, "habits": {1: gate}}))


def test_what_a_reset_dropped_does_not_come_back():
    async def use(client, registry):
        await client.launch([1], 5)
        await client.ask(Reset, [1], None, None)
        await client.launch([1], 0)
        collected = await client.ask(Collect, 1)
        assert (collected.slots, collected.steps.failures) == ([1], [])

    serve(use, lambda: Count(100, habits={5: raiser(KeyError("oops"))}))


def test_an_env_that_hangs_is_given_up_alone():
    gate = Gate()

    async def use(client, registry):
        await client.launch(None, 0, 1, 0)
        assert await client.collect(2) == ([0, 2], [1.0, 1.0])
        skip(STEP_S)
        failed = await client.ask(Collect, 1)
        assert (failed.slots, [(f.slot, f.code) for f in failed.steps.failures]) == ([], [(1, "STEP_TIMEOUT")])
        assert isinstance(await client.ask(Reset, [1], None, None), Observed)
        await client.launch(None, 0, 0, 0)
        again = await client.ask(Collect, 3)
        assert (again.slots, values(again.steps)) == ([0, 1, 2], [2.0, 1.0, 2.0])
        gate.open()

    serve(use, Factory(Count, {"length": 100, "habits": {1: gate}}), max_workers=None, max_step_s=STEP_S)


def test_each_transition_survives_a_cut():
    gate = Gate()

    async def use(client, registry):
        await client.launch(None, 0, 1, 0)
        client.write(Collect, 3)  # and nobody is there when it is answered
        await client.talk.cut()
        gate.open()
        (session,) = registry.sessions.values()
        await until(lambda: not session.busy)
        resumed = await Talk.resume(registry, client.talk.welcome, client.id - 1)
        client.talk = resumed
        first = await client.read()
        rest, _ = await client.collect(3 - len(first.slots)) if len(first.slots) < 3 else ([], [])
        assert sorted(first.slots + rest) == [0, 1, 2]
        assert await client.collect(1) == ([], [])

    serve(use, Factory(Count, {"length": 100, "habits": {1: gate}}))


def test_a_resume_does_not_wait_for_a_connection_that_only_the_client_knows_is_dead():
    gate = Gate()

    async def use(client, registry):
        await client.launch(None, 0, 1, 0)
        client.write(Collect, 3)
        (session,) = registry.sessions.values()
        await until(lambda: session.protocol.received == client.id and session.counts.steps == 2)
        client.talk.connection.stalled = asyncio.Event()  # neither its end nor a message gets through
        client.talk, old = await Talk.resume(registry, client.talk.welcome, client.id - 1), client.talk
        assert (await client.read()).slots == [0, 2]
        assert isinstance(await client.launch([0], 0), Launched)
        gate.open()
        assert await client.collect(2) == ([0, 1], [2.0, 1.0])
        old.connection.stalled.set()
        await old.ended()

    serve(use, Factory(Count, {"length": 100, "habits": {1: gate}}))


@pytest.mark.parametrize("by_client", [True, False])
def test_a_session_can_be_closed_meanwhile(by_client):
    gate = Gate()
    factory = Factory(Count, {"length": 100, "habits": {1: gate}})

    async def use(client, registry):
        await client.launch(None, 0, 1, 0)
        client.write(Collect, 3)
        (session,) = registry.sessions.values()
        await until(lambda: session.protocol.received == client.id)
        if by_client:
            client.write(CloseMessage)
            assert isinstance(await client.read(), Collected)
            gate.open()
            assert isinstance(await client.read(), Closed)
        else:
            ending = asyncio.ensure_future(registry.end(session))
            assert (await client.read()).code == "SESSION_EXPIRED"
            gate.open()
            await ending
        assert [env.count("close") for env in factory.envs] == [1, 1, 1]

    serve(use, factory)
