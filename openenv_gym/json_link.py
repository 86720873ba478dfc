"""A link in the OpenEnv dialect: one env on one connection, in JSON, with autoreset done on this side.

It takes the requests of the batch dialect and gives its replies, so that the pool and the vector env above need not
know which dialect a server speaks.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np

from openenv_gym.actions import ActionReader
from openenv_gym.batching import BatchWriter, wrapped
from openenv_gym.codec import pack, unpack
from openenv_gym.dial import Target
from openenv_gym.errors import RemoteEnvError, RemoteProtocolError, SessionLost, SpaceError
from openenv_gym.json_channel import JsonChannel, ReplyLost
from openenv_gym.json_form import JsonForm, Transition
from openenv_gym.link import Deliver, FrameConnection
from openenv_gym.messages import (
    Array,
    EnvFailure,
    FinalRows,
    Get,
    Observed,
    Render,
    Reply,
    Request,
    Reset,
    Returned,
    State,
    Step,
    Stepped,
)
from openenv_gym.rendering import frame_from_json
from openenv_gym.retry import insist
from openenv_gym.spaces import leaves

__all__ = ["LOST_REPLY", "JsonLink"]

LOST_REPLY: Final = "lost_reply"
"""The info key of rows whose step was taken, or may have been, while nobody knows what it led to."""

_FLAGS: Final = {flag: Array.of(np.array([flag])) for flag in (False, True)}
_NEXT_STEP, _SAME_STEP, _ = (mode.value for mode in gym.vector.AutoresetMode)


class JsonLink:
    """One env on an OpenEnv server; see `openenv_gym.link.Link`.

    Guarantees: everything here runs on the loop thread, one request at a time.

    Args:
        target: the server.
        form: how values look as JSON.
        lasting: make sessions that outlive a broken connection; see `openenv_gym.openenv_sessions`.
        reconnect_timeout_s: total limit for connecting again.
        max_episode_steps: truncate episodes at this length.
        metadata: what the server says of its env.
        render_mode: the mode to render in; each reply brings a frame then, if the server can send it.
        typed: give all Discrete observations as `Values`, not just episodes' last ones; see `BatchReader`.
    """

    slots = 1

    def __init__(
        self,
        target: Target,
        form: JsonForm,
        *,
        lasting: bool = False,
        reconnect_timeout_s: float,
        max_episode_steps: int | None = None,
        typed: bool = False,
        metadata: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = form.observation_space
        self.observation_spaces = [form.observation_space]
        self.action_space = form.action_space
        if render_mode in (metadata or {}).get("render_modes", ()):
            form = dataclasses.replace(form, render_mode=render_mode)
        self.metadata: dict[str, Any] = {**(metadata or {}), "render_mode": form.render_mode}
        self.env_name = ""
        self.notes: list[str] = []
        self._channel = JsonChannel(target, lasting=lasting, reconnect_timeout_s=reconnect_timeout_s)
        self.traffic, self.outages = self._channel.traffic, self._channel.outages
        self._form = form
        self._read_actions = ActionReader(form.action_space).read
        self._writer = BatchWriter(form.observation_space, 1)
        self._reconnect_timeout_s = reconnect_timeout_s
        self._max_episode_steps = max_episode_steps
        self._typed = typed
        self._integers = [isinstance(leaf.space, gym.spaces.Discrete) for leaf in leaves(form.observation_space)]
        self._running: asyncio.Task[None] | None = None
        self._steps = 0
        self._over = False
        self._last: Any = None
        self._frame: Any = None
        self._counts = False
        self._sticky: dict[str, Any] | None = None

    @property
    def url(self) -> str:
        """See `openenv_gym.link.Link`."""
        return self._channel.target.url

    @property
    def loss(self) -> SessionLost | None:
        """See `openenv_gym.link.Link`."""
        return self._channel.loss

    @property
    def counters(self) -> dict[str, int]:
        """See `openenv_gym.link.Link`."""
        return {"reconnects": self._channel.reconnects, "sessions_lost": self._channel.sessions_lost}

    async def open(self, connection: FrameConnection | None) -> None:
        """Use a fresh connection, or dial one; see `openenv_gym.json_channel.JsonChannel.open`."""
        await self._channel.open(connection)

    # ------------------------------------------------------------------------------------------ requests

    def start(self, request: Request, deliver: Deliver) -> None:
        """See `openenv_gym.link.Link.start`. A request before it that has no reply yet is given up, as by `abandon`."""
        self.abandon()
        self._running = asyncio.get_running_loop().create_task(self._run(request, deliver, self._running))

    async def _run(self, request: Request, deliver: Deliver, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None and not before.done():
                await asyncio.wait([before])
            reply: Reply | Exception = await self._answer(request)
        except asyncio.CancelledError:
            deliver(SessionLost(self.url, "given up by this side"))
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            reply = error
        deliver(reply)

    async def _answer(self, request: Request) -> Reply:
        if isinstance(request, Reset):
            return await self._observe(request)
        if isinstance(request, Step):
            return await self._step(request)
        if isinstance(request, Render):
            return Returned(0, [pack(self._rendered())], [])
        if isinstance(request, State):
            return Returned(0, [pack(await self._ask_again({"type": "state"}))], [])
        text = f"{self.url} speaks OpenEnv's own dialect, which has no {type(request).__name__.lower()} message"
        if isinstance(request, Get):  # whoever looks whether there is an attribute expects this of one that isn't
            return Returned(0, [pack(None)], [EnvFailure(0, "UNKNOWN_TYPE", "AttributeError", text)])
        raise RemoteProtocolError(text)

    async def _observe(self, request: Reset) -> Observed:
        seed = unpack(request.seeds[0]) if request.seeds is not None else None
        options = unpack(request.options[0]) if request.options is not None else None
        self._sticky = options if request.sticky else None
        try:
            first = await self._reset(seed, options)
            return Observed(0, self._batch(first.observation), _infos(first.info), [], first.seed_ignored)
        except (RemoteEnvError, SpaceError) as error:
            return Observed(0, self._blank(), {}, [_failure(error)])

    async def _step(self, request: Step) -> Stepped:
        final: FinalRows | None = None
        try:
            if self._over and request.autoreset == _NEXT_STEP:
                first = await self._autoreset()
                last = Transition(first.observation, 0.0, False, False, first.info)  # whatever else the reply says
            else:
                (action,) = self._read_actions(request.actions, 1)
                last = await self._transition(action)
                if self._over and request.autoreset == _SAME_STEP:
                    final = FinalRows([0], self._batch(last.observation, final=True), [pack(last.info, "info")])
                    last = last.followed_by(await self._autoreset())
            return Stepped(
                0,
                self._batch(last.observation),
                Array.of(np.array([last.reward], np.float64)),
                _FLAGS[last.terminated],
                _FLAGS[last.truncated],
                _infos(last.info),
                final,
                [],
            )
        except (RemoteEnvError, SpaceError) as error:
            no = _FLAGS[False]
            return Stepped(0, self._blank(), Array.of(np.zeros(1)), no, no, {}, None, [_failure(error)])

    async def _autoreset(self) -> Transition:
        """Start the next episode. The last one is over, so only the env's random state can be lost with a session."""
        if self._channel.gone is not None:
            self._note_loss()
        return await self._reset(None, self._sticky)

    async def _reset(self, seed: int | None, options: dict[str, Any] | None) -> Transition:
        message = {"type": "reset", "data": self._form.reset_data(seed, options)}
        reply: dict[str, Any] | None = None
        if self._channel.gone is None:
            try:
                reply = await self._ask_again(message)
            except SessionLost:  # until now nobody knew
                self._note_loss()
        if reply is None:
            limit_s, gone = self._reconnect_timeout_s, self._channel.gone
            await insist(self._channel.open, limit_s, self.url, gone, outages=self.outages, anew=True)
            reply = await self._ask_again(message)
        first = self._form.transition(reply)
        self._steps, self._over, self._last, self._frame = 0, False, first.observation, first.frame
        return first

    def _note_loss(self) -> None:
        self.notes.append(f"{self._channel.gone}; this happened between two episodes")

    async def _transition(self, action: Any) -> Transition:
        last = await self._take_step({"type": "step", "data": self._form.action_data(action)})
        if np.isnan(last.reward):
            self._note_nan("as a reward")
        self._steps += 1
        if self._max_episode_steps is not None and self._steps >= self._max_episode_steps:
            last = last.cut_off()
        self._over, self._last, self._frame = last.terminated or last.truncated, last.observation, last.frame
        return last

    # ---------------------------------------------------------------------------------------- lost replies

    async def _ask_again(self, message: dict[str, Any]) -> dict[str, Any]:
        """Ask what may be asked twice, until there is a reply."""
        while True:
            try:
                return await self._channel.ask(message)
            except ReplyLost:
                continue

    async def _take_step(self, message: dict[str, Any]) -> Transition:
        """Take a step once. If its reply is lost, nobody knows the observation that the episode would go on from."""
        while True:
            try:
                return self._form.transition(await self._channel.ask(message))
            except ReplyLost as lost:
                if await self._was_heard():
                    self.notes.append(f"{lost}, and a step's reply with it: its episode is truncated")
                    return Transition(self._last, 0.0, False, True, {LOST_REPLY: True}, frame=self._frame)

    async def _was_heard(self) -> bool:
        """Whether the last step may have been taken; False only if the env counts its steps, and hasn't counted it."""
        count = (await self._ask_again({"type": "state"})).get("step_count")
        self._counts |= count == self._steps + 1 or 0 < self._steps == count
        return not (self._counts and count == self._steps)

    def _rendered(self) -> Any:
        if self._form.render_mode is None:
            raise RemoteProtocolError(
                f"{self.url} sends no frames: in OpenEnv's own dialect only servers of this package do, and only where "
                "`render_mode` was given"
            )
        if self._frame is None:
            raise gym.error.ResetNeeded("call `reset` before `render`")
        return frame_from_json(self._frame)

    def _batch(self, observation: Any, *, final: bool = False) -> Any:
        self._writer.write(0, observation)
        columns = [column.copy() for column in self._writer.columns(1)]
        if any(isinstance(c, np.ndarray) and c.dtype.kind == "f" and np.isnan(c).any() for c in columns):
            self._note_nan("in an observation of floats")
        if self._typed or final:  # JSON has Python's own integers, which is also what most envs return
            columns = [
                [pack(int(c[0]))] if is_integer and isinstance(c, np.ndarray) else c
                for c, is_integer in zip(columns, self._integers, strict=True)
            ]
        return [wrapped(column) for column in columns]

    def _note_nan(self, where: str) -> None:
        self.notes.append(f"{self.env_name or self.url}: null {where} became nan; JSON has no such numbers")

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
        await self._channel.close(timeout_s)


def _infos(info: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {0: pack(info, "metadata")} if info else {}


def _failure(error: RemoteEnvError | SpaceError) -> EnvFailure:
    if isinstance(error, SpaceError):
        return EnvFailure(0, "DESERIALIZATION_ERROR", "SpaceError", str(error))
    return EnvFailure(0, error.code, error.type, error.message, error.traceback)
