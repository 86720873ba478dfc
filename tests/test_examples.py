"""The scripts of examples/, run as users run them, for a moment each."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_cli import DEADLINE_S, environment

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

RUNS = {
    "action_mask.py": (["--steps", "20"], r"masked=True: .* 0\.0% illegal actions"),
    "cleanrl_ppo.py": (["--steps", "2000"], r"mean return of the last episodes: \d+\.\d"),
    "image_trimming.py": (["--seconds", "0.3"], r"trimming makes it \d+\.\d times as fast"),
    "sb3_ppo.py": (["--steps", "1024"], r"mean return of the best policy: -\d+\.\d"),
}


ELSEWHERE = {"rllib_fleet.py": "test_rllib.py"}
"""It wants a Ray cluster."""


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == RUNS.keys() | ELSEWHERE.keys()
    assert all(Path(__file__).with_name(test).is_file() for test in ELSEWHERE.values())


@pytest.mark.parametrize("name", sorted(RUNS))
def test_an_example_runs(name, tmp_path):
    arguments, last_line = RUNS[name]
    command = [sys.executable, "-W", "error::UserWarning", str(EXAMPLES / name), *arguments]
    variables = environment(OMP_NUM_THREADS="1", PATH=os.environ["PATH"])
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(last_line, done.stdout.splitlines()[-1]), done.stdout
