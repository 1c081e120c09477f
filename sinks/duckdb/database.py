"""One DuckDB file: its connection, and its dialect of SQL."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from sinks.formats.json import variant_text
from sinks.sql.database import ValueRefused
from sinks.sql.files import FileDatabase
from sinks.sql.names import NameRules
from tailer.changes import is_arrow_variant
from tailer.errors import SinkRejected, TargetRefused, TransientError
from tailer.sink import FaultTable

_IS_THERE = """
    SELECT count(*) FROM information_schema.tables
    WHERE table_schema = 'main' AND lower(table_name) = lower(?)
"""
#: By the names of the error's class and of those above it. What is not here passes: the file is
#: locked by another process, the disk is full, a transaction conflicts.
_FAULTS = FaultTable(
    for_good="BinderException CatalogException ParserException SyntaxException DependencyException "
    "InvalidTypeException PermissionException NotSupportedError ProgrammingError",
    rows="DataError IntegrityError",
    passing="InterruptException HTTPException SequenceException TransactionException",
)
#: What DuckDB's messages contain for errors that do not pass by themselves.
_FOR_GOOD = ("Permission denied", "Read-only file system", "Is a directory", "not a valid DuckDB")
#: What a database's file has after its checksum.
_MAGIC, _MAGIC_AT = b"DUCK", 8
_DAMAGED = "Corrupt database file"

#: A checkpoint overwrites blocks that are in use: a process killed within that write leaves a file
#: that DuckDB can't open. So the file is not checkpointed at each close, but when its log is as
#: long as DuckDB replays in some 30 ms at the next open.
_WAL_BYTES_MAX = 4 * 1024**2


class DuckdbFile(FileDatabase):
    """A DuckDB file, open for one process."""

    #: An index would have to fit into memory.
    enforces_keys = False
    names = NameRules("DuckDB")
    faults = _FAULTS
    claim_types = ("VARCHAR", "VARCHAR", "BIGINT", "BLOB")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._settings = {
            "memory_limit": "512MiB",
            "threads": "2",
            "autoinstall_known_extensions": "false",
        }
        #: This process has written to the file, and may have left its log beside it.
        self._written = False

    @property
    def is_open(self) -> bool:
        """Whether this process has the file open."""
        return self._connection is not None

    def _open(self, *, read_only: bool) -> None:
        self._check_kind()
        self._connection = self._open_connection(read_only=read_only)
        for name, value in self._settings.items():
            self._connection.execute(f"SET {name} = '{value}'")
        self._connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        self._connection.execute("SET enable_progress_bar = false")  # it prints without a file
        self._written = self._written or not read_only

    def _open_connection(self, *, read_only: bool) -> Any:
        try:
            return duckdb.connect(os.fspath(self.path), read_only=read_only)
        except duckdb.ConnectionException:  # this process has it open to be written
            return duckdb.connect(os.fspath(self.path))

    def _check_kind(self) -> None:
        """Refuse a file of another kind: DuckDB would make a view of Parquet or CSV."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            head = file.read(_MAGIC_AT + len(_MAGIC))
            if head and head[_MAGIC_AT:] != _MAGIC:
                raise TargetRefused(f"{self.path} is not a DuckDB file; name another path")

    def close(self) -> None:
        """Close the file, so that other processes can open it. What was written last may be in
        the write-ahead log beside it, which DuckDB reads too."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with self._translate_errors():
                if self._written and self._find_log_size() > _WAL_BYTES_MAX:
                    _write_checkpoint(connection)
                connection.close()

    def write_log_into_file(self) -> None:
        """Close the file, with all that this process has written in the file itself. Raises
        :class:`TransientError` if another process has it."""
        try:
            if self._written and self._find_log_size():
                self.connect()
                with self._translate_errors():
                    _write_checkpoint(self._connection)
        finally:
            self.close()

    def _find_log_size(self) -> int:
        try:
            return self.path.with_name(f"{self.path.name}.wal").stat().st_size
        except FileNotFoundError:
            return 0

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._translate_errors():
            return list(self._connection.execute(statement, list(values)).fetchall())

    def change_rows(self, statement: str, *values: Any) -> int:
        return int(self.execute(statement, *values)[0][0])

    def abandon(self) -> None:
        """Close the file: what could not be written may leave DuckDB in a state in which it refuses
        all work."""
        connection, self._connection = self._connection, None
        with suppress(duckdb.Error):
            if connection is not None:
                connection.close()

    @contextmanager
    def stage_rows(self, keys: pa.Table) -> Iterator[str]:
        """Provide an Arrow table as a view."""
        with self._translate_errors():
            self._connection.register("_staged", keys)
        try:
            yield "_staged"
        finally:
            # In a transaction that has failed this fails too, and would hide why.
            if self._connection is not None:
                with suppress(duckdb.Error):
                    self._connection.unregister("_staged")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate DuckDB's errors into our own, around each use of it."""
        try:
            yield
        except (duckdb.Error, OSError) as e:
            raise self._to_tailer_error(e) from e

    def _to_tailer_error(self, error: Exception) -> SinkRejected | TransientError:
        """Return an error of DuckDB as one of ours."""
        reason = " ".join(str(error).split())
        sentence = f"{self.path}: {reason}"
        if _DAMAGED in reason:  # of another class in each version of DuckDB
            return TargetRefused(
                f"{sentence}; restore it, or remove it with its .wal and reset the feed's offset"
            )
        for kind in type(error).__mro__:
            if isinstance(found := self.faults.error(kind.__name__, sentence), SinkRejected):
                return found
        if any(what in reason for what in _FOR_GOOD):
            return TargetRefused(f"{sentence}; check the path")
        if "lock on file" in reason:
            sentence += "; another process has it open: close it there, or wait"
        return TransientError(sentence)

    def has_table(self, name: str) -> bool:
        """Return whether the file has a table of this name."""
        return bool(self.execute(_IS_THERE, name)[0][0])

    def list_columns(self, name: str) -> list[str]:
        if not self.has_table(name):
            return []
        return [row[0] for row in self.execute(f"DESCRIBE {self.quote_name(name)}")]

    def to_database_type(self, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG002  # of any name
        """Return a variant as the text of its JSON, and all else as it is."""
        return variant_text(column) if is_arrow_variant(column.type) else column

    def check_values(self, column: pa.Array) -> None:
        """Raise :class:`ValueRefused` for what DuckDB can't hold."""
        _check_type(column.type)

    def format_type(self, data_type: pa.DataType) -> str:
        """Return DuckDB's type of an Arrow type."""
        with self.stage_rows(pa.table({"c": pa.array([], data_type)})) as staged:
            return str(self.execute(f"DESCRIBE {staged}")[0][1])

    def insert_rows(self, relation: str, rows: pa.Table) -> None:
        with self.stage_rows(rows) as staged:
            self.execute(f"INSERT INTO {relation} BY NAME FROM {staged}")

    def read_rows(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._translate_errors():
            reader = pa.RecordBatchReader.from_stream(self._connection.sql(query))
        for batch in reader:
            columns = [c.cast(f.type) for c, f in zip(batch.columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _write_checkpoint(connection: Any) -> None:
    """Write the log into the file, unless another feed of this process is in a transaction."""
    with suppress(duckdb.TransactionException):
        connection.execute("CHECKPOINT")


def _check_type(data_type: pa.DataType) -> None:
    if is_arrow_variant(data_type):
        raise ValueRefused("a variant within another type, which DuckDB can't hold")
    if pa.types.is_struct(data_type) and not data_type.num_fields:
        raise ValueRefused("a struct without fields, which DuckDB can't hold")
    if pa.types.is_struct(data_type):
        _check_fields([field.name for field in data_type])
    for i in range(data_type.num_fields):
        _check_type(data_type.field(i).type)


def _check_fields(names: Sequence[str]) -> None:
    """Raise :class:`ValueRefused` for fields of a struct that DuckDB does not tell apart, or whose
    names its types can't have."""
    if any("\x00" in name or not name for name in names):
        raise ValueRefused("a field without a name or with NUL in it, which DuckDB can't hold")
    if len({name.lower() for name in names}) < len(names):
        raise ValueRefused("fields whose names differ in case alone, which DuckDB can't tell apart")
