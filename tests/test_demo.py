"""The demo. Here it trains for seconds only, so the env isn't solved; `make demo` is the whole of it."""

import io
import os
import re
import struct

import numpy as np
import pytest
from helpers_cli import Running, run
from rich.console import Console
from stable_baselines3.common.vec_env import VecEnv

from openenv_gym import demo

LAST_LINE = r"demo: mean_return=(\d+\.\d) timesteps=(\d+) steps_per_s=(\d+\.\d)"


def png_size(data):
    """Width and height of a PNG file."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


@pytest.mark.slow
class TestInAProcess:
    def test_in_a_pipe(self, tmp_path):
        done = run("demo", "--timesteps", 1_500, "--out", "curve.png", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (1, "")
        *lines, last = done.stdout.splitlines()
        mean_return, timesteps, steps_per_s = map(float, re.fullmatch(LAST_LINE, last).groups())
        assert 8 <= mean_return < demo.SOLVED
        assert timesteps == 1_536  # whole rollouts of 256
        assert steps_per_s > 0
        assert [line for line in lines if line.startswith("      768 steps  ")]
        assert set(re.findall(r"[\x00-\x1f\x7f]", done.stdout)) == {"\n"}  # no control codes
        assert min(png_size((tmp_path / "curve.png").read_bytes())) > 500

    @pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX's")
    def test_on_a_terminal(self, tmp_path):
        shown = on_a_terminal(tmp_path, "demo", "--timesteps", "500", "--num-envs", "3")
        assert "500/500" in shown
        assert re.search(r"[\d,]+ steps/s, mean return \d+\.\d", shown)
        assert re.fullmatch(LAST_LINE, shown.rstrip().splitlines()[-1])


def on_a_terminal(cwd, *arguments):
    """What the command shows on a terminal."""
    ours, theirs = os.openpty()
    try:
        with Running(*arguments, cwd=cwd, stdout=theirs, TERM="xterm", COLUMNS="120") as running:
            os.close(theirs)
            shown = b""
            while chunk := read(ours):
                shown += chunk
            assert (running.wait(), running.errors) == (1, "")
    finally:
        os.close(ours)
    return shown.decode()


def read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says the end so
        return b""


@pytest.mark.slow
class TestRun:
    def test_the_same_seed_gives_the_same_numbers(self, tmp_path):
        first, second, other = (self.numbers(tmp_path, seed) for seed in (3, 3, 4))
        assert first == second
        assert first != other

    @staticmethod
    def numbers(folder, seed):
        console = Console(file=io.StringIO(), width=100)
        demo.run(256, 2, seed, folder / "curve.png", console)
        shown = console.file.getvalue()
        return re.findall(r"mean.return[ =]\d+\.\d", shown), re.search(r" timesteps=\d+", shown)[0]


class Instant(VecEnv):
    """Envs on a clock of their own: sending takes one second, waiting two."""

    def __init__(self, clock):
        self.clock = clock
        super().__init__(1, None, None)

    def step_async(self, actions):
        self.clock[0] += 1

    def step_wait(self):
        self.clock[0] += 2
        return "result"

    def reset(self):
        self.clock[0] += 100
        return "first"

    def close(self): ...
    def get_attr(self, attr_name, indices=None):
        return [None]

    def set_attr(self, attr_name, value, indices=None): ...
    def env_method(self, method_name, *args, indices=None, **kwargs): ...
    def env_is_wrapped(self, wrapper_class, indices=None): ...


def test_the_stopwatch_counts_what_the_envs_take_and_nothing_else(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(demo.time, "perf_counter", lambda: clock[0])
    stopwatch = demo.Stopwatch(Instant(clock))
    assert stopwatch.reset() == "first"
    for _ in range(3):
        stopwatch.step_async(np.zeros(1))
        clock[0] += 10  # the learner's own time
        assert stopwatch.step_wait() == "result"
    assert (stopwatch.steps, stopwatch.seconds) == (3, 9)


@pytest.mark.parametrize(
    "returns, mastered",
    [
        ([500.0] * 39, False),
        ([500.0] * 40, True),
        ([20.0] * 100 + [475.0] * 40, True),
        ([500.0] * 39 + [474.0], False),
        ([474.0] + [500.0] * 39, False),
    ],
)
def test_the_training_ends_when_enough_episodes_in_a_row_were_solved(returns, mastered):
    assert demo.Training(returns=returns).has_mastered == mastered
