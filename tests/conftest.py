"""What all tests share: what is too dear to be started twice, and what each must leave as it was."""

import logging
import os
from pathlib import Path

import pytest
from helpers_faults import ServerProcess


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
