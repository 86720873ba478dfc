"""A connection in the batch dialect: opening, requests, resume, until it ends. No FastAPI here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from openenv_gym import codec
from openenv_gym.errors import FactoryError, OpenEnvGymError, RemoteProtocolError, SpaceError
from openenv_gym.messages import PROTOCOL_VERSION, Close, Collect, Failed, Hello, Reply, Resume, Step, Welcome
from openenv_gym.server.capacity import CapacityReached
from openenv_gym.server.choosing import Chosen, choose
from openenv_gym.server.disclosure import disclosed
from openenv_gym.server.encoding import BatchEncoding
from openenv_gym.server.openenv_form import OpenEnvBatchEncoding
from openenv_gym.server.registry import GoingAway, Registry
from openenv_gym.server.session import Connection, Session
from openenv_gym.server.timings import Laps
from openenv_gym.server.vector_encoding import VectorEncoding
from openenv_gym.spaces import describe, generators, trim
from openenv_gym.version import __version__

__all__ = ["converse"]

logger = logging.getLogger(__name__)


async def converse(registry: Registry, connection: Connection, receive: Callable[[], Awaitable[bytes]]) -> None:
    """Serve one connection until its session ends or it breaks.

    Args:
        registry: the server's sessions.
        connection: where replies go.
        receive: gives the next frame; raises ConnectionError once the connection is gone.
    """
    try:
        first = await asyncio.wait_for(receive(), registry.settings.opening_timeout_s)
    except asyncio.TimeoutError:
        await connection.close(4408, "no opening in time")
        return
    try:
        session = await _open(registry, connection, first)
    except _Refused as refused:
        registry.counts.failed(refused.failed.code)
        logger.info("a session was refused", extra={"code": refused.failed.code, "reason": refused.failed.message})
        await connection.send(codec.encode(refused.failed))
        await connection.close(refused.close_code, refused.failed.code)
        return
    frames = _Frames(receive)
    try:
        while await _serve(registry, session, connection, frames):
            pass
    finally:
        frames.end()
        _leave(registry, connection, session)


class _Refused(Exception):
    def __init__(
        self, code: str, message: str, facts: dict[str, int] | None = None, close_code: int = 4400, error: str = ""
    ) -> None:
        self.failed = Failed(0, code, error, message, facts or {})
        self.close_code = close_code


# ---------------------------------------------------------------------------------------------- opening


async def _open(registry: Registry, connection: Connection, frame: bytes) -> Session:
    """The session that the first frame asks for, attached to its connection."""
    try:
        opening = codec.decode_opening(frame)
    except RemoteProtocolError as error:
        raise _Refused("VALIDATION_ERROR", str(error)) from None
    if opening.version != PROTOCOL_VERSION:
        text = f"the server speaks version {PROTOCOL_VERSION}, the client {opening.version}"
        raise _Refused("VERSION_MISMATCH", text, {"version": PROTOCOL_VERSION})
    if isinstance(opening, Resume):
        return await _resume(registry, connection, opening)
    return await _begin(registry, connection, opening)


async def _resume(registry: Registry, connection: Connection, resume: Resume) -> Session:
    """The session that lost its connection, on its new one."""
    session = registry.find(resume.session, resume.secret)
    if session is None:
        await _direct(registry, resume.session)
        raise _Refused("SESSION_EXPIRED", "unknown session", close_code=4404)
    try:
        frames = session.protocol.resume(resume.received)
    except RemoteProtocolError as error:
        raise _Refused("SESSION_EXPIRED", str(error), close_code=4404) from None
    registry.connected(session)
    try:
        await session.attach(connection, frames)
    except BaseException:
        _leave(registry, connection, session)
        raise
    return session


async def _direct(registry: Registry, owner: int | str) -> None:
    """Send a client to another process of this server, if that one should serve it."""
    try:
        other = await registry.company.expect(owner)
    except ConnectionError as error:
        raise _Refused("GOING_AWAY", str(error), close_code=1012) from None
    if other is not None:
        raise _Refused("MISDIRECTED", f"process {other} expects this client", {"process": other}, 4421)


async def _begin(registry: Registry, connection: Connection, hello: Hello) -> Session:
    """A new session, whose client knows that it has it."""
    try:
        session, chosen = await _create(registry, hello)
    except _Refused:
        raise
    except Exception as error:  # without an answer the client would take it for a broken connection, and try again
        logger.exception("a session could not be opened")
        raise _Refused("SESSION_ERROR", f"{type(error).__name__}: {error}", close_code=1011) from None
    try:
        await session.attach(connection, [codec.encode(_welcome(registry, session, hello, chosen))])
    except BaseException:  # nobody can ever resume it
        await registry.end(session)
        raise
    return session


async def _create(registry: Registry, hello: Hello) -> tuple[Session, Chosen]:
    for name, value in (("num_envs", hello.num_envs), ("max_episode_steps", hello.max_episode_steps)):
        if value is not None and value < 1:
            raise _Refused("VALIDATION_ERROR", f"{name} must be at least 1, not {value}")
    if hello.process is not None:
        await _direct(registry, hello.process)
    try:
        chosen = choose(registry.source, registry.probe, hello, registry.settings.max_message_bytes)
    except SpaceError as error:  # of an OpenEnv environment it may say what its reset raised
        raise _Refused("SPACE_ERROR", disclosed(str(error), debug=registry.settings.debug)) from None
    try:
        session = await registry.open(
            hello.num_envs,
            _encoding(registry, chosen, hello),
            render_mode=hello.render_mode,
            max_episode_steps=hello.max_episode_steps,
            autoreset_mode=hello.autoreset_mode,
            varied=hello.varied,
        )
    except CapacityReached as full:
        facts = {"active": full.active, "maximum": full.maximum}
        raise _Refused("CAPACITY_REACHED", str(full), facts, 4429) from None
    except GoingAway as error:
        raise _Refused("GOING_AWAY", str(error), close_code=1012) from None
    except OpenEnvGymError as error:
        code = "FACTORY_ERROR" if isinstance(error, FactoryError) else "VALIDATION_ERROR"
        raise _Refused(code, str(error), error="ValueError" if isinstance(error, ValueError) else "") from None
    session.client_limit = min(session.client_limit, hello.max_message_bytes or session.client_limit)
    return session, chosen


def _encoding(registry: Registry, chosen: Chosen, hello: Hello) -> BatchEncoding:
    info_keys = None if hello.info_keys is None else frozenset(hello.info_keys)
    probe = registry.probe
    if probe.vector:
        whole = chosen.observation_space == probe.observation_space
        return VectorEncoding(chosen.observation_space, chosen.action_space, info_keys, whole=whole)
    models = registry.source.known_models
    if models is None or chosen.fields is None:
        return BatchEncoding(chosen.observation_space, chosen.action_space, info_keys, typed=hello.typed)
    return OpenEnvBatchEncoding(*chosen.fields, models, chosen.observation_space, info_keys=info_keys, mask=chosen.mask)


def _welcome(registry: Registry, session: Session, hello: Hello, chosen: Chosen) -> Welcome:
    metadata = {**registry.probe.metadata, **session.slots.metadata}
    return Welcome(
        version=PROTOCOL_VERSION,
        server=f"openenv-gym {__version__}",
        env=registry.source.name,
        session=session.name,
        secret=session.secret,
        observation_space=describe(chosen.observation_space),
        action_space=describe(chosen.action_space),
        metadata={key: codec.pack(value, key) for key, value in metadata.items() if _is_plain(value)},
        grace_s=registry.settings.grace_s,
        max_message_bytes=registry.settings.max_message_bytes,
        processes=registry.company.processes,
        autoreset_mode=session.slots.autoreset_mode,
        chosen=True,
        generators=_generators(session),
        observation_spaces=_each_space(session, hello),
        mask_key=hello.mask_key,
    )


def _generators(session: Session) -> list[bytes | None] | None:
    """Of the first env's action space, from which a local vector env's would be copied; OpenEnv's have none."""
    if session.slots.source.openenv:
        return None
    states = generators(session.slots.slots[0].present().action_space)
    return None if states == [None] * len(states) else states


def _each_space(session: Session, hello: Hello) -> list[dict[str, Any]] | None:
    """Each env's own observation space, as its client sees it."""
    if not hello.varied or hello.observation_space is not None or session.slots.as_one:
        return None
    spaces = (slot.present().observation_space for slot in session.slots.slots)
    return [describe(trim(s, include=hello.include, exclude=hello.exclude, dtype=hello.obs_dtype)) for s in spaces]


def _is_plain(value: object) -> bool:
    try:
        codec.pack(value)
    except codec.PackError:
        return False
    return True


# --------------------------------------------------------------------------------------------- requests


class _Frames:
    """A connection's frames, of which one may be waited for while another is served."""

    def __init__(self, receive: Callable[[], Awaitable[bytes]]) -> None:
        self._receive = receive
        self._coming: asyncio.Future[bytes] | None = None

    async def next(self) -> bytes:
        """The next frame; raises ConnectionError once the connection is gone."""
        coming, self._coming = self._coming, None
        return await (coming or self._receive())

    def coming(self) -> asyncio.Future[bytes]:
        """The next frame, which `next` will give."""
        self._coming = self._coming or asyncio.ensure_future(self._receive())
        return self._coming

    def end(self) -> None:
        """Wait for nothing any more."""
        if self._coming is not None and not self._coming.cancel():
            self._coming.exception()  # which nobody wants to know


async def _serve(registry: Registry, session: Session, connection: Connection, frames: _Frames) -> bool:
    """Serve one frame; False once the session has ended."""
    received = await frames.next()
    arrived = time.perf_counter()
    session.counts.received_bytes += len(received)
    try:
        request = session.protocol.receive(received)
    except RemoteProtocolError as error:
        session.counts.failed("VALIDATION_ERROR")
        await connection.send(codec.encode(Failed(0, "VALIDATION_ERROR", "", str(error))))
        return True
    if request is None:  # it arrived before a resume too
        return True
    laps = Laps(arrived) if isinstance(request, Step) and (request.timed or arrived < registry.watched_until) else None
    reply = await session.execute(request, frames.coming() if isinstance(request, Collect) else None, laps)
    if isinstance(request, Close):
        await registry.end(session)
    frame = _frame(session, reply)
    if laps is not None and laps.timings is not None:
        session.counts.took(laps.timings)
    session.counts.sent_bytes += len(frame)
    await session.deliver(frame)
    return not isinstance(request, Close)


def _frame(session: Session, reply: Reply) -> bytes:
    """A reply's frame, kept for a resume; if it can't be sent, one that says so."""
    try:
        frame = session.protocol.reply(reply)
    except Exception as error:
        logger.exception("a reply could not be encoded", extra={"session": session.name})
        return session.protocol.reply(Failed(reply.id, "SERIALIZATION_ERROR", type(error).__name__, repr(error)))
    if len(frame) > session.client_limit:
        facts = {"size": len(frame), "limit": session.client_limit}
        frame = session.protocol.reply(Failed(reply.id, "MESSAGE_TOO_LARGE", "", "the reply is too large", facts))
    return frame


def _leave(registry: Registry, connection: Connection, session: Session) -> None:
    if session.detach(connection):
        registry.disconnected(session)
