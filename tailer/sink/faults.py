"""What the errors of a target mean: one table a sink, by the codes that the target itself gives.

A code is what identifies an error whatever its text says: a SQLSTATE, a number, a name, a status.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

from tailer.errors import RowsRefused, SinkRejected, TailerError, TargetRefused, TransientError

Verdict = Literal["passing", "for good", "unclear", "rows"]

_ERRORS: dict[Verdict, type[TailerError]] = {
    "passing": TransientError,
    "for good": TargetRefused,
    "unclear": SinkRejected,
    "rows": RowsRefused,
}


class FaultTable:
    """The codes of a target's errors, separated by blanks; ``*`` stands for any characters.

    ``for_good``: the target refuses the sink, until its operator acts. ``rows``: it refuses a row
    for what is in it, and no fault of the server has this code. ``unclear``: it refuses a request
    with several rows, or the sink itself. ``passing``: exceptions to a pattern of the others. A
    code without ``*`` goes before patterns, and what is in none of them is passing: a server has
    more faults than anybody has listed, and a fault must cost no row.
    """

    def __init__(
        self, *, for_good: str = "", rows: str = "", unclear: str = "", passing: str = ""
    ) -> None:
        """Take the codes. Raises ``ValueError`` for one that is listed twice."""
        listed: list[tuple[str, Verdict]] = [
            *((code, "passing") for code in passing.split()),
            *((code, "for good") for code in for_good.split()),
            *((code, "unclear") for code in unclear.split()),
            *((code, "rows") for code in rows.split()),
        ]
        codes = [code for code, _ in listed]
        if len(codes) > len(set(codes)):
            twice = sorted({code for code in codes if codes.count(code) > 1})
            raise ValueError(f"these codes are listed twice: {', '.join(twice)}")
        self._exact = {code: verdict for code, verdict in listed if "*" not in code}
        self._patterns = [one for one in listed if "*" in one[0]]

    def verdict(self, code: str | int) -> Verdict:
        """Return what an error with this code means."""
        name = str(code)
        found = self._exact.get(name)
        if found is not None:
            return found
        return next((v for pattern, v in self._patterns if fnmatchcase(name, pattern)), "passing")

    def error(self, code: str | int, what: str) -> TailerError:
        """Return our error for one with this code; ``what`` is its sentence."""
        return _ERRORS[self.verdict(code)](what)
