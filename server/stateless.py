"""One reset or one step of a fresh env, for HTTP: no request knows of another, as with OpenEnv's servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from openenv_gym.server.adapters import HostedEnv
from openenv_gym.server.disclosure import disclosed
from openenv_gym.server.exact_messages import ExactReset, ExactStep, refused_exactly
from openenv_gym.server.json_choices import form_of
from openenv_gym.server.json_form import ActionRefused
from openenv_gym.server.json_results import Reported
from openenv_gym.server.json_session import JsonSession
from openenv_gym.server.openenv_env import OpenEnvEnv
from openenv_gym.server.openenv_messages import DialectError, Options, ResetRequest, StepRequest, refused
from openenv_gym.server.openenv_values import raw
from openenv_gym.server.registry import Registry

__all__ = ["reset_once", "reset_once_exactly", "state_once", "step_once", "step_once_exactly"]


async def reset_once(registry: Registry, request: ResetRequest) -> dict[str, Any]:
    """Build an env, reset it, and close it.

    Raises:
        DialectError: as `JsonSession.open` and `JsonSession.reset`.
    """
    session = await JsonSession.open(registry, 1, Options().changed_by(request))
    try:
        return await session.reset(request)
    finally:
        await asyncio.shield(session.close())


async def step_once(registry: Registry, request: StepRequest) -> dict[str, Any]:
    """Build an env, reset it, step it once, and close it.

    Raises:
        DialectError: as `JsonSession.open`, `JsonSession.reset` and `JsonSession.step`.
    """
    try:
        form_of(registry).action(request.action)  # what is wrong with it shall not cost an env
    except ActionRefused as error:
        raise refused(error.errors, "action") from None
    session = await JsonSession.open(registry, 1, Options().changed_by(request))
    try:
        first = await session.reset(request)
        result = await session.step(request.action)
    finally:
        await asyncio.shield(session.close())
    return {**result, "seed_ignored": True} if "seed_ignored" in first else result


async def reset_once_exactly(registry: Registry, request: ExactReset) -> dict[str, Any]:
    """Build an OpenEnv environment, reset it, and close it.

    Raises:
        DialectError: as `JsonSession.open` and `JsonSession.reset_exactly`.
    """
    session = await JsonSession.open(registry, 1, Options())
    try:
        with _blaming_the_env():
            result = await session.reset_exactly(request.model_dump(exclude_unset=True))
    finally:
        await asyncio.shield(session.close())
    return {"metadata": None, **result}


async def step_once_exactly(registry: Registry, request: ExactStep) -> dict[str, Any]:
    """Build an OpenEnv environment, step it once, without a reset as on OpenEnv's servers, and close it.

    Raises:
        DialectError: as `JsonSession.open` and `JsonSession.step`.
    """
    try:
        form_of(registry).action(request.action)
    except ActionRefused as error:
        raise refused_exactly(error.errors) from None
    session = await JsonSession.open(registry, 1, Options())
    try:
        with _blaming_the_env():
            result = await session.step(request.action)
    finally:
        await asyncio.shield(session.close())
    return {"metadata": None, **result}


async def state_once(registry: Registry) -> Any:
    """The state of a fresh OpenEnv environment, as far as its model was declared: OpenEnv's servers show no more here.

    Raises:
        DialectError: as `JsonSession.open`, or if the state fails.
    """
    models = registry.source.known_models
    model = None if models is None else models.declared_state

    def look(env: HostedEnv) -> Any:
        assert isinstance(env, OpenEnvEnv)
        return raw(env.state(model))

    session = await JsonSession.open(registry, 1, Options())
    try:
        return await session.visit(look)
    except Exception as error:  # noqa: BLE001 - whatever the env raises
        text = disclosed(str(error), debug=registry.settings.debug)
        raise DialectError("EXECUTION_ERROR", text) from None
    finally:
        await asyncio.shield(session.close())


@contextlib.contextmanager
def _blaming_the_env() -> Iterator[None]:
    """Say of data that don't fit that they are the env's, for the client's were read before: 500, not 422."""
    try:
        yield
    except Reported as error:
        if error.code != "VALIDATION_ERROR":
            raise
        raise DialectError(**{**error.data, "code": "EXECUTION_ERROR"}) from None
