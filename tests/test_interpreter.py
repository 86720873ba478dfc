"""Another Python process that finds the modules that this one finds."""

import json
import subprocess
import sys
from pathlib import Path

from openenv_gym.interpreter import command

TOLD = """
import json, sys
def main():
    print(json.dumps({"path": sys.path, "arguments": sys.argv, "file": __file__}))
    return 7
"""


def test_it_finds_what_this_process_finds(tmp_path, monkeypatch):
    """And not what has the same name in the current folder, which ``python -m`` would take."""
    ours, here = tmp_path / "a folder", tmp_path / "here"
    for folder in (ours, here):
        folder.mkdir()
        (folder / "told.py").write_text(TOLD)
    monkeypatch.setattr(sys, "path", [str(ours), *sys.path])
    done = subprocess.run(command("told"), capture_output=True, text=True, timeout=60, cwd=here)
    assert (done.returncode, done.stderr) == (7, "")
    told = json.loads(done.stdout)
    assert Path(told["file"]) == ours / "told.py"
    assert told["path"] == sys.path
    assert told["arguments"] == ["-c"]


def test_the_current_folder_is_found_where_this_process_finds_it(tmp_path, monkeypatch):
    (tmp_path / "told.py").write_text(TOLD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    done = subprocess.run(command("told"), capture_output=True, text=True, timeout=60, cwd="/")
    assert Path(json.loads(done.stdout)["file"]) == tmp_path / "told.py"
