"""OpenEnv's task API: which tasks an environment has, asked of a fresh one each time. No FastAPI here.

As openenv/core/env_server/http_server.py (0.10) has it, for environments with ``list_splits``, ``list_tasks``,
``num_tasks``, ``get_task`` and ``get_task_range``, of which each is optional, and may be a coroutine.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from openenv_gym.server.adapters import HostedEnv
from openenv_gym.server.json_session import JsonSession
from openenv_gym.server.openenv_env import OpenEnvEnv
from openenv_gym.server.openenv_messages import Options
from openenv_gym.server.registry import Registry
from openenv_gym.server.tools import plain_result

__all__ = ["Split", "SplitAndIndex", "SplitAndRange", "TaskProblem", "Tasks"]

_KINDS: Final = frozenset({"train", "validation", "test"})


class Split(BaseModel):
    """Names a split of the tasks."""

    model_config = ConfigDict(extra="forbid")

    split: str = Field(description="The split's name.")


class SplitAndIndex(Split):
    """Names a task."""

    index: int = Field(description="The task's index in the split.")


class SplitAndRange(Split):
    """Names consecutive tasks."""

    start: int | None = Field(default=None, description="The first index.")
    stop: int | None = Field(default=None, description="The index after the last one.")


class TaskProblem(Exception):
    """Raised for what an HTTP client is told.

    Attributes:
        status: the HTTP status.
        text: what is wrong.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text


class Tasks:
    """The tasks of a server's environments.

    Args:
        registry: the server's sessions.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @property
    def env_name(self) -> str:
        """The environment's name, which stands in the paths of this interface."""
        return self._registry.source.name

    async def splits(self, env_name: str) -> list[Any]:
        """The splits, each with its name and type."""
        return [_split(split) for split in await self._asked(env_name, "list_splits")]

    async def listed(self, env_name: str, split: Split) -> dict[str, Any]:
        """The tasks of a split."""
        return {"tasks": await self._asked(env_name, "list_tasks", split.split), "env_name": self.env_name}

    async def counted(self, env_name: str, split: Split) -> dict[str, Any]:
        """The number of tasks of a split."""
        return {"num_tasks": await self._asked(env_name, "num_tasks", split.split)}

    async def one(self, env_name: str, which: SplitAndIndex) -> dict[str, Any]:
        """One task."""
        return {"task": await self._asked(env_name, "get_task", which.split, which.index)}

    async def some(self, env_name: str, which: SplitAndRange) -> dict[str, Any]:
        """Consecutive tasks."""
        return {"tasks": await self._asked(env_name, "get_task_range", which.split, which.start, which.stop)}

    async def _asked(self, env_name: str, method: str, *args: Any) -> Any:
        """What a fresh environment's method gives, as JSON data.

        Raises:
            TaskProblem: if there is no such environment, method or task.
            DialectError: if there is no room, or no environment can be built.
        """
        if env_name.lower() != self.env_name.lower():
            raise TaskProblem(404, f"unknown environment {env_name!r}")

        def ask(env: HostedEnv) -> Any:
            assert isinstance(env, OpenEnvEnv)
            found = getattr(env.env, method, None)
            if not callable(found):
                raise NotImplementedError
            return plain_result(env.waited(found(*args)))

        session = await JsonSession.open(self._registry, 1, Options())
        try:
            return await session.visit(ask)
        except NotImplementedError:
            raise TaskProblem(501, f"{method} is not supported for this environment") from None
        except IndexError:
            raise TaskProblem(400, "Invalid task index") from None
        finally:
            await asyncio.shield(session.close())


def _split(split: Any) -> Any:
    if isinstance(split, dict):
        return split
    name = str(split)
    return {"name": name, "type": name if name in _KINDS else "validation"}
