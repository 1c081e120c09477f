"""The SQLite sink: a copy of a table (a mirror), or a log of its changes, in one SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from sinks.shared.merge import ColumnStep
from sinks.sql.database import KeyTaken
from sinks.sql.files import FileDatabase, FileSink
from sinks.sql.names import NameRules
from sinks.sql.rows import bind_rows, check_finite, make_json_comparable, read_batches
from sinks.sql.sink import TABLE_SETTINGS
from sinks.sql.text import check_times, is_json
from tailer.errors import RowsRefused, TargetRefused, may_heal, out_of_reach
from tailer.settings import REQUIRED, Setting
from tailer.sink import FaultTable

SETTINGS: dict[str, Setting] = {
    "path": Setting("text", REQUIRED, "The SQLite file."),
    **TABLE_SETTINGS,
}
#: By the name of the error. What is not here passes: another process that writes, a full disk, an
#: error of the disk, too little memory.
_FAULTS = FaultTable(
    for_good="SQLITE_ERROR SQLITE_PERM SQLITE_READONLY* SQLITE_CANTOPEN* SQLITE_NOTADB "
    "SQLITE_CORRUPT* SQLITE_AUTH* SQLITE_RANGE SQLITE_NOTFOUND",
    rows="SQLITE_CONSTRAINT* SQLITE_TOOBIG SQLITE_MISMATCH",
    passing="SQLITE_READONLY_RECOVERY SQLITE_READONLY_CANTLOCK SQLITE_READONLY_ROLLBACK",
)
#: Another process's transaction is waited for so long, before the feed starts again.
_BUSY_S = 5.0


class SqliteFile(FileDatabase):
    """A SQLite file, in write-ahead mode: others read while one process writes."""

    names = NameRules("SQLite", empty=True, columns_max=2000)
    numbering = "INTEGER PRIMARY KEY AUTOINCREMENT"
    faults = _FAULTS

    def _open(self, *, read_only: bool) -> None:
        mode = "ro" if read_only else "rwc"
        # One call at a time uses it, each in any thread.
        self._connection = sqlite3.connect(
            f"{self.path.resolve().as_uri()}?mode={mode}",
            uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
        if not read_only:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")

    def abandon(self) -> None:
        """Close the file; a transaction is undone."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._translate_errors():
            return list(self._connection.execute(statement, values).fetchall())

    def change_rows(self, statement: str, *values: Any) -> int:
        with self._translate_errors():
            return int(self._connection.execute(statement, values).rowcount)

    def quote_name(self, name: str) -> str:
        """Return a name as MySQL has it: one in double quotes that SQLite does not know is a text
        to it, and each row would have that."""
        return "`" + name.replace("`", "``") + "`"

    def begin(self) -> None:
        """Begin a transaction that writes: a later change of its kind could fail."""
        self.execute("BEGIN IMMEDIATE")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        self.execute("BEGIN")
        yield
        self.execute("ROLLBACK")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate SQLite's errors into our own, around each use of it."""
        try:
            yield
        except sqlite3.IntegrityError as e:
            raise KeyTaken(f"{self.path}: {e}") from e
        except sqlite3.Error as e:
            code = str(getattr(e, "sqlite_errorname", ""))
            check = "; check the path and the table"
            good = self.faults.verdict(code) == "for good"
            raise self.faults.error(code, f"{self.path}: {e}{check if good else ''}") from e
        except OverflowError as e:
            raise RowsRefused(f"{self.path}: {e}") from e
        except OSError as e:
            if may_heal(e):
                raise out_of_reach(f"{self.path} can't be opened", e) from e
            raise TargetRefused(f"{self.path}: {e.strerror or e}") from e

    def has_table(self, name: str) -> bool:
        """Return whether the file has a table of this name."""
        return bool(self.list_columns(name))

    def list_columns(self, name: str) -> list[str]:
        return [row[0] for row in self.execute("SELECT name FROM pragma_table_info(?)", name)]

    def check_values(self, column: pa.Array) -> None:
        """Raise :class:`ValueRefused` for what SQLite can't hold."""
        check_times(column)
        check_finite(column, "SQLite", infinity=True)  # it takes NaN for null

    def format_type(self, data_type: pa.DataType) -> str:
        """Return the type that SQLite shows; it is also that of most values."""
        types = pa.types
        if types.is_boolean(data_type) or types.is_integer(data_type):
            return "INTEGER"
        if types.is_floating(data_type):
            return "REAL"
        return "BLOB" if types.is_binary(data_type) else "TEXT"

    def format_alterations(
        self, target: str, steps: Sequence[ColumnStep], schema: pa.Schema
    ) -> list[str]:
        """Return the statements that change the columns of a table. A type changes only where its
        values stay: SQLite has types of values, not of columns."""
        for step in steps:
            if (
                step.kind == "retype"
                and step.old is not None
                and not _keeps_values(step.old, step.field)
            ):
                raise TargetRefused(
                    f"{self.path}: the column {step.column!r} was of type {step.old.type} and is "
                    f"now of type {step.field.type}, which SQLite writes in another way; `tailer "
                    "offsets reset` creates the copy again"
                )
        steps = [step for step in steps if step.kind != "retype"]
        return super().format_alterations(target, steps, schema)

    def delete_rows(self, target: str, keys: str, key: Sequence[str]) -> int:
        names = self.quote_names(key)
        table = self.quote_table(target)
        return self.change_rows(
            f"DELETE FROM {table} WHERE ({names}) IN (SELECT {names} FROM {keys})"
        )

    @contextmanager
    def stage_rows(self, keys: pa.Table) -> Iterator[str]:
        """Provide rows as a temporary table."""
        columns = ", ".join(
            f"{self.quote_name(f.name)} {self.format_type(f.type)}" for f in keys.schema
        )
        self.execute("DROP TABLE IF EXISTS temp._staged")
        self.execute(f"CREATE TEMPORARY TABLE _staged ({columns})")
        self.insert_rows("temp._staged", keys)
        yield "temp._staged"
        self.execute("DROP TABLE temp._staged")

    def insert_rows(self, relation: str, rows: pa.Table) -> None:
        marks = ", ".join("?" * rows.num_columns)
        names = self.quote_names(rows.schema.names)
        with self._translate_errors():
            for bound in bind_rows(rows):
                self._connection.executemany(
                    f"INSERT INTO {relation} ({names}) VALUES ({marks})", bound
                )

    def make_comparable(self, column: pa.Array, data_type: pa.DataType) -> pa.Array:
        """Return JSON in one form."""
        return make_json_comparable(column, data_type)

    def read_rows(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._translate_errors():
            cursor = self._connection.execute(query)
            yield from read_batches(self.location, cursor.fetchmany, schema)


class SqliteSink(FileSink):
    """A copy of a table, or a log of its changes, in a SQLite file, exactly once."""

    settings = SETTINGS
    kind = "sqlite"
    file_class = SqliteFile


def _keeps_values(old: pa.Field, new: pa.Field) -> bool:
    numbers = (pa.types.is_integer, pa.types.is_floating)
    return is_json(new.type) or all(
        any(number(field.type) for number in numbers) for field in (old, new)
    )
