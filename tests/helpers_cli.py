"""The command line as users have it: in a process of its own, with its output as it comes."""

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

DEADLINE_S = 100  # the machine may be busy; less than pytest's limit
COMMAND = shutil.which("openenv-gym", path=str(Path(sys.executable).parent)) or "openenv-gym"


def environment(**variables):
    """This process's environment without what a developer may have set, and with `variables`."""
    mine = {k: v for k, v in os.environ.items() if not k.startswith("OPENENV") and k not in {"FORCE_COLOR", "COLUMNS"}}
    return {**mine, "PYTHONUNBUFFERED": "1", **variables}


def run(*arguments, **options):
    """Run the command to its end."""
    options = {"env": environment(), "timeout": DEADLINE_S, **options}
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, **options)


class Running:
    """The command while it runs; leaving the `with` kills it.

    Args:
        arguments: for the command.
        variables: for its environment.
        cwd: where it runs.
        stdout: where its standard output goes; None reads it here.
    """

    def __init__(self, *arguments, cwd=None, stdout=None, **variables):
        self.output, self.errors = "", ""
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [COMMAND, *map(str, arguments)],
            cwd=cwd,
            env=environment(**variables),
            stdout=stdout or subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        streams = {"output": self.process.stdout, "errors": self.process.stderr}
        self._streams = {name: stream for name, stream in streams.items() if stream is not None}
        self._open = set(self._streams)
        self._readers = [threading.Thread(target=self._read, args=item) for item in self._streams.items()]
        for reader in self._readers:
            reader.start()

    def _read(self, name, stream):
        for line in stream:
            with self._news:
                setattr(self, name, getattr(self, name) + line)
                self._news.notify_all()
        with self._news:
            self._open.discard(name)
            self._news.notify_all()

    def wait_for(self, pattern):
        """The match of `pattern` in the standard output, as soon as there is one."""
        search = re.compile(pattern, re.MULTILINE).search
        with self._news:
            self._news.wait_for(lambda: search(self.output) or not self._open, DEADLINE_S)
            found = search(self.output)
        assert found, f"no {pattern!r} in {self.output!r}; standard error: {self.errors!r}"
        return found

    def url(self):
        """Where `serve` serves, once it has said all that it says."""
        self.wait_for(r"^Ctrl\+C stops it\.$")
        return self.wait_for(r" at (https?://[^\s,]+)")[1]

    def end(self, signal_number):
        """Send a signal, and give the exit code."""
        self.process.send_signal(signal_number)
        return self.wait()

    def wait(self):
        """The exit code, once everything is read."""
        code = self.process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.process.kill()
        self.wait()
        for stream in self._streams.values():
            stream.close()
