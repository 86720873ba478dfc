"""One reset or one step of a fresh env, for HTTP: no request knows of another, as with OpenEnv's servers."""

from __future__ import annotations

import asyncio
from typing import Any

from openenv_gym.server.exact_messages import ExactReset, ExactStep, refused_exactly
from openenv_gym.server.json_form import ActionRefused
from openenv_gym.server.json_session import JsonSession, form_of
from openenv_gym.server.openenv_messages import Options, ResetRequest, StepRequest, refused
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
        result = await session.step(request.action)
    finally:
        await asyncio.shield(session.close())
    return {"metadata": None, **result}


async def state_once(registry: Registry) -> dict[str, Any]:
    """The state of a fresh OpenEnv environment.

    Raises:
        DialectError: as `JsonSession.open` and `JsonSession.state`.
    """
    session = await JsonSession.open(registry, 1, Options())
    try:
        return await session.state()
    finally:
        await asyncio.shield(session.close())
