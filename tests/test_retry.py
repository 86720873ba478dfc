"""Patience: what is tried again, how long, and what is said at the end."""

import asyncio
from types import SimpleNamespace

import pytest

from openenv_gym import retry
from openenv_gym.errors import (
    CapacityError,
    ConnectFailed,
    ConnectionLost,
    RemoteEnvError,
    RemoteProtocolError,
    ReplyTimeout,
    SessionLost,
    SpaceError,
    Unauthorized,
)

URL = "ws://here/ws"


def insist(outcomes, limit_s=10.0, error=None):
    """Insist on an attempt with these outcomes in turn, the last one for ever; gives the number of attempts."""
    attempts = []

    async def attempt():
        attempts.append(None)
        outcome = outcomes[min(len(attempts), len(outcomes)) - 1]
        if outcome is not None:
            raise outcome

    asyncio.run(retry.insist(attempt, limit_s, URL, error, outages=[]))
    return len(attempts)


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between attempts: their limits instead of random parts of them, and the only time that passes."""
    taken = []

    class Impatient:
        def __getattr__(self, name):
            return getattr(asyncio, name)

        def get_running_loop(self):
            return SimpleNamespace(time=lambda: sum(taken))

        async def sleep(self, seconds):
            taken.append(seconds)
            await asyncio.sleep(0)

    monkeypatch.setattr(retry, "asyncio", Impatient())
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: high)
    return taken


def test_what_works_is_tried_once():
    assert insist([None]) == 1


@pytest.mark.parametrize(
    "failure",
    [
        ConnectFailed(URL, "connection refused"),
        ConnectionLost(URL, "close code 1012"),
        CapacityError(URL, 1, 1, 1),
        ReplyTimeout("connect", URL, 1.0),
        asyncio.TimeoutError(),
    ],
)
def test_what_may_get_better_is_tried_again(failure, pauses):
    assert insist([failure, failure, None]) == 3


@pytest.mark.parametrize(
    "failure",
    [
        SessionLost(URL, "unknown session"),
        Unauthorized(URL, "HTTP 401"),
        RemoteProtocolError("nonsense"),
        RemoteEnvError("FACTORY_ERROR", "", "no"),
        SpaceError("other spaces"),
        KeyError("a mistake of ours"),
    ],
)
def test_what_gets_no_better_is_raised(failure):
    with pytest.raises(type(failure)):
        insist([failure, None])


def test_pauses_grow_to_a_limit(pauses):
    insist([ConnectFailed(URL, "refused")] * 10 + [None], limit_s=1000)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_pauses_are_random():
    assert retry.random.uniform(0, 1) != retry.random.uniform(0, 1)


def test_the_last_reason_is_told_at_the_end(pauses):
    failures = [ConnectionLost(URL, "close code 1012"), ConnectFailed(URL, "connection refused")]
    with pytest.raises(SessionLost, match=r"not reconnected within 0\.1 second\(s\): connection refused"):
        insist(failures, limit_s=0.1)


def test_a_full_server_is_told_as_such():
    with pytest.raises(CapacityError, match="3 of 3"):
        insist([CapacityError(URL, 3, 3, 1)], limit_s=0.1)


def test_no_time_is_enough_for_one_attempt():
    assert insist([None], limit_s=0.0) == 1


def test_an_attempt_that_hangs_ends_at_the_limit():
    async def hang():
        await asyncio.Event().wait()

    with pytest.raises(SessionLost, match=r"not reconnected within 0\.1 second.*: the first reason"):
        asyncio.run(retry.insist(hang, 0.1, URL, ConnectionLost(URL, "the first reason"), outages=[]))


def await_room(outcomes, limit_s=10.0):
    """The result, and the number of attempts."""
    attempts = []

    async def attempt():
        attempts.append(None)
        if isinstance(outcome := outcomes[min(len(attempts), len(outcomes)) - 1], Exception):
            raise outcome
        return outcome

    return asyncio.run(retry.await_room(attempt, limit_s)), len(attempts)


def test_room_is_waited_for(pauses):
    full = CapacityError(URL, 3, 3, 1)
    assert await_room([full, full, full, "room"]) == ("room", 4)
    assert pauses == [0.05, 0.1, 0.2]


def test_room_is_waited_for_only_so_long():
    with pytest.raises(CapacityError):
        await_room([CapacityError(URL, 3, 3, 1)], limit_s=0.1)
    with pytest.raises(CapacityError):
        await_room([CapacityError(URL, 3, 3, 1), "room"], limit_s=0)


def test_nothing_else_is_waited_for():
    with pytest.raises(ConnectFailed):
        await_room([ConnectFailed(URL, "connection refused"), "room"])


def test_reasons_are_short():
    assert retry.reason_of(ConnectFailed(URL, "connection refused")) == "connection refused"
    assert retry.reason_of(SessionLost(URL, "unknown session")) == "unknown session"
    assert retry.reason_of(SpaceError("other spaces")) == "other spaces"
    assert retry.reason_of(KeyError("x")) == "KeyError('x')"


def test_a_wait_is_listed_while_it_lasts(pauses):
    outages, seen = [], []

    async def attempt():
        (outage,) = outages
        seen.append((outage.url, outage.limit_s, outage.reason, outage.anew))
        if len(seen) < 3:
            raise ConnectFailed(URL, "connection refused")

    asyncio.run(retry.insist(attempt, 10.0, URL, ConnectionLost(URL, "close code 1012"), outages=outages, anew=True))
    assert [reason for _, _, reason, _ in seen] == ["close code 1012", "connection refused", "connection refused"]
    assert seen[0] == (URL, 10.0, "close code 1012", True)
    assert outages == []
    with pytest.raises(RemoteProtocolError):
        asyncio.run(retry.insist(fail, 10.0, URL, outages=outages))
    assert outages == []


async def fail():
    raise RemoteProtocolError("nonsense")
