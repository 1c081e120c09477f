"""What a database takes as the name of a table or a column.

A name that it refuses is named in a sentence of ours, before the database gives one of its own; one
that it would change in silence is refused, too, or known by what it becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailer.errors import TargetRefused

#: Behind an error of the database about the size of a row.
TOO_WIDE = (
    "; all columns together are too wide for a row: exclude some with the feed's option 'select'"
)


@dataclass(frozen=True, slots=True)
class NameRules:
    """The rules of ``database``. ``empty``: a name may be empty. ``characters_max`` is the most of
    a name, ``columns_max`` that of a table; 0: any number. ``kept_bytes``: the database cuts a
    column's name off after this number of bytes. ``blank_end``: a name may end with a blank.
    ``plane_0``: all characters are of Unicode's basic plane. ``reserved`` are columns that every
    table has.
    """

    database: str
    empty: bool = False
    characters_max: int = 0
    columns_max: int = 0
    kept_bytes: int = 0
    blank_end: bool = True
    plane_0: bool = False
    reserved: frozenset[str] = frozenset()

    def truncate_name(self, name: str) -> str:
        """Return what the database keeps of a column's name."""
        data = name.encode()
        if not self.kept_bytes or len(data) <= self.kept_bytes:
            return name
        return data[: self.kept_bytes].decode(errors="ignore")

    def check_table(self, name: str) -> None:
        """Raise :class:`TargetRefused` for a name that no table can have."""
        fault = self._find_fault(name)
        if fault is None and self.truncate_name(name) != name:
            fault = f"has more than {self.kept_bytes} bytes"
        if fault is not None:
            raise TargetRefused(
                f"the name {name!r} {fault}, and no table in {self.database} can have it; name "
                "another in the option 'table'"
            )

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise :class:`TargetRefused` for columns that can't be together in a table."""
        known: dict[str, str] = {}
        for name in names:
            fault = self._find_fault(name)
            if name in self.reserved:
                fault = "is that of a system column"
            kept = self.truncate_name(name)
            if kept in known:
                fault = f"begins with the same {self.kept_bytes} bytes as {known[kept]!r}"
            if fault is not None:
                raise TargetRefused(
                    f"the name of the column {name!r} {fault}, and no column in {self.database} "
                    "can have it; exclude the column with the feed's option 'select', or "
                    "rename it"
                )
            known[kept] = name
        if self.columns_max and len(names) > self.columns_max:
            raise TargetRefused(
                f"there are {len(names)} columns, and a table in {self.database} has at most "
                f"{self.columns_max}; exclude some with the feed's option 'select'"
            )

    def _find_fault(self, name: str) -> str | None:
        if not name and not self.empty:
            return "is empty"
        if "\x00" in name:
            return "has the character NUL"
        if not self.blank_end and name[-1:].isspace() and name[-1:].isascii():
            return "ends with a blank"
        if self.characters_max and len(name) > self.characters_max:
            return f"has more than {self.characters_max} characters"
        if self.plane_0 and any(ord(character) > 0xFFFF for character in name):
            return "has a character beyond U+FFFF"
        return None
