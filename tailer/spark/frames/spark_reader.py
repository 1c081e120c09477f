"""Changes by Spark's own Parquet reader: for the files whose rows need nothing else.

Spark reads such a file as Delta does, so its rows are those of our decoder: no row is left out, no
column has another name or type than in the query, and all types are simple. What a file's action
says of its rows, its facts, comes from the log: change type, version, time and partition values.
All files are one scan, and conditions on their facts leave out files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as s

from tailer.changes import (
    CHANGE_TYPE,
    CHANGE_TYPES,
    COMING_KINDS,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeFile,
)
from tailer.decode.rows import EARLY_KINDS
from tailer.delta.partitions import partition_scalar, partition_text
from tailer.delta.snapshot import TableState
from tailer.delta.types import PrimitiveType
from tailer.errors import FileGone, TableError
from tailer.native.parquet import native
from tailer.spark.frames.planned_files import PlannedFile, frame_of_files
from tailer.spark.orders import FileOrder, Order, is_small
from tailer.spark.types import spark_type
from tailer.store.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Spark's reader takes a millisecond to open a file.
_SMALL_FILES_MAX = 200

#: Paths that Spark reads as they are: neither as a pattern nor as an address, nor as hidden files.
#: The file's own name has only characters that are written in one way everywhere.
_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9_.\-=+@%& ]+)*/[A-Za-z0-9][A-Za-z0-9_.\-]*")

_SIMPLE = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|decimal.*"
)

#: The settings of the session are not to hide what is lost, or to move old dates. Several reads of
#: a file at once are for stores that are far away: with local files, a scan waits for its helpers.
_READ_OPTIONS = {
    "parquet.hadoop.vectored.io.enabled": "false",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}

#: The change type of a file whose rows have none of their own.
_KIND = "__tailer_kind"


@dataclass(slots=True)
class _Layout:
    """Files that one scan can read: they have the same partition columns."""

    partitions: tuple[str, ...]
    files: list[PlannedFile] = field(default_factory=list)
    cdc: bool = False
    data: bool = False


class SparkFiles:
    """Takes the orders that Spark can read, and gives their rows as frames.

    ``target`` is the query's schema, ``schema`` the same for Spark, with the metadata columns.
    """

    def __init__(
        self, store: LocalStore, target: TableState, schema: StructType, writer_timezone: str
    ) -> None:
        self._store = store
        self._target = {f.name: f.type for f in target.schema if f.name in schema.names}
        self._schema = schema
        self._zone = writer_timezone
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        self._fitting: dict[int, tuple[TableState, bool]] = {}
        named = {name.lower() for name in self._target}
        self._readable = _KIND not in named and all(
            isinstance(kind, PrimitiveType) and _SIMPLE.fullmatch(kind.name)
            for kind in self._target.values()
        )

    def take(self, orders: Iterable[Order]) -> list[Order]:
        """Take the orders that Spark can read; return the others.

        Many small files are left to the decoder, which is several times as fast with them.
        """
        orders = [*orders]
        many = native is not None and sum(map(is_small, orders)) > _SMALL_FILES_MAX
        return [order for order in orders if (many and is_small(order)) or not self._taken(order)]

    def _taken(self, order: Order) -> bool:
        if not (self._readable and isinstance(order, FileOrder)):
            return False
        file = order.file
        partial = order.skip or order.take is not None
        selected = file.only or file.without or file.rows is not None or file.kept is not None
        if partial or selected or file.updated is not None or not self._fits(file.state):
            return False
        path = f"{self._store.root.rstrip('/')}/{file.location}"
        if file.location.startswith("/") or not _PLAIN_PATH.fullmatch(path):
            return False
        stat = self._stat(file)
        if not stat.st_size:  # Spark would pass over it
            return False
        if file.kinds != COMING_KINDS:  # the order for the rows that leave has given all of them
            self._add(file, path, stat)
        return True

    def _stat(self, file: ChangeFile) -> os.stat_result:
        try:
            return self._store.path(file.location).stat()
        except (FileNotFoundError, NotADirectoryError):
            raise _gone(self._store, file) from None

    def _fits(self, state: TableState) -> bool:
        """Return whether the files of a state have the query's columns, as they are."""
        known = self._fitting.get(id(state))
        if known is None:
            own = {f.name: f for f in state.schema}
            fits = (
                state.mapping == "none"
                and CHANGE_TYPE not in own  # cdc files alone have such a column
                and all(
                    name in own
                    and own[name].type == kind
                    and "delta.typeChanges" not in own[name].metadata
                    for name, kind in self._target.items()
                )
            )
            known = self._fitting[id(state)] = state, fits  # the state is kept, and so its id
        return known[1]

    def _add(self, file: ChangeFile, path: str, stat: os.stat_result) -> None:
        cdc, state = file.change_type is None, file.state
        columns = [f for f in state.partition_fields() if f.name in self._target]
        try:
            values = [
                partition_scalar(
                    partition_text(file.partition_values, f.name, f.name, absent_is_null=cdc),
                    f.type,
                    self._zone,
                )
                for f in columns
            ]
        except TableError as e:
            raise e.at(table=self._store.root, version=file.version, path=file.path) from None
        names = tuple(f.name for f in columns)
        layout = self._layouts.setdefault(names, _Layout(names))
        layout.cdc, layout.data = layout.cdc or cdc, layout.data or not cdc
        given = (file.change_type, str(file.version), str(file.timestamp_ms * 1000))
        facts = (*given, *map(_text, values))
        changed_ms = stat.st_mtime_ns // 1_000_000
        layout.files.append(PlannedFile(f"file://{path}", stat.st_size, changed_ms, facts))

    def frames(self, spark: SparkSession) -> list[DataFrame]:
        """Return the rows of the orders that were taken."""
        return [self._scan(spark, layout) for layout in self._layouts.values()]

    def _scan(self, spark: SparkSession, layout: _Layout) -> DataFrame:
        """Return the rows of all files, with the query's columns in its order."""
        names = [name for name in self._target if name not in layout.partitions]
        own = s.StructType([s.StructField(n, spark_type(self._target[n])) for n in names])
        kind = CHANGE_TYPE
        if layout.cdc:
            own.add(CHANGE_TYPE, s.StringType())
            kind = _KIND
        facts = s.StructType([s.StructField(kind, s.StringType())])
        facts.add(COMMIT_VERSION, s.LongType()).add(COMMIT_TIMESTAMP, s.TimestampType())
        for name in layout.partitions:
            facts.add(name, spark_type(self._target[name]))
        rows = frame_of_files(spark, own, facts, _READ_OPTIONS, layout.files)
        if [*own.names, *facts.names] == self._schema.names:
            return rows
        # As SQL: a column made by functions takes dozens of calls into Java.
        columns = {name: _quoted(name) for name in self._schema.names}
        if layout.cdc:
            kinds = f"coalesce({_KIND}, {_CHECKED_KIND})" if layout.data else _CHECKED_KIND
            columns[CHANGE_TYPE] = f"{kinds} AS {CHANGE_TYPE}"
        return rows.selectExpr(*columns.values())


def _text(value: pa.Scalar) -> str | None:
    """Return a partition value as :class:`PlannedFile` has it."""
    kind, plain = value.type, value.as_py()
    if plain is None:
        return None
    if pt.is_timestamp(kind):
        return str(value.value)
    if pt.is_binary(kind):
        return str(plain.hex())
    return str(plain)


def _checked_kind() -> str:
    """Return a cdc file's change type as it is called today; an unknown one is an error.

    Each row is compared with one after the other, and most are the images of updates.
    """
    by_frequency = sorted(CHANGE_TYPES, key=lambda kind: not kind.startswith("update"))
    known = ", ".join(f"'{kind}'" for kind in by_frequency)
    early = " ".join(f"WHEN '{old}' THEN '{name}'" for old, name in EARLY_KINDS.items())
    told = f"concat('a cdc file has an unknown change type: ', coalesce({CHANGE_TYPE}, ''))"
    return (
        f"CASE WHEN {CHANGE_TYPE} IN ({known}) THEN {CHANGE_TYPE} ELSE CASE {CHANGE_TYPE} {early} "
        f"ELSE CAST(raise_error({told}) AS STRING) END END"
    )


_CHECKED_KIND = _checked_kind()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _gone(store: LocalStore, file: ChangeFile) -> FileGone:
    kind = "cdc" if file.change_type is None else "data"
    return FileGone(
        f"the {kind} file is gone",
        table=store.root,
        version=file.version,
        path=file.path,
        hint="VACUUM or a lifecycle rule removed it before it was read; start after this version, "
        "or with a snapshot",
    )
