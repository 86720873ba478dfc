"""The messages of the OpenEnv dialect, on the WebSocket and over HTTP.

Names, shapes and error codes are those of OpenEnv 0.10 (openenv/core/env_server/types.py and http_server.py), so that
stock clients work unchanged. ``batch_step``, the options of `Options`, ``terminated``, ``truncated``, ``render`` and
``seed_ignored`` are this server's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = [
    "MESSAGES",
    "BatchStepMessage",
    "CloseMessage",
    "DialectError",
    "EnvMetadata",
    "EnvState",
    "Health",
    "McpMessage",
    "Message",
    "Options",
    "ResetMessage",
    "ResetRequest",
    "Result",
    "Schemas",
    "StateMessage",
    "StepMessage",
    "StepRequest",
    "encoded",
    "error_list",
    "misfit",
    "options_from_query",
    "refused",
]

_LARGEST_INPUT: Final = 1024  # bytes of JSON; what is wrong with more than that doesn't get clearer by sending it back


class DialectError(Exception):
    """Raised for what a client is told in an ``error`` message.

    Attributes:
        data: the message's data: ``message``, ``code`` and facts that belong to it.
    """

    def __init__(self, code: str, message: str, **facts: Any) -> None:
        super().__init__(code, message)
        self.data: dict[str, Any] = {"message": message, "code": code, **facts}

    @property
    def code(self) -> str:
        """The error code."""
        code: str = self.data["code"]
        return code

    def __str__(self) -> str:
        return f"{self.data['message']} ({self.code})"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


# ------------------------------------------------------------------------------------------------- requests


class Options(_Strict):
    """What to be sent. Options of a reset hold from then on; those of the URL's query from the start."""

    include: list[str] | None = Field(
        default=None, description="Observation keys to send, as dotted paths; null for all."
    )
    exclude: list[str] | None = Field(default=None, description="Observation keys to leave out, as dotted paths.")
    obs_dtype: str | dict[str, str] | None = Field(
        default=None, description="A dtype to round Box observations to, such as float16, or dtypes by path."
    )
    info_keys: list[str] | None = Field(default=None, description="Info keys to send as metadata; null for all.")
    render: bool = Field(default=False, description="Whether to send a rendered frame with each result.")
    render_mode: str | None = Field(
        default=None, description="The mode to render in; null for the first of rgb_array and ansi that the env has."
    )

    def changed_by(self, other: Options) -> Options:
        """These options, with those that another message mentions."""
        mentioned = other.model_fields_set & Options.model_fields.keys()
        return Options.model_validate({**self.model_dump(), **other.model_dump(include=set(mentioned))})


class ResetRequest(Options):
    """Asks for a reset."""

    seed: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Seed of the env's random numbers.")
    episode_id: Annotated[str, Field(max_length=255)] | None = Field(
        default=None, description="The episode's name in the state; null for a random one."
    )
    options: dict[str, Any] | None = Field(default=None, description="The options that the env's own reset takes.")


class ResetSomeRequest(ResetRequest):
    """Asks for a reset on a connection that may have several envs."""

    envs: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = Field(
        default=None, description="Numbers of the envs to reset; null for all."
    )


class StepRequest(ResetRequest):
    """Asks for one step of a fresh env, which is reset first."""

    action: dict[str, Any] = Field(description="The action's fields, see the action in /schema.")
    timeout_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Accepted as OpenEnv does; not used."
    )
    request_id: Annotated[str, Field(max_length=255)] | None = Field(
        default=None, description="Accepted as OpenEnv does; not used."
    )


class BatchStepRequest(_Strict):
    """Asks for several steps: one of each env, or several of the only one until its episode ends."""

    actions: Annotated[list[dict[str, Any]], Field(min_length=1)]


class Message(_Strict):
    """Base of what a client sends on the WebSocket."""


class ResetMessage(Message):
    """Resets the envs."""

    type: Literal["reset"]
    data: ResetSomeRequest = ResetSomeRequest()


class StepMessage(Message):
    """Steps the only env; its data are the action's fields."""

    type: Literal["step"]
    data: dict[str, Any]


class BatchStepMessage(Message):
    """Steps all envs, or the only one several times."""

    type: Literal["batch_step"]
    data: BatchStepRequest


class StateMessage(Message):
    """Asks for the state. OpenEnv has no data here."""

    type: Literal["state"]


class CloseMessage(Message):
    """Ends the session. OpenEnv has no data here."""

    type: Literal["close"]


class McpMessage(Message):
    """Holds a JSON-RPC request of the Model Context Protocol."""

    type: Literal["mcp"]
    data: dict[str, Any]


MESSAGES: Final[Mapping[str, type[Message]]] = {
    "reset": ResetMessage,
    "step": StepMessage,
    "batch_step": BatchStepMessage,
    "state": StateMessage,
    "close": CloseMessage,
    "mcp": McpMessage,
}


# -------------------------------------------------------------------------------------------------- replies


class Result(BaseModel):
    """What a reset or a step gave."""

    observation: dict[str, Any] = Field(description="The observation's fields, see the observation in /schema.")
    reward: float | None = Field(description="The step's reward; null after a reset, and where it is no finite number.")
    done: bool = Field(description="Whether the episode is over, for whichever reason.")
    terminated: bool = Field(description="Whether the episode came to its own end.")
    truncated: bool = Field(description="Whether the episode was cut off, by a time limit for instance.")
    metadata: dict[str, Any] | None = Field(default=None, description="The env's info; absent where it is empty.")
    render: Any = Field(
        default=None, description="A frame as dtype, shape and base64, or a text; absent unless asked for."
    )
    seed_ignored: bool | None = Field(
        default=None, description="True where the env has no use for the seed; absent otherwise."
    )


class EnvState(BaseModel):
    """Where an episode is."""

    episode_id: str | None = Field(description="The episode's name; null before the first reset.")
    step_count: int = Field(ge=0, description="Steps since the last reset.")


class Health(BaseModel):
    """How the server is."""

    status: Literal["healthy", "draining"] = Field(description="Draining: it is shutting down, and opens no sessions.")
    active_envs: int = Field(description="Envs that exist.")
    max_envs: int = Field(description="Envs that may exist.")
    sessions: int = Field(description="Open sessions.")
    processes: int = Field(description="Processes that answer; the numbers are for all of them.")


class EnvMetadata(BaseModel):
    """What the environment is."""

    name: str = Field(description="The environment's name, such as CartPole-v1.")
    description: str = Field(description="What it is about, in the words of its class.")
    version: str | None = Field(description="The environment's version, if it has one.")
    render_modes: list[str] = Field(description="Modes that it can be rendered in.")
    render_fps: float | None = Field(description="Frames a second for a video, if the environment says so.")


class Schemas(BaseModel):
    """JSON schemas (draft 2020-12) of what travels."""

    action: dict[str, Any] = Field(description="Schema of the data of a step.")
    observation: dict[str, Any] = Field(description="Schema of a result's observation.")
    state: dict[str, Any] = Field(description="Schema of the state.")


# ---------------------------------------------------------------------------------------- encoding, errors


def encoded(data: Any) -> bytes:
    """Data as strict JSON. Half a surrogate pair, which ``json.loads`` accepts and UTF-8 can't hold, is escaped."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(data))


def _escaped(data: Any) -> Any:
    if isinstance(data, str):
        return data.encode(errors="backslashreplace").decode()
    if isinstance(data, dict):
        return {_escaped(key): _escaped(value) for key, value in data.items()}
    return [_escaped(item) for item in data] if isinstance(data, list) else data


def error_list(errors: Any, *prefix: str | int) -> list[dict[str, Any]]:
    """What is wrong, as pydantic lists it, and safe to send: plain, without links, and without large inputs.

    Args:
        errors: dicts with ``type``, ``loc``, ``msg`` and ``input``.
        prefix: where the data is that these errors are about.
    """
    listed = []
    for error in errors:
        entry = {"type": error["type"], "loc": [*prefix, *error["loc"]], "msg": error["msg"]}
        if "input" in error and len(encoded(error["input"])) <= _LARGEST_INPUT:
            entry["input"] = error["input"]
        listed.append(entry)
    return listed


def refused(errors: Any, *prefix: str | int) -> DialectError:
    """The error for data that doesn't fit.

    OpenEnv's servers say ``Invalid message`` and list the errors (http_server.py, ``websocket_endpoint``), but its
    clients show the message only, so the first error is in it too.

    Args:
        errors: what is wrong, as pydantic lists it.
        prefix: where the data is that these errors are about.
    """
    listed = error_list(errors, *prefix)
    where = ".".join(map(str, listed[0]["loc"]))
    message = f"Invalid message: {where}: {listed[0]['msg']}" if where else f"Invalid message: {listed[0]['msg']}"
    return DialectError("VALIDATION_ERROR", message, errors=listed)


def misfit(loc: list[str | int], problem: str, given: Any) -> DialectError:
    """The error for data that has the right types, but can't be served.

    Args:
        loc: where it is.
        problem: what is wrong.
        given: the data there.
    """
    return refused([{"type": "value_error", "loc": loc, "msg": problem, "input": given}])


def options_from_query(query: Mapping[str, str]) -> tuple[int, Options]:
    """The number of envs and the options that a URL's query asks for.

    Lists are separated by commas. ``obs_dtype`` is a dtype's name, or a JSON object of dtypes by path. Other parameters
    are ignored, as OpenEnv's servers do: proxies add their own.

    Raises:
        DialectError: for a bad value.
    """
    given: dict[str, Any] = {key: query[key] for key in query if key in Options.model_fields}
    for key in given.keys() & {"include", "exclude", "info_keys"}:
        given[key] = [name for name in given[key].split(",") if name]
    if given.get("obs_dtype", "").startswith("{"):
        given["obs_dtype"] = _json_or_text(given["obs_dtype"])
    try:
        count = _Count.model_validate({"num_envs": query.get("num_envs", "1")}).num_envs
        return count, Options.model_validate(given, strict=False)
    except ValidationError as error:
        raise refused(error.errors()) from None


class _Count(BaseModel):
    num_envs: int = Field(ge=1)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
