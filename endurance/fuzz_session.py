"""Coverage-guided fuzzing of whole sessions: what their clients do, in any order, is read from the input."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["openenv_gym"]):
    import openenv_gym.server  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from helpers_fuzz import BatchClient, Dice, JsonClient, registry_for_fuzzing

CLIENTS = [BatchClient, JsonClient]
REGISTRY = registry_for_fuzzing()
LOOP = asyncio.new_event_loop()


class Leaks:
    """What the process holds between two inputs, when no session is left: it must not grow."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def check(self) -> None:
        """Compare with the first time."""
        now = (threading.active_count(), len(list(Path("/proc/self/fd").iterdir())))
        self._before = self._before or now
        assert now[0] <= self._before[0] + 2, f"threads: {self._before[0]} -> {now[0]}"  # two workers may be ending
        assert now[1] <= self._before[1], f"descriptors: {self._before[1]} -> {now[1]}"
        assert not asyncio.all_tasks(LOOP), asyncio.all_tasks(LOOP)


LEAKS = Leaks()
COUNT = Path(sys.argv[1]).with_suffix(".messages")
messages = 0


def one_input(data: bytes) -> None:
    """Called by the fuzzer with each input; a hang, an error or a session that should have lived is a finding."""
    global messages  # noqa: PLW0603 - libFuzzer calls a function, and ends the process by itself
    if not data:
        return
    client = CLIENTS[data[0] % len(CLIENTS)](REGISTRY)
    LOOP.run_until_complete(client.play(Dice(data[1:])))
    LEAKS.check()
    messages += client.messages
    if messages % 64 < client.messages:
        COUNT.write_text(str(messages))


if __name__ == "__main__":
    logging.disable()
    for number in range(64):
        (Path(sys.argv[1]) / f"seed-{number}").write_bytes(bytes([number % 2, *range(number, 250, 1 + number // 4)]))
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
