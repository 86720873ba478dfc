"""openenv_gym.server.mcp: JSON-RPC requests and answers."""

import pytest

from openenv_gym.server.mcp import RpcError, answered, parsed, refused, request_of


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, "x"])
def test_no_json(text):
    with pytest.raises(RpcError, match="Parse error") as caught:
        parsed(text)
    assert caught.value.code == -32700


@pytest.mark.parametrize(
    "data, problem",
    [
        ({}, "method\n  Field required"),
        ([], "valid dictionary"),
        (None, "valid dictionary"),
        ({"jsonrpc": "1.0", "method": "x"}, "jsonrpc\n"),
        ({"jsonrpc": "2.0", "method": 1}, "method\n"),
        ({"jsonrpc": "2.0", "method": "x", "params": [1]}, "params\n"),
        ({"jsonrpc": "2.0", "method": "x", "more": 1}, "more\n"),
    ],
)
def test_no_request(data, problem):
    with pytest.raises(RpcError, match="Invalid request") as caught:
        request_of(data)
    assert caught.value.code == -32600
    assert problem in str(caught.value)


@pytest.mark.parametrize("id", [None, 7, "seven"])
def test_answers(id):
    request = request_of(parsed(b'{"jsonrpc": "2.0", "method": "tools/list"}').copy() | {"id": id})
    assert (request.method, request.params) == ("tools/list", {})
    assert answered(request.id, 3) == {"jsonrpc": "2.0", "id": id, "result": 3}
    error = {"code": -32603, "message": "no", "data": {"a": 1}}
    assert refused(request.id, RpcError(-32603, "no", {"a": 1})) == {"jsonrpc": "2.0", "id": id, "error": error}
