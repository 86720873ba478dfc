"""openenv_gym.server.json_sessions: sessions that are made over HTTP."""

import asyncio

import pytest
from helpers_dialect import Client, Count, made, make_registry

from openenv_gym.server.json_sessions import JsonSessions, UnknownSession
from openenv_gym.server.openenv_messages import DialectError, Options


def with_sessions(test, **options):
    async def main():
        factory, envs = made(Count)
        registry = make_registry(factory, **options)
        registry.start()
        try:
            await test(JsonSessions(registry), envs)
        finally:
            await registry.stop()

    asyncio.run(main())


def test_one_connection_at_a_time_and_an_end():
    async def test(sessions, envs):
        name = await sessions.create()
        assert sessions.find(name) is sessions.attach(name, Options())
        with pytest.raises(DialectError, match="already has an attached WebSocket"):
            sessions.attach(name, Options())
        await sessions.detach(name)
        sessions.attach(name, Options(exclude=[]))
        assert await sessions.close(name) is False
        assert envs[-1].calls == []
        await sessions.detach(name)
        assert envs[-1].calls == [("close",)]
        for use in (sessions.find, lambda name: sessions.attach(name, Options())):
            with pytest.raises(UnknownSession, match=f"Unknown session_id: {name}"):
                use(name)
        with pytest.raises(UnknownSession):
            await sessions.close(name)

    with_sessions(test)


def test_bad_options_leave_it_free():
    async def test(sessions, _):
        name = await sessions.create()
        with pytest.raises(DialectError):
            sessions.attach(name, Options(include=["nose"]))
        assert sessions.attach(name, Options()) is sessions.find(name)

    with_sessions(test)


def test_the_id_is_no_name_that_is_told_to_others():
    async def test(sessions, _):
        name = await sessions.create()
        assert name not in sessions.registry.sessions
        with pytest.raises(UnknownSession):
            sessions.find(sessions.find(name).name)

    with_sessions(test)


def test_one_that_the_server_closed_is_unknown():
    """As when it was idle for too long; then its connection ends too."""

    async def test(sessions, _):
        name = await sessions.create()
        session, client = sessions.attach(name, Options()), Client()
        await session.attach(client)
        await session.close()
        await sessions.detach(name)
        with pytest.raises(UnknownSession):
            sessions.find(name)
        assert await sessions.create() != name

    with_sessions(test, max_envs=1)
