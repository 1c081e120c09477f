"""What the events of a target prove: none is lost, doubled, changed or out of order."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.integration.killing import rows_left
from tests.support.topic_records import Message, rows_of

#: Gives a row the names that its columns have at the end.
Rename = Callable[[dict[str, Any]], dict[str, Any]]
#: The rows of an event, with ``_change_type`` and ``_commit_version``.
Decode = Callable[["Record"], list[dict[str, Any]]]
_STRUCTURED = b"application/cloudevents+json"


@dataclass(frozen=True)
class Seen:
    """What a target has: the rows that are left, and how many events they come from."""

    rows: list[dict[str, Any]]
    events: int = 0


@dataclass(frozen=True)
class Record:
    """One event as it lies in its target; those of one ``place`` are in order."""

    body: bytes
    event_id: str = ""
    place: int = 0
    key: bytes | None = None


def decoded(record: Record) -> list[dict[str, Any]]:
    """The rows of an event in a JSON format."""
    event = json.loads(record.body)
    headers = {"content-type": _STRUCTURED} if "specversion" in event else {}
    rows = rows_of(Message(record.place, 0, record.key, record.body, headers))
    return [
        {
            **{name: _plain(value) for name, value in row.row.items()},
            "_change_type": "insert" if row.sign > 0 else "delete",
            "_commit_version": row.version,
        }
        for row in rows
    ]


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def _event_id(record: Record) -> str:
    if record.event_id:
        return record.event_id
    event = json.loads(record.body)
    found = event.get("_event_id") or event.get("id") if "source" not in event else None
    if found is None:
        found = event["id"] if "specversion" in event else event["source"]["event_id"]
    return str(found)


def proven(
    records: Sequence[Record],
    rename: Rename,
    *,
    exactly_once: bool,
    ordered: bool = True,
    decode: Decode = decoded,
) -> Seen:
    """The rows that events leave; what breaks the promise is an AssertionError. What comes again
    must be the same to the byte."""
    first: dict[str, Record] = {}
    for record in records:
        event_id = _event_id(record)
        before = first.setdefault(event_id, record)
        if before is not record:
            assert not exactly_once, f"event {event_id} is there twice"
            assert before == record, f"{event_id} came again and was another: {before}, {record}"
    events, versions = [], dict[int, int]()
    for event_id, record in first.items():
        for row in decode(record):
            version = row["_commit_version"]
            if ordered:
                before_it = versions.get(record.place, version)
                assert before_it <= version, (
                    f"out of order: {event_id} of version {version} is behind version {before_it}"
                )
                versions[record.place] = version
            events.append(rename(row))
    events.sort(key=lambda row: row["_commit_version"])
    return Seen(rows_left(events), len(records))
