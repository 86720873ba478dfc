"""Who is let in, without a server."""

import pytest

from openenv_gym.server import gate as gate_module
from openenv_gym.server.gate import Asked, Gate
from openenv_gym.server.settings import ServerSettings

OWN = {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}


def make(**settings):
    return Gate(ServerSettings(**{"token": "s3cret", **settings}))


def refusal(gate, path="/ws", kind="connect", **headers):
    found = gate.refusal(Asked(kind, path, headers))
    return None if found is None else found[0]


def cookie(gate):
    return f"{gate.cookie_name}={gate.cookie()[0]}"


class TestCookies:
    @pytest.mark.parametrize("kind", ["read", "write", "connect"])
    def test_a_cookie_stands_for_the_token(self, kind):
        gate = make()
        assert refusal(gate, kind=kind, cookie=cookie(gate), **OWN) is None
        assert refusal(gate, kind=kind, cookie=f"a=b; {cookie(gate)}; c=d", **OWN) is None
        assert refusal(gate, kind=kind, **OWN) == 401

    def test_what_changes_something_says_where_it_comes_from(self):
        gate = make()
        assert refusal(gate, kind="write", cookie=cookie(gate)) == 401
        assert refusal(gate, kind="connect", cookie=cookie(gate)) == 401
        assert refusal(gate, kind="read", cookie=cookie(gate)) is None
        assert refusal(gate, cookie=cookie(gate), host="127.0.0.1:8000", origin="http://evil.org") == 403

    @pytest.mark.parametrize(
        "bad", ["", "9999999999", "9999999999.0", ".", "é", "9999999999.é", '"', "=;=", "a" * 9999]
    )
    def test_bad_cookies(self, bad):
        gate = make()
        for header in (bad, f"{gate.cookie_name}={bad}"):
            assert refusal(gate, kind="read", cookie=header, **OWN) == 401

    def test_it_ends(self, monkeypatch):
        gate = make()
        old, (_, seconds) = cookie(gate), gate.cookie()
        now = gate_module.time.time()
        monkeypatch.setattr(gate_module.time, "time", lambda: now + seconds - 60)
        assert refusal(gate, cookie=old, **OWN) is None
        monkeypatch.setattr(gate_module.time, "time", lambda: now + seconds + 60)
        assert refusal(gate, cookie=old, **OWN) == 401

    def test_nobody_can_prolong_it(self):
        gate = make()
        value = gate.cookie()[0]
        later = f"{int(value.partition('.')[0]) + 1}.{value.partition('.')[2]}"
        assert refusal(gate, cookie=f"{gate.cookie_name}={later}", **OWN) == 401

    def test_it_belongs_to_one_token_and_does_not_tell_it(self):
        one, other = make(), make(token="other")
        value = one.cookie()[0]
        assert one.cookie_name != other.cookie_name
        assert refusal(other, cookie=f"{other.cookie_name}={value}", **OWN) == 401
        assert "s3cret" not in value + one.cookie_name

    def test_without_the_page_there_are_none(self):
        assert refusal(make(web=False), kind="read", cookie=cookie(make())) == 401


class TestOrigins:
    @pytest.mark.parametrize("host", ["127.0.0.1:8000", "[::1]:8000", "192.168.0.7", "localhost:8000", "a.localhost"])
    def test_the_page_of_an_address_is_the_servers_own(self, host):
        gate = make(token=None)
        for scheme in ("http", "https"):  # a proxy may end TLS
            assert refusal(gate, host=host, origin=f"{scheme}://{host}") is None
        assert refusal(gate, host=host, origin=f"http://{host}1") == 403
        assert refusal(gate, host=host, origin=f"ftp://{host}") == 403
        assert refusal(make(token=None, web=False), host=host, origin=f"http://{host}") == 403

    def test_a_name_may_be_anybodys_if_there_is_no_token(self):
        headers = {"host": "evil.org:8000", "origin": "http://evil.org:8000"}
        assert refusal(make(token=None), **headers) == 403
        assert refusal(make(token=None, allowed_origins=("http://evil.org:8000",)), **headers) is None
        gate = make()
        assert refusal(gate, **headers) == 401
        assert refusal(gate, cookie=cookie(gate), **headers) is None

    @pytest.mark.parametrize("origin", ["null", "", "http://", "//127.0.0.1:8000", "http://x@127.0.0.1:8000"])
    def test_odd_origins(self, origin):
        assert refusal(make(token=None), host="127.0.0.1:8000", origin=origin) == 403
        assert refusal(make(token=None), host="", origin=origin) == 403


@pytest.mark.parametrize("path", ["/", "/web", "/web/", "/web/static/page.js"])
def test_the_form_and_static_files_are_open(path):
    assert refusal(make(), path, kind="read") is None
    assert refusal(make(web=False), path, kind="read") == 401
    assert refusal(make(), path) == 401
    assert refusal(make(), path, kind="read", host="127.0.0.1:8000", origin="http://evil.org") == 403


@pytest.mark.parametrize(
    "path", ["/web/events", "/web/frames/a/0", "/web/static", "/web/staticx", "/webx", "//", "/metrics"]
)
def test_the_rest_is_not(path):
    assert refusal(make(), path, kind="read") == 401
