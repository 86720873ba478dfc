"""A link in the OpenEnv dialect: the batch dialect's requests, answered with JSON messages."""

import asyncio
import json

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from helpers_faults import FaultProxy, ScriptedServer
from helpers_wait import LIMIT_S, until

from openenv_gym import openenv_sessions
from openenv_gym.actions import to_batch
from openenv_gym.codec import unpack
from openenv_gym.dial import Target, websocket_url
from openenv_gym.errors import LocalProtocolError, RemoteProtocolError, SessionLost
from openenv_gym.json_form import JsonForm
from openenv_gym.json_link import LOST_REPLY, JsonLink
from openenv_gym.messages import Call, Get, Observed, Reset, Returned, Set, State, Step

SCHEMA = {"observation": {"properties": {"n": {}}}, "action": {"properties": {"push": {}}}}
RESET = Reset(0, None, None, None)
STATE = State(0, None)
NEXT, SAME, OFF = "NextStep", "SameStep", "Disabled"


def step(mode=NEXT, action=1):
    return Step(0, None, to_batch([np.array([action])], slice(None)), mode)


class Server:
    """An OpenEnv server for one env that counts its steps, with faults on demand.

    Attributes:
        heard: the types of the messages that it got, without the state questions.
        length: episodes end after so many steps.
        before: messages of these types are heard, and the connection ends before anything is done.
        after: the same, after it was done.
        silent: messages of these types get no reply.
        error: the next step gets this error.
    """

    def __init__(self):
        self.heard, self.data = [], []
        self.length, self.count = 3, 0
        self.before, self.after, self.silent, self.error = [], [], [], None

    async def __call__(self, connection):
        while True:
            message = json.loads(await connection.recv())
            kind = message["type"]
            if kind == "close":
                return
            if kind in self.before:
                self.before.remove(kind)
                connection.transport.abort()
                return
            reply = self.reply(kind, message.get("data"))
            if kind in self.after:
                self.after.remove(kind)
                connection.transport.abort()
                return
            if kind in self.silent:
                self.silent.remove(kind)
                await connection.wait_closed()
            await connection.send(json.dumps(reply))

    def reply(self, kind, data):
        if kind == "state":
            return {"type": "state", "data": {"step_count": self.count, "episode_id": "e"}}
        self.heard.append(kind)
        self.data.append(data)
        if kind == "step" and self.error is not None:
            error, self.error = self.error, None
            return {"type": "error", "data": error}
        self.count = 0 if kind == "reset" else self.count + 1
        over = self.count == self.length
        metadata = {"m": self.count} if self.count else {}
        return {
            "type": "observation",
            "data": {"observation": {"n": [self.count]}, "reward": 1.5, "done": over, "metadata": metadata},
        }


def with_link(test, lasting=False, monkeypatch=None, **options):
    """Run a test's coroutine with a link, its server, and the proxy between them."""
    server = Server()

    async def run(url):
        with FaultProxy(url) as proxy:
            form = JsonForm.for_schema(SCHEMA, Box(-1, 100, (1,), np.float64), Discrete(5), gymnasium=False)
            options.setdefault("reconnect_timeout_s", LIMIT_S)
            link = JsonLink(Target(websocket_url(proxy.url)), form, lasting=lasting, **options)
            await link.open(None)
            await test(link, server)
            await link.close(1)

    with ScriptedServer(server) as scripted:
        asyncio.run(run(scripted.url))


@pytest.fixture
def with_lasting_link(monkeypatch):
    async def create(target):
        return openenv_sessions.LastingSession("s1", ("127.0.0.1", 1))

    async def destroy(target, session, timeout_s):
        pass

    monkeypatch.setattr(openenv_sessions, "create", create)
    monkeypatch.setattr(openenv_sessions, "destroy", destroy)
    return lambda test: with_link(test, lasting=True)


def start(link, request):
    answer = asyncio.get_running_loop().create_future()
    link.start(request, answer.set_result)
    return answer


async def ask(link, request):
    return await asyncio.wait_for(start(link, request), LIMIT_S)


def facts(stepped):
    """A step's observation, reward, terminated and truncated."""
    assert not stepped.failures, stepped.failures
    values = [stepped.observations[0], stepped.rewards, stepped.terminated, stepped.truncated]
    return tuple(value.numpy().reshape(-1)[0].item() for value in values)


def info(reply):
    return {row: unpack(value) for row, value in reply.infos.items()}


# ----------------------------------------------------------------------------------------------- requests


def test_reset_step_and_state():
    async def test(link, server):
        observed = await ask(link, Reset(0, None, [5], [{"level": 2}]))
        assert isinstance(observed, Observed)
        assert observed.observations[0].numpy().tolist() == [[0.0]]
        assert server.data == [{"seed": 5, "level": 2}]
        stepped = await ask(link, step(action=3))
        assert facts(stepped) == (1.0, 1.5, False, False)
        assert info(stepped) == {0: {"m": 1}}
        assert server.data[1] == {"push": 3}
        state = await ask(link, STATE)
        assert unpack(state.values[0]) == {"step_count": 1, "episode_id": "e"}

    with_link(test)


def test_what_openenv_has_no_message_for_is_refused():
    async def test(link, _):
        for request, name in ((Call(0, None, "level", [], {}), "call"), (Set(0, None, "level", [1], True), "set")):
            error = await ask(link, request)
            assert isinstance(error, RemoteProtocolError)
            assert f"no {name} message" in str(error)

    with_link(test)


def test_attributes_are_missing_there():
    async def test(link, _):
        (failure,) = (await ask(link, Get(0, None, "level"))).failures
        assert (failure.slot, failure.type) == (0, "AttributeError")
        assert "no get message" in failure.message

    with_link(test)


def test_an_error_of_the_env_is_a_failure_of_its_row():
    async def test(link, server):
        await ask(link, RESET)
        server.error = {"code": "EXECUTION_ERROR", "message": "boom"}
        stepped = await ask(link, step())
        assert [(f.slot, f.code, f.message) for f in stepped.failures] == [(0, "EXECUTION_ERROR", "boom")]
        assert facts(await ask(link, step())) == (1.0, 1.5, False, False)

    with_link(test)


def test_an_observation_that_does_not_fit_is_a_failure_of_its_row():
    async def test(link, server):
        await ask(link, RESET)
        reply = Server.reply
        server.reply = lambda kind, data: {"type": "observation", "data": {"observation": {"other": 1}}}
        stepped = await ask(link, step())
        assert "no field 'n'" in stepped.failures[0].message
        server.reply = lambda kind, data: reply(server, kind, data)
        assert facts(await ask(link, step())) == (1.0, 1.5, False, False)

    with_link(test)


# ---------------------------------------------------------------------------------------------- autoreset


def test_next_step():
    async def test(link, server):
        await ask(link, RESET)
        ours = [facts(await ask(link, step(NEXT))) for _ in range(5)]
        assert ours == [
            (1.0, 1.5, False, False),
            (2.0, 1.5, False, False),
            (3.0, 1.5, True, False),
            (0.0, 0.0, False, False),  # though the reply to the reset has a reward
            (1.0, 1.5, False, False),
        ]
        assert server.heard == ["reset", "step", "step", "step", "reset", "step"]
        assert server.data[4] == {}

    with_link(test)


def test_same_step():
    async def test(link, server):
        await ask(link, RESET)
        for _ in range(2):
            assert (await ask(link, step(SAME))).final is None
        stepped = await ask(link, step(SAME))
        assert facts(stepped) == (0.0, 1.5, True, False)
        assert stepped.final.positions == [0]
        assert stepped.final.observations[0].numpy().tolist() == [[3.0]]
        assert unpack(stepped.final.infos[0]) == {"m": 3}
        assert info(stepped) == {}

    with_link(test)


def test_a_limit_of_steps_truncates():
    async def test(link, _):
        await ask(link, RESET)
        assert facts(await ask(link, step(OFF))) == (1.0, 1.5, False, False)
        assert facts(await ask(link, step(OFF))) == (2.0, 1.5, False, True)

    with_link(test, max_episode_steps=2)


# ------------------------------------------------------------------------------------------------- losses


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_connection_ends_the_episode_and_only_a_reset_begins_another(when):
    async def test(link, server):
        await ask(link, RESET)
        getattr(server, when).append("step")
        assert isinstance(await ask(link, step()), SessionLost)
        assert isinstance(await ask(link, step()), SessionLost)
        assert isinstance(await ask(link, STATE), SessionLost)
        assert isinstance(await ask(link, RESET), Observed)
        assert facts(await ask(link, step()))[0] == 1.0
        assert link.counters == {"reconnects": 0, "sessions_lost": 1}
        assert server.heard.count("step") == (1 if when == "before" else 2)

    with_link(test)


def test_what_cannot_be_written_as_json_costs_nothing_else():
    async def test(link, server):
        error = await ask(link, Reset(0, None, [2**20_000], None))
        assert isinstance(error, LocalProtocolError)
        assert "this reset can't be sent as JSON" in str(error)
        assert isinstance(await ask(link, Reset(0, None, [2**70], None)), Observed)
        assert server.data[-1]["seed"] == 2**70

    with_link(test)


def test_a_reset_waits_for_a_server_that_is_away():
    async def test(link, server):
        await ask(link, RESET)
        server.before.extend(["step", "state", "state", "state"])
        assert isinstance(await ask(link, step()), SessionLost)
        assert isinstance(await ask(link, RESET), Observed)
        assert not server.before

    with_link(test)


def test_a_reset_gives_up_in_time():
    async def test(link, server):
        server.before.extend(["reset", *["state"] * 1000])
        assert isinstance(await ask(link, RESET), SessionLost)
        error = await ask(link, RESET)
        assert isinstance(error, SessionLost)
        assert "not reconnected within 0.2 second(s)" in str(error)

    with_link(test, reconnect_timeout_s=0.2)


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_between_two_episodes_nothing_is_lost_with_a_session(mode):
    async def test(link, server):
        await ask(link, RESET)
        for _ in range(2):
            await ask(link, step(mode))
        server.before.append("reset")
        stepped = await ask(link, step(mode))
        if mode == NEXT:
            assert facts(stepped) == (3.0, 1.5, True, False)
            stepped = await ask(link, step(mode))
            assert facts(stepped)[0] == 0.0
        else:
            assert facts(stepped) == (0.0, 1.5, True, False)
            assert stepped.final.observations[0].numpy().tolist() == [[3.0]]
        assert ["between two episodes" in note for note in link.notes] == [True]
        assert facts(await ask(link, step(mode)))[0] == 1.0

    with_link(test)


def test_a_late_reply_ends_the_episode():
    async def test(link, server):
        await ask(link, RESET)
        server.silent.append("step")
        answer = start(link, step())
        await until(lambda: server.heard == ["reset", "step"])
        link.abandon()
        assert isinstance(await answer, SessionLost)  # told to nobody, by then
        assert isinstance(await ask(link, step()), SessionLost)
        assert isinstance(await ask(link, RESET), Observed)

    with_link(test)


def test_a_request_that_nobody_waited_for_is_given_up_for_the_next():
    async def test(link, server):
        await ask(link, RESET)
        server.silent.append("step")
        first = start(link, step())
        await until(lambda: server.heard == ["reset", "step"])
        second = start(link, step())
        assert isinstance(await second, SessionLost)
        assert isinstance(first.result(), SessionLost)
        assert server.heard == ["reset", "step"]
        assert isinstance(await ask(link, RESET), Observed)

    with_link(test)


# ------------------------------------------------------------------------------------------- lost replies


def test_a_step_that_was_not_taken_is_sent_again(with_lasting_link):
    async def test(link, server):
        await ask(link, RESET)
        await ask(link, step())
        server.before.append("step")
        assert facts(await ask(link, step())) == (2.0, 1.5, False, False)
        assert server.heard == ["reset", "step", "step"]
        assert link.notes == []
        assert link.counters == {"reconnects": 1, "sessions_lost": 0}

    with_lasting_link(test)


@pytest.mark.parametrize("mode", [NEXT, SAME, OFF])
def test_a_step_whose_reply_was_lost_truncates(with_lasting_link, mode):
    async def test(link, server):
        await ask(link, RESET)
        await ask(link, step(mode))
        server.after.append("step")
        stepped = await ask(link, step(mode))
        if mode == SAME:
            assert facts(stepped) == (0.0, 0.0, False, True)
            assert unpack(stepped.final.infos[0]) == {LOST_REPLY: True}
            assert stepped.final.observations[0].numpy().tolist() == [[1.0]]
        else:
            assert facts(stepped) == (1.0, 0.0, False, True)
            assert info(stepped) == {0: {LOST_REPLY: True}}
        assert len(link.notes) == 1
        assert server.heard.count("step") == 2
        if mode == NEXT:
            assert facts(await ask(link, step(mode)))[0] == 0.0

    with_lasting_link(test)


@pytest.mark.parametrize("steps, counts", [(0, False), (1, False), (0, True)])
def test_whether_a_step_was_taken_is_known_of_envs_that_count_only(with_lasting_link, steps, counts):
    async def test(link, server):
        reply = server.reply

        def forgetful(kind, data):
            answer = reply(kind, data)
            return answer if counts or kind != "state" else {"type": "state", "data": {"step_count": 0}}

        server.reply = forgetful
        await ask(link, RESET)
        if counts:  # it shows that it does by a lost reply
            server.after.append("step")
            assert info(await ask(link, step())) == {0: {LOST_REPLY: True}}
            await ask(link, RESET)
        for _ in range(steps):
            await ask(link, step())
        server.before.append("step")
        stepped = await ask(link, step())
        assert info(stepped) == ({0: {"m": 1}} if counts else {0: {LOST_REPLY: True}})

    with_lasting_link(test)


def test_a_reset_whose_reply_was_lost_is_repeated(with_lasting_link):
    async def test(link, server):
        server.after.append("reset")
        assert isinstance(await ask(link, RESET), Observed)
        server.after.append("state")
        assert isinstance(await ask(link, STATE), Returned)
        assert server.heard == ["reset", "reset"]

    with_lasting_link(test)
