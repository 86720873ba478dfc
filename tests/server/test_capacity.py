"""Capacity: all or nothing, from any thread."""

import asyncio
import threading

import pytest
from helpers_core import run
from helpers_wait import LIMIT_S

from openenv_gym.server.capacity import Capacity, CapacityReached


def test_reserve_and_release():
    capacity = Capacity(4)
    capacity.reserve(3)
    with pytest.raises(CapacityReached, match=r"Server at capacity: 3/4 sessions active") as caught:
        capacity.reserve(2)
    assert (caught.value.active, caught.value.maximum) == (3, 4)
    assert capacity.active == 3
    capacity.release(3)
    capacity.reserve(4)
    assert capacity.active == 4


def test_a_billion_envs():
    capacity = Capacity(4)
    with pytest.raises(CapacityReached):
        capacity.reserve(10**9)
    assert capacity.active == 0


class Slow(int):
    """A number that takes a while to be added, and meanwhile the other threads run."""

    def __radd__(self, other):
        total = other + int(self)
        threading.Event().wait(0.001)
        return total


@pytest.mark.parametrize("times", [1, 5])
def test_it_is_never_exceeded(times):
    """Fifty threads want one of ten. Were it two steps to look and to take, they would all look first."""
    capacity = Capacity(10)
    start = threading.Barrier(50)
    admitted, seen = [], []

    def client():
        start.wait(30)
        for turn in range(times):
            try:
                capacity.reserve(Slow(1))
            except CapacityReached as full:
                seen.append(full.active)
                continue
            admitted.append(1)
            seen.append(capacity.active)
            if turn < times - 1:
                capacity.release(1)

    threads = [threading.Thread(target=client) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert max(seen) == capacity.active == 10
    assert len(admitted) >= 10
    if times == 1:
        assert len(admitted) == 10


def test_what_is_being_given_back_is_waited_for(monkeypatch):
    monkeypatch.setattr("openenv_gym.server.capacity._PATIENCE_S", LIMIT_S)

    async def talk():
        capacity = Capacity(4)
        capacity.reserve(3)
        with pytest.raises(CapacityReached):
            await capacity.reserve_soon(2)
        capacity.leave(3)
        waiting = asyncio.ensure_future(capacity.reserve_soon(2))
        await asyncio.wait([waiting], timeout=0)
        assert not waiting.done()
        capacity.release(3)
        await waiting
        assert capacity.active == 2
        with pytest.raises(CapacityReached):  # nothing else is on its way
            await capacity.reserve_soon(3)

    run(talk())


def test_it_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr("openenv_gym.server.capacity._PATIENCE_S", 0.01)

    async def talk():
        capacity = Capacity(4)
        capacity.reserve(3)
        capacity.leave(3)
        with pytest.raises(CapacityReached):
            await capacity.reserve_soon(2)

    run(talk())
