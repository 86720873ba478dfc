"""What the pages for users hold: README.md, and those in docs/."""

import re


def fenced(text):
    """The fenced blocks of a page: language and text of each."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
