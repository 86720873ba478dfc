"""`openenv-gym bench`, and what it measures with, against real servers."""

import json
import os
import re

import gymnasium as gym
import pytest
from helpers_cli import run
from helpers_server import nobody, running
from typer.testing import CliRunner

from openenv_gym import RemoteVecEnv, cli
from openenv_gym.bench import measure
from openenv_gym.bench_plot import draw
from openenv_gym.errors import SpaceError
from openenv_gym.server import create_app
from openenv_gym.stats import MEANINGS, PARTS, SERVER_AND_NETWORK

SECRET = "s3cret-of-this-test"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def url():
    with running(create_app("CartPole-v1", max_envs=8)) as url:
        yield url


def invoke(*arguments):
    """Run the command in this process, where no subprocess is to be forked."""
    return CliRunner().invoke(cli.app, ["bench", *map(str, arguments)])


def test_what_is_measured(url):
    steps = 13  # in five rounds that can't all be of the same size
    with RemoteVecEnv(url, 3, connections=2) as envs:
        local = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync")
        result = measure(envs, steps, [local])
        local.close()
        assert result.stats.vector_steps == steps + 2  # two to warm up
        assert (result.steps, result.stats.collected) == (steps, steps)
        assert (result.env, result.num_envs, result.connections) == ("CartPole-v1", 3, 2)
        assert 0 < result.steps_per_s < result.stats.steps_per_s * 1.001  # which leaves out what is between steps
        envs.step(envs.action_space.sample())
        before = envs.stats()
        envs.step(envs.action_space.sample())
        after = envs.stats()
        # An id of one byte, and no `timed`; replies without times.
        assert result.bytes_up_per_step == pytest.approx(after.bytes_up - before.bytes_up, abs=4)
        assert result.bytes_down_per_step > after.bytes_down - before.bytes_down
    (compared,) = result.local
    assert compared.name == "SyncVectorEnv"
    assert compared.ratio > 0 < compared.steps_per_s


def test_another_action_space(url):
    local = gym.make_vec("MountainCar-v0", 2, vectorization_mode="sync")
    told = r"SyncVectorEnv has the action space Discrete\(3\), the server Discrete\(2\)"
    with RemoteVecEnv(url, 2) as envs, pytest.raises(SpaceError, match=told):
        measure(envs, 1, [local])
    local.close()


def test_a_table_for_people(url):
    done = invoke(url, "--num-envs", 2, "--steps", 3)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(
        f"CartPole-v1 at {url.replace('http', 'ws')}/ws\n2 envs, 1 connection(s), 3 vector steps"
    )
    row = re.compile(r"^ +(\w+) +[\d,.]+ +([\d.]+)% +[\d,.]+ +[\d,.]+ +[\d,.]+ +(\S.*?) *$", re.MULTILINE)
    rows = row.findall(done.stdout)
    assert [(name, meaning) for name, _, meaning in rows] == [(name, MEANINGS[name]) for name in (*PARTS, "whole")]
    assert "times as fast" not in done.stdout  # nothing was compared
    *shares, whole = (float(share) for _, share, _ in rows)
    assert whole == 100.0
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))


def test_the_server_and_its_token_may_be_in_the_environment(monkeypatch):
    with running(create_app("CartPole-v1", token=SECRET, max_envs=8)) as url:
        monkeypatch.setenv("OPENENV_BASE_URL", url)
        monkeypatch.setenv("OPENENV_GYM_TOKEN", SECRET)
        done = invoke("--steps", 1)
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"CartPole-v1 at {url.replace('http', 'ws')}/ws" in done.stdout


def test_comparing_with_a_factory(url, tmp_path):
    (tmp_path / "my_pole.py").write_text("import gymnasium as gym\ndef pole():\n    return gym.make('CartPole-v1')\n")
    done = run("bench", url, "--num-envs", 2, "--steps", 3, "--compare", "my_pole:pole", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    compared = r"^(\w+) here: [\d,]+ env steps/s; RemoteVecEnv is [\d.]+ times as fast$"
    assert re.findall(compared, done.stdout, re.MULTILINE) == ["SyncVectorEnv", "AsyncVectorEnv"]


def test_all_that_it_can_do_for_programs(url, tmp_path):
    plot = tmp_path / "plot.png"
    arguments = [
        "--num-envs",
        2,
        "--steps",
        20,
        "--connections",
        2,
        "--compare",
        "CartPole-v1",
        "--plot",
        plot,
        "--json",
    ]
    done = run("bench", url, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    data = json.loads(done.stdout)
    assert {type(data.pop(name)) for name in ("steps_per_s", "bytes_up_per_step", "bytes_down_per_step")} == {float}
    assert [local.pop("name") for local in data["local"]] == ["SyncVectorEnv", "AsyncVectorEnv"]
    assert {tuple(local) for local in data.pop("local")} == {("steps_per_s", "ratio")}
    stats = data.pop("stats")
    assert [part["name"] for part in stats["parts"]] == list(PARTS)
    assert sum(part["mean_us"] for part in stats["parts"]) == pytest.approx(stats["whole"]["mean_us"])
    where = f"{url.replace('http', 'ws')}/ws"
    assert data == {"url": where, "env": "CartPole-v1", "num_envs": 2, "connections": 2, "steps": 20}
    assert plot.read_bytes().startswith(PNG)


def test_a_stock_openenv_server(tmp_path):
    openenv = pytest.importorskip("helpers_openenv")
    with openenv.stock_server(openenv.CartPole) as url:
        space = gym.spaces.Dict(push=gym.spaces.Discrete(2))
        with RemoteVecEnv(url, 2, action_space=space) as envs:
            result = measure(envs, 5)
            draw(result, envs.rollout.recorder.samples(), tmp_path / "plot.png")
    assert [part.name for part in result.stats.parts][2] == SERVER_AND_NETWORK
    assert (result.env, result.connections) == ("", 2)


class TestWhatIsWrongIsOneLine:
    @pytest.mark.parametrize(
        "arguments, line",
        [
            (["no URL"], "'no URL' isn't a URL of a server; .*"),
            (
                ["{url}", "--num-envs", 9],
                r"ws://.* admits 8 env\(s\) at a time, and 9 were asked for; .* \(--num-envs\)",
            ),
            (
                ["{url}", "--compare", "CartPol-v1"],
                "--compare: can't make CartPol-v1 here: .* Did you mean: `CartPole`.*",
            ),
            (["{url}", "--compare", "no_module:Env-v0"], "--compare: can't make no_module:Env-v0 here: .*no_module.*"),
            (["{url}", "--compare", "json:Env-v0"], "--compare: can't make json:Env-v0 here: NameNotFound: .*"),
            (["{url}", "--plot", "no/such/folder/x.png"], "--plot: no/such/folder is no folder"),
            (["{url}", "--plot", "x.jpge"], "--plot: x.jpge can't be drawn; the endings are .*, png, .*"),
            (["{url}", "--token-env", "NOT_SET"], "--token-env: the variable NOT_SET is empty or not set"),
        ],
        ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
    )
    def test_here(self, url, arguments, line):
        done = invoke(*(str(argument).format(url=url) for argument in arguments))
        assert (done.exit_code, done.stdout) == (2, "")
        assert re.fullmatch(f"openenv-gym: {line}\n", done.stderr), done.stderr

    def test_no_server(self):
        with nobody() as url:
            done = invoke(url)
        assert (done.exit_code, done.stdout) == (2, "")
        assert re.fullmatch(r"openenv-gym: no server at ws://.* \(connection refused\); .*\n", done.stderr)

    @pytest.mark.parametrize("option, value", [("--num-envs", 0), ("--steps", 0), ("--connections", 0)])
    def test_numbers_that_are_too_small(self, url, option, value):
        done = invoke(url, option, value)
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"'{option}'" in done.stderr

    def test_a_token(self, tmp_path, monkeypatch):
        monkeypatch.delenv("OPENENV_GYM_TOKEN", raising=False)
        (tmp_path / "token").write_text(SECRET)
        monkeypatch.setenv("WRONG", SECRET[::-1])
        with running(create_app("CartPole-v1", token=SECRET)) as url:
            right = invoke(url, "--num-envs", 1, "--steps", 1, "--token-file", tmp_path / "token")
            wrong = invoke(url, "--num-envs", 1, "--steps", 1, "--token-env", "WRONG")
        assert right.exit_code == 0
        assert (wrong.exit_code, wrong.stdout) == (2, "")
        assert "refused the token (HTTP 401); pass --token-env or --token-file or set" in wrong.stderr
        assert not any(secret in right.output + wrong.output for secret in (SECRET, os.environ["WRONG"]))
