"""The benchmark of scale: what it measures and writes, with few envs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from scale_report import markdown  # noqa: E402


def measured(step_ms, **values):
    plain = {"open_s": 2.0, "session_ms": [1.0, 2.0], "reset_ms": 3.0, "step_ms": [step_ms, 9.0], "slowest_ms": 9.5}
    kib = {"client_kib_per_env": 0.5, "server_kib_per_env": 4.0}
    return {**plain, **kib, "steps_s": round(1e6 / step_ms), "bytes_per_env": 34.0, **values}


def simulated(envs, sessions):
    """As if a connection cost 0.2 ms, and an env 0.1 microseconds."""
    return measured(0.2 * sessions + 0.0001 * envs)


def test_the_report_follows_from_what_was_measured():
    results = {
        ("ours", 1000, 1, 1): measured(2.0),
        ("ours", 1000, 1000, 1): measured(400.0, open_s=4.0),
        ("ours", 10_000, 10_000, 1): "not done within 5 s",
        ("stock", 1000, 1000, 1): measured(800.0, open_s=20.0),
        **{("simulated", e, n, 1): simulated(e, n) for e in (10_000, 100_000) for n in (10, 100)},
        ("fleet", 1000, 2, 2): {"over_local": 1.25},
    }
    text = markdown(results, "a machine")
    assert "| 1 ours | 10,000 | 10,000 | not done within 5 s |" in text
    assert "1,000 envs in one session take 2 ms for a vector step" in text
    assert "400 ms, 4 s (250 sessions/s)" in text
    assert "As many sessions of ours open in 0.2 times that, and give 2 times the env steps/s" in text
    assert "one session with 1,000 envs opens in 0.1 times that, and gives 400 times the env steps/s" in text
    assert "takes 1.25 times as long" in text
    assert "about 0.2 ms for each connection and 0.1 µs for each env" in text
    assert "| learner, connections | 20 ms | 200 ms |" in text
    assert "| learner, decoding and copying | 10 ms | 100 ms |" in text
    assert "| env steps/s for one learner | 3,125,000 | 3,311,258 |" in text  # 1e5 / 32 ms, 1e6 / 302 ms


def test_without_the_rows_that_it_needs_there_is_no_model():
    assert "cluster" not in markdown({("ours", 100, 1, 1): measured(1.0)}, "a machine")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_measures_one_and_several_servers(tmp_path):
    few = ["--envs", "4", "--stock", "--simulate", "20", "--fleet", "--timeout", "100"]
    command = [sys.executable, BENCHMARKS / "scale.py", *few, "--out", tmp_path / "SCALE.md"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line.partition(") ")[2]) for line in done.stderr.splitlines() if line.startswith("(")]
    assert len(results) == 6
    assert all(isinstance(result, dict) for result in results), done.stderr
    assert done.stdout.strip() in (tmp_path / "SCALE.md").read_text("utf-8")
