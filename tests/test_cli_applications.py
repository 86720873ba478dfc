"""``openenv-gym serve module:app``: an application that a module made with ``create_app`` is served as it is."""

from pathlib import Path

import numpy as np
import pytest
from helpers_cli import Running

from openenv_gym import RemoteVecEnv
from openenv_gym.commands import serve
from openenv_gym.errors import OptionError

MODULE = """
from fastapi import FastAPI
from openenv_gym.server import create_app
app = create_app("CartPole-v1", max_envs=3)
other = FastAPI()
def factory(): ...
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "made_elsewhere.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_an_application():
    application, elsewhere = serve._built("made_elsewhere:app", {}, debug=False)
    assert application.state.registry.settings.max_envs == 3
    assert elsewhere == {"env": "made_elsewhere:app", "app": "made_elsewhere:app"}


def test_its_settings_are_its_own():
    with pytest.raises(OptionError, match="leave out --max-envs, --token"):
        serve._application("made_elsewhere:app", {"max_envs": 2, "token": "secret", "grace_s": 60.0})


def test_an_application_of_another_kind():
    with pytest.raises(OptionError, match="run it with `uvicorn made_elsewhere:other`"):
        serve._application("made_elsewhere:other", {})


@pytest.mark.parametrize("name", ["CartPole-v1", "made_elsewhere:factory", "made_elsewhere:nothing", "no_module:app"])
def test_no_application(name):
    assert serve._application(name, {}) is None


@pytest.mark.parametrize("what", ["an_environment:Every", "an_environment:app"])
def test_an_openenv_environment(what, tmp_path):
    """By its class, which says its models, and as an application that names them."""
    pytest.importorskip("openenv")
    (tmp_path / "an_environment.py").write_text(
        "from helpers_openenv import Every, EveryAction, EveryObservation\n"
        "from openenv_gym.server import create_app\n"
        "app = create_app(Every, EveryAction, EveryObservation, max_concurrent_envs=4)\n"
    )
    path = str(Path(__file__).parent)
    with Running("serve", what, "--port", 0, cwd=tmp_path, PYTHONPATH=path) as serving:
        with RemoteVecEnv(serving.url(), 2, obs_key="board", action_key="gear") as vec:
            assert vec.reset()[0].shape == (2, 2, 3)
            assert vec.step(np.array([1, 6]))[1].tolist() == [1.0, 1.0]
