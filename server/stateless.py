"""One reset or one step of a fresh env, for HTTP: no request knows of another, as with OpenEnv's servers. No FastAPI."""

from __future__ import annotations

import asyncio
from typing import Any

from openenv_gym.server.json_form import ActionRefused
from openenv_gym.server.json_session import JsonSession, form_of
from openenv_gym.server.openenv_messages import Options, ResetRequest, StepRequest, refused
from openenv_gym.server.registry import Registry

__all__ = ["reset_once", "step_once"]


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
        form_of(registry.probe).action(request.action)  # what is wrong with it shall not cost an env
    except ActionRefused as error:
        raise refused(error.errors, "action") from None
    session = await JsonSession.open(registry, 1, Options().changed_by(request))
    try:
        first = await session.reset(request)
        result = await session.step(request.action)
    finally:
        await asyncio.shield(session.close())
    return {**result, "seed_ignored": True} if "seed_ignored" in first else result
