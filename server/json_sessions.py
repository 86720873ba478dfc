"""All sessions in the OpenEnv dialect: those of one connection, and those that are made over HTTP and outlive theirs.

The latter are OpenEnv's since 0.10 (openenv/core/env_server/http_server.py, ``openenv/session/create``): a WebSocket
attaches to one with ``?session_id=…``, and tools can be called without any. Whoever makes one closes it; one that
nobody uses is closed after ``idle_timeout_s``, as every session is.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

from openenv_gym.server.json_session import JsonSession
from openenv_gym.server.openenv_messages import DialectError, Options
from openenv_gym.server.registry import Registry

__all__ = ["JsonSessions", "UnknownSession"]

logger = logging.getLogger(__name__)


class UnknownSession(DialectError):
    """Raised for the id of a session that doesn't exist, or no longer."""

    def __init__(self, name: str) -> None:
        super().__init__("SESSION_ERROR", f"Unknown session_id: {name}")


class _SeveralProcesses(DialectError):
    """Raised where any of several processes may get the next request, and only one has the session."""

    def __init__(self) -> None:
        text = "this server has several processes (--workers), so it has no sessions that outlive their connection"
        super().__init__("SESSION_ERROR", text)


@dataclass
class _Lasting:
    session: JsonSession
    attached: bool = False
    closing: bool = False


class JsonSessions:
    """The sessions of one server in the OpenEnv dialect.

    Guarantees: everything here belongs to the event loop's thread.

    Args:
        registry: all sessions of the server.

    Attributes:
        registry: all sessions of the server.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._lasting: dict[str, _Lasting] = {}

    async def open(self, count: int, options: Options) -> JsonSession:
        """Open a session for one connection.

        Args:
            count: the number of envs.
            options: what the client wants to be sent.

        Raises:
            DialectError: if it can't be opened, whatever the reason.
        """
        try:
            return await JsonSession.open(self.registry, count, options)
        except DialectError:
            raise
        except Exception as error:
            logger.exception("a session could not be opened")
            raise DialectError("SESSION_ERROR", str(error) or type(error).__name__) from None

    async def create(self) -> str:
        """Make a session that needs no connection.

        Returns:
            its id, which is all that is needed to use it.

        Raises:
            DialectError: if it can't be opened, and on a server of several processes.
        """
        if self.registry.company.processes > 1:
            raise _SeveralProcesses
        self._lasting = {name: one for name, one in self._lasting.items() if not one.session.closed}
        session = await self.open(1, Options())
        name = str(uuid.uuid4())
        self._lasting[name] = _Lasting(session)
        return name

    def find(self, name: str) -> JsonSession:
        """The session with an id. Raises `UnknownSession`."""
        return self._find(name).session

    def attach(self, name: str, options: Options) -> JsonSession:
        """The session with an id, for the only connection that it may have at a time.

        Args:
            name: its id.
            options: what the client wants to be sent from now on.

        Raises:
            UnknownSession: if there is none.
            DialectError: if it has a connection, or the options are wrong.
        """
        found = self._find(name)
        if found.attached:
            raise DialectError("SESSION_ERROR", f"Session {name} already has an attached WebSocket")
        found.session.use(options)
        found.attached = True
        return found.session

    async def detach(self, name: str) -> None:
        """Note that the connection ended; a session that was to be closed meanwhile is closed now."""
        found = self._lasting[name]
        found.attached = False
        if found.closing:
            await self._end(name)

    async def close(self, name: str) -> bool:
        """Close a session, or let it be closed when its connection ends.

        Returns:
            whether it is closed.

        Raises:
            UnknownSession: if there is none.
        """
        found = self._find(name)
        if found.attached:
            found.closing = True
            return False
        await self._end(name)
        return True

    async def _end(self, name: str) -> None:
        await self._lasting.pop(name).session.close()

    def _find(self, name: str) -> _Lasting:
        if self.registry.company.processes > 1:
            raise _SeveralProcesses
        found = self._lasting.get(name)
        if found is None or found.session.closed:
            raise UnknownSession(name)
        return found
