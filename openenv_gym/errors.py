"""Every exception that openenv-gym raises.

.. code-block:: text

    OpenEnvGymError
    ├─ TransportError
    │  ├─ ConnectFailed (ConnectionError)        no connection could be made
    │  │  ├─ NotAWebSocket                       something answered, but not a WebSocket endpoint
    │  │  ├─ Unauthorized                        the token was refused, or there was none
    │  │  └─ CapacityError                       the server has no room for that many envs
    │  ├─ ConnectionLost (ConnectionError)       a working connection broke
    │  │  └─ SessionLost                         … and the episodes behind it are gone
    │  ├─ ReplyTimeout (TimeoutError)            no reply within the limit
    │  └─ MessageTooLarge (RuntimeError)         a message over the size limit
    ├─ ProtocolError
    │  ├─ LocalProtocolError (RuntimeError)      this side broke the rules
    │  ├─ RemoteProtocolError (RuntimeError)     the peer broke them
    │  └─ ProtocolVersionError (RuntimeError)    the two sides speak different versions
    ├─ RemoteEnvError (RuntimeError)             the env, or the server, reported an error
    │  └─ ToolError                              … because a tool failed
    │     └─ ToolNotFound (LookupError)          … or doesn't exist
    ├─ BatchError (RuntimeError)                 several envs failed in one call
    ├─ FactoryError (RuntimeError)               an environment could not be created
    ├─ FleetError (RuntimeError)                 a fleet's cluster can't be used
    ├─ ActionError (ValueError)                  actions of the wrong number, shape or value
    ├─ OptionError (ValueError)                  an unknown option, or one with a bad value
    └─ SpaceError (ValueError)                   a space or a value that can't be described or built

Misuse of the vector API raises Gymnasium's own classes (``gymnasium.error``). The facts are attributes,
the sentence is built in ``__str__``, and every error survives pickling.
"""

from __future__ import annotations

import asyncio
import builtins
import functools
import multiprocessing
import sys
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import gymnasium.error

__all__ = [
    "ActionError",
    "BatchError",
    "CapacityError",
    "ConnectFailed",
    "ConnectionLost",
    "FactoryError",
    "FleetError",
    "LocalProtocolError",
    "MessageTooLarge",
    "NotAWebSocket",
    "OpenEnvGymError",
    "OptionError",
    "ProtocolError",
    "ProtocolVersionError",
    "RemoteEnvError",
    "RemoteProtocolError",
    "ReplyTimeout",
    "SessionLost",
    "SpaceError",
    "ToolError",
    "ToolNotFound",
    "TransportError",
    "Unauthorized",
    "batch_error",
    "ranges",
    "remote_env_error",
]

if sys.version_info >= (3, 11):
    _TimeoutError = TimeoutError  # asyncio's is the same
else:

    class _TimeoutError(TimeoutError, asyncio.TimeoutError):
        """Both."""


class OpenEnvGymError(Exception):
    """Base of all errors of this package."""


class TransportError(OpenEnvGymError):
    """Base of errors on the way between client and server."""


class ConnectFailed(TransportError, ConnectionError):
    """Raised when no connection to a server could be made.

    Attributes:
        url: the address that was tried.
        reason: what went wrong, in a few words.
    """

    def __init__(self, url: str, reason: str) -> None:
        self.args = (url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"no server at {self.url} ({self.reason}); start one with `openenv-gym serve ENV_ID`, or check the URL"


class NotAWebSocket(ConnectFailed):
    """Raised when something answers at the URL, but not as a WebSocket endpoint."""

    def __str__(self) -> str:
        return f"{self.url} is not an environment server's WebSocket endpoint ({self.reason})"


class Unauthorized(ConnectFailed):
    """Raised when the server refuses the token, or wants one and there is none, or (HTTP 403) perhaps has no such path.

    Attributes:
        given: whether there was a token.
    """

    def __init__(self, url: str, reason: str, given: bool = True) -> None:
        super().__init__(url, reason)
        self.args = (url, reason, given)
        self.given = given

    @property
    def is_ambiguous(self) -> bool:
        """Whether the path may be wrong instead: web frameworks answer 403 to a WebSocket for a path without one."""
        return self.reason == "HTTP 403"

    def __str__(self) -> str:
        advice = "pass token=… or set OPENENV_GYM_TOKEN to the server's token"
        if self.is_ambiguous:
            token = "it refused the token" if self.given else "it needs a token"
            return (
                f"{self.url} refused the connection ({self.reason}): there is no WebSocket endpoint at "
                f"{urlsplit(self.url).path}, or {token}; leave the path away from the server's URL, or {advice}"
            )
        if not self.given:
            return f"{self.url} needs a token, and none was given ({self.reason}); {advice}"
        return f"{self.url} refused the token ({self.reason}); {advice}"


class CapacityError(ConnectFailed):
    """Raised when the server has no room for the envs that were asked for.

    Attributes:
        active: envs that the server holds now, or None where it doesn't say.
        maximum: envs that it admits, or None where it doesn't say.
        requested: envs that were asked for.
        keeps_sessions: whether sessions of clients that were killed may be among them, as on an OpenEnv server.
    """

    def __init__(
        self, url: str, active: int | None, maximum: int | None, requested: int, keeps_sessions: bool = False
    ) -> None:
        super().__init__(url, "capacity reached")
        self.args = (url, active, maximum, requested, keeps_sessions)
        self.keeps_sessions = keeps_sessions
        self.active = active
        self.maximum = maximum
        self.requested = requested

    def __str__(self) -> str:
        if self.maximum is not None and self.requested > self.maximum:
            return (
                f"{self.url} admits {self.maximum} env(s) at a time, and {self.requested} were asked for; raise "
                "--max-envs (max_concurrent_envs on an OpenEnv server) or ask for fewer envs"
            )
        known = self.active is not None and self.maximum is not None
        used = f"{self.active} of {self.maximum} are in use" if known else "it is full"
        kept = "; an OpenEnv server without session_timeout keeps sessions of killed clients until it is restarted"
        return (
            f"{self.url} has no room for {self.requested} more env(s): {used}; "
            "raise --max-envs (max_concurrent_envs on an OpenEnv server) or ask for fewer envs"
            f"{kept if self.keeps_sessions else ''}"
        )


class ConnectionLost(TransportError, ConnectionError):
    """Raised when a working connection breaks.

    Attributes:
        url: the server's address.
        reason: what was seen, for instance the close code.
    """

    def __init__(self, url: str, reason: str) -> None:
        self.args = (url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"the connection to {self.url} was lost ({self.reason})"


class SessionLost(ConnectionLost):
    """Raised when the server no longer holds a session: its episodes can't be continued, only reset."""

    def __str__(self) -> str:
        return f"the session on {self.url} is gone ({self.reason}); its envs start anew at the next reset"


class ReplyTimeout(TransportError, multiprocessing.TimeoutError, _TimeoutError):
    """Raised when a reply doesn't come within its limit.

    It is a ``multiprocessing.TimeoutError`` because Gymnasium's ``step_wait`` promises that one
    (gymnasium/vector/async_vector_env.py), and an ``asyncio.TimeoutError`` for async code.

    Attributes:
        phase: ``connect``, ``reset``, ``step``, ``close`` or another request's name.
        url: the server's address.
        limit_s: the limit in seconds.
        envs: indices of the envs that didn't answer.
    """

    def __init__(self, phase: str, url: str, limit_s: float, envs: tuple[int, ...] = ()) -> None:
        self.args = (phase, url, limit_s, envs)
        self.phase = phase
        self.url = url
        self.limit_s = limit_s
        self.envs = envs

    def __str__(self) -> str:
        who = f" for env {ranges(self.envs)}" if self.envs else ""
        return f"no reply to `{self.phase}`{who} from {self.url} within {self.limit_s:g} second(s)"


class MessageTooLarge(TransportError, RuntimeError):
    """Raised when a message is larger than the limit.

    Attributes:
        size: the message's size in bytes, or None where only the limit is known.
        limit: the limit in bytes.
        setting: the name of the setting that raises the limit.
    """

    def __init__(self, size: int | None, limit: int, setting: str) -> None:
        self.args = (size, limit, setting)
        self.size = size
        self.limit = limit
        self.setting = setting

    def __str__(self) -> str:
        size = "a message" if self.size is None else f"a message of {self.size:,} bytes"
        return (
            f"{size} is over the limit of {self.limit:,} bytes; "
            f"raise {self.setting} on both sides, or trim the observation"
        )


class ProtocolError(OpenEnvGymError):
    """Base of violations of the protocol (abstract: one side or the other is at fault)."""


class LocalProtocolError(ProtocolError, RuntimeError):
    """Raised when this side breaks the protocol's rules."""


class RemoteProtocolError(ProtocolError, RuntimeError):
    """Raised when the peer breaks the protocol's rules."""


class ProtocolVersionError(ProtocolError, RuntimeError):
    """Raised when the two sides speak different versions of the protocol.

    Attributes:
        ours: this side's version.
        theirs: the peer's version.
    """

    def __init__(self, ours: int, theirs: int) -> None:
        self.args = (ours, theirs)
        self.ours = ours
        self.theirs = theirs

    def __str__(self) -> str:
        return (
            f"this side speaks version {self.ours} of the protocol and the peer version {self.theirs}; "
            "upgrade the older one"
        )


class RemoteEnvError(OpenEnvGymError, RuntimeError):
    """Raised for an error that the server or one of its envs reports.

    An exception of a builtin or a Gymnasium class arrives as a subclass of that class too, so that
    ``except ValueError`` works as it does with a local env (see `remote_env_error`).

    Attributes:
        code: the server's error code, such as ``EXECUTION_ERROR``.
        type: name of the exception's class on the server, or ``""``.
        message: the exception's text.
        env_index: index of the env in the vector env, or None.
        traceback: the remote traceback, or None unless the server allows it.
    """

    def __init__(
        self, code: str, type: str, message: str, env_index: int | None = None, traceback: str | None = None
    ) -> None:
        self.args = (code, type, message, env_index, traceback)
        self.code = code
        self.type = type
        self.message = message
        self.env_index = env_index
        self.traceback = traceback

    def __reduce__(self) -> tuple[Any, ...]:
        return remote_env_error, self.args

    def __str__(self) -> str:
        return _report(self, [] if self.env_index is None else [self.env_index])


class ToolError(RemoteEnvError):
    """Raised when a call of an environment's tool fails.

    Attributes:
        tool: the tool's name.
        kind: ``invalid_args`` where the text says so, else ``execution_error``; the words are OpenEnv's.
    """

    def __init__(self, tool: str, message: str, kind: str | None = None) -> None:
        super().__init__("TOOL_ERROR", "", message)
        self.args = (tool, message, kind)
        self.tool = tool
        # What an environment says is text only; OpenEnv's own servers tell kinds apart by these words too.
        misfit = any(word in message.lower() for word in ("validation error", "invalid", "argument"))
        self.kind = kind or ("invalid_args" if misfit else "execution_error")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args

    def __str__(self) -> str:
        return f"the tool {self.tool!r} failed ({self.kind}): {self.message}"


class ToolNotFound(ToolError, LookupError):
    """Raised for a tool that the environment doesn't have."""

    def __init__(self, tool: str, message: str) -> None:
        super().__init__(tool, message, "tool_not_found")
        self.args = (tool, message)

    def __str__(self) -> str:
        return f"the environment has no tool {self.tool!r}: {self.message}"


class BatchError(OpenEnvGymError, RuntimeError):
    """Raised when more than one env failed in one call.

    If the errors have a builtin or a Gymnasium class in common, it is one of that class too (see `batch_error`).

    Attributes:
        failures: the error of each failed env, by env index.
    """

    def __init__(self, failures: dict[int, Exception]) -> None:
        self.args = (failures,)
        self.failures = failures

    def __reduce__(self) -> tuple[Any, ...]:
        return batch_error, self.args

    def __str__(self) -> str:
        alike: dict[str, list[int]] = {}
        for row, error in self.failures.items():
            alike.setdefault(_report(error, []), []).append(row)
        reports = [_report(self.failures[rows[0]], rows) for rows in alike.values()]
        return f"{len(self.failures)} envs failed: " + "; ".join(reports)


class FactoryError(OpenEnvGymError, RuntimeError):
    """Raised when an environment can't be created.

    Attributes:
        env: the env id, or the factory's name.
        reason: what its creation raised.
    """

    def __init__(self, env: str, reason: str) -> None:
        self.args = (env, reason)
        self.env = env
        self.reason = reason

    @classmethod
    def told(cls, env: str, text: str) -> FactoryError:
        """The error for what another process says, which is often the text of such an error already."""
        return cls(env, text.removeprefix(str(cls(env, ""))))

    def __str__(self) -> str:
        return f"can't create the environment {self.env!r}: {self.reason}"


class FleetError(OpenEnvGymError, RuntimeError):
    """Raised when a fleet's cluster can't be used: none there, no such fleet, too little room, no answer in time."""


class ActionError(OpenEnvGymError, ValueError):
    """Raised for actions of the wrong number, shape or value, before anything is sent."""


class OptionError(OpenEnvGymError, ValueError):
    """Raised for an unknown option, or for one with a bad value.

    It is no ``TypeError``: to those ``gym.make`` adds the keyword arguments, and so a token.
    """


class SpaceError(OpenEnvGymError, ValueError, RuntimeError):
    """Raised when a space, or a value of it, can't be described, built, trimmed or cast.

    ``SyncVectorEnv`` raises ``RuntimeError`` for envs whose spaces differ.

    Attributes:
        path: dotted path of the part at fault, ``""`` for the whole.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        self.args = (message,)
        self.message = message
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), path=self.path), self.args

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def remote_env_error(
    code: str, type: str, message: str, env_index: int | None = None, traceback: str | None = None
) -> RemoteEnvError:
    """Build the error for a remote exception, as a subclass of that exception's class where it is well known.

    Only Python's builtin exceptions and those of ``gymnasium.error`` are looked up, by name: nothing is imported
    because a peer named it.

    Args:
        code: the server's error code.
        type: name of the remote exception's class.
        message: the remote exception's text.
        env_index: index of the env in the vector env.
        traceback: the remote traceback.

    Returns:
        a `RemoteEnvError`, for example one that is also a ``ValueError``.
    """
    kind = _subclass(RemoteEnvError, "Remote", _known(type).__name__)
    error: RemoteEnvError = kind(code, type, message, env_index, traceback)
    return error


def batch_error(failures: dict[int, Exception]) -> BatchError:
    """Build the error for several envs, as a subclass of the builtin or Gymnasium class that their errors share.

    Args:
        failures: the error of each failed env, by env index.

    Returns:
        a `BatchError`, for example one that is also a ``ValueError`` because all the errors are.
    """
    kind = _subclass(BatchError, "Batch", _shared(failures.values()).__name__)
    error: BatchError = kind(failures)
    return error


def _known(name: str) -> type[Exception]:
    """The builtin or Gymnasium exception of this name, or else ``Exception``."""
    found = getattr(builtins, name, None) or getattr(gymnasium.error, name, None)
    if not isinstance(found, type) or not issubclass(found, Exception) or name == "ExceptionGroup":
        return Exception  # an ExceptionGroup can't be made without the exceptions in it
    return found


def _shared(errors: Iterable[Exception]) -> type[Exception]:
    """The most special builtin or Gymnasium exception that all the errors are, besides `BatchError`'s own bases."""
    first, *others = errors
    for kind in type(first).__mro__:
        known = _known(kind.__name__) is kind and not issubclass(BatchError, kind)
        if known and all(isinstance(error, kind) for error in others):
            return kind
    return Exception


@functools.lru_cache(maxsize=256)
def _subclass(base: type[Exception], prefix: str, name: str) -> Any:
    """A subclass of ``base`` and of the exception of that name, or ``base`` itself where it is one already."""
    known = _known(name)
    if issubclass(base, known):
        return base
    return type(f"{prefix}{name}", (base, known), {"__module__": __name__})


_LACKING: Final = frozenset({"DependencyNotInstalled", "ModuleNotFoundError"})


def _report(error: Exception, envs: list[int]) -> str:
    """An error's text, for the envs that it happened to; none for the server."""
    if not isinstance(error, RemoteEnvError):
        return str(error)
    where = f"env {ranges(envs)}" if envs else "the server"
    what = f"{error.type}: {error.message}" if error.type else error.message
    at_fault = "; the server's machine lacks it" if error.type in _LACKING else ""
    text = f"{where} reported {what} (code: {error.code}){at_fault}"
    return f"{text}\n\nRemote traceback:\n{error.traceback}" if error.traceback else text


def ranges(indices: Iterable[int]) -> str:
    """``(0, 1, 2, 5)`` as ``0-2, 5``."""
    parts: list[list[int]] = []
    for index in indices:
        if parts and parts[-1][-1] == index - 1:
            parts[-1][1:] = [index]
        else:
            parts.append([index])
    return ", ".join("-".join(map(str, part)) for part in parts)
