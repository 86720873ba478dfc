"""What all tests share: what is too dear to be started twice, and what each must leave as it was."""

import logging
import os
from pathlib import Path

import hypothesis
import pytest
from helpers_faults import ServerProcess
from helpers_wait import LIMIT_S

from openenv_gym.json_channel import JsonChannel

# How long an example takes, and how long it takes to find one, tells of the machine only.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


@pytest.fixture(scope="session")
def ray_cluster():
    """A Ray cluster of three nodes on this machine, with Ray's token authentication, that this process has joined.

    The head has no CPUs, so that servers are on the other two nodes, which have two each.
    """
    helpers_ray = pytest.importorskip("helpers_ray", reason="needs the extra `ray`", exc_type=ImportError)
    with pytest.MonkeyPatch.context() as patch:  # for the servers, which import what tests serve
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        with helpers_ray.cluster() as cluster:
            yield cluster


@pytest.fixture(scope="module")
def process():
    """A server that tests may kill; whoever does starts it again."""
    with ServerProcess("helpers_tally:Endless") as server:
        yield server


@pytest.fixture
def patient(monkeypatch):
    """Who closes a session in OpenEnv's dialect waits until its room is free, though a busy server takes long for it.

    Users wait for two seconds. A `RemoteVecEnv` has ``close_timeout_s`` for the same.
    """
    monkeypatch.setattr(JsonChannel.close, "__defaults__", (LIMIT_S,))
    for module in ("json_channel", "opening", "doctor"):
        monkeypatch.setattr(f"openenv_gym.{module}._CLOSE_S", LIMIT_S)


@pytest.fixture(autouse=True)
def _logging_as_before():
    """Take back what a command that ran in this process made of the logging: its stream is closed by now."""
    root, own = logging.getLogger(), logging.getLogger("openenv_gym")
    handlers, level, own_level = root.handlers[:], root.level, own.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    own.setLevel(own_level)


def pytest_collection_modifyitems(items):
    """An id with an address in it differs between processes, and `pytest -n 2` wants them to be the same."""
    assert [item.nodeid for item in items if " at 0x" in item.nodeid] == []
