"""What an Iceberg table says of the feed that writes it, and what others have done to it.

Each snapshot of ours has in its summary, under ``delta-tailer``, the feed, a number that grows, who
wrote it, and the offset after it. What changes more rarely is in the table's property of that name,
and so is a copy of the rest, for a table whose snapshots were expired behind a compaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from sinks.shared.target_table import INFO, TableClaim
from tailer.changes import Offset
from tailer.errors import OffsetError, TargetRefused

#: What a summary counts of files and rows: a snapshot with none of them changed nothing.
_COUNTS = (
    "added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files",
    "added-records", "deleted-records", "added-equality-deletes", "added-position-deletes",
)  # fmt: skip


class Said(Struct, frozen=True, omit_defaults=True):
    """What a commit of ours says. ``by`` is the process that claimed the table; ``repairing``: the
    rows of a copy are being set right, and others may be wrong still."""

    app: str
    number: int
    offset: dict[str, Any] | None
    by: str
    repairing: bool = False


class Kept(Struct, frozen=True):
    """What the property has: what was said last, in a snapshot with at least that sequence number,
    and what the columns are. ``fields`` are their ids."""

    said: Said
    sequence: int
    snapshot: int
    records: int
    mode: str
    key: list[str] | None
    physical: dict[str, str]
    fields: dict[str, int]


def describe_claim(claim: TableClaim, app: str, by: str) -> Said:
    """Return what a commit has to say."""
    offset = None if claim.offset is None else claim.offset.to_json()
    return Said(app, claim.number, offset, by, claim.repairing)


def find_kept(table: Table, address: str) -> Kept | None:
    """Return what the property has; None if there is none. Raises :class:`TargetRefused` if it is
    damaged."""
    text = table.properties.get(INFO)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Kept)
    except ValueError as e:
        raise TargetRefused(
            f"{address}: its property {INFO!r} is damaged ({e}); drop the table, then `tailer "
            "offsets reset` creates it again"
        ) from e


def find_said(table: Table, kept: Kept) -> Said | None:
    """Return what the newest snapshot of ours says; None if it is not known."""
    snapshots = list(walk_back(table))
    found = next(filter(None, map(read_snapshot, snapshots)), None)
    if found is not None or not snapshots:
        return found
    # All of ours are expired. What is left must be later than our last one, and have its rows: else
    # the table was set back to before it, or others have changed it.
    oldest = snapshots[-1]
    follows = oldest.parent_snapshot_id == kept.snapshot
    later = (oldest.sequence_number or 0) > kept.sequence
    rows = _count(oldest, "total-records")
    same = rows == kept.records if kept.mode != "log" else rows >= kept.records
    return kept.said if follows or (later and same) else None


def make_claim(kept: Kept, said: Said, address: str) -> TableClaim:
    """Return the claim of what was said. Raises :class:`TargetRefused` if it is damaged."""
    try:
        offset = None if said.offset is None else Offset.from_json(said.offset)
    except OffsetError as e:
        raise TargetRefused(f"{address}: the offset of its snapshot is damaged ({e})") from e
    return TableClaim(said.number, kept.mode, offset, kept.key, kept.physical)


def find_stranger(table: Table, checked: int | None) -> int | None:
    """Return the snapshot by which somebody else has changed rows since our last one, or since the
    one that was ``checked``; None if there is none. One that replaces files by others with the same
    rows is none."""
    for snapshot in walk_back(table):
        said = read_snapshot(snapshot)
        if snapshot.snapshot_id == checked or (said is not None and not said.repairing):
            return None
        summary = snapshot.summary
        replaces = summary is not None and summary.operation == Operation.REPLACE
        if said is None and not replaces and (summary is None or _changes_rows(snapshot)):
            return snapshot.snapshot_id
    return None


def find_other_column(schema: Schema, kept: Kept) -> str | None:
    """Return a column of the feed that somebody else has dropped, replaced by another of its name,
    or made required; None if there is none."""
    there = {field.name: field for field in schema.fields}
    for name, number in kept.fields.items():
        field = there.get(name)
        if field is None or field.field_id != number or field.required:
            return name
    return None


def walk_back(table: Table) -> Iterator[Snapshot]:
    """Yield the newest snapshot, and those before it as far as they are kept."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)


def read_snapshot(snapshot: Snapshot) -> Said | None:
    """Return what a snapshot of ours says; None if it is somebody else's."""
    summary = snapshot.summary
    text = None if summary is None else summary.additional_properties.get(INFO)
    try:
        return None if text is None else msgspec.json.decode(text, type=Said)
    except ValueError:
        return None


def _changes_rows(snapshot: Snapshot) -> bool:
    return any(_count(snapshot, name) for name in _COUNTS)


def _count(snapshot: Snapshot, name: str) -> int:
    summary = snapshot.summary
    try:
        return 0 if summary is None else int(summary.additional_properties.get(name) or 0)
    except ValueError:
        return 0
