"""The pages of docs/: their Python blocks run, and their frames are those of the codec."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers_docs import fenced

from openenv_gym import codec, messages

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BLOCKS = [
    (f"{page.stem}-{number}", language, text)
    for page in PAGES
    for number, (language, text) in enumerate(fenced(page.read_text("utf-8")))
]


def blocks(wanted):
    return [pytest.param(text, id=name) for name, language, text in BLOCKS if language == wanted]


def test_the_menu_has_every_page():
    menu = (DOCS.parent / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    assert sorted(re.findall(r"[\w/-]+\.md", menu)) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


@pytest.mark.parametrize("text", blocks("frame"))
def test_a_frame_is_what_the_codec_makes(text):
    expression, *lines = text.splitlines()
    message = eval(expression, {"np": np, **vars(messages)})
    written = bytes.fromhex("".join(re.match(r"(?:[0-9a-f]{2}(?: |$))+", line)[0] for line in lines))
    assert written.hex(" ") == codec.encode(message).hex(" ")


@pytest.mark.parametrize("text", [block for block in blocks("python") if "hf.space" not in block.values[0]])
def test_a_python_block_runs(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "a block of docs/", "exec"), {"__name__": "__main__"})
