"""Runs all benchmarks and writes RESULTS.md beside this file."""

from __future__ import annotations

from pathlib import Path

from first_ready import s7
from harness import machine
from openenv_hosting import hosting
from payloads import s3, s4, s10
from processes import s5
from single_env import s2
from stock_client import s9
from vector_native import s6
from vector_steps import s1, s8, s11


def main() -> None:
    """Run everything; a missed goal is printed as missed, and is no error."""
    text = f"# Benchmark results\n\n{machine()}\n"
    for benchmark in (s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, hosting):
        report = benchmark().markdown()
        print(report, flush=True)
        text += "\n" + report
        Path(__file__).with_name("RESULTS.md").write_text(text)  # what there is, if the next one fails


if __name__ == "__main__":
    main()
