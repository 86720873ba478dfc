"""The picture of a measurement: the parts of the vector steps, one upon the other, as they went by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from openenv_gym.bench import Bench
from openenv_gym.stats import WHOLE

__all__ = ["check_format", "draw"]

_BINS: Final = 100
"""More would be thinner than what can be seen; each shows the means of its steps, which add up as the steps do."""


def check_format(out: Path) -> None:
    """Raise `ValueError` for a file whose ending names no format that matplotlib knows; none at all is PNG."""
    known = Figure().canvas.get_supported_filetypes()
    if out.suffix and out.suffix[1:].lower() not in known:
        raise ValueError(f"{out.name} can't be drawn; the endings are {', '.join(sorted(known))}")


def draw(bench: Bench, samples: Mapping[str, NDArray[np.float64]], out: Path) -> None:
    """Draw the parts over the steps, and what a vector step takes locally as lines.

    Args:
        bench: what was measured.
        samples: seconds of each step by part, from `openenv_gym.stats.Recorder.samples`.
        out: the file; its ending says the format.

    Raises:
        OSError: if the file can't be written.
    """
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes: Any = figure.subplots()
    names = [name for name in samples if name != WHOLE]
    count = len(samples[WHOLE])
    bins = np.array_split(np.arange(count), min(_BINS, count))
    parts = [[1e6 * samples[name][chosen].mean() for chosen in bins] for name in names]
    edges = [0, *(chosen[-1] + 1 for chosen in bins)]
    floor = np.zeros(len(bins))
    for i, (name, part) in enumerate(zip(names, parts, strict=True)):
        axes.stairs(floor + part, edges, baseline=floor, fill=True, label=name, color=f"C{i}")
        floor = floor + part
    for local, style in zip(bench.local, ("-", "--"), strict=False):
        us = 1e6 * bench.num_envs / local.steps_per_s
        axes.axhline(us, color="black", linestyle=style, label=f"{local.name} ({us:,.0f} µs)")
    what = f"{bench.env or bench.url}: {bench.num_envs} envs, {bench.steps_per_s:,.0f} env steps/s"
    axes.set(title=what, xlabel="vector step", ylabel="µs of a vector step", xlim=(0, count), ylim=(0, None))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
    figure.savefig(out)
