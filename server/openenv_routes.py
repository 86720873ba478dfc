"""The HTTP routes of an OpenEnv environment, as its own servers have them."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Final

from fastapi import Body, FastAPI, Request, Response

from openenv_gym.server.exact_messages import ExactReset, ExactStep
from openenv_gym.server.openenv_messages import encoded
from openenv_gym.server.registry import Registry
from openenv_gym.server.stateless import reset_once_exactly, state_once, step_once_exactly
from openenv_gym.server.tasks import Split, SplitAndIndex, SplitAndRange, TaskProblem, Tasks

__all__ = ["CONTROL", "FAILURES", "add_openenv_routes", "json_response"]

CONTROL: Final[list[str | Enum]] = ["Environment Control"]
FAILURES: Final[dict[int | str, dict[str, Any]]] = {
    500: {"description": "The env raised, or its data can't be sent as JSON."},
    503: {"description": "The server has no room for another env now."},
}
_TASKS: Final[list[str | Enum]] = ["Task API"]


def json_response(data: Any, status: int = 200) -> Response:
    """A response with strict JSON."""
    return Response(encoded(data), status, media_type="application/json")


def add_openenv_routes(app: FastAPI, registry: Registry) -> None:
    """Add the routes that only OpenEnv environments have, or have otherwise than Gymnasium's."""
    _add_metadata(app, registry)
    if registry.settings.mode == "simulation":
        _add_control(app, registry)
    _add_tasks(app, Tasks(registry))


def _add_metadata(app: FastAPI, registry: Registry) -> None:
    @app.get("/metadata", tags=["Environment Info"])
    async def metadata() -> Response:
        """What the environment says about itself."""
        return json_response(registry.probe.about)


def _add_control(app: FastAPI, registry: Registry) -> None:
    @app.post("/reset", tags=CONTROL, responses=FAILURES)
    async def reset(request: Annotated[ExactReset | None, Body()] = None) -> Response:
        """Build a fresh environment, reset it, and close it. For episodes use /ws."""
        return json_response(await reset_once_exactly(registry, request or ExactReset()))

    @app.post("/step", tags=CONTROL, responses=FAILURES)
    async def step(request: ExactStep) -> Response:
        """Build a fresh environment, step it once, and close it. For episodes use /ws."""
        return json_response(await step_once_exactly(registry, request))

    @app.get("/state", tags=CONTROL)
    async def state() -> Response:
        """The state of a fresh environment. For an episode's state use /ws."""
        return json_response(await state_once(registry))


def _add_tasks(app: FastAPI, tasks: Tasks) -> None:
    @app.exception_handler(TaskProblem)
    async def problem(_: Request, error: TaskProblem) -> Response:
        return json_response({"detail": error.text}, error.status)

    @app.get("/list_environments", tags=_TASKS)
    async def environments() -> list[str]:
        """The names of the environments here: one."""
        return [tasks.env_name]

    @app.get("/{env_name}/splits", tags=_TASKS)
    async def splits(env_name: str) -> Response:
        """The splits of the environment's tasks."""
        return json_response(await tasks.splits(env_name))

    @app.post("/{env_name}/tasks", tags=_TASKS)
    async def listed(env_name: str, request: Split) -> Response:
        """The tasks of a split."""
        return json_response(await tasks.listed(env_name, request))

    @app.post("/{env_name}/num_tasks", tags=_TASKS)
    async def counted(env_name: str, request: Split) -> Response:
        """The number of tasks of a split."""
        return json_response(await tasks.counted(env_name, request))

    @app.post("/{env_name}/task", tags=_TASKS)
    async def one(env_name: str, request: SplitAndIndex) -> Response:
        """One task."""
        return json_response(await tasks.one(env_name, request))

    @app.post("/{env_name}/task_range", tags=_TASKS)
    async def some(env_name: str, request: SplitAndRange) -> Response:
        """Consecutive tasks."""
        return json_response(await tasks.some(env_name, request))
