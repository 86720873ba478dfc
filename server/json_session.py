"""A session as the OpenEnv dialect sees it: the data of a message in, the data of its reply out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from openenv_gym.errors import FactoryError, OpenEnvGymError, SpaceError
from openenv_gym.messages import (
    EnvFailure,
    Failed,
    Observed,
    Render,
    Reply,
    Request,
    Reset,
    Returned,
    State,
    Step,
    Stepped,
    Values,
)
from openenv_gym.server.adapters import HostedEnv
from openenv_gym.server.capacity import CapacityReached
from openenv_gym.server.counts import Counts
from openenv_gym.server.disclosure import disclosed
from openenv_gym.server.exact_messages import refused_exactly
from openenv_gym.server.json_choices import form_of, render_mode_of
from openenv_gym.server.json_form import ActionRefused, JsonForm
from openenv_gym.server.json_results import Collected, Reported, observed, only, stepped, whole
from openenv_gym.server.openenv_env import OpenEnvEnv
from openenv_gym.server.openenv_messages import (
    BatchStepRequest,
    DialectError,
    Options,
    ResetRequest,
    ResetSomeRequest,
    misfit,
    refused,
)
from openenv_gym.server.registry import Registry
from openenv_gym.server.session import Connection, Session

__all__ = ["JsonSession"]

logger = logging.getLogger(__name__)

_DISABLED = gym.vector.AutoresetMode.DISABLED.value


class JsonSession:
    """One client's envs; see `JsonSession.open`.

    A session lives as long as its connection: this dialect has no resume, so when the connection ends, `close` it. Envs
    are never reset by themselves.

    Args:
        registry: the server's sessions.
        session: a session of the registry, with a `JsonEncoding`.
        form: how its values look.
        options: what its client wants to be sent.
    """

    def __init__(self, registry: Registry, session: Session, form: JsonForm, options: Options) -> None:
        self._registry = registry
        self._session = session
        self._form = form
        self._options = options
        self._count = session.slots.count

    @property
    def counts(self) -> Counts:
        """What happened so far."""
        return self._session.counts

    @property
    def exact(self) -> bool:
        """See `JsonForm.exact`."""
        return self._form.exact

    @classmethod
    async def open(cls, registry: Registry, count: int, options: Options) -> JsonSession:
        """Build a session's envs.

        Args:
            registry: the server's sessions.
            count: the number of envs.
            options: what the client wants to be sent.

        Raises:
            DialectError: if the options are wrong, there is no room, or an env can't be built.
        """
        form = form_of(registry, options)
        render_mode = render_mode_of(registry, options.render_mode) if options.render else None
        try:
            session = await registry.open(count, form.encoding(), render_mode=render_mode)
        except CapacityReached as full:
            raise DialectError(
                "CAPACITY_REACHED", str(full), active_sessions=full.active, max_sessions=full.maximum
            ) from None
        except (FactoryError, SpaceError) as error:
            raise _factory_error(registry, str(error)) from None
        except OpenEnvGymError as error:
            raise DialectError("SESSION_ERROR", str(error)) from None
        return cls(registry, session, form, options)

    @property
    def name(self) -> str:
        """The session's public name, which gives nobody access to it."""
        return self._session.name

    @property
    def closed(self) -> bool:
        """Whether its envs are closed, or about to be."""
        return self._session.closed

    async def attach(self, connection: Connection) -> None:
        """Let the server close this connection when it closes the session for being idle."""
        await self._session.attach(connection, [])

    def detach(self, connection: Connection) -> None:
        """Forget a connection that ended, in a session that goes on."""
        self._session.detach(connection)

    async def visit(self, use: Callable[[HostedEnv], Any]) -> Any:
        """See `Session.visit`."""
        return await self._session.visit(use)

    def lost(self) -> None:
        """Note that the connection broke. If the server itself closed it, nothing is lost."""
        if not self._session.closed:
            self.counts.disconnected += 1
            self.counts.lost += 1
            logger.info("a connection was lost, and its session with it", extra={"session": self._session.name})

    async def close(self) -> None:
        """Close the envs and give their room back; closing twice is fine."""
        await self._registry.end(self._session)

    # ------------------------------------------------------------------------------------------ requests

    async def reset(self, request: ResetRequest) -> dict[str, Any]:
        """Reset the envs, or those that a `ResetSomeRequest` names.

        A seed is the first env's, and each further env gets the next higher one, as Gymnasium's vector envs do it.

        Returns:
            the result, or with several envs ``{"results": [...]}``.

        Raises:
            DialectError: if the request doesn't fit, or the only env failed.
        """
        slots = self._slots(request)
        self.use(request)
        reply = await self._run(
            Reset(
                0,
                slots,
                None if request.seed is None else [request.seed + slot for slot in slots],
                None if request.options is None else [request.options] * len(slots),
            )
        )
        assert isinstance(reply, Observed)
        failed = {failure.slot for failure in reply.failures}
        for slot in slots:
            if request.episode_id is not None and slot not in failed:
                name = request.episode_id if self._count == 1 else f"{request.episode_id}-{slot}"
                self._session.slots.name_episode(slot, name)
        results = await self._results(reply, slots)
        data = {"results": results} if self._count > 1 else only(results)
        return {**data, "seed_ignored": True} if reply.unseeded else data

    async def reset_exactly(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Reset OpenEnv environments with their own arguments.

        Args:
            fields: the arguments, of which each environment gets those that its ``reset`` has.

        Raises:
            DialectError: if the only one failed.
        """
        reply = await self._run(Reset(0, None, None, [fields] * self._count))
        assert isinstance(reply, Observed)
        results = await self._results(reply, range(self._count))
        return {"results": results} if self._count > 1 else only(results)

    async def step(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Step the only env.

        Args:
            fields: the action's fields.

        Raises:
            DialectError: if there are several envs, the action doesn't fit, or the env failed.
        """
        if self._count > 1:
            raise misfit(["type"], f"this connection has {self._count} envs: use batch_step", "step")
        return only(await self._step([self._action(fields)]))

    async def batch_step(self, request: BatchStepRequest) -> dict[str, Any]:
        """Step every env once; or the only env with one action after the other, until its episode ends.

        All actions are read before the first is applied. What an env raised stands in its place among the results, as
        ``{"error": {...}}``, because the others went on. Fewer results than actions say that the rest wasn't applied:
        after the episode's end or an error, and where the reply would outgrow the server's limit.

        Raises:
            DialectError: if the actions don't fit; then nothing was done.
        """
        if self._count > 1 and len(request.actions) != self._count:
            problem = f"{len(request.actions)} action(s) for {self._count} envs"
            raise misfit(["data", "actions"], problem, request.actions)
        actions = [self._action(fields, "data", "actions", i) for i, fields in enumerate(request.actions)]
        if self._count > 1:
            return {"results": await self._step(actions)}
        collected = Collected(self._registry.settings.max_message_bytes)
        if self._options.render:
            for action in actions:
                (result,) = await self._step([action])
                if not collected.take(result):
                    break
        else:
            failed = await self._session.step_in_turn(
                [self._request([action]) for action in actions], lambda reply: collected.take(*self._read(reply, [0]))
            )
            _check(failed)
        return {"results": collected.results}

    async def state(self) -> dict[str, Any]:
        """The env's state, or with several envs ``{"results": [...]}``."""
        reply = await self._run(State(0, None))
        assert isinstance(reply, Returned)
        errors = {failure.slot: {"error": self._error(failure)} for failure in reply.failures}
        states = [errors.get(slot, value) for slot, value in enumerate(reply.values)]
        return {"results": states} if self._count > 1 else only(states)

    # --------------------------------------------------------------------------------------- one by one

    def _slots(self, request: ResetRequest) -> list[int]:
        named = request.envs if isinstance(request, ResetSomeRequest) else None
        if named is None:
            return list(range(self._count))
        if len(set(named)) != len(named) or max(named) >= self._count:
            problem = f"the envs are numbered from 0 to {self._count - 1}, and may be named once each"
            raise misfit(["data", "envs"], problem, named)
        return named

    def use(self, wanted: Options) -> None:
        """Trim and render from now on as the options say, as far as they mention it.

        Raises:
            DialectError: if they name what isn't there.
        """
        options = self._options.changed_by(wanted)
        if options == self._options:
            return
        form = form_of(self._registry, options)
        if options.render:
            self._session.slots.render_in(render_mode_of(self._registry, options.render_mode))
        self._session.slots.use(form.encoding())
        self._form, self._options = form, options

    def _action(self, fields: dict[str, Any], *where: str | int) -> Any:
        try:
            return self._form.action(fields)
        except ActionRefused as error:
            if self.exact:
                raise refused_exactly([{**each, "loc": (*where, *each["loc"])} for each in error.errors]) from None
            raise refused(error.errors, *where) from None
        except Exception as error:
            if not self.exact:
                raise
            text = disclosed(str(error), debug=self._registry.settings.debug)
            raise DialectError("EXECUTION_ERROR", text) from None

    async def _step(self, actions: list[Any]) -> list[dict[str, Any]]:
        reply = await self._run(self._request(actions))
        assert isinstance(reply, Stepped)
        return await self._results(reply, range(self._count))

    def _request(self, actions: list[Any]) -> Step:
        """OpenEnv environments themselves say what a step after the end means."""
        return Step(0, None, [Values(list(actions))], None if self.exact else _DISABLED)

    async def _run(self, request: Request) -> Reply:
        reply: Reply = await self._session.execute(request)
        _check(reply)
        return reply

    async def _results(self, reply: Observed | Stepped, slots: Sequence[int]) -> list[dict[str, Any]]:
        """One result for each env of the reply, or ``{"error": ...}``, with frames if they are asked for."""
        results = self._read(reply, slots)
        well = [result for result in results if "error" not in result]
        if self._options.render and well:
            numbers = [slot for slot, result in zip(slots, results, strict=True) if "error" not in result]
            rendered = await self._run(Render(0, numbers))
            assert isinstance(rendered, Returned)
            errors = {failure.slot: self._error(failure) for failure in rendered.failures}
            for slot, result, frame in zip(numbers, well, rendered.values, strict=True):
                if slot in errors:
                    result.clear()
                result.update({"error": errors[slot]} if slot in errors else {"render": frame})
        return results

    def _read(self, reply: Observed | Stepped, slots: Sequence[int]) -> list[dict[str, Any]]:
        """One result for each env of the reply, or ``{"error": ...}``."""
        errors = {failure.slot: self._error(failure) for failure in reply.failures}
        if self.exact:
            results = whole(reply)
        elif isinstance(reply, Observed):
            results = observed(reply)
        else:
            results = stepped(reply)
        return [
            {"error": errors[slot]} if slot in errors else result for slot, result in zip(slots, results, strict=True)
        ]

    def _error(self, failure: EnvFailure) -> dict[str, Any]:
        env = self._session.slots.slots[failure.slot].env
        if failure.code == "VALIDATION_ERROR" and isinstance(env, OpenEnvEnv):
            return refused_exactly(env.refusal).data
        if self.exact and failure.code == "EXECUTION_ERROR":
            return DialectError(failure.code, failure.message).data
        facts: dict[str, Any] = {"type": failure.type} if failure.type else {}
        if failure.traceback is not None:
            facts["traceback"] = failure.traceback
        if failure.code == "FACTORY_ERROR":
            facts["factory_name"] = self._registry.source.name
        return DialectError(failure.code, failure.message or failure.type, **facts).data


def _check(reply: Reply | None) -> None:
    """Raise what a request failed with.

    Raises:
        Reported: if it could not be run at all.
    """
    if isinstance(reply, Failed):
        raise Reported(reply.code, reply.message)


def _factory_error(registry: Registry, message: str) -> DialectError:
    return DialectError("FACTORY_ERROR", message, factory_name=registry.source.name)
