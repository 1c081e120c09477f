"""The DuckDB sink: a copy of a table (a mirror), or a log of its changes, in one DuckDB file.

Rows and offset are in one transaction, so each change is in the file exactly once. DuckDB locks a
file for one process; the sink closes it while no batch waits, so that other programs can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import pyarrow as pa

from sinks.duckdb.database import Claim, Database, quoted
from sinks.formats.json import variant_text
from sinks.mirror import Merge, Step, merge_of, physical_name, steps_between, with_physical_names
from tailer.changes import METADATA_FIELDS, ChangeBatch, Notice, Offset, is_arrow_variant
from tailer.errors import SinkRejected
from tailer.settings import REQUIRED, Setting
from tailer.sink import SinkTraits

__all__ = ["SETTINGS", "DuckdbSink"]

SETTINGS: dict[str, Setting] = {
    "path": Setting("text", REQUIRED, "The DuckDB file."),
    "table": Setting("text", "", "The table in that file.", unset="the feed's name"),
    "mode": Setting(
        "text", "mirror", "Keep a copy of the table, or a log of its change events.",
        choices=("mirror", "log"),
    ),
    "key": Setting(
        "texts", [], "Mode `mirror`: the columns that identify a row; empty means by row id.",
    ),
    "release": Setting(
        "flag", True, "Close the file while no batch waits, so that other programs can read it.",
    ),
    "memory_bytes_max": Setting(
        "whole", 512 * 1024**2, "Memory that DuckDB uses for the file.", unit="bytes",
        least=64 * 1024**2,
    ),
    "threads": Setting("whole", 2, "Threads that DuckDB uses."),
}  # fmt: skip
#: The column of a mirror by row id, and the one of a log's event ids.
_ROW_ID, _EVENT_ID = "_row_id", "_event_id"


class DuckdbSink:
    """A copy of a table, or a log of its changes, in a DuckDB file, exactly once."""

    settings = SETTINGS

    def __init__(
        self,
        path: Path,
        *,
        table: str = "",
        mode: str = "mirror",
        key: tuple[str, ...] = (),
        release: bool = True,
        memory_bytes_max: int = 512 * 1024**2,
        threads: int = 2,
    ) -> None:
        self.table = table
        self.mode = mode
        self.key = key or (_ROW_ID,)
        self.release = release
        self.traits = SinkTraits(key_columns=key, row_ids=mode == "mirror" and not key, runs=True)
        self._database = Database(path, memory_bytes_max, threads)
        self._target = ""
        self._claim: Claim | None = None
        self._waiting = 0

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> DuckdbSink:
        """Create the sink. Options: :data:`SETTINGS`."""
        more = {name: value for name, value in options.items() if name not in ("path", "key")}
        return cls(folder / options["path"], key=tuple(options["key"]), **more)

    async def open(self, feed: str) -> Offset | None:
        """Claim the table for this process; see :class:`tailer.sink.Sink`."""
        return await anyio.to_thread.run_sync(self._open, feed)

    def _open(self, feed: str) -> Offset | None:
        self._database.close()
        self._waiting = 0
        self._target = self.table or feed
        self._database.connect()
        self._claim = self._database.claim(self._target, feed, self.mode)
        self._let_go()
        return self._claim.offset

    async def look(self, feed: str) -> Offset | None:
        """See :class:`tailer.sink.Looks`."""
        return await anyio.to_thread.run_sync(self._look, feed)

    def _look(self, feed: str) -> Offset | None:
        if not self._database.path.exists():
            return None
        try:
            self._database.connect(read_only=True)
            found = self._database.check(self.table or feed, feed, self.mode)
        finally:
            self._database.close()
        return found.offset if found else None

    async def set_offset(self, feed: str, offset: Offset | None) -> None:
        """See :class:`tailer.sink.KeepsProgress`. None drops the table, which belongs to the
        offset."""
        await anyio.to_thread.run_sync(self._set_offset, feed, offset)

    def _set_offset(self, feed: str, offset: Offset | None) -> None:
        self._target = self.table or feed
        try:
            self._database.connect()
            if offset is None:
                self._database.forget(self._target)
            else:
                claim = self._database.claim(self._target, feed, self.mode)
                with self._database.transaction():
                    self._database.move(self._target, replace(claim, offset=offset))
        finally:
            self._database.close()

    def prepare(self, batch: ChangeBatch) -> None:  # noqa: ARG002  # that there is one is enough
        """Note that a batch waits; see :class:`tailer.sink.Prepares`."""
        self._waiting += 1

    async def write(self, batch: ChangeBatch) -> None:
        """See :class:`tailer.sink.Sink`."""
        self._waiting = max(0, self._waiting - 1)
        await anyio.to_thread.run_sync(self._write, batch)

    async def announce(self, notice: Notice) -> None:
        """Store a notice's offset; see :class:`tailer.sink.Announces`."""
        if notice.kind != "heartbeat" and notice.next_offset != notice.offset:
            await anyio.to_thread.run_sync(self._move, notice.next_offset)

    async def aclose(self) -> None:
        """See :class:`tailer.sink.Sink`."""
        self._claim = None
        await anyio.to_thread.run_sync(self._database.close)

    # Writing

    def _claimed(self) -> Claim:
        if self._claim is None:
            raise SinkRejected("the sink is not open")
        self._database.connect()
        return self._claim

    def _let_go(self) -> None:
        if self.release and not self._waiting:
            self._database.close()

    def _move(self, offset: Offset) -> None:
        claim = replace(self._claimed(), offset=offset)
        with self._database.transaction():
            self._database.move(self._target, claim)
        self._claim = claim
        self._let_go()

    def _write(self, batch: ChangeBatch) -> None:
        claim = self._claimed()
        rows = self._rows(batch)
        schema = with_physical_names(batch, rows.schema)
        merge = None
        if batch.num_rows and self.mode == "mirror":
            # Rows of a snapshot that is read while the copy is there replace what it has.
            again = batch.offset.snapshot and claim.offset is not None and not claim.offset.snapshot
            merge = merge_of(batch, rows, self.key, unchecked=again)
        claim = replace(self._with_key(claim, schema), offset=batch.next_offset)
        staged = _staged(merge) if merge else {"_rows": pa.table(rows)}
        empty = {"_new": pa.table(rows.slice(0, 0))}
        with self._database.registered(**staged, **empty), self._database.transaction():
            self._evolve(claim, schema)
            if merge is not None:
                self._merge(merge)
            elif batch.num_rows:
                self._append()
            claim = replace(claim, columns=self._columns(claim, schema))
            self._database.move(self._target, claim)
        self._claim = claim
        self._let_go()

    def _rows(self, batch: ChangeBatch) -> pa.RecordBatch:
        """Return a batch's rows as the table has them. Raises :class:`SinkRejected` for a type that
        DuckDB can't hold."""
        rows = batch.rows
        count = rows.num_columns - len(METADATA_FIELDS)
        found = {
            field.name: variant_text(column) if is_arrow_variant(field.type) else column
            for field, column in zip(rows.schema, rows.columns[:count], strict=False)
        }
        for name, column in found.items():
            _check_type(name, column.type)
        if self.mode == "log":
            metadata = zip(rows.schema.names[count:], rows.columns[count:], strict=True)
            found |= {**dict(metadata), _EVENT_ID: batch.event_ids()}
        elif self.key == (_ROW_ID,):
            ids = batch.row_ids
            if ids is None and batch.num_rows:
                raise SinkRejected(
                    f"version {batch.version} has no row ids; name key columns in the option "
                    "'key', or enable row tracking on the table and set change_source to derived"
                )
            found[_ROW_ID] = pa.array([], pa.int64()) if ids is None else ids
        return pa.RecordBatch.from_pydict(found)

    def _with_key(self, claim: Claim, schema: pa.Schema) -> Claim:
        """Return the claim with its key. Raises :class:`SinkRejected` if the copy has another."""
        if self.mode == "log":
            return claim
        physical = {field.name: physical_name(field) for field in schema}
        key = [physical.get(name, name) for name in self.key]
        if claim.key not in (None, key):
            raise SinkRejected(
                f"{self._database.path}: the copy {self._target!r} has the key {claim.key} and not "
                f"{key}; set the option 'key' back, or make the copy again by `tailer offsets "
                "reset`"
            )
        return replace(claim, key=key)

    def _columns(self, claim: Claim, schema: pa.Schema) -> pa.Schema:
        """Return the columns that the table has after a write; a log keeps all that it had."""
        if self.mode == "mirror" or claim.columns is None:
            return schema
        gone = [field for field in claim.columns if field.name not in schema.names]
        return pa.schema([*schema, *gone])

    def _evolve(self, claim: Claim, schema: pa.Schema) -> None:
        target = quoted(self._target)
        if claim.columns is None:
            self._database.execute(f"CREATE TABLE {target} AS FROM _new")
            return
        if claim.columns.equals(schema, check_metadata=True):
            return
        types = {row[0]: row[1] for row in self._database.execute("DESCRIBE _new")}
        for step in steps_between(claim.columns, schema, keep=self.mode == "log"):
            self._database.execute(f"ALTER TABLE {target} {_altering(step, types)}")

    def _append(self) -> None:
        self._database.execute(f"INSERT INTO {quoted(self._target)} BY NAME FROM _rows")

    def _merge(self, merge: Merge) -> None:
        """Delete the keys that leave, insert the rows that come, and hold the copy to its key."""
        target, using = quoted(self._target), ", ".join(map(quoted, self.key))
        if merge.present.num_rows:
            same = " AND ".join(f"t.{quoted(name)} = k.{quoted(name)}" for name in self.key)
            delete = f"DELETE FROM {target} t USING _present k WHERE {same}"
            deleted = self._database.execute(delete)[0][0]
            if deleted < merge.present.num_rows and not merge.unchecked:
                self._database.start_again()
                lacks = self._database.execute(
                    f"FROM _present ANTI JOIN {target} USING ({using}) LIMIT 3"
                )
                raise self._refused(
                    lacks,
                    "that the copy lacks; it must begin with all rows of the "
                    'table (from = "snapshot") and have one writer',
                )
        if merge.absent.num_rows:
            has = self._database.execute(f"FROM _absent SEMI JOIN {target} USING ({using}) LIMIT 3")
            if has:
                raise self._refused(
                    has,
                    "that the copy has already, so the key columns do not "
                    "identify a row; choose others, or mirror by row id",
                )
        if merge.rows.num_rows:
            self._append()

    def _refused(self, keys: list[tuple[Any, ...]], what: str) -> SinkRejected:
        shown = ", ".join(str(dict(zip(self.key, key, strict=True))) for key in keys)
        again = "; `tailer offsets reset` makes the copy again"
        return SinkRejected(
            f"{self._database.path}, table {self._target!r}: a change is of a row with a key "
            f"{what}: {shown}{again}"
        )


def _staged(merge: Merge) -> dict[str, pa.Table]:
    return {"_present": merge.present, "_absent": merge.absent, "_rows": merge.rows}


def _altering(step: Step, types: Mapping[str, str]) -> str:
    """Return a step as the end of a statement; ``types`` are DuckDB's, by column."""
    column, to = quoted(step.column), step.field.name
    match step.kind:
        case "add":
            return f"ADD COLUMN {column} {types[to]}"
        case "drop":
            return f"DROP COLUMN {column}"
        case "rename":
            return f"RENAME COLUMN {column} TO {quoted(to)}"
        case "retype":
            return f"ALTER COLUMN {column} SET DATA TYPE {types[to]}"


def _check_type(name: str, data_type: pa.DataType) -> None:
    if is_arrow_variant(data_type):
        raise SinkRejected(
            f"the column {name!r} has a variant within another type, which DuckDB can't hold; "
            "leave it out by the option 'columns' of the feed"
        )
    if pa.types.is_struct(data_type) and not data_type.num_fields:
        raise SinkRejected(
            f"the column {name!r} has a struct without fields, which DuckDB can't hold; leave it "
            "out by the option 'columns' of the feed"
        )
    for i in range(data_type.num_fields):
        _check_type(name, data_type.field(i).type)
