"""Changes by Spark's own Parquet reader: for the files whose rows need nothing else.

Spark reads such a file as Delta does, so its rows are those of our decoder: no row is left out, no
column has another name or type than in the query, and all types are simple. What a file's action
says of its rows, its facts, comes from the log: version, time, change type and partition values.
All files are one scan, in which a row finds its facts by its file: a few sets of facts in one
expression, which conditions on them turn into a choice of files; more in a table to join.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from tailer.changes import CHANGE_TYPE, CHANGE_TYPES, COMING_KINDS, METADATA_FIELDS, ChangeFile
from tailer.decode.rows import EARLY_KINDS
from tailer.decode.small_files import native
from tailer.delta.arrow_types import arrow_type
from tailer.delta.partitions import partition_scalar, partition_text
from tailer.delta.snapshot import TableState
from tailer.delta.types import PrimitiveType
from tailer.errors import FileGone, TableError
from tailer.spark.orders import FileOrder, Order, is_small
from tailer.spark.types import spark_type
from tailer.store.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["NativeFiles"]

#: Up to so many sets of facts are literals of one expression.
_LITERALS_MAX = 8

#: Spark's reader takes a millisecond to open a file.
_SMALL_FILES_MAX = 200

#: Paths that Spark reads as they are: neither as a pattern nor as an address, nor as hidden files.
#: The file's own name has only characters that are written in one way everywhere.
_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9_.\-=+@%& ]+)*/[A-Za-z0-9][A-Za-z0-9_.\-]*")

_SIMPLE = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|decimal.*"
)

#: The settings of the session are not to hide what is lost, or to move old dates.
_READ_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}

#: Spark lists more paths than this by a job of as many tasks; here the driver lists them.
_LISTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"

_FACT = "__tailer_{}"
_FACTS = _FACT.format("facts")
_FILE = _FACT.format("file")
_NAME = _FACT.format("name")


@dataclass(slots=True)
class _Layout:
    """Files that one scan can read: they have the same partition columns."""

    partitions: tuple[str, ...]
    paths: list[str] = field(default_factory=list)
    facts: list[tuple[Any, ...]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)


class NativeFiles:
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
        self._names: dict[str, str] = {}
        self._parts: dict[tuple[Any, ...], bool] = {}
        self._fitting: dict[int, tuple[TableState, bool]] = {}
        named = {name.lower() for name in target.schema.names}
        self._readable = "_metadata" not in named and all(
            isinstance(kind, PrimitiveType) and _SIMPLE.fullmatch(kind.name)
            for kind in self._target.values()
        )

    def take(self, orders: Iterable[Order]) -> list[Order]:
        """Take the orders that Spark can read; return the others.

        A file in parts is taken whole, with its first part: all of them are here. Many small files
        are left to the decoder, which is several times as fast with them.
        """
        orders = [*orders]
        many = native is not None and sum(map(is_small, orders)) > _SMALL_FILES_MAX
        return [
            order for order in orders if (many and is_small(order)) or not self._part_taken(order)
        ]

    def _part_taken(self, order: Order) -> bool:
        if not isinstance(order, FileOrder) or order.part is None:
            return self._taken(order)
        file = order.file
        key = (file.version, file.path, file.change_type, file.kinds, file.without)
        if key not in self._parts:
            self._parts[key] = self._taken(order)
        return self._parts[key]

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
        if self._names.setdefault(_name(path), path) != path:  # the facts are found by the name
            return False
        if file.kinds != COMING_KINDS:  # the order for the rows that leave has given all of them
            self._add(file, path)
        return True

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

    def _add(self, file: ChangeFile, path: str) -> None:
        cdc, state = file.change_type is None, file.state
        columns = [f for f in state.partition_fields() if f.name in self._target]
        try:
            values = [
                partition_scalar(
                    partition_text(file.partition_values, f.name, absent_is_null=cdc),
                    f.type,
                    self._zone,
                )
                for f in columns
            ]
        except TableError as e:
            raise e.at(table=self._store.root, version=file.version, path=file.path) from None
        try:
            size = self._store.path(file.location).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            raise _gone(self._store, file) from None
        names = tuple(f.name for f in columns)
        layout = self._layouts.setdefault(names, _Layout(names))
        layout.paths.append(path)
        layout.sizes[path] = size
        given = (file.change_type, file.version, file.timestamp_ms * 1000)
        layout.facts.append((*given, *(value.as_py() for value in values)))

    def frames(self, spark: SparkSession) -> list[DataFrame]:
        """Return the rows of the orders that were taken."""
        listing = spark.conf.get(_LISTING) or "32"
        spark.conf.set(_LISTING, str(2**31 - 1))
        try:
            return [self._scan(spark, layout) for layout in self._layouts.values()]
        finally:
            spark.conf.set(_LISTING, listing)

    def _scan(self, spark: SparkSession, layout: _Layout) -> DataFrame:
        """Return the rows of all files, with the query's columns in its order."""
        by_facts: dict[tuple[Any, ...], list[str]] = {}
        for path, given in zip(layout.paths, layout.facts, strict=True):
            by_facts.setdefault(given, []).append(path)
        kinds = {facts[0] for facts in by_facts}
        fields = self._fact_fields(layout)
        rows = self._files(spark, layout, cdc=None in kinds)
        if len({*layout.paths}) < len(layout.paths) or len(by_facts) > _LITERALS_MAX:
            rows, facts = _joined(spark, rows, fields, layout)  # a file may have several facts
        elif len(by_facts) == 1:
            facts = _literals(fields, *by_facts)
        else:
            rows, facts = _chosen(rows, fields, by_facts, layout.sizes)
        if None in kinds:
            facts[CHANGE_TYPE] = f"coalesce({facts[CHANGE_TYPE]}, {_CHECKED_KIND})"
        # As SQL: a column made by functions takes dozens of calls into Java.
        quoted = {name: _quoted(name) for name in self._schema.names}
        return rows.selectExpr(*(f"{facts.get(name, q)} AS {q}" for name, q in quoted.items()))

    def _fact_fields(self, layout: _Layout) -> list[pa.Field]:
        own = [pa.field(name, arrow_type(self._target[name])) for name in layout.partitions]
        return [*METADATA_FIELDS, *own]

    def _files(self, spark: SparkSession, layout: _Layout, *, cdc: bool) -> DataFrame:
        """Return the columns that the files themselves have."""
        from pyspark.sql import types as s

        names = [name for name in self._target if name not in layout.partitions]
        schema = s.StructType([s.StructField(n, spark_type(self._target[n])) for n in names])
        if cdc:
            schema.add(CHANGE_TYPE, s.StringType())
        reader = spark.read.options(**_READ_OPTIONS).schema(schema)
        return reader.parquet(*(f"file://{path}" for path in sorted(set(layout.paths))))


def _literals(fields: Sequence[pa.Field], facts: Sequence[Any]) -> dict[str, str]:
    given = zip(fields, facts, strict=True)
    return {field.name: _literal(value, field.type) for field, value in given}


def _chosen(
    rows: DataFrame,
    fields: Sequence[pa.Field],
    by_facts: Mapping[tuple[Any, ...], Sequence[str]],
    sizes: Mapping[str, int],
) -> tuple[DataFrame, dict[str, str]]:
    """Return the rows with their facts, and each fact as SQL.

    A file's size is compared in a third of the time of its name, so the name decides only where
    the size does not.

    The condition is always true: without one that stays, Spark reads all of the hidden columns for
    a query that asks for none of the facts, and the numbers of the rows cost as much as the rows.
    """
    shared = Counter(sizes.values())
    by_size, by_name = [], []
    for facts, paths in by_facts.items():
        values = _literals(fields, facts).values()
        found = ", ".join(f"'f{at}', {value}" for at, value in enumerate(values))
        then = f"THEN named_struct({found})"
        names = ", ".join(f"'{_name(path)}'" for path in paths)
        by_name.append(f"WHEN _metadata.file_name IN ({names}) {then}")
        own = ", ".join(f"{sizes[path]}L" for path in paths if shared[sizes[path]] == 1)
        if own:
            by_size.append(f"WHEN _metadata.file_size IN ({own}) {then}")
    named = f"CASE {' '.join(by_name)} END"
    found = f"CASE {' '.join(by_size)} ELSE {named} END" if by_size else named
    rows = rows.where("_metadata.file_size >= 0").selectExpr("*", f"{found} AS {_FACTS}")
    return rows, {field.name: f"{_FACTS}.f{at}" for at, field in enumerate(fields)}


def _joined(
    spark: SparkSession, rows: DataFrame, fields: Sequence[pa.Field], layout: _Layout
) -> tuple[DataFrame, dict[str, str]]:
    """Return the rows joined with the facts by the files' names, and each fact as SQL.

    Not by their paths: Spark spells those in more than one way.
    """
    from pyspark.sql import functions as f
    from pyspark.sql import types as s
    from pyspark.sql.pandas.types import from_arrow_type

    schema = s.StructType([s.StructField(_FILE, s.StringType(), nullable=False)])
    for fact in fields:  # times as numbers: no time zone of this machine has a say
        kind = s.LongType() if pt.is_timestamp(fact.type) else from_arrow_type(fact.type)
        schema.add(_FACT.format(fact.name), kind)
    given = [
        (_name(path), *(_number(v, fact.type) for v, fact in zip(values, fields, strict=True)))
        for path, values in zip(layout.paths, layout.facts, strict=True)
    ]
    facts = f.broadcast(spark.createDataFrame(given, schema))
    rows = rows.withColumn(_NAME, f.col("_metadata.file_name"))
    columns = {fact.name: _quoted(_FACT.format(fact.name)) for fact in fields}
    for fact in fields:
        if pt.is_timestamp(fact.type):
            columns[fact.name] = f"timestamp_micros({columns[fact.name]})"
    return rows.join(facts, f.col(_NAME) == f.col(_FILE)), columns


def _text(value: str) -> str:
    """Return a string literal that no setting of the session reads in another way."""
    return f"CAST(unhex('{value.encode().hex()}') AS STRING)"


def _checked_kind() -> str:
    """Return a cdc file's change type as it is called today; an unknown one is an error."""
    known = ", ".join(f"'{kind}'" for kind in CHANGE_TYPES)
    early = " ".join(f"WHEN '{old}' THEN '{name}'" for old, name in EARLY_KINDS.items())
    told = (
        f"concat({_text('a cdc file has an unknown change type: ')}, coalesce({CHANGE_TYPE}, ''))"
    )
    return (
        f"CASE WHEN {CHANGE_TYPE} IN ({known}) THEN {CHANGE_TYPE} ELSE CASE {CHANGE_TYPE} {early} "
        f"ELSE CAST(raise_error({told}) AS STRING) END END"
    )


_CHECKED_KIND = _checked_kind()


def _literal(value: Any, kind: pa.DataType) -> str:
    """Return a value as SQL, in the type that Spark has for it."""
    from pyspark.sql.pandas.types import from_arrow_type

    name = from_arrow_type(kind).simpleString()
    if value is None:
        return f"CAST(NULL AS {name})"
    if pt.is_timestamp(kind):  # as a number: no time zone of this machine has a say
        return f"timestamp_micros({pa.scalar(value, kind).value})"
    if pt.is_binary(kind):
        return f"unhex('{value.hex()}')"
    if pt.is_boolean(kind):
        return str(value).lower()
    text = _text(str(value))
    return text if pt.is_string(kind) else f"CAST({text} AS {name})"


def _number(value: Any, kind: pa.DataType) -> Any:
    return pa.scalar(value, kind).value if value is not None and pt.is_timestamp(kind) else value


def _name(path: str) -> str:
    return path.rpartition("/")[2]


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
