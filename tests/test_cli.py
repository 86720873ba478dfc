"""The command line, in processes of its own, as a user starts and stops it."""

import contextlib
import datetime as dt
import inspect
import ipaddress
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from helpers_cli import Running, environment, run
from helpers_wait import LIMIT_S
from typer.testing import CliRunner

from openenv_gym import RemoteVecEnv, cli, errors
from openenv_gym.commands import serve
from openenv_gym.server import ServerSettings
from openenv_gym.version import __version__

MY_ENVS = """
import gymnasium as gym
import threading

class Corridor(gym.Env):
    observation_space = gym.spaces.Discrete(10)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=9):
        if length < 1:
            raise ValueError("too short:\\n  a second line")
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action):
        self.place += 1
        return self.place, 0.0, self.place == self.length, False, {}

def slow():
    print("building", flush=True)
    threading.Event().wait()

def no_env():
    return 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a user's module, my_envs."""
    path = tmp_path_factory.mktemp("folder")
    (path / "my_envs.py").write_text(MY_ENVS)
    (path / "broken.py").write_text("import not_installed_anywhere")
    (path / "slow_to_import.py").write_text("import my_envs; my_envs.slow()")
    return path


class TestHelp:
    @pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["demo", "--help"], ["bench", "--help"]])
    def test_is_given(self, arguments):
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Usage: openenv-gym")

    def test_no_line_of_it_is_cut(self):
        done = run("--help", env=environment(COLUMNS="80"))
        assert all(f"  {name} " in done.stdout for name in ("serve", "doctor", "bench", "demo", "fleet"))
        assert "..." not in done.stdout.partition("Commands:")[2]

    def test_the_version(self):
        done = run("--version")
        assert (done.returncode, done.stdout) == (0, f"openenv-gym {__version__}\n")

    def test_is_quick(self):
        code = "import sys, openenv_gym.cli; print(*sys.modules)"
        loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        assert {"fastapi", "matplotlib", "stable_baselines3", "torch", "uvicorn"} & set(loaded) == set()

    def test_without_arguments_it_is_given_too(self):
        assert "Commands:" in run().stderr + run().stdout

    def test_python_dash_m_is_the_same(self):
        command = [sys.executable, "-m", "openenv_gym", "--help"]
        helped = subprocess.run(command, capture_output=True, text=True, env=environment()).stdout
        assert helped.replace("python -m openenv_gym", "openenv-gym") == run("--help").stdout


class TestOptions:
    def test_each_setting_has_one_except_for_these(self):
        settings = ServerSettings.model_fields.keys() - inspect.signature(serve.serve).parameters.keys()
        otherwise = {"token", "allowed_origins"}  # --token-env, --token-file and --allow-origin
        assert settings == otherwise | {"web", "env_name"}  # web is --no-web

    @pytest.fixture
    def settings_of(self, monkeypatch):
        """Gives the settings that arrive at the server for a command line."""

        def built(env, options, debug):
            arrived.append(ServerSettings(**options))
            raise typer.Exit

        arrived = []
        monkeypatch.setattr(serve, "_built", built)
        monkeypatch.setattr(serve, "_Ending", contextlib.nullcontext)  # signals are pytest's here

        def settings_of(*arguments):
            result = CliRunner().invoke(cli.app, ["serve", "CartPole-v1", *arguments])
            assert result.exit_code == 0, result.output
            return arrived.pop()

        return settings_of

    def test_the_defaults_are_the_settings_own(self, settings_of):
        assert settings_of() == ServerSettings()

    @pytest.mark.parametrize(
        "arguments, name, value",
        [
            ("--max-envs 3", "max_envs", 3),
            ("--max-workers 2", "max_workers", 2),
            ("--grace-s 0", "grace_s", 0),
            ("--idle-timeout-s 5", "idle_timeout_s", 5),
            ("--idle-timeout-s 0", "idle_timeout_s", None),
            ("--max-step-s 1.5", "max_step_s", 1.5),
            ("--opening-timeout-s 4", "opening_timeout_s", 4),
            ("--shutdown-s 2", "shutdown_s", 2),
            ("--max-message-size-mb 7", "max_message_size_mb", 7),
            ("--ping-interval-s 0", "ping_interval_s", None),
            ("--ping-timeout-s 0", "ping_timeout_s", None),
            ("--allow-call a,b", "allow_call", {"a", "b"}),
            ("--allow-call *", "allow_call", None),
            ("--allow-set a", "allow_set", {"a"}),
            ("--allow-get a,b", "allow_get", {"a", "b"}),
            ("--allow-get=", "allow_get", set()),
            ("--allow-origin http://a --allow-origin http://b", "allowed_origins", ("http://a", "http://b")),
            ('--env-kwargs {"a":[1]}', "env_kwargs", {"a": [1]}),
            ("--mode production", "mode", "production"),
            ("--debug", "debug", True),
        ],
    )
    def test_each_arrives(self, settings_of, arguments, name, value):
        assert getattr(settings_of(*arguments.split()), name) == value


class TestServe:
    def test_says_what_it_serves_once_it_answers(self):
        with Running("serve", "CartPole-v1", "--port", 0, "--max-envs", 5, "--log-level", "warning") as serving:
            url = serving.url()
            with pytest.raises(ConnectionRefusedError):  # another address of this machine
                socket.create_connection(("127.0.0.2", int(url.rpartition(":")[2])))
            envs = RemoteVecEnv(url, 5)
            assert envs.reset(seed=1)[0].shape == (5, 4)
            envs.close()
            assert serving.output.splitlines() == [
                f"openenv-gym 0.1.0 serves CartPole-v1 at {url}",
                f"  observations  {' '.join(str(envs.single_observation_space).split())}",
                "  actions       Discrete(2)",
                "  capacity      5 envs",
                "  token         not needed",
                f"  page          {url}/web",
                "Ctrl+C stops it.",
            ]
            assert serving.errors == ""

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_ends_it_in_order(self, number):
        with Running("serve", "CartPole-v1", "--port", 0, "--log-level", "warning") as serving:
            envs = RemoteVecEnv(serving.url(), 2)
            envs.reset()
            envs.step(np.zeros(2, np.int64))
            assert serving.end(number) == 0
            assert serving.errors == ""
            envs.close()

    def test_a_signal_ends_it_whatever_an_env_left_behind(self):
        arguments = ("serve", "helpers_envs:make_clinging", "--port", 0, "--shutdown-s", 0)
        with Running(*arguments, cwd=Path(__file__).parent) as serving:
            serving.url()
            assert serving.end(signal.SIGTERM) == 1
            assert serving.errors.endswith("something keeps this process alive; it is ended\n")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("env", ["my_envs:slow", "slow_to_import:x"])
    def test_a_signal_ends_it_while_it_starts(self, folder, env, number):
        with Running("serve", env, "--port", 0, cwd=folder) as serving:
            serving.wait_for("building")
            assert serving.end(number) == 0
            assert serving.errors == ""

    def test_the_current_folder_is_importable_and_kwargs_reach_the_env(self, folder):
        kwargs = '{"length": 2}'
        with Running("serve", "my_envs:Corridor", "--port", 0, "--env-kwargs", kwargs, cwd=folder) as serving:
            envs = RemoteVecEnv(serving.url(), 1)
            envs.reset()
            assert [bool(envs.step([0])[2][0]) for _ in range(2)] == [False, True]
            envs.close()

    def test_a_package_that_registers_when_it_is_imported_is_imported(self, folder):
        (folder / "ale_py.py").write_text("import gymnasium\ngymnasium.register('ALE/Game-v5', 'my_envs:Corridor')\n")
        with Running("serve", "ALE/Game-v5", "--port", 0, cwd=folder) as serving:
            serving.wait_for(" serves ALE/Game-v5 at ")

    def test_a_name_is_as_good_as_an_address(self):
        with Running("serve", "CartPole-v1", "--host", "localhost", "--port", 0, "--no-web") as serving:
            assert serving.url().startswith("http://localhost:")
            RemoteVecEnv(serving.url(), 1).close()
            assert "/web" not in serving.output

    @pytest.mark.parametrize("way", ["--token-env", "--token-file"])
    def test_the_token_is_asked_for_and_never_shown(self, tmp_path, way):
        secret = "s3cret-of-this-test"
        (tmp_path / "token").write_text(f"{secret}\n")
        given = [way, "MY_TOKEN" if way == "--token-env" else tmp_path / "token"]
        with Running("serve", "CartPole-v1", "--port", 0, *given, MY_TOKEN=secret) as serving:
            url = serving.url()
            RemoteVecEnv(url, 1, token=secret).close()
            with pytest.raises(errors.Unauthorized):
                RemoteVecEnv(url, 1, token="another")
            assert serving.end(signal.SIGTERM) == 0
            assert "  token         needed" in serving.output
            assert secret not in serving.output + serving.errors

    def test_events_are_lines_of_json_without_secrets(self):
        secret = "s3cret-of-this-test"
        command = ["serve", "CartPole-v1", "--port", 0, "--token-env", "MY_TOKEN", "--log-json"]
        with Running(*command, MY_TOKEN=secret) as serving:
            url = serving.url()
            with RemoteVecEnv(url, 2, token=secret, close_timeout_s=LIMIT_S) as envs:
                envs.reset()
                for _ in range(50):
                    envs.step(np.zeros(2, np.int64))
            with pytest.raises(errors.Unauthorized):
                RemoteVecEnv(url, 1, token="another")
            assert serving.end(signal.SIGTERM) == 0
        opened, closed, refused = map(json.loads, serving.errors.splitlines())  # and nothing for a step
        assert (opened["message"], opened["envs"]) == ("a session was opened", 2)
        assert (closed["message"], closed["steps"]) == ("a session was closed", 100)
        assert opened["session"] == closed["session"]
        assert (refused["status"], refused["path"]) == (401, "/ws")
        assert "secret" not in serving.errors
        assert secret not in serving.errors

    @pytest.mark.parametrize(
        "token, warning",
        [("", "there is no token"), ("x", "a token of 1 characters can be guessed"), ("a-long-secret", None)],
    )
    def test_strangers_need_a_warning(self, token, warning):
        given = ["--token-env", "MY_TOKEN"] if token else []
        with Running("serve", "CartPole-v1", "--host", "0.0.0.0", "--port", 0, *given, MY_TOKEN=token) as serving:
            assert serving.url().startswith("http://127.0.0.1:")
            assert "every other address of this machine" in serving.output
            assert serving.end(signal.SIGTERM) == 0
            assert ("WARNING: 0.0.0.0" in serving.errors) == (warning is not None)
            assert warning is None or warning in serving.errors

    def test_tls(self, tmp_path):
        certificate, key = write_certificate(tmp_path)
        with Running("serve", "CartPole-v1", "--port", 0, "--tls-cert", certificate, "--tls-key", key) as serving:
            url = serving.url()
            assert url.startswith("https://")
            envs = RemoteVecEnv(url, 1, ca_file=certificate)
            assert envs.reset(seed=1)[0].shape == (1, 4)
            envs.close()
            few = ("--num-envs", 1, "--steps", 1, "--json")
            assert run("bench", url, *few, "--ca-file", certificate).returncode == 0
            assert "certificate verify failed" in run("bench", url, *few).stderr


def write_certificate(folder):
    """A certificate for 127.0.0.1, and its key, as files."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, *plain))
    return folder / "cert.pem", folder / "key.pem"


class TestWhatIsWrongIsOneLine:
    @pytest.mark.parametrize(
        "arguments, line",
        [
            (["CartPol-v1"], "unknown environment 'CartPol-v1': .* Did you mean CartPole-v1 or .*"),
            (["CartPole-v99"], "unknown environment 'CartPole-v99': .* Did you mean CartPole-v1 or .*"),
            (["Nowhere/Near-v0"], "unknown environment 'Nowhere/Near-v0': Namespace Nowhere not found.*"),
            (["my_envs:Coridor"], r"unknown environment 'my_envs:Coridor': .* Did you mean my_envs:Corridor\?"),
            (
                ["no_module:x"],
                ".*'no_module'; modules are looked for in the current folder .*",
            ),
            (["my_envs.py:Corridor"], ".*; a module has a name, not a path: write my_envs:Corridor .*"),
            (
                ["my_envs.Corridor"],
                "unknown environment 'my_envs.Corridor': .* Write module:callable for one of your own, .*",
            ),
            (["my_envs"], "unknown environment 'my_envs': .*, and module:EnvId for an id that importing .*"),
            (["my_envs:gym"], r"can't create the environment 'my_envs:gym': gym is a module, and not a class .*"),
            (["broken:x"], "can't create the environment 'broken:x': importing broken .*'not_installed_anywhere'.*"),
            (["my_envs:no_env"], "can't create the environment 'my_envs:no_env': the factory returned int, .*"),
            (
                ["my_envs:Corridor", "--env-kwargs", '{"length": 0}'],
                r"can't create the environment 'my_envs:Corridor': ValueError: too short: a second line \(--debug .*",
            ),
            (
                ["CartPole-v1", "--env-kwargs", "{length: 0}"],
                r"--env-kwargs is no JSON: .*; write it like '\{\"size\": 3\}'",
            ),
            (["CartPole-v1", "--env-kwargs", "[]"], r"--env-kwargs must be a JSON object, .*, not \[\]"),
            (["CartPole-v1", "--token-env", "NOT_SET"], "--token-env: the variable NOT_SET is empty or not set"),
            (["CartPole-v1", "--token-file", "no.txt"], "--token-file: no.txt can't be read: No such file.*"),
            (["CartPole-v1", "--token-file", "my_envs.py"], "--token-file: my_envs.py holds a token with spaces .*"),
            (["CartPole-v1", "--token-file", "a", "--token-env", "B"], "--token-env and --token-file are two ways .*"),
            (["CartPole-v1", "--max-envs", "0"], "--max-envs: Input should be greater than or equal to 1"),
            (["CartPole-v1", "--host", "192.0.2.1"], "can't listen on 192.0.2.1 port 8000: Cannot assign .*"),
            (["CartPole-v1", "--port", "0", "--tls-key", "key.pem"], "--tls-key needs --tls-cert"),
            (["CartPole-v1", "--port", "0", "--tls-cert", "my_envs.py"], "--tls-cert and --tls-key can't be used: .*"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_serve(self, folder, arguments, line):
        done = run("serve", *arguments, cwd=folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert_one_line(done.stderr, line)

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            done = run("serve", "CartPole-v1", "--port", port)
        assert (done.returncode, done.stdout) == (2, "")
        assert_one_line(
            done.stderr, f"can't listen on 127.0.0.1 port {port}: Address already in use; choose another .*"
        )

    def test_debug_shows_the_traceback(self, folder):
        done = run("serve", "my_envs:Corridor", "--env-kwargs", '{"length": 0}', "--debug", cwd=folder)
        assert done.returncode == 2
        assert "Traceback" in done.stderr
        assert "in __init__" in done.stderr
        assert "--debug" not in done.stderr

    def test_an_option_that_is_no_number(self):
        done = run("serve", "CartPole-v1", "--port", "http")
        assert done.returncode == 2
        assert "'--port'" in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        "missing, arguments, extras",
        [
            ("fastapi", ["serve", "CartPole-v1"], "server"),
            ("stable_baselines3", ["demo"], "server,sb3"),
            ("matplotlib", ["demo"], "server,sb3"),
            ("matplotlib", ["bench", "http://localhost:1", "--plot", "x.png"], "plot"),
            ("typer", ["--help"], "server,sb3"),
        ],
    )
    def test_an_extra_that_is_missing(self, missing, arguments, extras):
        code = f"import sys; sys.modules[{missing!r}] = None; from openenv_gym.__main__ import main; main()"
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        assert (done.returncode, done.stdout) == (2, "")
        assert_one_line(done.stderr, rf"{missing} is missing: install openenv-gym\[{extras}\]; in a checkout: .*")

    def test_the_demo_has_nowhere_to_write(self):
        done = run("demo", "--out", "no/such/folder/x.png")
        assert (done.returncode, done.stdout) == (2, "")
        assert_one_line(done.stderr, "--out: no/such/folder is no folder")


def assert_one_line(text, pattern):
    assert text.count("\n") == 1
    assert re.fullmatch(f"openenv-gym: {pattern}\n", text), text


@pytest.mark.parametrize("solved", [True, False])
def test_the_demos_exit_code_says_whether_the_env_is_solved(monkeypatch, solved):
    from openenv_gym import demo

    monkeypatch.setattr(demo, "run", lambda *arguments: solved)
    assert CliRunner().invoke(cli.app, ["demo"]).exit_code == (0 if solved else 1)
