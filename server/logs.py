"""One line for each event on standard error: for people, or as JSON for machines. No token is ever among it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any, Final, Literal, TypeAlias

__all__ = ["Level", "configure"]

Level: TypeAlias = Literal["debug", "info", "warning", "error"]

_USUAL: Final = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "taskName", "color_message"}
"""What every record has; the rest are an event's own fields, given as ``extra``."""


class _Formatter(logging.Formatter):
    """Writes time, level, logger, message, the fields of an event, and a traceback if there is one."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        # A leading underscore is a library's own: Ray puts such a field on every record of its processes.
        fields = {key: value for key, value in vars(record).items() if key not in _USUAL and key[0] != "_"}
        trace = {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        when = datetime.fromtimestamp(record.created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        level, name, message = record.levelname.lower(), record.name, record.getMessage()
        if self._as_json:
            head = {"time": when, "level": level, "logger": name, "message": message}
            return json.dumps(head | fields | trace, default=str)
        pairs = "".join(f" {key}={_quoted(value)}" for key, value in fields.items())
        # A message may hold what a client or an env wrote: it makes no line of its own.
        line = f"{when} {level:7} {name} {_on_one_line(message)}{pairs}"
        return "\n".join([line, *trace.values()])


def _on_one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]


def _quoted(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() and text and not set(text) & {" ", '"', "="} else json.dumps(text)


def configure(level: Level, *, as_json: bool = False) -> None:
    """Log this process's events to standard error.

    Of other packages, uvicorn among them, only warnings are shown: websockets' debug lines hold whole headers.

    Args:
        level: the least level of this package's own events that is shown.
        as_json: write each event as one line of JSON, its traceback too. Otherwise tracebacks follow their line.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(as_json=as_json))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("openenv_gym").setLevel(level.upper())
