"""JSON-RPC 2.0 as the Model Context Protocol uses it: requests read, answers built. No I/O here.

Codes and texts are those of OpenEnv 0.10 (openenv/core/env_server/mcp_types.py and http_server.py), so that its clients
tell the same story here as there.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "SERVER_ERROR",
    "JsonRpcRequest",
    "RpcError",
    "answered",
    "parsed",
    "refused",
    "request_of",
]

# https://www.jsonrpc.org/specification#error_object
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SERVER_ERROR: Final = -32000


class JsonRpcRequest(BaseModel):
    """A request; its name stands in pydantic's texts, which clients see."""

    model_config = ConfigDict(extra="forbid")

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


class RpcError(Exception):
    """Raised for what a client is told as a JSON-RPC error.

    Attributes:
        code: one of the codes here.
        message: what is wrong.
        data: facts that belong to it, or None.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


def parsed(text: str | bytes) -> Any:
    """A message's data.

    Raises:
        RpcError: if it is no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, f"Parse error: {error}") from None


def request_of(data: Any) -> JsonRpcRequest:
    """The request that data are.

    Raises:
        RpcError: if they are none.
    """
    try:
        return JsonRpcRequest.model_validate(data)
    except ValidationError as error:
        raise RpcError(INVALID_REQUEST, f"Invalid request: {error}") from None


def answered(id: str | int | None, result: Any) -> dict[str, Any]:
    """The answer with a result."""
    return {"jsonrpc": "2.0", "id": id, "result": result}


def refused(id: str | int | None, error: RpcError) -> dict[str, Any]:
    """The answer with an error."""
    return {
        "jsonrpc": "2.0",
        "id": id,
        "error": {"code": error.code, "message": error.message, "data": error.data},
    }
