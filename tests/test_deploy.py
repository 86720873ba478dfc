"""The files of deploy/, as far as they can be used without a container engine or a cluster."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import httpx
import numpy as np
import pytest
import yaml
from helpers_cli import DEADLINE_S, Running, run
from helpers_faults import free_port
from helpers_server import nobody
from helpers_wait import LIMIT_S, wait_until

from openenv_gym import LocalServer, RemoteVecEnv
from openenv_gym.errors import Unauthorized

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"


# ---------------------------------------------------------------------------------------------------- proxies


class Proxy:
    """A proxy with a configuration of deploy/, without TLS, in front of a server.

    Args:
        folder: an empty one, for its files.
        server_url: the server's URL.

    Attributes:
        name: its configuration in deploy/.
        run: the command that runs it.
        reload: the command that has it read its configuration again.
        url: the proxy's URL.
    """

    name: str
    run: tuple[str, ...]
    reload: tuple[str, ...]
    replaced: tuple[tuple[str, str], ...]
    """Patterns in the configuration, and what stands there instead: its own `{port}`, and the server's `{upstream}`."""

    def __init__(self, folder, server_url):
        self.folder = folder
        port, upstream = free_port(), server_url.rpartition(":")[2]
        self.url = f"http://127.0.0.1:{port}"
        text = (DEPLOY / self.name).read_text("utf-8")
        for old, new in self.replaced:
            text, count = re.subn(old, new.format(port=port, upstream=upstream), text)
            assert count, old
        (folder / self.name).write_text(self.prepared(text))

    def prepared(self, text):
        """The whole configuration, with what the machine has of its own elsewhere."""
        return text

    def __enter__(self):
        self._process = self.start(self.run)
        wait_until(lambda: answers(self.url), self.name)
        return self

    def __exit__(self, *exc_info):
        self._process.terminate()
        self._process.wait(DEADLINE_S)

    def start(self, command):
        here = {"HOME": str(self.folder), "PATH": os.environ["PATH"]}
        return subprocess.Popen(command, cwd=self.folder, env=here, stderr=subprocess.DEVNULL)

    def read_again(self):
        """Have it read its configuration again."""
        assert self.start(self.reload).wait(DEADLINE_S) == 0


class Nginx(Proxy):
    name = "nginx.conf"
    replaced = (
        (r"listen 443 ssl;", "listen 127.0.0.1:{port};"),
        (r"ssl_certificate\w* .*;", ""),
        (r"127\.0\.0\.1:8000", "127.0.0.1:{upstream}"),
    )
    run = ("nginx", "-p", ".", "-c", "nginx.conf")
    reload = (*run, "-s", "reload")

    def prepared(self, text):
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = " ".join(f"{kind}_temp_path {self.folder}/{kind};" for kind in kinds)
        return (
            f"daemon off; pid {self.folder}/pid; error_log {self.folder}/error.log;\n"
            f"events {{}}\nhttp {{ access_log off; {temporary}\n{text}}}\n"
        )


class Caddy(Proxy):
    name = "Caddyfile"
    replaced = ((r"envs\.example\.com", "http://127.0.0.1:{port}"), (r"127\.0\.0\.1:8000", "127.0.0.1:{upstream}"))
    run = ("caddy", "run")
    reload = ("caddy", "reload", "--config", "Caddyfile", "--force")

    def prepared(self, text):
        return f"{{\n\tadmin 127.0.0.1:{free_port()}\n}}\n{text}"


@pytest.fixture(params=[Nginx, Caddy])
def proxy(request):
    if shutil.which(request.param.run[0]) is None:
        pytest.skip(f"needs {request.param.run[0]}, which .ci/run installs")
    return request.param


def answers(url):
    try:
        return httpx.get(f"{url}/health", timeout=LIMIT_S).status_code == 200
    except httpx.TransportError:
        return False


def test_training_through_a_proxy(proxy, tmp_path):
    """It goes on when the proxy's configuration is read again, which with Caddy cuts all connections."""
    with LocalServer("CartPole-v1") as server, proxy(tmp_path, server.url) as running:
        with pytest.raises(Unauthorized):
            RemoteVecEnv(running.url, 2, token="wrong")
        remote = RemoteVecEnv(running.url, 2, token=server.token)
        local = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
        np.testing.assert_array_equal(remote.reset(seed=1)[0], local.reset(seed=1)[0])
        for step in range(50):
            if step == 25:
                running.read_again()
            actions = local.action_space.sample()
            for ours, theirs in zip(remote.step(actions)[:4], local.step(actions)[:4], strict=True):
                np.testing.assert_array_equal(ours, theirs)
        remote.close()
        local.close()


def test_envoy_lets_websockets_idle():
    (listener,) = yaml.safe_load((DEPLOY / "envoy.yaml").read_text("utf-8"))["static_resources"]["listeners"]
    config = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (route,) = config["route_config"]["virtual_hosts"][0]["routes"]
    assert config["upgrade_configs"] == [{"upgrade_type": "websocket"}]
    assert (config["stream_idle_timeout"], route["route"]["idle_timeout"]) == ("600s", "600s")
    assert route["route"]["timeout"] == "0s"


# ----------------------------------------------------------------------------------------- images and services


def test_the_service_starts_with_options_that_exist():
    unit = (DEPLOY / "openenv-gym.service").read_text("utf-8")
    (command,) = re.findall(r"^ExecStart=\S+/openenv-gym (.*)$", unit, re.MULTILINE)
    options = re.findall(r"--[\w-]+", command)
    known = run(command.split()[0], "--help").stdout
    assert "--token-file" in options
    assert all(option in known for option in options)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_accepts_the_service(tmp_path):
    unit = (DEPLOY / "openenv-gym.service").read_text("utf-8").replace("/opt/openenv-gym/bin/openenv-gym", "/bin/true")
    (tmp_path / "openenv-gym.service").write_text(unit)
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "openenv-gym.service")]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=DEADLINE_S)
    assert "openenv-gym.service" not in done.stdout + done.stderr


def image_arguments(token):
    """What the image's command gives to `openenv-gym`."""
    (command,) = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    shell, flag, line = json.loads(command)
    assert line.startswith("exec openenv-gym ")
    variables = {"ENV": "CartPole-v1", "PORT": "0", "OPENENV_GYM_TOKEN": token, "PATH": os.environ["PATH"]}
    printing = [shell, flag, line.replace("exec openenv-gym", "printf '%s\n'")]
    return subprocess.run(printing, env=variables, capture_output=True, text=True, timeout=DEADLINE_S).stdout.split()


def test_the_image_starts_a_server():
    assert image_arguments("") == ["serve", "CartPole-v1", "--host", "0.0.0.0", "--port", "0"]
    command, *arguments = image_arguments("a-long-secret")
    arguments[arguments.index("0.0.0.0")] = "127.0.0.1"
    with Running(command, *arguments, OPENENV_GYM_TOKEN="a-long-secret") as serving:
        url = serving.url()
        assert answers(url)
        assert httpx.get(f"{url}/schema", timeout=LIMIT_S).status_code == 401


def commands(name):
    """A Dockerfile's commands, as Docker's own parser reads them, by their names; those of the last stage."""
    dockerfile = pytest.importorskip("dockerfile", reason="needs Docker's parser: pip install dockerfile")
    found = {}
    for command in dockerfile.parse_file(str(DEPLOY / name)):
        if command.cmd == "FROM":
            found.clear()
        found.setdefault(command.cmd, []).append(command)
    return found


@pytest.mark.parametrize("name", ["Dockerfile", "space/Dockerfile"])
def test_an_image_is_not_run_by_root(name):
    found = commands(name)
    ((user,),) = [command.value for command in found["USER"]]
    assert user not in {"root", "0"}
    (made,) = (command.value[0] for command in found["RUN"] if "useradd" in command.value[0])
    assert made.split()[-1] == user
    assert found["CMD"][0].json  # with no shell around it, which would keep signals from the server


@pytest.mark.parametrize("name", ["Dockerfile", "space/Dockerfile"])
def test_an_image_has_what_it_copies(name):
    for command in commands(name)["COPY"]:
        if not any(flag.startswith("--from") for flag in command.flags):
            assert ((DEPLOY / name).parent / command.value[0]).exists()


@pytest.mark.parametrize("name", ["Dockerfile", "space/Dockerfile"])
def test_an_images_health_check_tells_whether_the_server_answers(name):
    (check,) = commands(name)["HEALTHCHECK"]
    kind, _, *arguments = check.value
    assert kind == "CMD"
    with LocalServer("CartPole-v1") as server, nobody() as nowhere:
        for url, code in ((server.url, 0), (nowhere, 1)):
            port = url.rpartition(":")[2]
            line = [argument.replace(":8000/", f":{port}/") for argument in arguments]
            variables = {**os.environ, "PORT": port}
            asked = subprocess.run([sys.executable, *line], env=variables, capture_output=True, timeout=DEADLINE_S)
            assert asked.returncode == code


def test_an_image_is_built_without_what_only_this_machine_needs():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").split()
    assert {".git", ".venv"} <= set(ignored)


def test_the_space_is_a_package_that_openenv_accepts(tmp_path):
    shutil.copytree(DEPLOY / "space", tmp_path / "space")
    openenv = [sys.executable, "-m", "openenv.cli"]
    validate = [*openenv, "validate", str(tmp_path / "space"), "--level", "static", "--skip-build"]
    done = subprocess.run(validate, capture_output=True, text=True, timeout=DEADLINE_S)
    assert "Verdict: PASS" in done.stdout, done.stdout + done.stderr


def test_the_space_serves_its_env():
    manifest = yaml.safe_load((DEPLOY / "space" / "openenv.yaml").read_text("utf-8"))
    with Running("serve", manifest["app"], "--port", 0, cwd=DEPLOY / "space", ENV="Blackjack-v1") as serving:
        with RemoteVecEnv(serving.url(), 2) as envs:
            assert len(envs.reset(seed=1)[0]) == 3
            assert envs.single_action_space == gym.spaces.Discrete(2)
