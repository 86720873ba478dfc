"""Executes notebooks on a kernel of their own, and stores them without what is only this machine's.

python notebooks/run.py                     # all of them
python notebooks/run.py 01_quickstart       # some
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

HERE = Path(__file__).parent
ALL = sorted(path.stem for path in HERE.glob("*.ipynb"))
QUIET = {
    "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm misses ipywidgets, which nothing here needs
    "SDL_VIDEODRIVER": "dummy",  # pygame draws without a display
}


def execute(name, timeout_s=600, **parameters):
    """A notebook, executed in its folder; `parameters` are assigned after its cell with this tag."""
    notebook = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    if parameters:
        (place,) = (i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ()))
        source = "\n".join(f"{parameter} = {value!r}" for parameter, value in parameters.items())
        notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(source))
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=timeout_s,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(HERE)}},
            config=sockets_in(folder),
        ).execute(env={**os.environ, **QUIET})
    return notebook


def sockets_in(folder):
    """Kernels are spoken to over files in a folder: a port that is free may be taken before the kernel has it."""
    return Config({"KernelManager": {"transport": "ipc", "ip": str(Path(folder) / "kernel")}})


def clean(notebook):
    """Take out ports, which are others each time, and what no page shows."""
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop("text/latex", None)
            for shown in (output, output.get("data", {})):
                for kind, text in shown.items():
                    if isinstance(text, str) and not kind.startswith("image/"):
                        shown[kind] = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8000", text)


def main(names):
    """Execute, clean and store."""
    for name in names:
        notebook = execute(name)
        clean(notebook)
        nbformat.write(notebook, HERE / f"{name}.ipynb")
        print(f"{name}: {(HERE / f'{name}.ipynb').stat().st_size / 1000:,.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:] or ALL)
