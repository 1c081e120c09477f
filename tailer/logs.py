"""Log lines for people or for machines, on standard error."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys

__all__ = ["set_up_logs"]

_LOGGER = "tailer"


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, message, and what was given as ``extra``."""

    #: What every record has of its own.
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
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up_logs(kind: str, level: str) -> logging.Logger:
    """The daemon's logger: ``kind`` console or json, from ``level`` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter()
        if kind == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logger = logging.getLogger(_LOGGER)
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    return logger
