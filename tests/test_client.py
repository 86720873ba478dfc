"""`EnvClient`, its blocking form and its typed subclasses, against our server and OpenEnv's own."""

import asyncio
import os
import threading
import warnings
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from helpers_faults import FaultProxy, ScriptedServer, collect_unclosed
from helpers_server import running
from helpers_tally import Sleeper, Tally
from helpers_wait import LIMIT_S, until, wait_until
from pydantic import BaseModel

from openenv_gym import EnvClient, GenericEnvClient, StepResult
from openenv_gym.errors import (
    CapacityError,
    ConnectFailed,
    LocalProtocolError,
    RemoteEnvError,
    RemoteProtocolError,
    ReplyTimeout,
    SessionLost,
    Unauthorized,
)
from openenv_gym.server import create_app

OURS, STOCK = "ours", "stock"


@pytest.fixture(scope="module")
def openenv():
    return pytest.importorskip("helpers_openenv")


@pytest.fixture(scope="module")
def servers(openenv):
    with ExitStack() as stack:
        yield {
            OURS: stack.enter_context(running(create_app(lambda: Tally(ends=0, longest=10_000)))),
            STOCK: stack.enter_context(openenv.stock_server(openenv.Count)),
        }


@pytest.fixture(params=[OURS, STOCK])
def kind(request):
    return request.param


@pytest.fixture
def url(servers, kind):
    return servers[kind]


def action(kind, sleep=0.0):
    return {"action": 1} if kind == OURS else {"sleep": sleep}


def count(kind, result):
    """The steps since the reset, as the observation says."""
    return int(result.observation["observation"][1]) if kind == OURS else result.observation["count"]


# ------------------------------------------------------------------------------------------------ both forms


def test_an_episode(kind, url):
    async def main():
        async with EnvClient(url) as client:
            first = await client.reset(seed=1)
            assert isinstance(first, StepResult)
            assert (count(kind, first), first.done) == (0, False)
            for n in (1, 2, 3):
                result = await client.step(action(kind))
                assert (count(kind, result), result.done, result.terminated, result.truncated) == (
                    n,
                    False,
                    False,
                    False,
                )
                assert isinstance(result.reward, float)
            assert (await client.state())["step_count"] == 3
            assert count(kind, await client.reset()) == 0

    asyncio.run(main())


def test_an_episode_with_blocking_calls(kind, url):
    with EnvClient(url).sync() as client:
        client.reset(seed=1)
        assert count(kind, client.step(action(kind))) == 1
        assert client.state()["step_count"] == 1
    with GenericEnvClient(url) as client:
        client.reset()
        assert count(kind, client.step(action(kind))) == 1
    assert repr(client) == f"GenericEnvClient('{url.replace('http', 'ws')}/ws').sync()"


def test_blocking_calls_work_inside_a_running_loop(kind, url):
    async def main():
        with EnvClient(url).sync() as client:
            client.reset()
            return count(kind, client.step(action(kind)))

    assert asyncio.run(main()) == 1


def test_blocking_calls_of_several_threads_take_turns(kind, url):
    counts, lock = [], threading.Lock()

    def steps(client):
        for _ in range(10):
            n = count(kind, client.step(action(kind)))
            with lock:
                counts.append(n)

    with EnvClient(url).sync() as client:
        client.reset()
        threads = [threading.Thread(target=steps, args=(client,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(counts) == list(range(1, 41))


def test_connecting_is_part_of_the_first_call(kind, url):
    async def main():
        client = EnvClient(url)
        await client.reset()
        assert count(kind, await client.step(action(kind))) == 1
        assert await client.connect() is client  # there is a connection already
        assert count(kind, await client.step(action(kind))) == 2
        await client.close()
        await client.close()

    asyncio.run(main())


def test_several_steps_in_one_message(servers):
    async def main():
        async with EnvClient(servers[OURS]) as client:
            await client.reset()
            results = await client.batch_step([action(OURS)] * 4)
            assert [count(OURS, result) for result in results] == [1, 2, 3, 4]

    asyncio.run(main())


def test_several_steps_on_a_server_that_knows_no_such_message(servers):
    async def main():
        async with EnvClient(servers[STOCK]) as client:
            await client.reset()
            with pytest.warns(UserWarning, match="knows no batch_step"):
                results = await client.batch_step([action(STOCK)] * 3)
            assert [count(STOCK, result) for result in results] == [1, 2, 3]
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # it says so once
                results = await client.batch_step([action(STOCK)] * 2)
            assert [count(STOCK, result) for result in results] == [4, 5]

    asyncio.run(main())


def test_several_steps_end_with_the_episode(openenv):
    async def main(url):
        async with EnvClient(url) as client:
            await client.reset()
            with pytest.warns(UserWarning, match="knows no batch_step"):
                results = await client.batch_step([action(STOCK)] * 5)
            assert [result.done for result in results] == [False, False, True]

    with openenv.stock_server(openenv.Short) as url:
        asyncio.run(main(url))


def test_sessions_side_by_side(kind, url):
    async def main():
        async with EnvClient(url) as client:
            await client.reset()
            other = await client.new_session()
            assert type(other) is EnvClient
            await other.reset()
            await client.step(action(kind))
            await client.step(action(kind))
            assert count(kind, await other.step(action(kind))) == 1
            assert count(kind, await client.step(action(kind))) == 3
        with pytest.raises(SessionLost, match="closed by this side"):
            await other.step(action(kind))

    asyncio.run(main())


def test_a_new_session_with_blocking_calls(kind, url):
    with EnvClient(url).sync() as client:
        client.reset()
        other = client.new_session()
        other.reset()
        client.step(action(kind))
        assert count(kind, other.step(action(kind))) == 1


# ------------------------------------------------------------------------------------------------- typed


class Push(BaseModel):
    action: int = 0


@dataclass
class Seen:
    t: int


@dataclass
class Where:
    steps: int


class TallyClient(EnvClient[Push, Seen, Where]):
    def _step_payload(self, action):
        return super()._step_payload(action)

    def _parse_result(self, payload):
        result = super()._parse_result(payload)
        return StepResult(Seen(int(result.observation["observation"][1])), result.reward, result.done)

    def _parse_state(self, payload):
        return Where(payload["step_count"])


def test_a_typed_client(servers):
    async def main():
        async with TallyClient(servers[OURS]) as client:
            assert (await client.reset(seed=1)).observation == Seen(0)
            assert (await client.step(Push(action=1))).observation == Seen(1)
            assert await client.state() == Where(1)
            assert isinstance(await client.new_session(), TallyClient)

    asyncio.run(main())
    with TallyClient(servers[OURS]).sync() as client:
        assert client.reset().observation == Seen(0)
        assert client.step(Push()).observation == Seen(1)


def test_an_action_of_no_known_type_is_refused_here(servers):
    async def main():
        async with EnvClient(servers[OURS]) as client:
            await client.reset()
            with pytest.raises(TypeError, match="override _step_payload"):
                await client.step(3)

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------- access


@pytest.mark.parametrize("options", [{"token": "secret-1"}, {"headers": {"Authorization": "Bearer secret-1"}}])
def test_a_token(options, monkeypatch):
    with running(create_app(Tally, token="secret-1")) as url:
        with EnvClient(url, **options) as client:
            client.reset()
            assert "secret-1" not in repr(client)
        for wrong in ({}, {"token": "secret-2"}):
            with pytest.raises(Unauthorized) as told:
                EnvClient(url, **wrong).sync().connect()
            assert "secret" not in str(told.value)
        monkeypatch.setenv("OPENENV_GYM_TOKEN", "secret-1")
        with EnvClient(url) as client:
            client.reset()


def test_pings_tell_that_a_connection_is_dead(kind, url):
    """Long before the limit for a message, and not without them."""
    pings = {"websocket_ping_interval_s": 0.2, "websocket_ping_timeout_s": 5.0}
    with FaultProxy(url) as proxy, EnvClient(proxy.url, message_timeout_s=60, **pings) as client:
        client.reset()
        proxy.hold()
        with pytest.raises(SessionLost, match="ping"):
            client.step(action(kind))
        proxy.release()
    quiet = dict.fromkeys(pings)
    with FaultProxy(url) as proxy, EnvClient(proxy.url, message_timeout_s=1.0, **quiet) as client:
        proxy.hold()
        with pytest.raises(ReplyTimeout):
            client.reset()
        proxy.release()


# ------------------------------------------------------------------------------------------- several envs


def test_several_envs_are_asked_together(servers):
    with TallyClient(servers[OURS], query={"num_envs": "3"}) as client:
        assert [result.observation for result in client.batch_reset(seed=1)] == [Seen(0)] * 3
        assert [result.observation for result in client.batch_step([Push()] * 3)] == [Seen(1)] * 3
        (again,) = client.batch_reset(envs=[1])
        assert again.observation == Seen(0)
        assert client.batch_state() == [Where(1), Where(0), Where(1)]


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda client: client.reset(seed=1), "call batch_reset instead of reset"),
        (lambda client: client.step({"action": 1}), "call batch_step instead of step"),
        (lambda client: client.state(), "call batch_state instead of state"),
    ],
    ids=["reset", "step", "state"],
)
def test_what_is_for_one_env_names_what_is_for_several(servers, call, text):
    with EnvClient(f"{servers[OURS]}/ws?num_envs=2") as client:
        before = client.batch_state()
        with pytest.raises(LocalProtocolError, match=f"the session has num_envs=2: {text}"):
            call(client)
        assert client.batch_state() == before


def test_one_env_is_a_list_of_one(kind, url):
    with EnvClient(url) as client:
        (first,) = client.batch_reset(seed=1)
        assert count(kind, first) == 0
        assert [state["step_count"] for state in client.batch_state()] == [0]


def test_a_server_without_several_envs_steps_none_twice(openenv):
    with openenv.stock_server() as url, EnvClient(url, query={"num_envs": "2"}) as client:
        for call in (client.batch_reset, client.batch_state, lambda: client.batch_step([{}, {}])):
            with pytest.raises(RemoteProtocolError, match="has one env for each session: leave out num_envs"):
                call()
        assert [called for called, _ in openenv.Count.log] == ["reset"]


def test_an_env_that_fails_has_a_number_among_several_only(openenv):
    models = openenv.EveryAction, openenv.EveryObservation
    with running(create_app(openenv.Every, *models)) as url:
        for query, text in (({}, "the server"), ({"num_envs": "2"}, "env 1")):
            with EnvClient(url, query=query) as client:
                client.batch_reset()
                with pytest.raises(RemoteEnvError, match=f"^{text} reported the arm is gone"):
                    client.batch_step([{}, {"order": "fail"}])


@pytest.mark.parametrize(
    "query, text",
    [({"num_envs": "x"}, "num_envs: Input should be a valid integer"), ({"include": "cout"}, "'cout' names nothing")],
    ids=str,
)
def test_a_refused_session_says_why(servers, query, text):
    with pytest.raises(RemoteEnvError, match=text) as told:
        EnvClient(servers[OURS], query=query).sync().connect()
    assert told.value.code == "VALIDATION_ERROR"
    assert told.value.message.count(text) == 1


def test_the_default_url(servers, monkeypatch):
    monkeypatch.setenv("OPENENV_BASE_URL", servers[OURS])
    with EnvClient() as client:
        client.reset()


def test_a_full_server(openenv, kind, patient):
    with running(create_app(Tally, max_envs=1)) if kind == OURS else openenv.stock_server(max_envs=1) as url:
        first, second = EnvClient(url).sync(), EnvClient(url).sync()
        first.connect()
        with pytest.raises(CapacityError, match="1 of 1 are in use"):
            second.connect()
        first.close()
        second.connect()  # the room is free when `close` has returned
        second.close()


# ------------------------------------------------------------------------------------------------- losses


def test_a_lost_episode_is_never_continued_on_a_fresh_env(kind, url):
    async def main():
        with FaultProxy(url) as proxy:
            client = EnvClient(proxy.url)
            await client.reset()
            await client.step(action(kind))
            proxy.cut()
            await until(lambda: client._channel.gone is not None)
            for _ in range(2):
                with pytest.raises(SessionLost):
                    await client.step(action(kind))
            with pytest.raises(SessionLost):
                await client.state()
            await client.connect()
            with pytest.raises(SessionLost):  # connected again, but there was no reset
                await client.step(action(kind))
            await client.reset()
            assert count(kind, await client.step(action(kind))) == 1
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("forget", ["timeout", "cancel"])
def test_a_step_that_was_not_waited_for_ends_the_episode(openenv, kind, forget):
    go_on = threading.Event()

    class OurSlow(Sleeper):
        def step(self, action):
            assert not action or go_on.wait(LIMIT_S)
            return super().step(0.0)

    class StockSlow(openenv.Count):
        def step(self, action, timeout_s=None, **kwargs):
            assert not action.sleep or go_on.wait(LIMIT_S)
            return super().step(openenv.CountAction())

    async def main(url):
        client = EnvClient(url)
        await client.reset()
        slow = client.step({"action": 1.0} if kind == OURS else {"sleep": 1.0})
        if forget == "timeout":
            patience_s, client._message_timeout_s = client._message_timeout_s, 0.1  # for this step alone
            with pytest.raises(ReplyTimeout, match=r"`step` from ws://.* within 0\.1 second") as told:
                await slow
            client._message_timeout_s = patience_s
            assert isinstance(told.value, asyncio.TimeoutError)
        else:
            task = asyncio.ensure_future(slow)
            await asyncio.sleep(0)
            await until(lambda: client._channel._connection._reply is not None)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(SessionLost):
            await client.step({"action": 0.0} if kind == OURS else {"sleep": 0.0})
        await client.reset()
        result = await client.step({"action": 0.0} if kind == OURS else {"sleep": 0.0})
        assert result.observation["observation"][1] == 1 if kind == OURS else result.observation["count"] == 1
        await client.close()

    with running(create_app(OurSlow, max_workers=4)) if kind == OURS else openenv.stock_server(StockSlow) as url:
        try:
            asyncio.run(main(url))
        finally:
            go_on.set()


def test_an_error_of_the_env_leaves_the_episode(kind, url):
    async def main():
        async with EnvClient(url) as client:
            await client.reset()
            with pytest.raises(RemoteEnvError) as told:
                await client.step({"nonsense": 1})
            assert told.value.code == "VALIDATION_ERROR"
            assert count(kind, await client.step(action(kind))) == 1

    asyncio.run(main())


def test_connecting_has_a_limit():
    async def main(url):
        with pytest.raises(ReplyTimeout, match=r"`connect` from .* within 3 second"):
            await EnvClient(url, connect_timeout_s=3.0).connect()  # which is the handshake's limit too

    with ScriptedServer(lambda connection: connection.wait_closed()) as server:
        asyncio.run(main(server.url))


def test_a_closed_port():
    with FaultProxy(1) as proxy:
        proxy.refuse()
        with pytest.raises(ConnectFailed, match="connection refused") as told:
            EnvClient(proxy.url).sync().connect()
    assert isinstance(told.value, ConnectionError)


# -------------------------------------------------------------------------------------------------- loops


async def _reset_step_close(client, kind):
    await client.reset()
    result = await client.step(action(kind))
    await client.close()
    return count(kind, result)


def test_a_client_may_be_built_in_one_loop_and_used_in_another(kind, url):
    async def build():
        return EnvClient(url)

    client = asyncio.run(build())
    for _ in range(2):
        assert asyncio.run(_reset_step_close(client, kind)) == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the connection that nobody closed
@pytest.mark.parametrize("loops", ["asyncio", "uvloop"])
@pytest.mark.parametrize("call", ["step", "reset", "close"])
def test_a_connection_from_a_loop_that_has_ended(kind, url, call, loops):
    new_loop = pytest.importorskip(loops).new_event_loop
    with FaultProxy(url) as proxy:
        _use_after_the_loop(EnvClient(proxy.url), kind, call, new_loop)
        wait_until(lambda: proxy.open == 0)  # the server is told, and frees the env
    collect_unclosed()


def _use_after_the_loop(client, kind, call, new_loop):
    def run(coroutine):
        loop = new_loop()
        try:
            return loop.run_until_complete(coroutine)
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    run(client.reset())
    if call == "step":
        with pytest.raises(SessionLost, match="event loop has ended"):
            run(client.step(action(kind)))
    if call == "close":
        run(client.close())
    else:
        assert run(_reset_step_close(client, kind)) == 1


def test_two_running_loops_are_refused(kind, url):
    async def main():
        async with EnvClient(url) as client:
            await client.reset()
            with pytest.raises(LocalProtocolError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, client.reset())
            assert count(kind, await client.step(action(kind))) == 1

    asyncio.run(main())


def test_a_blocking_client_says_that_it_was_made_before_a_fork(servers):
    with EnvClient(servers[OURS]).sync() as client:
        client.reset()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                client.step({"action": 1})
            except LocalProtocolError as error:
                os.write(writer, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as told:
            assert "before a fork" in told.read()
        assert count(OURS, client.step({"action": 1})) == 1
