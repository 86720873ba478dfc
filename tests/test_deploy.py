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
from helpers_faults import free_port, wait_until

from openenv_gym import LocalServer, RemoteVecEnv
from openenv_gym.errors import Unauthorized

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"


# ---------------------------------------------------------------------------------------------------- proxies


@pytest.fixture
def nginx(tmp_path):
    """Starts nginx with deploy/nginx.conf in front of a port, without TLS, and gives its URL."""
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx, which .ci/run installs")
    processes = []

    def start(upstream):
        port = free_port()
        text = (DEPLOY / "nginx.conf").read_text("utf-8")
        for old, new in (
            (r"listen 443 ssl;", f"listen 127.0.0.1:{port};"),
            (r"ssl_certificate\w* .*;", ""),
            (r"127\.0\.0\.1:8000", f"127.0.0.1:{upstream}"),
        ):
            text, count = re.subn(old, new, text)
            assert count, old
        (tmp_path / "server.conf").write_text(text)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log;\n"
            f"events {{}}\nhttp {{ access_log off; {temporary} include server.conf; }}\n"
        )
        processes.append(subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]))
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(url), "nginx")
        return url

    yield start
    for process in processes:
        process.terminate()
        process.wait(DEADLINE_S)


def answers(url):
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_training_through_nginx(nginx):
    with LocalServer("CartPole-v1") as server:
        url = nginx(server.url.rpartition(":")[2])
        with pytest.raises(Unauthorized):
            RemoteVecEnv(url, 2, token="wrong")
        remote = RemoteVecEnv(url, 2, token=server.token)
        local = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
        np.testing.assert_array_equal(remote.reset(seed=1)[0], local.reset(seed=1)[0])
        for _ in range(50):
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
        assert httpx.get(f"{url}/schema").status_code == 401


@pytest.mark.parametrize("name", ["Dockerfile", "space/Dockerfile"])
def test_an_image_is_checked_and_not_run_by_root(name):
    text = (DEPLOY / name).read_text("utf-8")
    last = text[text.rindex("\nFROM ") if "\nFROM " in text else 0 :]
    assert re.search(r"^USER (?!root)\w+$", last, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", last, re.MULTILINE)
    for source in re.findall(r"^COPY (?!--from)(?:--\S+ )*(\S+) \S+$", text, re.MULTILINE):
        assert ((DEPLOY / name).parent / source).exists()


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
