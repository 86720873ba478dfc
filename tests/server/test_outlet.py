"""One connection at a time, each frame in order, and nobody waits for an old connection."""

import asyncio

import pytest
from helpers_core import FakeConnection, run
from helpers_wait import until

from openenv_gym.server.outlet import Outlet


def test_frames_go_to_the_connection():
    async def main():
        outlet, connection = Outlet(), FakeConnection()
        await outlet.deliver(b"lost")
        await outlet.attach(connection, [b"1", b"2"])
        await outlet.deliver(b"3")
        assert connection.sent == [b"1", b"2", b"3"]

    run(main())


def test_a_newer_connection_takes_over():
    async def main():
        outlet, old, new = Outlet(), FakeConnection(), FakeConnection()
        await outlet.attach(old, [])
        await outlet.attach(new, [b"1"])
        await outlet.deliver(b"2")
        assert (old.sent, new.sent) == ([], [b"1", b"2"])
        await until(lambda: old.closed)
        assert old.closed == (4409, "resumed on another connection")
        assert outlet.detach(old) is False
        await outlet.deliver(b"3")
        assert new.sent == [b"1", b"2", b"3"]
        assert outlet.detach(new) is True
        assert outlet.detach(new) is False
        await outlet.deliver(b"4")
        assert new.sent == [b"1", b"2", b"3"]

    run(main())


def test_replies_wait_for_what_was_missed():
    """A reply that is ready while the missed ones are being sent comes after them."""

    async def main():
        class Slow(FakeConnection):
            async def send(self, frame):
                await asyncio.sleep(0)
                await super().send(frame)

        outlet, connection = Outlet(), Slow()
        attaching = asyncio.create_task(outlet.attach(connection, [b"1", b"2", b"3"]))
        await asyncio.sleep(0)
        await asyncio.gather(attaching, outlet.deliver(b"4"))
        assert connection.sent == [b"1", b"2", b"3", b"4"]

    run(main())


def test_an_old_connection_that_takes_nothing_holds_nobody_up():
    """Its client's cable was pulled; the buffers are full, and only the pings will tell."""

    async def main():
        outlet, old, new = Outlet(), FakeConnection(), FakeConnection()
        await outlet.attach(old, [])
        old.stalled = asyncio.Event()
        stuck = asyncio.create_task(outlet.deliver(b"1"))
        await asyncio.sleep(0)
        await outlet.attach(new, [b"1"])
        await outlet.deliver(b"2")
        assert new.sent == [b"1", b"2"]
        assert not stuck.done()
        old.broken = True
        old.stalled.set()
        await stuck

    run(main())


def test_a_lost_connection_is_no_error_for_a_reply():
    async def main():
        outlet, connection = Outlet(), FakeConnection()
        await outlet.attach(connection, [])
        connection.broken = True
        await outlet.deliver(b"1")
        with pytest.raises(ConnectionError):
            await outlet.attach(connection, [b"1"])

    run(main())


def test_disconnect():
    async def main():
        outlet, connection = Outlet(), FakeConnection()
        await outlet.disconnect(1012, "bye")
        await outlet.attach(connection, [])
        await outlet.disconnect(1012, "bye")
        assert connection.closed == (1012, "bye")

    run(main())
