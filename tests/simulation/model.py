"""What a simulated table holds and what its feed must deliver, version by version.

Made from what the writer's operations mean, never read back from the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

#: The values of a row, in the order of the columns: id, revision, columns that came later.
Row = tuple[object, ...]
#: A change: its type and its row.
Event = tuple[str, Row]
#: The types of changes whose rows leave the table.
LEAVING = ("delete", "update_preimage")


@dataclass(frozen=True, slots=True)
class LogicalFile:
    """A data file with the positions that its deletion vector deletes. Rows are as written, which
    may be before the newest column came."""

    path: str
    rows: tuple[Row, ...]
    size: int
    deleted: frozenset[int] = frozenset()

    def live(self) -> dict[int, Row]:
        """Return the rows that are not deleted, by position."""
        return {n: row for n, row in enumerate(self.rows) if n not in self.deleted}


@dataclass(frozen=True)
class TableVersion:
    """A version: its columns and files, and the changes that its commit must give."""

    number: int
    columns: int
    files: Mapping[str, LogicalFile]
    events: Counter[Event] = field(hash=False)
    before: TableVersion | None = None

    @cached_property
    def rows(self) -> Counter[Row]:
        """The table's rows."""
        found: Counter[Row] = Counter()
        for file in self.files.values():
            found.update(shown(row, self.columns) for row in file.live().values())
        return found

    @cached_property
    def derived(self) -> Counter[Event]:
        """The changes where they are found by comparing the rows."""
        if self.before is None or not self.events:
            return self.events
        old = self.before.rows
        if self.before.columns != self.columns:  # the rows that stay have grown
            old = Counter(shown(row, self.columns) for row in old.elements())
        found = Counter({("delete", row): count for row, count in (old - self.rows).items()})
        found.update({("insert", row): count for row, count in (self.rows - old).items()})
        return found


def shown(row: Row, columns: int) -> Row:
    """Return a row as a schema with this many columns shows it."""
    return row[:columns] + (None,) * (columns - len(row))


def changes(
    before: TableVersion, paths: Iterable[str], after: Mapping[str, LogicalFile], columns: int
) -> Counter[Event]:
    """Return the changes of a commit whose add and remove actions name these paths: rows that leave
    as the version before shows them, rows that come as this one does."""
    found: Counter[Event] = Counter()
    for path in paths:
        old, new = before.files.get(path), after.get(path)
        was, now = (f.live() if f else {} for f in (old, new))
        found.update(("delete", shown(was[n], before.columns)) for n in was.keys() - now.keys())
        found.update(("insert", shown(now[n], columns)) for n in now.keys() - was.keys())
    return found
