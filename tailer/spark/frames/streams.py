"""Changes as a stream of ranges: each batch is a frame that Spark reads itself where it can.

    from tailer.spark import foreach_batch

    foreach_batch(spark, "/data/orders", "/data/checkpoints/orders", function, startingVersion=0)

Spark's stream (``ChangeRanges.java``) has offsets and no rows. Spark asks for the end of a batch as
it begins one, keeps it in its checkpoint, and asks for the work between two offsets; the answers
are those of the source's own stream reader, here in the driver. The frame of a batch is made of the
range that Spark asked for last, also for a batch that comes again after a restart.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tailer.decode.naming import Removal
from tailer.errors import ConfigError, TailerError, unexpected
from tailer.spark.error_sentence import TailerSourceError, begin_with_sentence, one_sentence
from tailer.spark.frames.changes import SparkReader, check_spark_reader, frame_of, source_of
from tailer.spark.frames.compiled import java_session, maker_of
from tailer.spark.orders import Order
from tailer.spark.source.counts import count_rows
from tailer.spark.source.planning import BatchBudget, StreamPlanner
from tailer.spark.source.reader import ChangeStreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: What Spark calls the id of the query whose thread asks.
_QUERY_ID = "sql.streaming.queryId"


@one_sentence
def foreach_batch(
    spark: SparkSession,
    table: str | PathLike[str],
    checkpoint: str | PathLike[str],
    function: Callable[[DataFrame, int], None],
    *,
    spark_reader: SparkReader = "auto",
    **options: Any,
) -> DataStreamWriter:
    """Return a writer that calls ``function(frame, batch id)`` with each batch of changes.

    The frames are those of :func:`tailer.spark.changes`, in the schema that the table has as the
    query starts. The checkpoint may be anywhere that Spark can keep one. The writer has checkpoint
    and function already: give it a trigger and start it.
    """
    check_spark_reader(spark_reader)
    if java_session(spark) is None:
        raise ConfigError(
            "foreach_batch plans beside Spark, which Spark Connect does not let it; use format "
            "tailer, with foreachBatch for a function"
        )

    def open_reader() -> ChangeStreamReader:
        source = source_of(spark, table, options)
        return source.stream_reader(ChangeStreamReader, source.schema())

    planner = _Planner(spark, fspath(table), open_reader)

    @begin_with_sentence
    def call(frame: DataFrame, batch: int) -> None:
        planned = planner.find_batch()
        session = frame.sparkSession
        function(
            frame_of(session, planned.reader, planned.orders, planned.removals, spark_reader), batch
        )
        planner.report_rows(planned)

    writer = _make_range_frame(spark, planner).writeStream
    return writer.option("checkpointLocation", fspath(checkpoint)).foreachBatch(call)


def _make_range_frame(spark: SparkSession, planner: _Planner) -> DataFrame:
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql.classic.dataframe import DataFrame as Frame

    start: Any = ensure_callback_server_started
    start(spark.sparkContext._gateway)  # noqa: SLF001  # as foreachBatch does
    return Frame(maker_of(spark, "ChangeRanges").frame(java_session(spark), planner), spark)


class _Planned(Struct, frozen=True):
    """A batch's range and its work, as Spark has asked for it."""

    reader: ChangeStreamReader
    range: str
    orders: list[Order]
    removals: tuple[Removal, ...]
    rows: int


class _Planner:
    """Answers Java, for all runs of one writer's queries. Java calls ``apply``, from the thread of
    the query that asks."""

    def __init__(
        self, spark: SparkSession, table: str, open_reader: Callable[[], ChangeStreamReader]
    ) -> None:
        self._spark = spark
        self._table = table
        self._open_reader = open_reader
        #: A mistake in the options is raised as it is opened; the first run takes it.
        self._first: ChangeStreamReader | None = open_reader()
        #: The reader of each run, and the range that each query has asked for last.
        self._readers: dict[str, ChangeStreamReader] = {}
        self._planned: dict[str | None, _Planned] = {}

    def apply(self, question: str, about: str) -> str:
        """Return the answer to a question of the run that it names, or, after "!", an error."""
        run, _, name = question.partition(" ")
        try:
            return self._answer_question(run, name, about)
        except TailerSourceError as e:
            return f"!{TailerSourceError.__name__}: {e}"
        except TailerError as e:
            return f"!{TailerSourceError.__name__}: [{e.family}] {e}"
        except Exception as e:  # noqa: BLE001  # Java would show the traceback of a proxy
            return f"!{TailerSourceError.__name__}: {unexpected(e)}"

    def _answer_question(self, run: str, name: str, about: str) -> str:
        if name == "description":
            return f"tailer[{self._table}]"
        if name == "stop":
            return self._stop_run(run)
        reader = self._readers.get(run)
        if reader is None:
            reader = self._readers[run] = self._first or self._open_reader()
            self._first = None
        options = reader.options
        match name:
            case "initial_offset":
                return json.dumps(reader.initialOffset())
            case "files_max":
                return str(options.max_files)
            case "newest_offset":
                return json.dumps(reader.newest_offset())
            case "end_at_newest":
                reader.end_at_newest()
                return ""
            case "plan":
                return self._plan_batch(reader, about)
        budget = BatchBudget()
        if name == "end_of_batch":
            budget = BatchBudget(
                options.max_files, options.max_bytes, versions=options.max_versions
            )
        return json.dumps(reader.run(reader.end_of_batch, json.loads(about), budget))

    def _plan_batch(self, reader: ChangeStreamReader, about: str) -> str:
        """Plan a batch, unless it is the one that is planned."""
        query = self._find_query_id()
        known = self._planned.get(query)
        if known is None or (known.reader, known.range) != (reader, about):
            orders, removals = reader.run(reader.plan_work, *json.loads(about))
            rows = reader.run(_count_rows, orders)
            self._planned[query] = _Planned(reader, about, orders, removals, rows)
        return ""

    def _stop_run(self, run: str) -> str:
        reader = self._readers.pop(run, None)
        if reader is not None:
            reader.stop()
            queries = [query for query, one in self._planned.items() if one.reader is reader]
            for query in queries:
                del self._planned[query]
        return ""

    def _find_query_id(self) -> str | None:
        """Return the id of the query in whose thread this is; None where Python's threads are not
        those of Java."""
        id_: str | None = self._spark.sparkContext.getLocalProperty(_QUERY_ID)
        return id_

    def find_batch(self) -> _Planned:
        """Return the batch that Spark has asked for in this thread."""
        return self._planned[self._find_query_id()]

    def report_rows(self, planned: _Planned) -> None:
        """Let the progress have the rows of a batch, which Spark counts by those of the stream."""
        query = self._find_query_id()
        if query is None or (running := self._spark.streams.get(query)) is None:
            return
        with suppress(Exception):  # it is for people's eyes, and no reason to end a query
            plan: Any = running._jsq.streamingQuery().lastExecution().executedPlan()  # noqa: SLF001
            leaves = plan.collectLeaves()
            leaves.apply(0).metrics().apply("numOutputRows").add(planned.rows)

    class Java:
        """What it is for Java."""

        implements = ("java.util.function.BiFunction",)


async def _count_rows(planner: StreamPlanner, orders: list[Order]) -> int:
    return await count_rows(planner.log.store, orders)
