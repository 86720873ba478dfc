"""What a remote env stands on: a pool, and the embedded server under it if it has one; opened and closed together."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Any, Final

from pydantic import SecretStr

from openenv_gym.errors import OptionError
from openenv_gym.local import LocalServer
from openenv_gym.loop import settle
from openenv_gym.options import RemoteOptions
from openenv_gym.pool import Pool, close_all

__all__ = ["Backend"]

_EXIT_S: Final = 3.0
_open: weakref.WeakSet[Backend] = weakref.WeakSet()


class Backend:
    """A pool, and its server if it is an embedded one.

    Args:
        options: the validated options.
        num_envs: the number of envs.
        local: an environment to serve from an embedded `LocalServer`; None connects to ``base_url``.
        env_kwargs: keyword arguments for that environment.
        workers: processes of that server; None for one.
        autoreset_mode: the ``AutoresetMode`` that a vector env on the server shall have; None where none would do.
        typed: have Discrete observations in the types that the envs give them.
        varied: let the bounds of the envs' observation spaces differ.

    Attributes:
        options: the options.
        server: the embedded server, or None.
        pool: the connections.

    Raises:
        OptionError: for ``local`` together with ``base_url``, ``env_kwargs`` or ``workers`` without ``local``, or no
            envs.
    """

    def __init__(
        self,
        options: RemoteOptions,
        num_envs: int,
        *,
        local: str | Callable[..., Any] | None = None,
        env_kwargs: dict[str, Any] | None = None,
        workers: int | None = None,
        autoreset_mode: str | None = None,
        typed: bool = False,
        varied: bool = False,
    ) -> None:
        if not hasattr(num_envs, "__index__"):
            raise OptionError(f"num_envs must be an integer, not {num_envs!r}")
        if num_envs < 1:
            raise OptionError(f"num_envs must be at least 1, not {num_envs}")
        if local is not None and options.base_url is not None:
            raise OptionError("`local` starts a server of its own: leave out `base_url`, or `local`")
        if local is None and env_kwargs is not None:
            raise OptionError("`env_kwargs` go to an embedded server's env: they need `local`")
        if local is None and workers is not None:
            raise OptionError("`workers` are an embedded server's processes: they need `local`")
        self.options = options
        self.server: LocalServer | None = None
        if local is not None:
            self.server = LocalServer(local, env_kwargs=env_kwargs, workers=workers or 1, max_envs=num_envs)
        try:
            if self.server is not None:
                options = options.model_copy(
                    update={"base_url": self.server.url, "token": SecretStr(self.server.token)}
                )
            self.pool = Pool(options.pool_settings(num_envs, autoreset_mode, typed=typed, varied=varied))
        except BaseException:
            if self.server is not None:
                self.server.close()
            raise
        self._finalizer = weakref.finalize(self, self.pool.close_soon)
        self._finalizer.atexit = False  # then there is time to wait, see below
        _open.add(self)

    def close(self, timeout_s: float | None = None) -> None:
        """Close the connections within a limit, then the embedded server; never raises, and closing twice is fine.

        Args:
            timeout_s: limit for the connections; None takes ``close_timeout_s``.
        """
        if self._finalizer.detach() is not None:
            self.pool.close(timeout_s if timeout_s is not None else self.options.close_timeout_s)
        if self.server is not None:
            self.server.close()

    def __reduce__(self) -> Any:
        """A copy would need sessions of its own, and a pickle would hold the token.

        Raises:
            TypeError: always.
        """
        raise TypeError("a remote env can't be copied or pickled: make a new one where it is needed")


@atexit.register
def _close_at_exit() -> None:
    """Tell the servers of envs that nobody closed, or they would hold their slots: for the grace time, or for ever."""
    left = list(_open)
    close_all([backend.pool for backend in left], _EXIT_S)
    settle(_EXIT_S)  # what was dropped, or interrupted while it opened, just before
    for backend in left:
        backend.close()
