"""`StaticLauncher`: URLs as they are, and a DNS name as all its addresses."""

import socket

import helpers_dns
import pytest

from openenv_gym.errors import ConnectFailed, OptionError
from openenv_gym.fleet import Launcher, ServerAddress, StaticLauncher


def test_urls_are_servers_in_their_order():
    launcher = StaticLauncher(["http://b:1", "ws://a:2/x", "http://b:1"])
    assert list(launcher.servers().items()) == [
        ("http://b:1", ServerAddress("http://b:1")),
        ("ws://a:2/x", ServerAddress("ws://a:2/x")),
    ]


def test_it_is_a_launcher():
    assert isinstance(StaticLauncher("http://here"), Launcher)
    assert not isinstance("http://here", Launcher)


@pytest.mark.parametrize(
    "urls, text",
    [
        ([], "at least one URL"),
        ("here:8000", "isn't a URL of a server"),
        ("dns+ftp://here", "isn't a URL of a server"),
        ("dns+wss://here", "TLS needs the servers' names"),
        ("dns+https://here", "TLS needs the servers' names"),
    ],
)
def test_what_is_refused(urls, text):
    with pytest.raises(OptionError, match=text):
        StaticLauncher(urls)


def test_the_token_is_in_no_text():
    launcher = StaticLauncher("dns+ws://here:8000", token="s3cr3t")
    assert launcher.token == "s3cr3t"
    assert repr(launcher) == "StaticLauncher('dns+ws://here:8000')"


def test_a_name_is_all_its_addresses(monkeypatch):
    def getaddrinfo(host, port, *, type):
        assert (host, port, type) == ("envs", 8000, socket.SOCK_STREAM)
        found = [(socket.AF_INET6, ("fd00::2", port, 0, 0)), (socket.AF_INET, ("10.0.0.9", port))]
        found += [(socket.AF_INET, ("10.0.0.10", port)), (socket.AF_INET, ("10.0.0.9", port))]
        return [(family, type, 6, "", address) for family, address in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert list(StaticLauncher("dns+http://envs:8000/a").servers()) == [
        "ws://10.0.0.10:8000/a/ws",
        "ws://10.0.0.9:8000/a/ws",
        "ws://[fd00::2]:8000/a/ws",
    ]


def test_a_name_without_addresses(monkeypatch):
    def getaddrinfo(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(ConnectFailed, match=r"the name can't be resolved: .*Name or service not known"):
        StaticLauncher("dns+ws://envs:8000").servers()


def test_envs_follow_the_addresses_of_a_real_name_server(tmp_path):
    """Two servers behind one name; one is gone from it and ends, and its rows go on at the other."""
    found = helpers_dns.inside(tmp_path)
    if found is None:
        pytest.skip("needs Linux namespaces (unshare -rmn), to have a name server of its own")
    assert found == {
        "first": ["ws://127.0.0.2:8000/ws", "ws://127.0.0.3:8000/ws"],
        "truncated": [False, False, True, True],
        "lost": [False, False, True, True],
        "steps": [3.0, 3.0, 0.0, 0.0],
        "urls": ["ws://127.0.0.2:8000/ws", "ws://127.0.0.2:8000/ws"],
    }
