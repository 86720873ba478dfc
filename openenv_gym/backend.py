"""What a remote env stands on: a pool, and the embedded server under it if it has one; opened and closed together."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from pydantic import SecretStr

from openenv_gym.errors import OptionError
from openenv_gym.local import LocalServer
from openenv_gym.options import RemoteOptions
from openenv_gym.pool import Pool

__all__ = ["Backend"]


class Backend:
    """A pool, and its server if it is an embedded one.

    Args:
        options: the validated options.
        num_envs: the number of envs.
        local: an environment to serve from an embedded `LocalServer`; None connects to ``base_url``.
        env_kwargs: keyword arguments for that environment.

    Attributes:
        options: the options.
        server: the embedded server, or None.
        pool: the connections.

    Raises:
        OptionError: for ``local`` together with ``base_url``, or ``env_kwargs`` without ``local``.
    """

    def __init__(
        self,
        options: RemoteOptions,
        num_envs: int,
        *,
        local: str | Callable[..., Any] | None = None,
        env_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if local is not None and options.base_url is not None:
            raise OptionError("`local` starts a server of its own: leave out `base_url`, or `local`")
        if local is None and env_kwargs is not None:
            raise OptionError("`env_kwargs` go to an embedded server's env: they need `local`")
        self.options = options
        self.server = LocalServer(local, env_kwargs=env_kwargs, max_envs=num_envs) if local is not None else None
        try:
            if self.server is not None:
                options = options.model_copy(update={"base_url": self.server.url, "token": SecretStr(self.server.token)})
            self.pool = Pool(options.pool_settings(num_envs))
        except BaseException:
            if self.server is not None:
                self.server.close()
            raise
        self._finalizer = weakref.finalize(self, self.pool.close_soon)

    def close(self, timeout_s: float | None = None) -> None:
        """Close the connections within a limit, then the embedded server; never raises, and closing twice is fine.

        Args:
            timeout_s: limit for the connections; None takes ``close_timeout_s``.
        """
        if self._finalizer.detach() is not None:
            self.pool.close(timeout_s if timeout_s is not None else self.options.close_timeout_s)
        if self.server is not None:
            self.server.close()
