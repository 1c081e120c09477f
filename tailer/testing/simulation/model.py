"""What a simulated table holds and what its feed must deliver, version by version.

Made from what the writer's operations mean, never read back from the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Event", "LogicalFile", "Row", "TableVersion", "changes", "difference", "shown"]

#: The values of a row, in the order of the columns: id, revision, columns that came later.
Row = tuple[object, ...]
#: A change: its type and its row.
Event = tuple[str, Row]


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


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version: its columns and files, and the changes that its commit must give.

    ``derived`` are the changes where they are found by comparing the rows."""

    number: int
    columns: int
    files: Mapping[str, LogicalFile]
    events: Counter[Event] = field(hash=False)
    derived: Counter[Event] = field(hash=False)

    def rows(self) -> Counter[Row]:
        """Return the table's rows."""
        found: Counter[Row] = Counter()
        for file in self.files.values():
            found.update(shown(row, self.columns) for row in file.live().values())
        return found


def shown(row: Row, columns: int) -> Row:
    """Return a row as a schema with this many columns shows it."""
    return row[:columns] + (None,) * (columns - len(row))


def difference(before: TableVersion, columns: int, rows: Counter[Row]) -> Counter[Event]:
    """Return the changes from a version to these rows, by comparing them."""
    old = before.rows() if before.columns == columns else None
    if old is None:  # the rows that stay have grown
        old = Counter(shown(row, columns) for row in before.rows().elements())
    found = Counter({("delete", row): count for row, count in (old - rows).items()})
    found.update({("insert", row): count for row, count in (rows - old).items()})
    return found


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
