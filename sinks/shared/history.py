"""A history: a row for each version of a key, from the version that it came with to the one that
ended it. :func:`fold_history` says what a batch does to it, for every database, and knows none.

Of a key, one row at most is current: its columns of an end are null. A batch may begin and end
several rows of a key; they come to the database with both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sinks.shared.merge import KeyOrder, check_key
from tailer.changes import COMMIT_TIMESTAMP, COMMIT_VERSION, ChangeBatch, Offset
from tailer.errors import TargetRefused
from tailer.sink.own_names import add_prefix


@dataclass(frozen=True, slots=True)
class HistoryNames:
    """The columns of a history beside those of the table: commit times, and versions. A row is
    valid from its first version on, and no longer at the one that ended it."""

    valid_from: str
    valid_to: str
    from_version: str
    to_version: str

    @classmethod
    def with_prefix(cls, prefix: str) -> HistoryNames:
        """Return the names with a prefix in place of the underscore."""
        return cls(
            valid_from=add_prefix("_valid_from", prefix),
            valid_to=add_prefix("_valid_to", prefix),
            from_version=add_prefix("_from_version", prefix),
            to_version=add_prefix("_to_version", prefix),
        )

    def list_names(self) -> tuple[str, ...]:
        """Return the names, in the order of the columns."""
        return (self.valid_from, self.valid_to, self.from_version, self.to_version)

    def physical_names(self) -> dict[str, str]:
        """Return what no column of the table is called in its files, by the columns' names."""
        own = HistoryNames.with_prefix("delta-tailer.")
        return dict(zip(self.list_names(), own.list_names(), strict=True))

    def check_kept(self, had: Iterable[str], where: str) -> None:
        """Raise :class:`TargetRefused` if a history has other columns than these."""
        if lacks := [name for name in self.list_names() if name not in had]:
            raise TargetRefused(
                f"{where} has no column {lacks[0]!r}; set the option 'own_prefix' back to what it "
                "was, or `tailer offsets reset` creates the history again"
            )

    def build_columns(self, batch: ChangeBatch) -> dict[str, pa.Array]:
        """Return the columns of rows that begin with a batch's changes."""
        at, version = (batch.rows.column(name) for name in (COMMIT_TIMESTAMP, COMMIT_VERSION))
        ends = (pa.nulls(len(at), at.type), pa.nulls(len(version), version.type))
        return dict(zip(self.list_names(), (at, ends[0], version, ends[1]), strict=True))


@dataclass(frozen=True, slots=True)
class HistoryMerge:
    """``ended`` are keys whose current rows end, with when; ``absent`` are keys of which no row is
    current; ``rows`` begin, and some have ended.

    ``first``: they are of the snapshot that the history begins with. ``unchecked``: rows are read
    again while the history is there. They end what is current, if it is older, and take the place
    of what began with the same version.
    """

    ended: pa.Table
    absent: pa.Table
    rows: pa.Table
    first: bool = False
    unchecked: bool = False

    @property
    def growth(self) -> int:
        """How many more rows are current, if the history has the keys that it should."""
        return int(self.rows.column(-1).null_count - self.ended.num_rows)


def check_move(at: Offset | None, to: Offset, where: str) -> None:
    """Raise :class:`TargetRefused` for an offset that a history with rows can't go to: the middle
    of an earlier version, or a snapshot, whose rows would be current twice."""
    if to.snapshot and at is not None and not at.snapshot:
        raise TargetRefused(
            f"{where}: a history has one snapshot, at its beginning; `tailer offsets reset` "
            "creates it again"
        )
    if to.index and at is not None and to.position < at.position:
        raise TargetRefused(f"{where}: a history goes back to the end of a version")


def refuse_emptied(where: str, version: int) -> TargetRefused:
    """Return the error of a history that would have no row left: it begins later."""
    return TargetRefused(
        f"{where}: all rows of the history began with version {version} or later, so it can't go "
        f"back to version {version - 1}; `tailer offsets reset` creates it again"
    )


def fold_history(
    batch: ChangeBatch,
    rows: pa.RecordBatch,
    key: Sequence[str],
    names: HistoryNames,
    *,
    unchecked: bool = False,
) -> HistoryMerge:
    """Fold a batch to the rows that end and begin. ``rows`` are its rows as the history has them,
    with the columns of ``key``, and those of :meth:`HistoryNames.build_columns` as the last ones.

    Raises :class:`SinkRejected` for a key that is null or that several rows of a version have.
    """
    check_key(batch, rows, key)
    order = KeyOrder(batch, pa.table(rows).select(list(key)))
    if not unchecked:
        order.check_turns(batch)
    ordered, comes = pa.table(rows).take(order.order), order.comes
    # A row that comes ends with the next change of its key, which is one that leaves.
    ends = {
        end: _take_next(ordered[begin], order.followed)
        for end, begin in (
            (names.valid_to, names.valid_from),
            (names.to_version, names.from_version),
        )
    }
    keys = ordered.select(list(key))
    ended = keys.append_column(names.valid_to, ordered[names.valid_from]).append_column(
        names.to_version, ordered[names.from_version]
    )
    for name, column in ends.items():
        ordered = ordered.set_column(ordered.schema.get_field_index(name), name, column)
    first = order.first
    begun = ordered.filter(comes)
    if unchecked:
        return HistoryMerge(ended.filter(first), keys.slice(0, 0), begun, unchecked=True)
    ended = ended.filter(pc.and_not(first, comes))
    absent = keys.filter(pc.and_(first, comes))
    return HistoryMerge(ended, absent, begun, first=batch.offset.snapshot)


def _take_next(column: pa.ChunkedArray, followed: pa.BooleanArray) -> pa.Array:
    """Return for each row the value of the next one, or null where it is of another key."""
    values = column.combine_chunks()
    after = pa.concat_arrays([values.slice(1), pa.nulls(1, values.type)])
    return pc.if_else(followed, after, pa.scalar(None, values.type))
