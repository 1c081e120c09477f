"""Log lines for people or for machines, on standard error."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from typing import Any

from tailer.errors import printable
from tailer.secrets import hide_secrets

_LOGGER = "tailer"


class ConsoleFormatter(logging.Formatter):
    """Lines for people. A name in a message can neither end its line nor control the terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name in logging
        """Return the line, with control characters escaped."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  # the name in logging
        """Return the traceback, indented, so that none of its lines looks like a log line."""
        return "\n".join(f"  {printable(line)}" for line in super().formatException(ei).split("\n"))


class _JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, message, and the fields given as ``extra``."""

    #: The attributes that every record has.
    _OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= {k: v for k, v in record.__dict__.items() if k not in self._OWN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        text = hide_secrets(json.dumps(line, ensure_ascii=False, default=str))
        if text.isprintable():
            return text
        # JSON's escapes, so that readers get the original names back.
        return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def set_up_logs(kind: str, level: str) -> logging.Logger:
    """Return the daemon's logger: ``kind`` is console or json, from ``level`` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if kind == "json" else ConsoleFormatter())
    if logging.lastResort is not None:  # what libraries log, with secrets in it
        logging.lastResort.setFormatter(handler.formatter)
    logger = logging.getLogger(_LOGGER)
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    return logger
