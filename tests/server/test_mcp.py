"""openenv_gym.server.mcp: JSON-RPC answers for envs without tools."""

import pytest

from openenv_gym.server.mcp import answer, answer_text


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_no_json(body):
    assert answer_text(body)["error"]["code"] == -32700


@pytest.mark.parametrize(
    "request_, problem",
    [
        ({}, "method: Field required"),
        ([], "request: "),
        ({"jsonrpc": "1.0", "method": "x"}, "jsonrpc: "),
        ({"jsonrpc": "2.0", "method": 1}, "method: "),
        ({"jsonrpc": "2.0", "method": "x", "params": [1]}, "params: "),
    ],
)
def test_no_request(request_, problem):
    reply = answer(request_)
    assert (reply["jsonrpc"], reply["id"], reply["error"]["code"]) == ("2.0", None, -32600)
    assert problem in reply["error"]["message"]


@pytest.mark.parametrize("id", [None, 7, "seven"])
def test_no_method(id):
    reply = answer({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "x"}, "id": id})
    assert reply["id"] == id
    assert reply["error"]["code"] == -32601
    assert "'tools/call'" in reply["error"]["message"]
