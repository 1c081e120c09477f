"""The data source ``tailer``: any Delta table's changes, in batch and as a stream.

    spark.dataSource.register(TailerSource)
    spark.readStream.format("tailer").option("startingVersion", 0).load("/data/orders")

The driver plans and the executors decode, with the daemon's own modules; rows travel as Arrow
batches. See docs/spark.md for the options.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from tailer.changes import COMMIT_VERSION, METADATA_FIELDS, Offset
from tailer.decode.naming import Removal
from tailer.decode.options import DecodeOptions
from tailer.delta.snapshot import TableState
from tailer.errors import ConfigError, TableError
from tailer.log.times import parse_timestamp, version_at_or_after, version_at_or_before
from tailer.spark.driver import TaskPartition, plan_once, tasks_of
from tailer.spark.failing import TailerSourceError, in_worker, one_sentence
from tailer.spark.options import SourceOptions, source_options
from tailer.spark.orders import Order
from tailer.spark.planning import Planner
from tailer.spark.python import use_this_python
from tailer.spark.quiet import drop_empty_profiles
from tailer.spark.types import change_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from tailer.spark.reader import ChangeStreamReader

__all__ = ["ChangeReader", "FilteringReader", "TailerSource"]


class TailerSource(DataSource):
    """``format("tailer")``. Register it once in a session."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options: SourceOptions | None = None
        self._target: tuple[TableState, int] | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format. Spark asks for it as it registers the source: the last
        moment at which the Python of its tasks can be chosen."""
        if not in_worker():
            use_this_python()
        return "tailer"

    def _checked(self) -> tuple[SourceOptions, tuple[TableState, int]]:
        """Return the checked options, and the schema of the query with its version."""
        if in_worker():
            drop_empty_profiles()
        if self._options is None:
            self._options = source_options(self.options)
        if self._target is None:
            self._target = plan_once(self._options, _target)
        return self._options, self._target

    @one_sentence
    def schema(self) -> StructType:
        """Return the end version's schema (for a stream, the newest), then the metadata columns."""
        options, (state, _) = self._checked()
        return change_schema(state.schema, options.columns, with_ids=options.with_ids)

    def _arrow_schema(self, schema: StructType) -> pa.Schema:
        from pyspark.sql.pandas.types import to_arrow_schema

        if schema != self.schema():
            raise ConfigError(
                "the schema that was given is not the table's; leave it out: the source knows it"
            )
        try:
            return to_arrow_schema(schema, timezone="UTC")
        except TypeError:  # before 4.1 the zone is always that
            return to_arrow_schema(schema)

    @one_sentence
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``."""
        options, target = self._checked()
        kind = FilteringReader if options.filter_pushdown else ChangeReader
        return kind(options, target, self._arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader for ``spark.readStream``, as far as this Spark supports it.

        It raises no error: Spark would hide it. The reader's first call does.
        """
        from tailer.spark.reader import refusing

        kind = _stream_kind()
        try:
            return self.stream_reader(kind, schema)
        except TailerSourceError as e:
            return refusing(kind, e)

    @one_sentence
    def stream_reader(
        self, kind: type[ChangeStreamReader], schema: StructType
    ) -> ChangeStreamReader:
        """Return a reader of this kind. Raises the error."""
        options, target = self._checked()
        return kind(options, target, schema, self._arrow_schema(schema))


def _stream_kind() -> type[ChangeStreamReader]:
    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        from tailer.spark.reader import ClassicStreamReader

        return ClassicStreamReader
    from tailer.spark.limited import LimitedStreamReader

    return LimitedStreamReader


async def _target(planner: Planner) -> tuple[TableState, int]:
    """Return the state whose schema the query has, and its version."""
    options, log = planner.options, planner.log
    snapshot = await log.snapshot(await _ending(planner))
    for name in (*(options.columns or ()), *options.key):
        if name not in snapshot.state.schema.names:
            raise ConfigError(
                f"{log.store.root} has no column {name!r}; it has "
                f"{', '.join(snapshot.state.schema.names)}"
            )
    _check_names(options, snapshot.state.schema.names, log.store.root)
    return snapshot.state, snapshot.version


def _check_names(options: SourceOptions, names: Sequence[str], table: str) -> None:
    """Refuse two columns of the same name, ignoring case: such a frame is of no use in Spark."""
    ours = [field.name for field in METADATA_FIELDS]
    ours += ["_event_id", "_origin"] if options.with_ids else []
    for name in names if options.columns is None else options.columns:
        if name.lower() in ours:
            raise ConfigError(
                f"{table} has a column {name!r}, which is the name of a column of changes; leave "
                "it out by the option columns"
            )


async def _ending(planner: Planner) -> int | None:
    ending = planner.options.ending
    if ending is None or ending.isdigit():
        return None if ending is None else int(ending)
    return await version_at_or_before(planner.log, parse_timestamp(ending))


class ChangeReader(DataSourceReader):
    """The changes of a range of versions, both ends inclusive, in the end version's schema."""

    def __init__(
        self, options: SourceOptions, target: tuple[TableState, int], arrow_schema: pa.Schema
    ) -> None:
        if options.start is None or options.start_offset is not None:
            raise ConfigError(
                "a batch read needs startingVersion or startingTimestamp; a stream does not"
            )
        self.options = options
        self.target = target
        self.arrow_schema = arrow_schema
        self.first, self.last = 0, target[1]

    @one_sentence
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of the read; one without orders if there is nothing to read."""
        return tasks_of(self.options, *self.planned()) or [TaskPartition([])]

    def planned(self) -> tuple[list[Order], tuple[Removal, ...]]:
        """Return the read's orders, and the column mapping removals up to the query's schema."""
        return plan_once(self.options, self._planned)

    async def _planned(self, planner: Planner) -> tuple[list[Order], tuple[Removal, ...]]:
        first = await self._first(planner)
        first = Offset(max(first.version, self.first), snapshot=first.snapshot)
        if first.version > self.last:
            return [], ()
        end = Offset(self.last + 1)
        return await planner.gathered(first, end, self.target, same_table=False)

    def decoding(self, removals: tuple[Removal, ...]) -> DecodeOptions:
        """Return how the executors decode."""
        return self.options.decoding(self.target, removals)

    async def _first(self, planner: Planner) -> Offset:
        start, last, table = self.options.start or "", self.target[1], planner.log.store.root
        match start:
            case "latest":
                return Offset(await planner.newest())  # as in Delta: the newest version's changes
            case "earliest":
                return Offset(await planner.log.earliest_version())
            case "snapshot":
                return Offset(last, snapshot=True)
        moment = not start.isdigit()
        if moment:
            first = await version_at_or_after(planner.log, parse_timestamp(start))
        else:
            first = int(start)
        if not moment and first > last:
            newest = await planner.newest()
            if first > newest:
                raise TableError(
                    f"the starting version is {first}, and the newest is {newest}",
                    table=table,
                    hint="ask for versions that exist",
                )
            raise ConfigError(f"the range ends at version {last}, before it starts at {first}")
        return Offset(first)

    @one_sentence
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's rows."""
        from tailer.spark.tasks import spark_batches  # only executors load the decoder

        assert isinstance(partition, TaskPartition)
        decode = self.decoding(partition.removals)
        return spark_batches(partition.orders, self.options, decode, self.arrow_schema)


class FilteringReader(ChangeReader):
    """A reader that uses conditions on ``_commit_version`` to read fewer versions.

    Spark refuses a reader with this method unless ``spark.sql.python.filterPushdown.enabled`` is
    set, so the option ``filterPushdown`` asks for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the conditions that bound the versions; Spark applies all others itself."""
        for condition in filters:
            bounds = _versions_of(condition)
            if bounds is not None:
                self._narrow(bounds[0], self.last if bounds[1] is None else bounds[1])
            if bounds is None or type(condition).__name__ == "In":
                yield condition

    def _narrow(self, first: int, last: int) -> None:
        self.first, self.last = max(self.first, first), min(self.last, last)


def _versions_of(condition: Filter) -> tuple[int, int | None] | None:
    """Return the first and the last version that a condition allows (None: any); None for other
    conditions. For a list, it is the range that contains all of it."""
    if getattr(condition, "attribute", None) != (COMMIT_VERSION,):
        return None
    value: Any = getattr(condition, "value", None)
    kind = type(condition).__name__
    if kind == "IsNotNull":
        return 0, None
    if kind == "In":
        numbers = [number for number in value if isinstance(number, int)]
        return (min(numbers), max(numbers)) if numbers else None
    if not isinstance(value, int):
        return None
    match kind:
        case "EqualTo" | "EqualNullSafe":
            return value, value
        case "GreaterThanOrEqual":
            return value, None
        case "GreaterThan":
            return value + 1, None
        case "LessThanOrEqual":
            return 0, value
        case "LessThan":
            return 0, value - 1
    return None
