"""`LocalServer`: a real server of one's own, ready when it is constructed and gone when it is closed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import subprocess
import threading
import urllib.request
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from openenv_gym.display import table
from openenv_gym.errors import FactoryError, OptionError, ReplyTimeout
from openenv_gym.extras import install
from openenv_gym.interpreter import command
from openenv_gym.registered import spec_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from openenv_gym.server.registry import Registry

__all__ = ["OWNERS_OPTIONS", "LocalServer", "ServerThread", "plain"]

_START_S: Final = 60.0
_STOP_S: Final = 10.0

OWNERS_OPTIONS: Final = {"allow_call": None, "allow_set": None, "allow_get": None, "debug": True}
"""Where whoever has the token is the owner, who may do to an env of theirs what they could do to a local one."""


class LocalServer:
    """A server on a free loopback port, with a token.

    An id (``CartPole-v1``, ``module:EnvId``) or a name (``package.module:callable``) is served by a child process, that
    ends with this one even if this one is killed. A callable is served from a thread of this process, because a closure
    or a class of a notebook can't be imported elsewhere; its envs then share this process's interpreter lock.

    Args:
        env: the environment.
        env_kwargs: keyword arguments for it.
        workers: processes that share the envs.
        token: its token; None makes one up.
        start_timeout_s: limit in seconds for the start.
        **options: the fields of `openenv_gym.server.settings.ServerSettings`, such as ``max_envs``. Other than on a
            server for others, all public methods may be called and all public attributes set, and errors bring their
            remote traceback.

    Attributes:
        url: the server's address.
        token: its token.

    Raises:
        FactoryError: if the environment can't be built.
        OptionError: for an unknown option, and for several workers with a callable.
        ReplyTimeout: if it doesn't start in time.
        ImportError: without the extra ``server``.

    Example:
        >>> with LocalServer("CartPole-v1", max_envs=8) as server:  # doctest: +SKIP
        ...     env = RemoteVecEnv(server.url, 8, token=server.token)
    """

    def __init__(
        self,
        env: str | Callable[..., Any],
        *,
        env_kwargs: dict[str, Any] | None = None,
        workers: int = 1,
        token: str | None = None,
        start_timeout_s: float = _START_S,
        **options: Any,
    ) -> None:
        if any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn")):
            raise ImportError(f"a LocalServer needs the server's packages: {install('server')}")
        if workers < 1:
            raise OptionError(f"workers must be at least 1, not {workers}")
        if workers > 1 and not isinstance(env, str):
            raise OptionError(
                f"workers={workers} needs an id or 'package.module:callable', which other processes can import; a "
                "callable is served from this one"
            )
        self.token = token or secrets.token_urlsafe(32)
        options = {**OWNERS_OPTIONS, "env_kwargs": env_kwargs or {}, **options, "token": self.token}
        self._host: _Host = (
            _ChildProcess(env, options, workers, start_timeout_s)
            if isinstance(env, str)
            else ServerThread(env, options, start_timeout_s)
        )
        self.url = f"http://127.0.0.1:{self._host.port}"
        self._env = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
        # Also runs at exit, in time for a thread's loop to end in order.
        self._finalizer = weakref.finalize(self, self._host.stop)

    @property
    def alive(self) -> bool:
        """Whether the server still runs."""
        return self._host.alive

    @property
    def pid(self) -> int:
        """The process that serves."""
        return self._host.pid

    def close(self) -> None:
        """Stop the server, and wait until it is gone; closing twice is fine."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalServer({self.url!r}, {'running' if self.alive else 'closed'})"

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {"environment": self._env, "process": self.pid}
        if self.alive:
            with contextlib.suppress(OSError, ValueError):  # it may just be ending
                reply = urllib.request.urlopen(f"{self.url}/health", timeout=1)  # noqa: S310 - our own http URL
                rows |= {name.replace("_", " "): value for name, value in json.load(reply).items()}
                reply.close()
        return table(repr(self), rows)


class _Host(Protocol):
    port: int

    @property
    def alive(self) -> bool: ...

    @property
    def pid(self) -> int: ...

    def stop(self) -> None: ...


class _ChildProcess:
    """A server that ends with this process, because its standard input does."""

    def __init__(self, env: str, options: dict[str, Any], workers: int, start_timeout_s: float) -> None:
        configuration = json.dumps({"env": env, "spec": spec_of(env), "options": plain(options), "workers": workers})
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            command("openenv_gym.server.child"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        _children.add(self)
        timer = threading.Timer(start_timeout_s, self._process.kill)
        timer.start()
        try:
            answer = self._ask(configuration)
        except BaseException:
            self._process.kill()
            self.stop()
            raise
        finally:
            in_time = timer.is_alive()
            timer.cancel()
        if "port" not in answer:
            self.stop()
            if not in_time:
                raise ReplyTimeout("start", "the local server", start_timeout_s)
            error = answer.get("error", f"the server's process ended with exit code {self._process.returncode}")
            raise FactoryError.told(env, error)
        self.port: int = answer["port"]

    def _ask(self, configuration: str) -> dict[str, Any]:
        """The child's answer; an empty one if it ended instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(configuration + "\n")
            self._process.stdin.flush()
        except OSError:
            return {}
        return next(filter(None, map(_answer_in, self._process.stdout)), {})

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def leave(self) -> None:
        """Close this process's ends of the pipes. Once no process holds one, the server ends."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # it may be gone already
                    pipe.close()

    def stop(self) -> None:
        self.leave()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# A forked process has the pipes too, and would keep the server alive after this one was killed.
_children: weakref.WeakSet[_ChildProcess] = weakref.WeakSet()


def _leave_all() -> None:
    for child in list(_children):
        child.leave()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_leave_all)


def _answer_in(line: str) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:  # something that was printed while the child started
        return {}
    return answer if isinstance(answer, dict) else {}


class ServerThread:
    """A server on a thread of this process, on a free port.

    Args:
        env: the environment, as `openenv_gym.server.create_app` takes it.
        options: the server's settings.
        start_timeout_s: limit in seconds for the start.
        host: the address to listen on.

    Attributes:
        port: its port.
        registry: its sessions.

    Raises:
        FactoryError: if the environment can't be built; `OptionError` for an unknown option, `ReplyTimeout` if it
            doesn't start in time.
    """

    def __init__(
        self, env: str | Callable[..., Any], options: dict[str, Any], start_timeout_s: float, host: str = "127.0.0.1"
    ) -> None:
        from openenv_gym.server.app import create_app
        from openenv_gym.server.run import make_server

        started = threading.Event()
        app = create_app(env, **options)
        self.registry: Registry = app.state.registry
        self._server = make_server(app, self.registry.settings, host=host, on_started=started.set)
        self._thread = threading.Thread(target=self._server.run, name="local-server", daemon=True)
        self._thread.start()
        if not started.wait(start_timeout_s):
            self.stop()
            raise ReplyTimeout("start", "the local server", start_timeout_s)
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()

    def stop(self) -> None:
        """End it: running steps end, and their replies are sent; stopping twice is fine."""
        self._server.should_exit = True
        self._thread.join(_STOP_S)


def plain(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON data.

    Raises:
        OptionError: if some aren't.
    """
    try:
        plain: dict[str, Any] = json.loads(json.dumps(options, default=_listed))
    except TypeError as error:
        raise OptionError(f"options for a server in another process must be plain data: {error}") from None
    return plain


def _listed(value: Any) -> Any:
    if isinstance(value, (set, frozenset, tuple)):
        return sorted(value)
    raise TypeError(f"not {type(value).__name__}")
