"""Log lines, as a process writes them."""

import json
import logging
import sys

import pytest

from openenv_gym.server.logs import configure


@pytest.fixture
def written(capsys):
    """Configure logging for this test only; gives what was written since."""
    root, own = logging.getLogger(), logging.getLogger("openenv_gym")
    before = (root.handlers[:], root.level, own.level)
    root.handlers.clear()
    yield lambda: capsys.readouterr().err
    root.handlers[:], level, own_level = before
    root.setLevel(level)
    logging.getLogger("uvicorn.error").filters.clear()
    own.setLevel(own_level)


def fail():
    try:
        raise ValueError("boom\nsecond line")
    except ValueError:
        logging.getLogger("openenv_gym.server.x").exception("it failed", extra={"session": "ab"})


def test_a_line_for_people(written):
    configure("info")
    what = {"session": "ab12", "envs": 8, "why": 'a "b"'}
    logging.getLogger("openenv_gym.x").info("a session was %s", "opened", extra=what)
    time, rest = written().split(" ", 1)
    assert time[10] == "T"
    assert time.endswith("Z")
    assert rest == 'info    openenv_gym.x a session was opened session=ab12 envs=8 why="a \\"b\\""\n'


def test_a_line_for_machines(written):
    configure("info", as_json=True)
    fail()
    (line,) = written().splitlines()
    event = json.loads(line)
    assert event["traceback"].startswith("Traceback")
    del event["traceback"], event["time"]
    assert event == {"level": "error", "logger": "openenv_gym.server.x", "message": "it failed", "session": "ab"}


def test_a_traceback_follows_its_line(written):
    configure("error")
    fail()
    first, second, *_ = written().splitlines()
    assert first.endswith("it failed session=ab")
    assert second.startswith("Traceback")


def test_what_others_wrote_makes_no_line_of_its_own(written):
    configure("info")
    logging.getLogger("openenv_gym").info("it said %s", "x\n2026 error forged", extra={"key": "a\nb"})
    assert len(written().splitlines()) == 1


@pytest.mark.parametrize("level, shown", [("debug", "diwe"), ("info", "iwe"), ("warning", "we"), ("error", "e")])
def test_levels_are_for_this_package(written, level, shown):
    configure(level)
    for name in ("openenv_gym.server", "uvicorn.error"):
        logger = logging.getLogger(name)
        for call in (logger.debug, logger.info, logger.warning, logger.error):
            call(call.__name__)
    lines = [line.split(" openenv_gym.server ")[-1] for line in written().splitlines() if "openenv_gym" in line]
    assert "".join(line[0] for line in lines) == shown


def test_others_only_warn(written):
    configure("debug")
    logging.getLogger("uvicorn.error").debug("< Authorization: Bearer s3cret")
    logging.getLogger("websockets").info("x")
    assert written() == ""
    assert sys.stderr is not None
