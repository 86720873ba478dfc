"""`EnvClient`: an environment server's ``reset``, ``step`` and ``state`` as plain calls, async or sync.

The calls are those of OpenEnv's own client, and it speaks the OpenEnv dialect, so it works with every OpenEnv server
and with ours. Other than OpenEnv's client it never steps a fresh env in place of a lost one: after a timeout or a
broken connection ``step`` raises, and only ``reset`` starts anew. For training on many envs use
`openenv_gym.RemoteVecEnv`, which is far faster.
"""

from __future__ import annotations

import asyncio
import copy
import os
import warnings
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

from openenv_gym.dial import Target, default_url, websocket_url
from openenv_gym.errors import (
    LocalProtocolError,
    OpenEnvGymError,
    RemoteEnvError,
    RemoteProtocolError,
    ReplyTimeout,
    batch_error,
)
from openenv_gym.json_channel import JsonChannel, reported
from openenv_gym.sync_client import SyncEnvClient

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EnvClient", "GenericEnvClient", "StepResult"]

ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")
_T = TypeVar("_T")


@dataclass
class StepResult(Generic[ObsT]):
    """What a reset or a step gave.

    Attributes:
        observation: the observation.
        reward: the reward, or None after a reset.
        done: whether the episode has ended.
        metadata: the env's info, or None.
        terminated: whether it ended by itself; what ``done`` says where the server knows no difference.
        truncated: whether it was cut off.
    """

    observation: ObsT
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None
    terminated: bool = False
    truncated: bool = False


class EnvClient(Generic[ActT, ObsT, StateT]):
    """One session with an environment server.

    Override ``_step_payload``, ``_parse_result`` and ``_parse_state`` to work with typed actions, observations and
    states; by default they are dicts, and an action may also be a pydantic model.

    A session has one env, or on our servers several, with ``query={"num_envs": "3"}``; these are reset, stepped and
    asked together, with `batch_reset`, `batch_step` and `batch_state`.

    Args:
        base_url: ``http(s)://`` or ``ws(s)://``; None takes ``$OPENENV_BASE_URL``, else ``http://localhost:8000``.
        connect_timeout_s: limit in seconds for connecting.
        message_timeout_s: limit for each reply.
        max_message_size_mb: the largest message in MiB.
        websocket_ping_interval_s: seconds between pings; None sends none.
        websocket_ping_timeout_s: seconds after which a missing pong breaks the connection; None waits for ever.
        headers: more headers for the handshake, such as ``{"Authorization": "Bearer …"}`` for a private Space.
        token: a bearer token; None takes ``$OPENENV_GYM_TOKEN``.
        query: query parameters for the endpoint, such as ``{"exclude": "camera"}`` on our servers.

    Example:
        >>> async with EnvClient("http://localhost:8000") as client:  # doctest: +SKIP
        ...     result = await client.reset(seed=1)
        ...     result = await client.step({"action": 0})
    """

    def __init__(  # noqa: PLR0917 - the order of OpenEnv's client
        self,
        base_url: str | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 60.0,
        max_message_size_mb: float = 100.0,
        websocket_ping_interval_s: float | None = 60.0,
        websocket_ping_timeout_s: float | None = 60.0,
        headers: Mapping[str, str] | None = None,
        *,
        token: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> None:
        url = websocket_url(base_url or default_url())
        if query:
            url += ("&" if "?" in url else "?") + urlencode(query)
        self._target = Target(
            url,
            token or os.environ.get("OPENENV_GYM_TOKEN") or None,
            headers or {},
            connect_timeout_s,
            int(max_message_size_mb * 1024 * 1024),
            websocket_ping_interval_s,
            websocket_ping_timeout_s,
        )
        count = parse_qs(urlsplit(url).query).get("num_envs", ["1"])[-1]
        self._count = int(count) if count.isdecimal() else 1  # the server says what is wrong with another one
        self._message_timeout_s = message_timeout_s
        self._start_over()

    def _start_over(self) -> None:
        self._channel = JsonChannel(self._target)
        self._connected = False
        self._batches = True
        self._lost: OpenEnvGymError | None = None
        self._children: list[EnvClient[ActT, ObsT, StateT]] = []
        self._turns: tuple[asyncio.AbstractEventLoop | None, asyncio.Lock] = (None, asyncio.Lock())

    # -------------------------------------------------------------------------------------------- to override

    def _step_payload(self, action: ActT) -> dict[str, Any]:
        """An action as the data of a ``step`` message."""
        if isinstance(action, Mapping):
            return dict(action)
        if hasattr(action, "model_dump"):
            data: dict[str, Any] = action.model_dump()
            return data
        raise TypeError(f"an action is a dict or a pydantic model, not {type(action).__name__}; override _step_payload")

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ObsT]:
        """The data of an ``observation`` reply as a result."""
        done = bool(payload.get("done", False))
        truncated = bool(payload.get("truncated", False))
        return StepResult(
            observation=payload.get("observation", {}),
            reward=payload.get("reward"),
            done=done,
            metadata=payload.get("metadata"),
            terminated=bool(payload.get("terminated", done and not truncated)),
            truncated=truncated,
        )

    def _parse_state(self, payload: dict[str, Any]) -> StateT:
        """The data of a ``state`` reply as a state."""
        return payload  # type: ignore[return-value]

    # ---------------------------------------------------------------------------------------------- messages

    async def connect(self) -> Self:
        """Connect, unless there is a connection.

        Raises:
            ConnectFailed: if the server can't be reached; it is a ``ConnectionError``. `CapacityError` if it is full.
        """
        async with self._turn():
            await self._connect()
        return self

    async def reset(self, **kwargs: Any) -> StepResult[ObsT]:
        """Start an episode, on a new connection if the old one is gone.

        Args:
            **kwargs: what the env's ``reset`` takes, such as ``seed``.

        Raises:
            RemoteEnvError: for an error that the server reports; it is a ``RuntimeError``.
            ReplyTimeout: after ``message_timeout_s``; it is an ``asyncio.TimeoutError``.
            LocalProtocolError: if the session has several envs.
        """
        self._check_single("reset")
        (result,) = await self.batch_reset(**kwargs)
        return result

    async def batch_reset(self, **kwargs: Any) -> list[StepResult[ObsT]]:
        """Start an episode in each of the session's envs, or in those that ``envs=[0, 2]`` names.

        A ``seed`` is the first env's, and each further env gets the next higher one.

        Returns:
            one result for each env that was reset.

        Raises:
            RemoteEnvError: as `reset`, or `BatchError` if several envs failed; the others were reset.
        """
        async with self._turn():
            await self._connect()
            results = self._each(await self._ask("reset", kwargs))
            self._lost = None
            return [self._parse_result(result) for result in results]

    async def step(self, action: ActT) -> StepResult[ObsT]:
        """Take a step.

        Raises:
            RemoteEnvError: for an error that the server reports; it is a ``RuntimeError``.
            ReplyTimeout: after ``message_timeout_s``; it is an ``asyncio.TimeoutError``, and a reset is needed then.
            SessionLost: if the episode is gone; it is a ``ConnectionError``, and a reset is needed.
            LocalProtocolError: if the session has several envs.
        """
        self._check_single("step")
        async with self._turn():
            await self._go_on()
            return self._parse_result(await self._ask("step", self._step_payload(action)))

    async def batch_step(self, actions: Sequence[ActT]) -> list[StepResult[ObsT]]:
        """Take several steps in one message.

        With one env the actions are taken in turn, until the episode ends; with several, each takes one action. A
        server that knows no ``batch_step`` gets one message for each action.

        Returns:
            one result for each step that was taken.

        Raises:
            RemoteEnvError: for what an env raised, or `BatchError` if several did. The steps before it, and those of
                the other envs, were taken.
        """
        async with self._turn():
            await self._go_on()
            payloads = [self._step_payload(action) for action in actions]
            if self._batches:
                try:
                    results = self._checked((await self._ask("batch_step", {"actions": payloads}))["results"])
                    return [self._parse_result(result) for result in results]
                except RemoteEnvError as error:
                    if error.code != "UNKNOWN_TYPE":
                        raise
                if self._count > 1:
                    raise self._has_one()
                self._batches = False
                text = f"{self._target.url} knows no batch_step: it is sent one message for each action"
                warnings.warn(text, stacklevel=2)
            return await self._one_by_one(payloads)

    def _each(self, data: dict[str, Any]) -> list[dict[str, Any]]:
        """The data of each env in a reply."""
        if self._count == 1:
            return [data]
        if "results" not in data:
            raise self._has_one()
        return self._checked(data["results"])

    def _checked(self, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The results, unless one stands for a failure: then that is raised. Of one env it is the last."""
        errors: dict[int, Exception] = {
            number: reported(self._target, result["error"], number if self._count > 1 else None)
            for number, result in enumerate(results)
            if "error" in result
        }
        if errors:
            raise batch_error(errors) if len(errors) > 1 else next(iter(errors.values()))
        return results

    def _check_single(self, call: str) -> None:
        if self._count > 1:
            raise LocalProtocolError(f"the session has num_envs={self._count}: call batch_{call} instead of {call}")

    def _has_one(self) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self._target.url} has one env for each session: leave out num_envs")

    async def _one_by_one(self, payloads: list[dict[str, Any]]) -> list[StepResult[ObsT]]:
        results: list[StepResult[ObsT]] = []
        for payload in payloads:
            results.append(self._parse_result(await self._ask("step", payload)))
            if results[-1].done:
                break
        return results

    async def state(self) -> StateT:
        """The env's state, such as ``episode_id`` and ``step_count``."""
        self._check_single("state")
        (state,) = await self.batch_state()
        return state

    async def batch_state(self) -> list[StateT]:
        """The state of each of the session's envs."""
        async with self._turn():
            if not self._connected:
                await self._connect()
            return [self._parse_state(state) for state in self._each(await self._ask("state", None))]

    async def new_session(self) -> Self:
        """A connected client of the same kind with a session of its own, closed together with this one."""
        child = copy.copy(self)
        child._start_over()  # noqa: SLF001 - of the same class
        await child.connect()
        self._children.append(child)
        return child

    async def close(self) -> None:
        """End the session and the connection, and those of `new_session`; closing twice is fine."""
        children, self._children = self._children, []
        await asyncio.gather(*(child.close() for child in children), self._channel.close())

    def _turn(self) -> asyncio.Lock:
        """Calls of several tasks take turns. A lock belongs to one event loop, so another loop gets another."""
        loop = asyncio.get_running_loop()
        if self._turns[0] is not loop:
            self._turns = (loop, asyncio.Lock())
        return self._turns[1]

    async def _connect(self) -> None:
        self._channel.enter()
        if self._channel.gone is not None:
            lost = self._channel.gone if self._connected else None
            await self._within("connect", self._target.connect_timeout_s, self._channel.open())
            self._connected, self._lost = True, self._lost or lost

    async def _go_on(self) -> None:
        """Before a step: on a connection that replaced a lost one there is no episode to go on with."""
        if not self._connected:
            await self._connect()
        if self._lost is not None:
            raise self._lost

    async def _ask(self, kind: str, data: dict[str, Any] | None) -> dict[str, Any]:
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        return await self._within(kind, self._message_timeout_s, self._channel.ask(message))

    async def _within(self, phase: str, limit_s: float, coroutine: Coroutine[Any, Any, _T]) -> _T:
        try:
            return await asyncio.wait_for(coroutine, limit_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise ReplyTimeout(phase, self._target.url, limit_s) from None

    # ------------------------------------------------------------------------------------------------- forms

    def sync(self) -> SyncEnvClient[ActT, ObsT, StateT]:
        """The same client with plain, blocking calls, on a loop thread of this package."""
        return SyncEnvClient(self)

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __enter__(self) -> SyncEnvClient[ActT, ObsT, StateT]:
        self._synced = self.sync()
        return self._synced.connect()

    def __exit__(self, *exc_info: object) -> None:
        self._synced.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._target.url!r})"


class GenericEnvClient(EnvClient[dict[str, Any], dict[str, Any], dict[str, Any]]):
    """An `EnvClient` whose actions, observations and states are dicts."""
