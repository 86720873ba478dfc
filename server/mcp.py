"""Answers to JSON-RPC requests of the Model Context Protocol, for envs that have no tools. No I/O here."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["answer", "answer_text"]

# https://www.jsonrpc.org/specification#error_object
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


def answer_text(body: bytes) -> dict[str, Any]:
    """The answer to an HTTP request's body. Errors are answers too: JSON-RPC has no HTTP status of its own."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        return _error(PARSE_ERROR, f"the request is no JSON: {error}", None)
    return answer(request)


def answer(request: Any) -> dict[str, Any]:
    """The answer to a request that was parsed already."""
    try:
        checked = _Request.model_validate(request)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'request'}: {e['msg']}" for e in error.errors())
        return _error(INVALID_REQUEST, f"no JSON-RPC 2.0 request: {problems}", None)
    return _error(
        METHOD_NOT_FOUND,
        f"there is no method {checked.method!r}: this server's environment is a Gymnasium env, which has no MCP tools; "
        "use reset and step on /ws",
        checked.id,
    )


def _error(code: int, message: str, id: str | int | None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "error": {"code": code, "message": message}, "id": id}
