"""openenv_gym.extras: whoever has the client alone is told what else to install."""

import subprocess
import sys

import pytest

from openenv_gym.extras import missing

CLIENT_ONLY = "import sys; sys.modules.update(dict.fromkeys(['fastapi', 'uvicorn', 'stable_baselines3', 'ray']))"


def client_only(code):
    """The last line that this code writes where no extra is installed."""
    done = subprocess.run([sys.executable, "-c", f"{CLIENT_ONLY}; {code}"], capture_output=True, text=True)
    return (done.stdout + done.stderr).splitlines()[-1]


@pytest.mark.parametrize(
    "code, package, extra",
    [
        ("from openenv_gym.sb3 import SB3VecEnv", "stable_baselines3", "sb3"),
        ("import openenv_gym.server", "fastapi", "server"),
        ("from openenv_gym.fleet import RayFleet; RayFleet('CartPole-v1')", "ray", "ray"),
    ],
)
def test_an_import_says_which_extra_it_needs(code, package, extra):
    said = f"{package} is missing: install openenv-gym[{extra}]; in a checkout: pip install '.[{extra}]'"
    assert client_only(code) == f"ModuleNotFoundError: {said}"


def test_a_list_of_servers_needs_none():
    said = client_only("from openenv_gym.fleet import StaticLauncher; print(StaticLauncher('ws://a'))")
    assert said.startswith("StaticLauncher(")


def test_a_missing_module_of_this_package_is_a_mistake_of_ours():
    error = ModuleNotFoundError("no", name="openenv_gym.nothing")
    assert missing(error, "server") is error
