"""Questions between processes, through a pair of intercoms that take each other's lines."""

import asyncio

import pytest
from helpers_core import run

from openenv_gym.server.intercom import Intercom


def pair(answers):
    """One that asks, and one that answers; and the lines that went to the latter."""
    lines = []

    def to_there(line):
        lines.append(line)
        there.take(line)

    here = Intercom(to_there, {})
    there = Intercom(here.take, answers)
    return here, there, lines


def test_each_gets_its_own_answer():
    first = asyncio.Event()

    async def double(number):
        if number == 1:
            await first.wait()
        first.set()
        return 2 * number

    async def talk():
        here, _, lines = pair({"double": double})
        assert await asyncio.gather(here.ask("double", 1), here.ask("double", 2)) == [2, 4]
        assert all(line.endswith(b"\n") for line in lines)

    run(talk())


def test_what_is_told_is_not_answered():
    async def talk():
        heard, answers = [], []

        async def hear(text):
            heard.append(text)

        there = Intercom(answers.append, {"hear": hear})
        here = Intercom(there.take, {})
        here.tell("hear", "a")
        await here_and_now()
        assert (heard, answers) == (["a"], [])

    run(talk())


async def here_and_now():
    """Let what is ready run."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_who_asked_one_that_is_gone_is_told():
    async def talk():
        here = Intercom(lambda line: None, {})
        asking = asyncio.ensure_future(here.ask("anything"))
        await here_and_now()
        here.hang_up()
        with pytest.raises(ConnectionError, match="is gone"):
            await asking
        here.take(b'{"id": 0, "answer": 1}\n')  # it concerns nobody

    run(talk())


def test_a_broken_pipe_is_a_connection_error():
    def write(line):
        raise BrokenPipeError("broken")

    async def talk():
        with pytest.raises(ConnectionError, match="is gone: broken"):
            Intercom(write, {}).tell("anything")
        with pytest.raises(ConnectionError, match="is gone: broken"):
            await Intercom(write, {}).ask("anything")

    run(talk())
