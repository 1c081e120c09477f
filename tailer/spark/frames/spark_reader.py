"""Changes by Spark's own Parquet reader: for all files whose rows it reads right.

Spark reads such a file as Delta does, so its rows are those of our decoder: all rows of the file
are changes, and it has the query's columns in a form that Spark reads
(:mod:`tailer.spark.frames.file_columns`). What a file's action says of its rows, its facts, comes
from the log: change type, version, time and partition values. Files whose columns are found alike
are one scan, and conditions on their facts leave out files.
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
from tailer.decode.options import DecodeOptions
from tailer.decode.rows import EARLY_KINDS
from tailer.delta.partitions import find_partition_text, parse_partition_value
from tailer.delta.snapshot import TableState
from tailer.errors import TableError
from tailer.feed.rows.fetch import make_gone_error
from tailer.native.parquet import native
from tailer.spark.frames.file_columns import FileColumns, char_columns, file_columns
from tailer.spark.frames.planned_files import Columns, PlannedFile, frame_of_files
from tailer.spark.orders import FileOrder, Order, is_small
from tailer.spark.types import quote_name, spark_type
from tailer.store import Store
from tailer.store.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Spark's reader takes a millisecond to open a file.
_SMALL_FILES_MAX = 200

#: Paths that Spark reads as they are: neither as a pattern nor as an address, nor as hidden files.
#: The file's own name has only characters that are written in one way everywhere.
_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9_.\-=+@%& ]+)*/[A-Za-z0-9][A-Za-z0-9_.\-]*")

#: The settings of the session are not to hide what is lost, or to move old dates.
READ_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}

#: Several reads of a file at once are for stores that are far away: with local files, a scan waits
#: for its helpers.
_READ_LOCAL = {**READ_OPTIONS, "parquet.hadoop.vectored.io.enabled": "false"}

#: The change type of a file whose rows have none of their own.
_KIND = "__tailer_kind"


@dataclass(slots=True)
class _Layout:
    """Files that one scan can read."""

    columns: FileColumns
    files: list[PlannedFile] = field(default_factory=list)
    cdc: bool = False
    data: bool = False


class SparkFiles:
    """Takes the orders that Spark can read, and gives their rows as frames.

    ``place`` is the table's address for Hadoop. ``options`` have the query's schema, and ``schema``
    is the same for Spark, with the metadata columns.
    """

    def __init__(
        self, store: Store, place: str, options: DecodeOptions, schema: StructType
    ) -> None:
        assert options.target is not None
        self._store = store
        self._place = place.rstrip("/")
        self._options = options
        self._target = {f.name: f.type for f in options.target.schema if f.name in schema.names}
        self._schema = schema
        self._layouts: dict[tuple[object, ...], _Layout] = {}
        #: By the identity of a state, which is kept so that nothing else gets it, and the version,
        #: on which names depend where a mapping was removed.
        self._known: dict[tuple[int, int], tuple[TableState, FileColumns | None]] = {}
        self._padded = char_columns(options.target.schema, [*self._target])
        named = {name.lower() for name in self._target}
        self._readable = _KIND not in named

    def take_orders(self, orders: Iterable[Order]) -> list[Order]:
        """Take the orders that Spark can read; return the others.

        Many small files are left to the decoder, which is several times as fast with them.
        """
        orders = [*orders]
        many = native is not None and sum(map(is_small, orders)) > _SMALL_FILES_MAX
        return [
            order for order in orders if (many and is_small(order)) or not self._take_order(order)
        ]

    def _take_order(self, order: Order) -> bool:
        if not (self._readable and isinstance(order, FileOrder)):
            return False
        file = order.file
        partial = order.skip or order.take is not None
        selected = file.only or file.without or file.rows is not None or file.kept is not None
        if partial or selected or file.updated is not None:
            return False
        columns = self._find_columns(file)
        if columns is None or file.location.startswith("/"):
            return False
        path = f"{self._place}/{file.location}"
        below_server = path.partition("://")[2].partition("/")[2].lstrip("/")
        if not _PLAIN_PATH.fullmatch(f"/{below_server}"):
            return False
        size, changed_ms = self._stat_file(file)
        if not size:  # Spark would pass over it
            return False
        if file.kinds != COMING_KINDS:  # the order for the rows that leave has given all of them
            self._add_file(file, columns, path, size, changed_ms)
        return True

    def _stat_file(self, file: ChangeFile) -> tuple[int, int]:
        """Return a file's bytes, 0 if they are not known, and the time of its last change in
        milliseconds, 0 likewise. Elsewhere than here the log is believed, as by Delta."""
        if not isinstance(self._store, LocalStore):
            return file.size or 0, 0
        try:
            stat: os.stat_result = self._store.path(file.location).stat()
        except (FileNotFoundError, NotADirectoryError):
            kind = "cdc" if file.change_type is None else "data"
            raise make_gone_error(self._store, file, file.path, kind) from None
        return stat.st_size, stat.st_mtime_ns // 1_000_000

    def _find_columns(self, file: ChangeFile) -> FileColumns | None:
        """Return how the file has the query's columns; None if Spark can't read it."""
        options, state = self._options, file.state
        assert options.target is not None
        always = not options.removals and state.mapping == options.target.mapping
        key = id(state), -1 if always else file.version
        known = self._known.get(key)
        if known is None:
            columns = file_columns(file, options, self._target)
            known = self._known[key] = state, columns
        return known[1]

    def _add_file(
        self, file: ChangeFile, columns: FileColumns, path: str, size: int, changed_ms: int
    ) -> None:
        cdc, state = file.change_type is None, file.state
        try:
            values = [
                parse_partition_value(
                    find_partition_text(
                        file.partition_values,
                        state.physical_name(own),
                        own.name,
                        absent_is_null=cdc,
                    ),
                    self._target[name],
                    self._options.writer_timezone,
                )
                for name, own in columns.partitions
            ]
        except TableError as e:
            raise e.at(table=self._store.root, version=file.version, path=file.path) from None
        layout = self._layouts.setdefault(columns.scan_key(), _Layout(columns))
        layout.cdc, layout.data = layout.cdc or cdc, layout.data or not cdc
        given = (file.change_type, str(file.version), str(file.timestamp_ms * 1000))
        facts = (*given, *map(_format_fact, values))
        layout.files.append(PlannedFile(path, size, changed_ms, facts))

    def build_frames(self, spark: SparkSession) -> list[DataFrame]:
        """Return the rows of the orders that were taken."""
        return [self._scan_layout(spark, layout) for layout in self._layouts.values()]

    def _scan_layout(self, spark: SparkSession, layout: _Layout) -> DataFrame:
        """Return the rows of all files, with the query's columns in its order."""
        columns = layout.columns
        own = s.StructType([s.StructField(n, spark_type(self._target[n])) for n in columns.names])
        read, kind = s.StructType([*columns.read]), CHANGE_TYPE
        if layout.cdc:
            own.add(CHANGE_TYPE, s.StringType())
            read.add(CHANGE_TYPE, s.StringType())
            kind = _KIND
        facts = s.StructType([s.StructField(kind, s.StringType())])
        facts.add(COMMIT_VERSION, s.LongType()).add(COMMIT_TIMESTAMP, s.TimestampType())
        for name, _ in columns.partitions:
            facts.add(name, spark_type(self._target[name]))
        scanned = Columns(own, read, facts, by_id=columns.by_id)
        options = _READ_LOCAL if isinstance(self._store, LocalStore) else READ_OPTIONS
        rows = frame_of_files(spark, scanned, options, layout.files)
        padded = {name: self._padded[name] for name in columns.names if name in self._padded}
        if not padded and [*own.names, *facts.names] == self._schema.names:
            return rows
        # As SQL: a column made by functions takes dozens of calls into Java.
        chosen = {name: quote_name(name) for name in self._schema.names}
        for name, length in padded.items():
            text = quote_name(name)
            blanks = f"rpad({text}, greatest(char_length({text}), {length}), ' ')"
            chosen[name] = f"{blanks} AS {text}"
        if layout.cdc:
            kinds = f"coalesce({_KIND}, {_CHECKED_KIND})" if layout.data else _CHECKED_KIND
            chosen[CHANGE_TYPE] = f"{kinds} AS {CHANGE_TYPE}"
        return rows.selectExpr(*chosen.values())


def _format_fact(value: pa.Scalar) -> str | None:
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
    message = f"concat('a cdc file has an unknown change type: ', coalesce({CHANGE_TYPE}, ''))"
    return (
        f"CASE WHEN {CHANGE_TYPE} IN ({known}) THEN {CHANGE_TYPE} ELSE CASE {CHANGE_TYPE} {early} "
        f"ELSE CAST(raise_error({message}) AS STRING) END END"
    )


_CHECKED_KIND = _checked_kind()
