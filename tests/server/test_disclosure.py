"""What clients are told of errors: no paths of the server's files, in whatever way an error comes to them."""

import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers_envs import Count, Factory
from helpers_server import running

from openenv_gym import EnvClient, RemoteVecEnv
from openenv_gym.errors import OpenEnvGymError
from openenv_gym.server import create_app
from openenv_gym.server.disclosure import disclosed

MISSING = Path("/home/somebody/my data/rom.bin")


@pytest.mark.parametrize(
    "text, shown",
    [
        ("[Errno 2] No such file: '/home/a b/c/rom.bin'", "[Errno 2] No such file: '…/rom.bin'"),
        ("from '/a/b/c' to '/d/e'", "from '…/c' to '…/e'"),
        ('File "/usr/lib/python3/x.py", line 3', 'File "…/x.py", line 3'),
        ("cannot import name 'x' from 'y' (/opt/y/__init__.py)", "cannot import name 'x' from 'y' (…/__init__.py)"),
        ("/srv/data/x.bin is missing", "…/x.bin is missing"),
        ("~/.cache/roms/x.bin", "~…/x.bin"),
        (r"open 'C:\\Users\\me\\x.bin' failed", "open '…/x.bin' failed"),
        (r"open D:\data\x.bin", "open …/x.bin"),
        ("see file:///home/me/x.txt", "see …/x.txt"),
        ("PATH=/opt/a/bin:/opt/b/bin", "PATH=…/bin:…/bin"),
    ],
)
def test_of_a_path_only_the_last_part_is_left(text, shown):
    assert disclosed(text, debug=False) == shown
    assert disclosed(text, debug=True) == text


@pytest.mark.parametrize(
    "text",
    [
        "left/right/stay",
        "1/2/3",
        "a / b / c",
        "http://host:80/a/b",
        "ws://host/ws",
        "'/wiki'",
        "./data/x",
        "it's / isn't",
        "\\d+",
    ],
)
def test_other_slashes_stay(text):
    assert disclosed(text, debug=False) == text


@pytest.mark.parametrize("text", ["'" + "/" * 10**6, "/a" * 10**6, "'/" * 10**6, "/" + "a" * 10**6, "file://" * 10**5])
def test_it_takes_no_longer_than_the_text_is_long(text):
    started = time.process_time()
    disclosed(text, debug=False)
    assert time.process_time() - started < 10  # a fraction of a second; in quadratic time it would take hours


def missing(_):
    MISSING.read_bytes()


@contextmanager
def serving(on, **settings):
    """A server whose envs fail in a call that the factory's `kwargs` say, once it is set."""
    factory = Factory(Count, {"habits": {1: missing}})
    with running(create_app(factory, allow_call=None, **settings)) as url:
        factory.kwargs["on"] = on
        yield url


DEEDS = {
    "step": ({}, lambda env: (env.reset(), env.step([1]))),
    "reset": ({"reset": missing}, lambda env: env.reset()),
    "call": ({"add": missing}, lambda env: (env.reset(), env.call("add", 1))),
}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("name", sorted(DEEDS))
def test_a_vector_env_that_fails(name, debug):
    on, deed = DEEDS[name]
    with serving(on, debug=debug) as url, RemoteVecEnv(url, 1) as env:
        with pytest.raises(OpenEnvGymError, match=r"FileNotFoundError.*rom\.bin") as told:
            deed(env)
        assert ("somebody" in str(told.value)) is debug


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("client", [RemoteVecEnv, lambda url: EnvClient(url).sync().reset()], ids=["batch", "openenv"])
def test_an_env_that_can_not_be_built(client, debug):
    with serving({"init": missing}, debug=debug) as url, pytest.raises(OpenEnvGymError, match=r"rom\.bin") as told:
        client(url)
    assert ("somebody" in str(told.value)) is debug


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("action", [1, 0], ids=["step", "reset"])
def test_openenvs_dialect(action, debug):
    on = {} if action else {"reset": missing}
    with serving(on, debug=debug) as url, EnvClient(url).sync() as client:
        with pytest.raises(OpenEnvGymError, match=r"rom\.bin") as told:
            client.reset()
            client.step({"action": action})
        assert ("somebody" in str(told.value)) is debug


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("path, body", [("step", b'{"action": {"action": 1}}'), ("reset", b"{}")])
def test_http(path, body, debug):
    on = {} if path == "step" else {"reset": missing}
    asked = {"method": "POST", "headers": {"Content-Type": "application/json"}}
    with serving(on, debug=debug) as url, pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(urllib.request.Request(f"{url}/{path}", body, **asked), timeout=20)
    text = told.value.read().decode()
    assert "rom.bin" in text
    assert ("somebody" in text) is debug
