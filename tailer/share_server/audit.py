"""The audit log: a line for each request, and a limit on the lines of unknown clients."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
from collections import Counter
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

from tailer.errors import ConfigError
from tailer.files.durable import create_private, make_folder

#: Requests without a valid token or signature that get a line at once, and the seconds after which
#: one more does. The others are counted.
_STRANGERS_BURST = 200
_STRANGERS_EVERY_S = 10.0
#: How often the counts are written.
SUMMED_S = 60.0
#: Most characters of an unknown client's text in a line.
_CHARACTERS_MAX = 200


class Audit:
    """Writes a JSON line for each request: who, what, status and bytes; never a token or signature.

    Unknown clients can't fill the disk: beyond a rate, their requests are summed up in one line a
    minute for each endpoint and status, with their number as ``requests``. ``wall`` gives epoch
    seconds, ``ticks`` seconds that never go back. Raises :class:`ConfigError` for a file that can't
    be opened. Lines that a full disk does not accept go to the server's log, so that every request
    has a record.
    """

    def __init__(self, path: Path, wall: Callable[[], float], ticks: Callable[[], float]) -> None:
        self._wall = wall
        self._ticks = ticks
        self._path = path
        self._whole = True  # else the file ends within a line
        self._logger = logging.getLogger("tailer.share")
        self._left = float(_STRANGERS_BURST)
        self._at = self._summed_at = ticks()
        self._unwritten: Counter[tuple[str, int]] = Counter()
        try:
            self._file = self._open_file()
        except OSError as e:
            raise ConfigError(f"{path}: the audit log can't be written ({e.strerror})") from e

    def _open_file(self) -> FileIO:
        make_folder(self._path.parent, private=True)
        # Unbuffered: data that the disk refused must not be written again later. The mode of a
        # file that exists is its rotation's.
        os.close(create_private(self._path))
        return self._path.open("ab", buffering=0)

    def reopen_file(self) -> None:
        """Open the file of that name again; it is a new one if the old one was moved away."""
        try:
            file = self._open_file()
        except OSError as e:
            self._logger.error(  # noqa: TRY400  # no internal error
                "%s: the audit log can't be opened again (%s), and continues in the old file",
                self._path, e.strerror,
            )  # fmt: skip
            return
        self._file.close()
        self._file, self._whole = file, True

    def record_request(
        self, *, endpoint: str, status: int, recipient: str | None, **facts: Any
    ) -> None:
        """Record a request. Facts that are None are left out."""
        self.sum_up(SUMMED_S)
        if recipient is None:
            if not self._take_allowance():
                self._unwritten[endpoint, status] += 1
                return
            facts = {
                key: value[:_CHARACTERS_MAX] if isinstance(value, str) else value
                for key, value in facts.items()
            }
        self._write_line(recipient=recipient, endpoint=endpoint, status=status, **facts)

    def sum_up(self, after_s: float = 0.0) -> None:
        """Write the counts of requests without a line, at most every ``after_s`` seconds."""
        now = self._ticks()
        if now - self._summed_at < after_s:
            return
        self._summed_at = now
        counts, self._unwritten = self._unwritten, Counter()
        for (endpoint, status), number in counts.items():
            self._write_line(endpoint=endpoint, status=status, requests=number)

    def _take_allowance(self) -> bool:
        now = self._ticks()
        self._left = min(_STRANGERS_BURST, self._left + (now - self._at) / _STRANGERS_EVERY_S)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _write_line(self, **facts: Any) -> None:
        moment = dt.datetime.fromtimestamp(self._wall(), dt.UTC)
        line = {"time": moment.isoformat(timespec="milliseconds")}
        line |= {key: value for key, value in facts.items() if value is not None}
        text = json.dumps(line).encode()
        try:
            left = memoryview(text + b"\n" if self._whole else b"\n" + text + b"\n")
            while left:
                left = left[self._file.write(left) :]
            self._whole = True
        except OSError as e:
            self._whole = False
            self._logger.error(  # noqa: TRY400  # no internal error
                "%s: the audit log can't be written (%s): %s",
                self._path, e.strerror, text.decode(),
            )  # fmt: skip

    def close(self) -> None:
        """Close the file."""
        self.sum_up()
        self._file.close()
