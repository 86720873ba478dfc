"""`make fuzz`: runs both fuzzers for a bounded time, and prints how many inputs they took. Fails on any finding."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
LIMITS = ["-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1", "-max_len=1024"]
"""An input that takes a minute is a hang; a process of more than 2 GiB has been made to allocate without limit."""
MAY_GROW_MB = 64
"""For the fuzzer's own collection of inputs; what grows more leaks."""


def fuzz(name: str, inputs: int, seconds: float) -> bool:
    """Run one fuzzer; True if it found nothing."""
    with tempfile.TemporaryDirectory() as corpus:
        Path(corpus, "in").mkdir()
        bounds = [f"-runs={inputs}", f"-max_total_time={max(1, int(seconds))}", f"-artifact_prefix={Path.cwd()}/"]
        command = [sys.executable, str(HERE / f"fuzz_{name}.py"), f"{corpus}/in", *bounds, *LIMITS]
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        took = time.monotonic() - begin
        counted = Path(corpus, "in.messages")
        messages = f", {int(counted.read_text()):,} messages" if counted.exists() else ""
    ran = int((re.findall(r"stat::number_of_executed_units: (\d+)", done.stderr) or [0])[-1])
    memory = [int(mb) for mb in re.findall(r"rss: (\d+)Mb", done.stderr)] or [0]
    well = done.returncode == 0 and ran > 0 and memory[-1] <= memory[0] + MAY_GROW_MB
    if not well:
        print(done.stdout[-4000:], done.stderr[-8000:], sep="\n")
    covered = (re.findall(r"cov: (\d+)", done.stderr) or ["?"])[-1]
    verdict = "nothing found" if well else f"FOUND SOMETHING (exit code {done.returncode}), see above"
    print(
        f"{name}: {ran:,} inputs{messages} in {took:.0f} s, {covered} branches reached, "
        f"memory {memory[0]} -> {memory[-1]} MiB: {verdict}",
        flush=True,
    )
    return well


def main() -> int:
    """Fuzz decoders and sessions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs for the decoders")
    parser.add_argument("--seconds", type=float, default=600, help="limit for each of the two fuzzers")
    given = parser.parse_args()
    # Sessions take threads and many messages each, so their number is bounded by the time alone.
    return 0 if all([fuzz("decoder", given.inputs, given.seconds), fuzz("session", -1, given.seconds / 2)]) else 1


if __name__ == "__main__":
    sys.exit(main())
