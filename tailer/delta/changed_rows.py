"""How many rows a commit changes, as its log entry says.

The writer's ``operationMetrics`` come first: a rewritten file has many rows that are as they were,
and neither a change file nor, mostly, a remove has statistics. Nothing is read for it.
"""

from __future__ import annotations

from typing import Any

from tailer.delta.actions import AddCDCFile, AddFile
from tailer.delta.commit import Commit
from tailer.delta.paths import parse_location

#: An overwrite of some rows (``replaceWhere``) deletes rows, and writes those that it inserts with
#: those that it copies.
_DELETED, _OUTPUT, _COPIED = "numdeletedrows", "numoutputrows", "numcopiedrows"
#: Metrics of Spark and, without their underscores, of delta-rs: a row that is updated is two
#: events.
_EVENTS_PER_ROW = {
    _DELETED: 1, "numupdatedrows": 2, "numtargetrowsinserted": 1,
    "numtargetrowsupdated": 2, "numtargetrowsdeleted": 1,
}  # fmt: skip


def count_changed_rows(commit: Commit) -> int | None:
    """Return how many rows a commit inserts and deletes, an update counted twice; None if its
    entry does not say."""
    header = commit.header
    if not header.data_changes and not header.cdcs:
        return 0
    if reported := _sum_metrics(header.commit_info.fields if header.commit_info else {}):
        return reported
    if header.cdcs:
        return None
    # Of a file that is removed and added only the rows count by which its deletion vectors differ.
    rows, again = 0, dict[str, int]()
    for action in commit.file_actions():
        if isinstance(action, AddCDCFile) or not action.data_change:
            continue
        vector = action.deletion_vector
        deleted = vector.cardinality if vector else 0
        if header.added_again and commit.is_added_again(action.path):
            where = parse_location(action.path)
            sign = 1 if isinstance(action, AddFile) else -1
            again[where] = again.get(where, 0) + sign * deleted
        elif action.num_records is None:
            return None
        else:
            rows += max(0, action.num_records - deleted)
    return rows + sum(map(abs, again.values()))


def _sum_metrics(info: dict[str, Any]) -> int:
    """Return the events that a writer's metrics give; 0 if they give none."""
    metrics, found = info.get("operationMetrics"), dict[str, int]()
    for name, value in metrics.items() if isinstance(metrics, dict) else ():
        text = str(value)  # Spark writes them as texts
        if text.isascii() and text.isdigit() and len(text) < 19:
            found[str(name).replace("_", "").lower()] = int(text)
    events = sum(per_row * found.get(name, 0) for name, per_row in _EVENTS_PER_ROW.items())
    if _DELETED in found and _OUTPUT in found:
        events += max(0, found[_OUTPUT] - found.get(_COPIED, 0))
    return events
