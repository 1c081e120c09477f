"""The data source ``tailer``: any Delta table's changes, in batch and as a stream.

    spark.dataSource.register(TailerSource)
    spark.readStream.format("tailer").option("startingVersion", 0).load("/data/orders")

The driver plans and the executors decode, with the daemon's own modules; rows travel as Arrow
batches. See docs/spark.md for the options.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema

from tailer.changes import METADATA_FIELDS, Offset
from tailer.decode.naming import Removal
from tailer.errors import ConfigError, TableError
from tailer.log.times import parse_timestamp, version_at_or_after, version_at_or_before
from tailer.spark.error_sentence import TailerSourceError, in_worker, one_sentence
from tailer.spark.hadoop_store import find_hadoop_address
from tailer.spark.options import QueryTarget, SourceOptions, source_options
from tailer.spark.orders import Order
from tailer.spark.python import use_this_python
from tailer.spark.session_access import offer_session_access, session_access
from tailer.spark.session_zone import tell_session_zone
from tailer.spark.source.catalog import in_catalog, kept_options, own_options, with_options
from tailer.spark.source.driver import StreamQuery, TaskPartition, plan_once, tasks_of
from tailer.spark.source.empty_profiles import drop_empty_profiles
from tailer.spark.source.planning import StreamPlanner
from tailer.spark.source.reader import ClassicStreamReader, make_refusing_reader
from tailer.spark.types import change_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from tailer.spark.source.reader import ChangeStreamReader

__all__ = ["ChangeReader", "TailerSource"]


class _Checked(NamedTuple):
    """The checked options of a query, and the state whose schema it has."""

    options: SourceOptions
    target: QueryTarget


class TailerSource(DataSource):
    """``format("tailer")``. Register it once in a session."""

    def __init__(self, options: Mapping[str, str], session: SparkSession | None = None) -> None:
        super().__init__(dict(options))
        self._session = session
        self._options: SourceOptions | None = None
        self._target: QueryTarget | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format. Spark asks for it as it registers the source: the last
        moment at which the Python and the environment of its tasks can be chosen."""
        if not in_worker():
            use_this_python()
            tell_session_zone()
            offer_session_access()
        return "tailer"

    def _check_query(self) -> _Checked:
        """Return the checked options, and the schema of the query with its version."""
        if in_worker():
            drop_empty_profiles()
        if self._options is None:
            self._options = self._parse_options(self._find_given_options())
        if self._target is None:
            self._target = plan_once(self._options, _find_target)
            names, table = self._target[0].schema.names, self._options.table
            columns = self._options.columns
            self._options = replace(
                self._options,
                key=_spell_names(self._options.key, names, table),
                columns=None if columns is None else _spell_names(columns, names, table),
            )
            _check_names(self._options, names)
        return _Checked(self._options, self._target)

    def _parse_options(self, given: Mapping[str, str]) -> SourceOptions:
        """Return the options; without any of the store, it has the session's access."""
        options = source_options(given)
        if options.store and find_hadoop_address(options.table) is None:
            return options
        address, store = session_access(options.table, self._session)
        return replace(options, table=address, store={**store, **options.store}, in_session=True)

    def _find_given_options(self) -> dict[str, str]:
        return own_options(self.options) if in_catalog(self.options) else dict(self.options)

    @one_sentence
    def schema(self) -> StructType:
        """Return the end version's schema (for a stream, the newest), then the metadata columns."""
        schema = self._build_schema()
        return (
            with_options(schema, self._find_given_options()) if in_catalog(self.options) else schema
        )

    def _build_schema(self) -> StructType:
        options, (state, _) = self._check_query()
        return change_schema(state.schema, options.columns, with_ids=options.with_ids)

    def _make_arrow_schema(self, schema: StructType) -> pa.Schema:
        """Return the schema of the rows for a query with this one, which Spark may have kept for
        a table of its catalog, with the options."""
        options = kept_options(schema)
        if options is not None:
            self._options = self._parse_options({**options, **self.options})
        elif not self.options:
            raise ConfigError(
                "Spark has kept no options with this table of its catalog: say in CREATE TABLE "
                "where it is, by OPTIONS (path '...'), and leave the columns out"
            )
        self._fit_columns(schema)
        try:
            return to_arrow_schema(schema, timezone="UTC")
        except TypeError:  # before 4.1 the zone is always that
            return to_arrow_schema(schema)

    def _fit_columns(self, schema: StructType) -> None:
        """Check that a query has the table's columns, or, with ``cast``, some of them."""
        wanted, actual = _list_types(schema), _list_types(self._build_schema())
        if wanted == actual:
            return
        options, (state, _) = self._check_query()
        if options.on_schema_change == "cast" and set(wanted) <= set(actual):
            columns = tuple(name for name, _ in wanted if name in state.schema.names)
            self._options = replace(options, columns=columns)
            if _list_types(self._build_schema()) == wanted:
                return
        added = [name for name, kind in actual if (name, kind) not in wanted]
        gone = [name for name, kind in wanted if (name, kind) not in actual]
        differences = [
            f"{what} {', '.join(names)}"
            for what, names in (("does not have", added), ("has", gone))
            if names
        ]
        raise ConfigError(
            "the schema that was given is not the table's: it "
            f"{' and '.join(differences) or 'differs'}; "
            "leave it out, since the source knows it, or make the table of the catalog again "
            "(DROP TABLE, CREATE TABLE), or set onSchemaChange to cast to do without new columns"
        )

    @one_sentence
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``."""
        return ChangeReader(self._make_query(schema))

    def _make_query(self, schema: StructType) -> StreamQuery:
        arrow_schema = self._make_arrow_schema(schema)
        options, target = self._check_query()
        return StreamQuery(options, target, schema, arrow_schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader for ``spark.readStream``, as far as this Spark supports it.

        It raises no error: Spark would hide it. The reader's first call does.
        """
        kind = _stream_kind()
        try:
            return self.stream_reader(kind, schema)
        except TailerSourceError as e:
            return make_refusing_reader(kind, e)

    @one_sentence
    def stream_reader(
        self, kind: type[ChangeStreamReader], schema: StructType
    ) -> ChangeStreamReader:
        """Return a reader of this kind. Raises the error."""
        return kind(self._make_query(schema))


def _list_types(schema: StructType) -> list[tuple[str, str]]:
    """Return names and types of all columns: a catalog forgets which ones are never null."""
    return [(field.name, field.dataType.json()) for field in schema.fields]


def _stream_kind() -> type[ChangeStreamReader]:
    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        return ClassicStreamReader
    from tailer.spark.source.limited_stream import LimitedStreamReader

    return LimitedStreamReader


async def _find_target(planner: StreamPlanner) -> QueryTarget:
    """Return the state whose schema the query has, and its version."""
    options, log = planner.options, planner.log
    snapshot = await log.load_snapshot(
        None if options.ending is None else await _last_version(planner)
    )
    return QueryTarget(snapshot.state, snapshot.version)


def _spell_names(wishes: Sequence[str], names: Sequence[str], table: str) -> tuple[str, ...]:
    """Return names of columns as the table spells them: case says nothing, as in Spark."""
    by_lower = {name.lower(): name for name in names}
    for name in wishes:
        if name.lower() not in by_lower:
            raise ConfigError(f"{table} has no column {name!r}; it has {', '.join(names)}")
    spelled = tuple(by_lower[name.lower()] for name in wishes)
    if len(set(spelled)) < len(spelled):
        raise ConfigError(f"a column of {table} is named twice: {', '.join(wishes)}")
    return spelled


def _check_names(options: SourceOptions, names: Sequence[str]) -> None:
    """Refuse two columns of the same name, ignoring case: such a frame is of no use in Spark."""
    ours = [field.name for field in METADATA_FIELDS]
    ours += ["_event_id", "_origin"] if options.with_ids else []
    for name in names if options.columns is None else options.columns:
        if name.lower() in ours:
            raise ConfigError(
                f"{options.table} has a column {name!r}, which is the name of a column of changes; "
                "exclude it with the option select"
            )


async def _last_version(planner: StreamPlanner) -> int:
    """Return the last version of a query, as it is now: the newest, unless it asks for another."""
    ending = planner.options.ending
    if ending is not None and not ending.isdigit():
        return await version_at_or_before(planner.log, parse_timestamp(ending))
    newest = await planner.find_newest()
    return newest if ending is None else min(int(ending), newest)


class ChangeReader(DataSourceReader):
    """The changes of a range of versions, both ends inclusive, in the schema of the last version
    when the frame was made.

    A range without an end, or with one that the table has not reached, follows the table: Spark
    plans a frame once and runs it again and again, so the task of the last partition reads what
    has come since it was planned.
    """

    def __init__(self, query: StreamQuery) -> None:
        if query.options.start is None or query.options.start_offset is not None:
            raise ConfigError(
                "a batch read needs startingVersion or startingTimestamp; a stream does not"
            )
        self.query = query
        self.options = query.options

    @one_sentence
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of the read; one without orders if there is nothing to read."""
        orders, removals, newer_from = plan_once(self.options, self._plan_read)
        tasks = tasks_of(self.options, orders, removals) or [TaskPartition([])]
        tasks[-1].newer_from = newer_from
        return tasks

    def plan_work(self) -> tuple[list[Order], tuple[Removal, ...]]:
        """Return the read's orders, and the column mapping removals up to the query's schema."""
        return plan_once(self.options, self._plan_read)[:2]

    async def _plan_read(
        self, planner: StreamPlanner
    ) -> tuple[list[Order], tuple[Removal, ...], Offset | None]:
        """Return the orders, the column mapping removals, and where a later read continues."""
        last = await _last_version(planner)
        first = await self._find_first(planner, last)
        newer_from = Offset(max(first.version, last + 1)) if self._follows_table(last) else None
        if first.version > last:
            return [], (), newer_from
        return *await self._gather_orders(planner, first, last), newer_from

    def _follows_table(self, last: int) -> bool:
        ending = self.options.ending
        return ending is None or (ending.isdigit() and int(ending) > last)

    async def _gather_orders(
        self, planner: StreamPlanner, first: Offset, last: int
    ) -> tuple[list[Order], tuple[Removal, ...]]:
        schema = planner.query_schema(self.query.target, stream=False)
        return await planner.gather_work(first, Offset(last + 1), schema, same_table=False)

    async def _plan_later(
        self, planner: StreamPlanner, first: Offset
    ) -> tuple[list[Order], tuple[Removal, ...]]:
        """Return the orders of what has come since the frame was planned."""
        if not await planner.log.has_commit(first.version):
            return [], ()
        return await self._gather_orders(planner, first, await _last_version(planner))

    async def _find_first(self, planner: StreamPlanner, last: int) -> Offset:
        start, table = self.options.start or "", planner.log.store.root
        match start:
            case "latest":
                return Offset(
                    await planner.find_newest()
                )  # as in Delta: the newest version's changes
            case "earliest":
                return Offset(await planner.log.earliest_version())
            case "snapshot":
                return Offset(last, snapshot=True)
        if not start.isdigit():
            return Offset(await version_at_or_after(planner.log, parse_timestamp(start)))
        first = int(start)
        if first <= last:
            return Offset(first)
        newest = await planner.find_newest()
        if first > newest:
            raise TableError(
                f"the starting version is {first}, and the newest is {newest}",
                table=table,
                hint="ask for versions that exist",
            )
        raise ConfigError(f"the range ends at version {last}, before it starts at {first}")

    @one_sentence
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's rows."""
        assert isinstance(partition, TaskPartition)
        yield from self.query.decode_task(partition)
        if partition.newer_from is not None:
            orders, removals = plan_once(self.options, self._plan_later, partition.newer_from)
            yield from self.query.decode_task(TaskPartition(orders, removals))
