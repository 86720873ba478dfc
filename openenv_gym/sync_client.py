"""`SyncEnvClient`: an `openenv_gym.EnvClient` with blocking calls."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from openenv_gym.errors import LocalProtocolError
from openenv_gym.loop import client_loop

if TYPE_CHECKING:
    from typing_extensions import Self

    from openenv_gym.client import EnvClient, StepResult

__all__ = ["SyncEnvClient"]

ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")
_T = TypeVar("_T")


class SyncEnvClient(Generic[ActT, ObsT, StateT]):
    """An `EnvClient` with blocking calls. They work in scripts, in threads, and in a notebook's running loop.

    What a subclass of `EnvClient` adds is here too: its coroutines as blocking calls, everything else as it is.

    Args:
        client: the client; use it through this object only.
    """

    def __init__(self, client: EnvClient[ActT, ObsT, StateT]) -> None:
        self._client = client
        self._loop = client_loop()

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        if self._loop.pid != os.getpid():
            coroutine.close()
            raise LocalProtocolError("this client was made before a fork; make a new one in the child process")
        return self._loop.run(coroutine)

    def connect(self) -> Self:
        """See `EnvClient.connect`."""
        self._run(self._client.connect())
        return self

    def reset(self, **kwargs: Any) -> StepResult[ObsT]:
        """See `EnvClient.reset`."""
        return self._run(self._client.reset(**kwargs))

    def batch_reset(self, **kwargs: Any) -> list[StepResult[ObsT]]:
        """See `EnvClient.batch_reset`."""
        return self._run(self._client.batch_reset(**kwargs))

    def step(self, action: ActT) -> StepResult[ObsT]:
        """See `EnvClient.step`."""
        return self._run(self._client.step(action))

    def batch_step(self, actions: Sequence[ActT]) -> list[StepResult[ObsT]]:
        """See `EnvClient.batch_step`."""
        return self._run(self._client.batch_step(actions))

    def state(self) -> StateT:
        """See `EnvClient.state`."""
        return self._run(self._client.state())

    def batch_state(self) -> list[StateT]:
        """See `EnvClient.batch_state`."""
        return self._run(self._client.batch_state())

    def new_session(self) -> Self:
        """See `EnvClient.new_session`."""
        return type(self)(self._run(self._client.new_session()))

    def close(self) -> None:
        """See `EnvClient.close`."""
        self._run(self._client.close())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is built or unpickled, there may be no client to ask
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self._client, name)
        if not inspect.iscoroutinefunction(found):
            return found

        @functools.wraps(found)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            return self._run(found(*args, **kwargs))

        return blocking

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{self._client!r}.sync()"
