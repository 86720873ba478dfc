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
    "openenv_hosting.py": (
        ["--envs", "4", "--seconds", "0.3"],
        r" +this server +OpenEnv's client +[\d,]+ +RemoteVecEnv +[\d,]+",
    ),
    "openenv_private_space.py": ([], r"Unauthorized: .*refused the token.*"),
    "openenv_text.py": ([], r"won 8 of 8 games in \d turns"),
    "openenv_train_sb3.py": (["--timesteps", "512"], r"mean_return=-?\d+\.\d\d  best_possible=0\.30"),
    "sb3_ppo.py": (["--steps", "1024"], r"mean return of the best policy: -\d+\.\d"),
    "torchrl_collect.py": (["--frames", "512"], r"512 frames, \d+ episodes, mean return \d+\.\d"),
}

IMPORTED = {"openenv_servers.py", "openenv_walk.py"}
"""What the examples with OpenEnv import."""

ELSEWHERE = {"rllib_fleet.py": "test_rllib.py"}
"""It wants a Ray cluster."""


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == RUNS.keys() | ELSEWHERE.keys() | IMPORTED
    assert all(Path(__file__).with_name(test).is_file() for test in ELSEWHERE.values())


@pytest.mark.timeout(3 * DEADLINE_S)
@pytest.mark.parametrize("name", sorted(RUNS))
def test_an_example_runs(name, tmp_path):
    arguments, last_line = RUNS[name]
    command = [sys.executable, "-W", "error::UserWarning", str(EXAMPLES / name), *arguments]
    variables = environment(OMP_NUM_THREADS="1", PATH=os.environ["PATH"])
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(last_line, done.stdout.splitlines()[-1]), done.stdout
