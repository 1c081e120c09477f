"""A connection of PyMySQL that takes no answer without end, and none that comes a byte at a time.

PyMySQL's time-outs are between two bytes, and it keeps as many packets of 16 MiB as a server sends.
"""

from __future__ import annotations

import time
from typing import Any

#: So many bytes may come at one statement, or at one row where rows are read one by one.
_ANSWER_BYTES_MAX = 128 * 1024 * 1024
#: A packet that was waited for longer than two time-outs must have come at this rate, in bytes a
#: second.
_BYTES_S_MIN = 1024


def connection_class(pymysql: Any) -> Any:
    """Return the class of connections. They raise PyMySQL's OperationalError for such answers."""

    class Bounded(pymysql.connections.Connection):  # type: ignore[misc]  # without types
        _left = _ANSWER_BYTES_MAX

        def _execute_command(self, command: int, sql: Any) -> None:
            self._left = _ANSWER_BYTES_MAX
            super()._execute_command(command, sql)

        def _read_packet(self, *kind: Any) -> Any:
            if self._result is not None and self._result.unbuffered_active:
                self._left = _ANSWER_BYTES_MAX  # rows that are read one by one are not kept
            return super()._read_packet(*kind)

        def _read_bytes(self, num_bytes: int) -> bytes:
            if self._sock.gettimeout() != self._read_timeout:  # versions set it in different places
                self._sock.settimeout(self._read_timeout)
            self._left -= num_bytes
            if self._left < 0:
                raise self._lost(f"an answer of more than {_ANSWER_BYTES_MAX} bytes")
            parts, size = [], 0
            begun = time.monotonic()
            while size < num_bytes:
                try:
                    part = self._rfile.read1(num_bytes - size)
                except OSError as e:
                    raise self._lost(str(e)) from e
                if not part:
                    raise self._lost("it has ended the connection")
                parts.append(part)
                size += len(part)
                waited = time.monotonic() - begun
                if waited > 2 * self._read_timeout and size < waited * _BYTES_S_MIN:
                    raise self._lost(f"{size} bytes of an answer in {waited:.0f} s are too few")
            return b"".join(parts)

        def _lost(self, why: str) -> Exception:
            self._force_close()
            told = f"Lost connection to MySQL server during query ({why})"
            lost = pymysql.constants.CR.CR_SERVER_LOST
            error: Exception = pymysql.OperationalError(lost, told)
            return error

    return Bounded
