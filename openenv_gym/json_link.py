"""A link in the OpenEnv dialect: one env on one connection, in JSON, with autoreset done on this side.

It takes the requests of the batch dialect and gives its replies, so that the pool and the vector env above need not know
which dialect a server speaks.
"""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium as gym
import numpy as np

from openenv_gym.batching import ActionReader, BatchWriter
from openenv_gym.codec import pack, unpack
from openenv_gym.dial import Target
from openenv_gym.errors import RemoteEnvError, RemoteProtocolError, SpaceError
from openenv_gym.json_channel import JsonChannel
from openenv_gym.json_form import JsonForm, Transition
from openenv_gym.link import Deliver, FrameConnection
from openenv_gym.messages import (
    Array,
    EnvFailure,
    FinalRows,
    Observed,
    Reply,
    Request,
    Reset,
    Returned,
    State,
    Step,
    Stepped,
)

__all__ = ["JsonLink"]

_NEXT_STEP, _SAME_STEP, _ = (mode.value for mode in gym.vector.AutoresetMode)


class JsonLink:
    """One env on an OpenEnv server; see `openenv_gym.link.Link`.

    Guarantees: everything here runs on the loop thread, one request at a time.

    Args:
        target: the server.
        form: how values look as JSON.
        max_episode_steps: truncate episodes at this length.
    """

    slots = 1

    def __init__(self, target: Target, form: JsonForm, *, max_episode_steps: int | None = None) -> None:
        self.url = target.url
        self.observation_space = form.observation_space
        self.action_space = form.action_space
        self.metadata: dict[str, Any] = {}
        self.env_name = ""
        self.notes: list[str] = []
        self._channel = JsonChannel(target)
        self._form = form
        self._read_actions = ActionReader(form.action_space).read
        self._max_episode_steps = max_episode_steps
        self._running: asyncio.Task[None] | None = None
        self._steps = 0
        self._over = False

    @property
    def counters(self) -> dict[str, int]:
        """See `openenv_gym.link.Link`."""
        return {"reconnects": 0, "sessions_lost": self._channel.sessions_lost}

    async def open(self, connection: FrameConnection) -> None:
        """Use a fresh connection; see `openenv_gym.json_channel.JsonChannel.open`."""
        await self._channel.open(connection)

    # ------------------------------------------------------------------------------------------ requests

    def start(self, request: Request, deliver: Deliver) -> None:
        """See `openenv_gym.link.Link.start`."""
        self._running = asyncio.get_running_loop().create_task(self._run(request, deliver))

    async def _run(self, request: Request, deliver: Deliver) -> None:
        try:
            reply: Reply | Exception = await self._answer(request)
        except Exception as error:
            reply = error
        deliver(reply)

    async def _answer(self, request: Request) -> Reply:
        if self._channel.gone is not None:
            if not isinstance(request, Reset):
                raise self._channel.gone
            await self._channel.open()
        if isinstance(request, Step):
            return await self._step(request)
        if isinstance(request, Reset):
            return await self._observe(request)
        if isinstance(request, State):
            return Returned(0, [pack(await self._channel.ask({"type": "state"}))], [])
        raise RemoteProtocolError(
            f"{self.url} speaks OpenEnv's own dialect, which has no {type(request).__name__.lower()} message"
        )

    async def _observe(self, request: Reset) -> Observed:
        seed = request.seeds[0] if request.seeds is not None else None
        options = unpack(request.options[0]) if request.options is not None else None
        try:
            first = await self._reset(seed, options)
            return Observed(0, self._batch(first.observation), _infos(first.info), [], first.seed_ignored)
        except (RemoteEnvError, SpaceError) as error:
            return Observed(0, self._blank(), {}, [_failure(error)])

    async def _step(self, request: Step) -> Stepped:
        final: FinalRows | None = None
        try:
            if self._over and request.autoreset == _NEXT_STEP:
                last = await self._reset(None, None)
            else:
                (action,) = self._read_actions(request.actions, 1)
                last = await self._transition(action)
                if self._over and request.autoreset == _SAME_STEP:
                    final = FinalRows([0], self._batch(last.observation), [pack(last.info, "info")])
                    first = await self._reset(None, None)
                    last = last.followed_by(first)
            return Stepped(
                0,
                self._batch(last.observation),
                Array.of(np.array([last.reward], np.float64)),
                Array.of(np.array([last.terminated])),
                Array.of(np.array([last.truncated])),
                _infos(last.info),
                final,
                [],
            )
        except (RemoteEnvError, SpaceError) as error:
            nothing = Array.of(np.zeros(1, np.bool_))
            return Stepped(0, self._blank(), Array.of(np.zeros(1)), nothing, nothing, {}, None, [_failure(error)])

    async def _reset(self, seed: int | None, options: dict[str, Any] | None) -> Transition:
        data = self._form.reset_data(seed, options)
        first = self._form.transition(await self._channel.ask({"type": "reset", "data": data}))
        self._steps, self._over = 0, False
        return first

    async def _transition(self, action: Any) -> Transition:
        last = self._form.transition(await self._channel.ask({"type": "step", "data": self._form.action_data(action)}))
        self._steps += 1
        if self._max_episode_steps is not None and self._steps >= self._max_episode_steps:
            last = last.cut_off()
        self._over = last.terminated or last.truncated
        return last

    def _batch(self, observation: Any) -> Any:
        writer = BatchWriter(self.observation_space, 1)
        writer.write(0, observation)
        return writer.batch(1)

    def _blank(self) -> Any:
        return BatchWriter(self.observation_space, 1).batch(1)

    # ----------------------------------------------------------------------------------------------- ends

    def abandon(self) -> None:
        """See `openenv_gym.link.Link.abandon`. The replies have no ids, so the episode goes with the reply."""
        if self._running is not None:
            self._running.cancel()

    async def close(self, timeout_s: float) -> None:
        """See `openenv_gym.link.Link.close`."""
        self.abandon()
        await asyncio.wait([asyncio.ensure_future(self._channel.close())], timeout=timeout_s)


def _infos(info: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {0: pack(info, "metadata")} if info else {}


def _failure(error: RemoteEnvError | SpaceError) -> EnvFailure:
    if isinstance(error, SpaceError):
        return EnvFailure(0, "DESERIALIZATION_ERROR", "SpaceError", str(error))
    return EnvFailure(0, error.code, error.type, error.message, error.traceback)
