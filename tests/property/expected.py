"""What the events of a version have to be, by the table in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tests.tables.model import Column, Row, TableVersion, row_key, visible

Key = tuple[Any, ...]
Events = Counter[tuple[str, Key]]
_SINGLE = {"update_preimage": "delete", "update_postimage": "insert"}
Place = tuple[str, int]


def moved(
    before: TableVersion | None, after: TableVersion
) -> tuple[dict[Place, Row], dict[Place, Row]]:
    """The rows that leave and those that come, by file and position, as they were visible."""
    old, new = ({} if v is None else dict(v.live()) for v in (before, after))

    def only(rows: dict[Place, Row], others: dict[Place, Row], columns: Any) -> dict[Place, Row]:
        return {
            place: Row(visible(row.values, columns), row.row_id, row.commit_version)
            for place, row in rows.items()
            if place not in others
        }

    return only(old, new, before.columns if before else ()), only(new, old, after.columns)


def recorded(after: TableVersion, left: dict[Place, Row], came: dict[Place, Row]) -> Events:
    """By the protocol's rules: the cdc files, else what moved with dataChange=true."""
    columns = after.columns
    if after.cdc is not None:
        return Counter((c.kind, row_key(c.values, columns)) for c in after.cdc)
    return Counter(
        (kind, row_key(row.values, columns))
        for kind, rows in (("delete", left), ("insert", came))
        for (path, _), row in rows.items()
        if path not in after.still
    )


def derived(
    before: TableVersion | None,
    after: TableVersion,
    left: dict[Place, Row],
    came: dict[Place, Row],
    *,
    whole: bool,
) -> Events:
    """The fewest events: by row ids where both versions have them and the writer kept them, by
    value elsewhere. ``whole``: the two schemas can't be compared, and every row is an event."""
    columns = after.columns
    old = Counter(row_key(row.values, columns) for row in left.values())
    new = Counter(row_key(row.values, columns) for row in came.values())
    if all(path in after.still for path, _ in (*left, *came)):
        assert old == new or after.operation == "ROW TRACKING BACKFILL"
        return Counter()
    key = "delta.enableRowTracking"
    if before is not None and before.on(key) and after.on(key) and after.preserved:
        return _by_ids(left, came, columns)
    if whole:
        assert before is not None
        types = {c.physical: c.type for c in before.columns}
        assert any(types.get(c.physical, c.type) != c.type for c in columns)
    elif left and came:
        old, new = old - new, new - old
    return Counter(
        {("delete", k): n for k, n in old.items()} | {("insert", k): n for k, n in new.items()}
    )


def _by_ids(left: dict[Place, Row], came: dict[Place, Row], columns: tuple[Column, ...]) -> Events:
    old, new = (
        {row.row_id: row_key(row.values, columns) for row in rows.values()} for rows in (left, came)
    )
    assert len(old) == len(left) and len(new) == len(came), "row ids are unique"  # noqa: PT018
    events: Events = Counter()
    for row_id in old.keys() | new.keys():
        if row_id not in new:
            events["delete", old[row_id]] += 1
        elif row_id not in old:
            events["insert", new[row_id]] += 1
        elif old[row_id] != new[row_id]:
            events["update_preimage", old[row_id]] += 1
            events["update_postimage", new[row_id]] += 1
    return events


def shown_columns(before: TableVersion | None, after: TableVersion) -> tuple[Column, ...]:
    """The columns in which versions can be compared: those of the later one, less what a RESTORE
    brings back to rows that no event is about."""
    if before is None or after.operation != "RESTORE":
        return after.columns
    mine = {c.physical: c for c in before.columns}
    return tuple(
        c
        for c in after.columns
        if c.physical in mine
        and {f.physical for f in c.fields} <= {f.physical for f in mine[c.physical].fields}
    )


def unpaired(
    where: str, events: Iterable[tuple[str, Mapping[str, Any]]], key: Column
) -> list[tuple[str, Mapping[str, Any]]]:
    """The events with each update as a delete and an insert again. Of the rows with one key that
    leave and of those that come, as many have to be paired as there can be."""
    counts: dict[Key, Counter[str]] = {}
    found = []
    for kind, row in events:
        counts.setdefault(row_key(row, (key,)), Counter())[kind] += 1
        found.append((_SINGLE.get(kind, kind), row))
    for kinds in counts.values():
        pairs = kinds["update_preimage"]
        assert pairs == kinds["update_postimage"], f"{where}: pairs"
        assert 0 in (kinds["delete"], kinds["insert"]), f"{where}: a pair was left out"
    return found
