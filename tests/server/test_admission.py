"""openenv_gym.server.admission: tokens, origins and sizes, as ASGI events."""

import asyncio
import json

import pytest
from helpers_raw import Raw
from helpers_server import running

from openenv_gym.server import create_app
from openenv_gym.server.admission import Admission
from openenv_gym.server.gate import Gate
from openenv_gym.server.settings import ServerSettings


def guarded(app, refused, **options):
    settings = ServerSettings(**options)
    return Admission(app, Gate(settings), settings, refused)


def ask(
    *, path="/step", kind="http", method="POST", headers=(), body=(b"",), root_path="", extensions=None, **settings
):
    """The events that an app behind the admission got, and those that the client got."""
    got, sent = [], []

    async def app(scope, receive, send):
        while True:
            event = await receive()
            got.append(event)
            if event["type"] != "http.request" or not event["more_body"]:
                return

    chunks = iter(body)
    last = len(body) - 1

    async def receive():
        if kind == "websocket":
            return {"type": "websocket.connect"}
        for i, chunk in enumerate(chunks, len(receive.given)):
            receive.given.append(chunk)
            return {"type": "http.request", "body": chunk, "more_body": i < last}
        return {"type": "http.disconnect"}

    receive.given = []

    async def send(event):
        sent.append(event)

    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "root_path": root_path,
        "headers": headers,
        "extensions": extensions or {},
    }
    refusals = []
    asyncio.run(guarded(app, refusals.append, **settings)(scope, receive, send))
    assert len(refusals) == bool(sent)
    return got, sent, receive.given


def status(**kwargs):
    """The status that a request is refused with, or None."""
    got, sent, _ = ask(**kwargs)
    assert bool(got) is not bool(sent)
    return sent[0]["status"] if sent else None


def test_a_body_that_never_arrives():
    sent = []

    async def receive():
        await asyncio.Event().wait()

    async def send(event):
        sent.append(event)

    scope = {"type": "http", "method": "POST", "path": "/step", "headers": []}
    codes = []
    asyncio.run(guarded(None, codes.append, opening_timeout_s=0.01)(scope, receive, send))
    assert (sent[0]["status"], codes) == (408, ["TOO_SLOW"])


def test_a_client_that_leaves_before_its_body_is_there_is_no_error(capsys):
    with running(create_app("CartPole-v1")) as url:
        with Raw(url) as raw:
            raw.send(b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        with Raw(url) as raw:  # the server has seen the end of the other one before it answers this one
            raw.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert "200" in raw.head()
    assert capsys.readouterr().err == ""


class TestTokens:
    @pytest.mark.parametrize(
        "value, expected",
        [
            (b"Bearer s3cret", None),
            (b"bearer  s3cret ", None),
            (b"Bearer other", 401),
            (b"Bearer", 401),
            (b"Bearer s3cret2", 401),
            (b"Basic s3cret", 401),
            (b"s3cret", 401),
            (b"Bearer \xff", 401),
            (b"", 401),
        ],
    )
    def test_values(self, value, expected):
        assert status(headers=[(b"Authorization", value)], token="s3cret") == expected

    def test_without_a_header(self):
        assert status(token="s3cret") == 401
        assert status() is None

    @pytest.mark.parametrize("path", ["/reset", "/openapi.json", "/docs", "/health/", "/healthy", "/new", "//"])
    def test_every_path_is_guarded(self, path):
        assert status(path=path, token="s3cret") == 401

    def test_health_is_open(self):
        assert status(path="/health", token="s3cret") is None
        assert status(path="/behind/proxy/health", root_path="/behind/proxy", token="s3cret") is None

    def test_a_websocket_is_no_health_check(self):
        assert (
            status(kind="websocket", path="/health", token="s3cret", extensions={"websocket.http.response": {}}) == 401
        )

    def test_the_answer(self):
        _, sent, _ = ask(token="s3cret")
        assert (b"www-authenticate", b"Bearer") in sent[0]["headers"]
        assert json.loads(sent[1]["body"]) == {"detail": "the token is missing or wrong"}
        assert "s3cret" not in str(sent)


class TestOrigins:
    @pytest.mark.parametrize(
        "origin, expected",
        [("https://a.org", None), ("https://a.org.evil.com", 403), ("http://a.org", 403), ("null", 403), ("", 403)],
    )
    def test_origins_are_compared_exactly(self, origin, expected):
        assert status(headers=[(b"origin", origin.encode())], allowed_origins=("https://a.org",)) == expected

    def test_programs_send_none(self):
        assert status(allowed_origins=("https://a.org",)) is None


class TestWebSockets:
    def test_refused_with_a_status(self):
        _, sent, _ = ask(kind="websocket", path="/ws", token="s3cret", extensions={"websocket.http.response": {}})
        assert [event["type"] for event in sent] == ["websocket.http.response.start", "websocket.http.response.body"]
        assert sent[0]["status"] == 401

    def test_refused_where_the_server_knows_no_status(self):
        _, sent, _ = ask(kind="websocket", path="/ws", token="s3cret")
        assert sent == [{"type": "websocket.close", "code": 1008, "reason": "the token is missing or wrong"}]

    def test_admitted_with_their_events(self):
        got, sent, _ = ask(kind="websocket", path="/ws")
        assert (got, sent) == ([{"type": "websocket.connect"}], [])


LIMIT = {"max_message_size_mb": 10 / 2**20}


class TestSizes:
    def test_a_body_arrives_as_it_was_sent(self):
        got, _, _ = ask(body=(b"12345", b"", b"67890"), **LIMIT)
        assert [event["body"] for event in got] == [b"12345", b"", b"67890"]

    def test_the_size_that_is_announced(self):
        _, sent, given = ask(headers=[(b"content-length", b"11")], body=(b"x" * 11,), **LIMIT)
        assert sent[0]["status"] == 413
        assert given == []

    @pytest.mark.parametrize("headers", [[], [(b"content-length", b"x")], [(b"content-length", b"1")]])
    def test_the_size_that_is_sent(self, headers):
        _, sent, given = ask(headers=headers, body=(b"123456", b"123456", b"123456"), **LIMIT)
        assert sent[0]["status"] == 413
        assert len(given) == 2

    def test_a_stranger_sends_nothing(self):
        _, sent, given = ask(token="s3cret", body=(b"x",))
        assert sent[0]["status"] == 401
        assert given == []


def test_other_scopes_pass():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope)

    asyncio.run(guarded(app, seen.append, token="s3cret")({"type": "lifespan"}, None, None))
    assert seen == [{"type": "lifespan"}]
