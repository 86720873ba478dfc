"""The notebooks: each is executed on a real kernel, and what is stored of it says nothing of a machine."""

import importlib.util
import json
import re
import socket
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"

SHORT = {  # what makes them short enough for a test: values for the cell with the tag "parameters"
    "01_quickstart": {},
    "02_train_sb3": {"timesteps": 512},
    "03_where_the_time_goes": {"seconds": 0.05, "sizes": [1, 4], "num_envs": 4},
    "04_openenv": {"seconds": 0.05},
    "05_faults": {"steps": 60},
}
PICTURES = {"01_quickstart": 3, "02_train_sb3": 2, "03_where_the_time_goes": 5, "04_openenv": 2, "05_faults": 2}
EVERY_NOTEBOOK = pytest.mark.parametrize("name", sorted(SHORT))


@pytest.fixture(scope="module")
def run():
    """notebooks/run.py, which is no package."""
    spec = importlib.util.spec_from_file_location("notebooks_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs_of(notebook):
    """What the cells of a notebook show."""
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def pictures_in(notebook):
    """How many pictures it shows."""
    return sum("image/png" in output.get("data", {}) for output in outputs_of(notebook))


def machine_specific(notebook):
    """What its outputs and metadata say of the machine that it was executed on: paths, ports, tokens, names, times."""
    found = set()
    for cell in notebook.cells:
        found |= cell.metadata.keys() - {"tags"}
        for output in cell.get("outputs", ()):
            data = {kind: text for kind, text in output.get("data", {}).items() if not kind.startswith("image/")}
            shown = json.dumps([output.get("text", ""), data])
            found |= set(re.findall(r"(?<![\w</])/(?:home|root|tmp|usr|opt|work|Users|mnt)/\S*", shown))
            found |= set(re.findall(r"127\.0\.0\.1:(?!8000\b)\d+|localhost:\d+", shown))
            found |= set(re.findall(r"(?<![\w-])[\w-]{43}(?![\w-])", shown))  # as long as secrets.token_urlsafe(32)
            name = re.escape(socket.gethostname())  # which may be as short as a class in a style sheet
            found |= set(re.findall(rf"(?<![\w.\"-]){name}(?![\w.\"-])|ipykernel", shown))
    return found


def test_every_notebook_is_here():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(SHORT)


# nbclient and its relatives leave sockets and loops to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.timeout(360)  # a kernel, imports and several servers: on a busy machine each takes its time
@EVERY_NOTEBOOK
def test_a_notebook_runs(run, name):
    notebook = run.execute(name, timeout_s=100, **SHORT[name])
    complaints = [
        output
        for output in outputs_of(notebook)
        if output.get("name") == "stderr" and "can't be used now" not in output.text  # an outage on a busy machine
    ]
    assert [output for output in outputs_of(notebook) if output.output_type == "error"] + complaints == []
    assert pictures_in(notebook) == PICTURES[name]
    run.clean(notebook)
    assert machine_specific(notebook) == set()


@EVERY_NOTEBOOK
def test_what_is_stored_was_executed_and_is_clean(name):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [output for output in outputs_of(notebook) if output.get("name") == "stderr"] == []
    assert pictures_in(notebook) == PICTURES[name]
    assert machine_specific(notebook) == set()
    assert notebook.metadata.language_info == {"name": "python"}


def test_the_notebooks_are_small():
    assert sum(path.stat().st_size for path in FOLDER.glob("*.ipynb")) < 1_500_000


@pytest.mark.parametrize("text", ["/home/me/x.py", "127.0.0.1:34567", "a" * 43, socket.gethostname()])
def test_the_reader_itself(text):
    cell = nbformat.v4.new_code_cell("1", outputs=[nbformat.v4.new_output("stream", text=f"see {text} there")])
    assert machine_specific(nbformat.v4.new_notebook(cells=[cell]))
