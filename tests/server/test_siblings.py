"""What a process knows of the others: by asking a supervisor, which is a few functions here."""

import asyncio

import pytest
from helpers_core import run
from helpers_wait import until

from openenv_gym.server.capacity import Capacity, CapacityReached
from openenv_gym.server.intercom import Intercom
from openenv_gym.server.siblings import Alone, Siblings


class FakeSupervisor:
    """Answers at once, or while `slow` only when it is set; and remembers what it was asked."""

    def __init__(self, *, full=None, there=True):
        self.asked, self.full, self.there = [], full, there
        self.go = asyncio.Event()
        self.go.set()
        self.end = Intercom(lambda line: self.near.take(line), {name: self.answer(name) for name in ANSWERS})
        self.near = Intercom(self.end.take, {})
        self.capacity = Capacity(9)
        self.siblings = Siblings(self.near, self.capacity, process=1, processes=3, life=2)

    def answer(self, name):
        async def answer(*arguments):
            self.asked.append((name, *arguments))
            await self.go.wait()
            return {"reserve": self.full, "expect": self.there, "ask_all": [1, 2], "ask_one": "image"}.get(name)

        return answer


ANSWERS = ("reserve", "leave", "release", "expect", "ask_all", "ask_one")


def test_room_is_the_supervisors():
    async def talk():
        supervisor = FakeSupervisor()
        await supervisor.siblings.reserve(4)
        assert supervisor.capacity.active == 4
        supervisor.siblings.leave(4)
        await supervisor.siblings.release(4)
        assert supervisor.capacity.active == 0
        assert supervisor.asked == [("reserve", 4), ("leave", 4), ("release", 4)]

    run(talk())


def test_a_full_server_is_full_for_all():
    async def talk():
        supervisor = FakeSupervisor(full=[7, 8])
        with pytest.raises(CapacityReached) as caught:
            await supervisor.siblings.reserve(2)
        assert (caught.value.active, caught.value.maximum, supervisor.capacity.active) == (7, 8, 0)

    run(talk())


def test_room_for_one_who_left_meanwhile_is_given_back():
    async def talk():
        supervisor = FakeSupervisor()
        supervisor.go.clear()
        asking = asyncio.ensure_future(supervisor.siblings.reserve(2))
        await until(lambda: supervisor.asked)
        asking.cancel()
        await asyncio.wait([asking])
        supervisor.go.set()
        await until(lambda: len(supervisor.asked) == 2)
        assert supervisor.asked == [("reserve", 2), ("release", 2)]
        assert supervisor.capacity.active == 0

    run(talk())


@pytest.mark.parametrize(
    "owner, asked",
    [
        (1, None),  # it is this one
        (4, None),  # modulo three
        (3, (0, None)),
        ("1.2.abc", None),
        ("1.1.abc", None),  # gone with the process that had this number before
        ("2.0.abc", (2, 0)),
        ("0123456789abcdef", (-1, -1)),
        ("x.y.z", (-1, -1)),
    ],
)
def test_who_is_expected_elsewhere(owner, asked):
    async def talk(there):
        supervisor = FakeSupervisor(there=there)
        expected = await supervisor.siblings.expect(owner)
        assert supervisor.asked == ([] if asked is None else [("expect", *asked)])
        assert expected == (asked[0] if asked is not None and there else None)

    run(talk(True))
    run(talk(False))


def test_names_tell_the_process_and_its_life():
    async def talk():
        assert FakeSupervisor().siblings.named("abc") == "1.2.abc"

    run(talk())


def test_a_supervisor_that_is_gone_holds_nobody_up():
    async def talk():
        supervisor = FakeSupervisor()
        supervisor.go.clear()
        supervisor.siblings.leave(1)
        releasing = asyncio.ensure_future(supervisor.siblings.release(0))
        await until(lambda: len(supervisor.asked) == 2)
        supervisor.near.hang_up()
        await releasing

    run(talk())


def test_questions_go_to_all_or_to_the_owner_of_a_session():
    async def talk():
        supervisor = FakeSupervisor()
        assert await supervisor.siblings.ask_all("look") == [1, 2]
        assert await supervisor.siblings.ask_owner("2.0.abc", "frame", 3) == "image"
        assert supervisor.asked == [("ask_all", "look"), ("ask_one", 2, 0, "frame", "2.0.abc", 3)]

    run(talk())


def test_a_process_alone_has_all_of_it():
    async def talk():
        capacity = Capacity(2)

        async def frame(session, number):
            return session, number

        async def look():
            return "look"

        alone = Alone(capacity, {"frame": frame, "look": look})
        await alone.reserve(2)
        with pytest.raises(CapacityReached):
            await alone.reserve(1)
        alone.leave(2)
        await alone.release(2)
        assert (capacity.active, alone.named("abc"), await alone.expect("2.0.abc"), await alone.expect(1)) == (
            0,
            "abc",
            None,
            None,
        )
        assert await alone.ask_all("look") == ["look"]
        assert await alone.ask_owner("abc", "frame", 3) == ("abc", 3)

    run(talk())
