"""Change batches without a table, for testing sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import structs

from tailer.changes import (
    METADATA_FIELDS,
    ChangeBatch,
    ChangeFile,
    Notice,
    NoticeKind,
    Offset,
    concat_batches,
)
from tailer.delta.actions import Metadata, Protocol
from tailer.delta.snapshot import TableState
from tailer.testing.table import delta_schema

__all__ = ["change_batch", "change_span", "empty_batch", "notice", "table_state"]


def table_state(
    schema: pa.Schema, table_id: str = "00000000-0000-4000-8000-000000000000"
) -> TableState:
    """Return the state of an unpartitioned table with that schema."""
    return TableState.from_actions(Protocol(1, 4), Metadata(table_id, delta_schema(schema), (), {}))


def change_batch(
    schema: pa.Schema,
    rows: Sequence[Mapping[str, Any]],
    *,
    version: int = 1,
    index: int = 0,
    last: bool = False,
    path: str = "part-0.parquet",
    timestamp_ms: int = 1_767_225_600_000,
) -> ChangeBatch:
    """Return rows of one file as a batch. Each row has its ``_change_type`` beside its data;
    without one it is an insert. ``index`` is the first row's place in the version, and its position
    in the file too; ``last`` makes the batch the version's last."""
    state = table_state(schema)
    file = ChangeFile(
        path=path,
        location=path,
        version=version,
        timestamp_ms=timestamp_ms,
        table_id=state.table_id,
        state=state,
        partition_values={},
        change_type=None,
        origin="cdf",
    )
    metadata = {"_commit_version": version, "_commit_timestamp": timestamp_ms * 1000}
    full = [{"_change_type": "insert", **row, **metadata} for row in rows]
    batch = pa.RecordBatch.from_pylist(full, schema=pa.schema([*schema, *METADATA_FIELDS]))
    offset = Offset(version, index, table_id=state.table_id)
    after = Offset(version, index + len(rows), table_id=state.table_id)
    return ChangeBatch(
        rows=batch,
        positions=pa.array(range(index, index + len(rows)), pa.int64()),
        state=state,
        file=file,
        timestamp_ms=timestamp_ms,
        offset=offset,
        next_offset=offset.next_version(timestamp_ms) if last else after,
    )


def change_span(
    schema: pa.Schema,
    versions: Sequence[Sequence[Sequence[Mapping[str, Any]]]],
    *,
    version: int = 1,
    timestamp_ms: int = 1_767_225_600_000,
) -> ChangeBatch:
    """Return consecutive versions as one batch (:attr:`ChangeBatch.span`): a version is a list of
    files, and each file a list of rows as for :func:`change_batch`. Commits are a minute apart;
    :meth:`ChangeBatch.by_file` gives the same rows in a batch for each file."""
    found = []
    for number, files in enumerate(versions):
        index = 0
        for place, rows in enumerate(files):
            found.append(
                change_batch(
                    schema,
                    rows,
                    version=version + number,
                    index=index,
                    last=place == len(files) - 1,
                    path=f"part-{number}-{place}.parquet",
                    timestamp_ms=timestamp_ms + number * 60_000,
                )
            )
            index += len(rows)
    return concat_batches(found)


def empty_batch(
    schema: pa.Schema, *, version: int = 1, timestamp_ms: int = 1_767_225_600_000
) -> ChangeBatch:
    """Return the one batch of a version without changes."""
    state = table_state(schema)
    offset = Offset(version, table_id=state.table_id)
    rows = pa.RecordBatch.from_pylist([], schema=pa.schema([*schema, *METADATA_FIELDS]))
    return ChangeBatch(
        rows=rows,
        positions=pa.array([], pa.int64()),
        state=state,
        file=None,
        timestamp_ms=timestamp_ms,
        offset=offset,
        next_offset=offset.next_version(timestamp_ms),
    )


def notice(
    kind: NoticeKind, offset: Offset, *, versions: int = 0, timestamp_ms: int = 1_767_225_600_000
) -> Notice:
    """Return a notice at an offset, with a next offset this many versions later."""
    then = (
        structs.replace(offset, version=offset.version + versions, index=0) if versions else offset
    )
    details = {"reason": "größe 😀"}
    return Notice(kind, offset.version, timestamp_ms, offset, then, details)
