"""The example for RLlib, run as a user would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("helpers_ray", reason="needs the extra `ray`", exc_type=ImportError)
for module in ("tree", "lz4", "ormsgpack", "pyarrow", "scipy", "tensorboardX"):
    pytest.importorskip(module, reason="needs the packages of RLlib")

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "rllib_fleet.py"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_env_runners_train_on_a_fleet(ray_cluster, tmp_path):
    arguments = ["--address", ray_cluster.address, "--iterations", "2", "--servers", "2", "--runners", "1"]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=380,
        env={**os.environ, "HOME": str(tmp_path)},  # RLlib writes its results there
    )
    assert done.returncode == 0, done.stderr[-4000:]
    steps = [
        int(number)
        for number in re.findall(r"^iteration \d: (\d+) env steps, mean return \d", done.stdout, re.MULTILINE)
    ]
    assert len(steps) == 2
    assert steps[1] > steps[0] >= 512
