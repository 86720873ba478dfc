"""Messages and errors where an OpenEnv environment is hosted: without this server's own options and wording.

A reset's data are the environment's own arguments there, so this server's options come in the URL's query only.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from openenv_gym.server.openenv_messages import DialectError, Message

__all__ = ["ExactReset", "ExactResetMessage", "ExactStep", "exact_errors", "refused_exactly"]


class ExactResetMessage(Message):
    """Resets an OpenEnv environment; its data are the environment's own, like those of a `StepMessage`."""

    type: Literal["reset"]
    data: dict[str, Any] = Field(default_factory=dict)


class ExactReset(BaseModel):
    """Asks for a reset of a fresh OpenEnv environment, over HTTP."""

    model_config = ConfigDict(extra="allow")

    seed: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Seed of the env's random numbers.")
    episode_id: Annotated[str, Field(max_length=255)] | None = Field(
        default=None, description="The episode's name in the state."
    )


class ExactStep(BaseModel):
    """Asks for one step of a fresh OpenEnv environment, over HTTP."""

    model_config = ConfigDict(extra="allow")

    action: dict[str, Any] = Field(description="The action's fields, see the action in /schema.")
    timeout_s: Annotated[float, Field(gt=0)] | None = Field(default=None, description="Accepted; not used.")
    request_id: Annotated[str, Field(max_length=255)] | None = Field(default=None, description="Accepted; not used.")


def refused_exactly(errors: Any) -> DialectError:
    """The error for data that doesn't fit, word for word as OpenEnv's servers send it: pydantic's own list.

    What can't be sent, such as the exception of a validator, is sent as its text, where OpenEnv's servers fail.
    """
    return DialectError("VALIDATION_ERROR", "Invalid message", errors=exact_errors(errors))


def exact_errors(errors: Any) -> msgspec.Raw:
    """Pydantic's list of errors, encoded."""
    return msgspec.Raw(to_json(list(errors), inf_nan_mode="null", fallback=str))
