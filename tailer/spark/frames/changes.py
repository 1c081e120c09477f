"""Changes as an ordinary frame: planned here, read by Spark itself wherever that gives the rows.

    from tailer.spark import changes

    changes(spark, "/data/orders", startingVersion=0).where("amount > 100").show()

The files that Spark's own Parquet reader reads right (:mod:`tailer.spark.frames.spark_reader`) stay
in Java; conditions and the choice of columns reach them. All others go through the decoder, in the
same frame.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal

from tailer.decode.naming import Removal
from tailer.errors import ConfigError
from tailer.spark.error_sentence import one_sentence
from tailer.spark.frames.compiled import java_session
from tailer.spark.frames.spark_reader import SparkFiles
from tailer.spark.frames.task_files import rows_of_carried_tasks
from tailer.spark.hadoop_store import HadoopStore, find_hadoop_address
from tailer.spark.mapped_tasks import rows_of_tasks
from tailer.spark.orders import FileOrder, Order
from tailer.spark.python import use_this_python
from tailer.spark.session_access import reached_by_hadoop
from tailer.spark.session_zone import as_time, zone_of
from tailer.spark.source.data_source import ChangeReader, TailerSource
from tailer.spark.source.driver import tasks_of
from tailer.spark.source.reader import ChangeStreamReader
from tailer.spark.table_store import open_table
from tailer.store.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Whether Spark reads files itself: wherever that gives the rows, or never.
SparkReader = Literal["auto", "never"]


@one_sentence
def changes(
    spark: SparkSession,
    table: str | PathLike[str],
    *,
    spark_reader: SparkReader = "auto",
    **options: Any,
) -> DataFrame:
    """Return a table's changes: the rows and columns of ``format("tailer")``, with its options.

    The log is read now, so the frame always has the same rows; one of ``format("tailer")`` follows
    the table. ``spark_reader="never"`` leaves all reading to the decoder.
    """
    check_spark_reader(spark_reader)
    source = source_of(spark, table, options)
    reader = source.reader(source.schema())
    assert isinstance(reader, ChangeReader)
    orders, removals = reader.plan_work()
    return frame_of(spark, reader, orders, removals, spark_reader)


def check_spark_reader(spark_reader: str) -> None:
    """Refuse another value."""
    if spark_reader not in ("auto", "never"):
        raise ConfigError(f"spark_reader is {spark_reader!r}; it must be auto or never")


def frame_of(
    spark: SparkSession,
    reader: ChangeReader | ChangeStreamReader,
    orders: Sequence[Order],
    removals: tuple[Removal, ...],
    spark_reader: SparkReader,
) -> DataFrame:
    """Return the rows of a query's orders: of those that Spark reads itself, and of the others."""
    files = _spark_files(spark, reader, orders, removals, spark_reader)
    if files is not None:
        orders = files.take_orders(orders)
    by_hadoop = find_hadoop_address(reader.options.table) is not None
    store = open_table(reader.options) if by_hadoop else None
    tasks = tasks_of(reader.options, orders, removals, divides=not by_hadoop)
    frames = [] if files is None else files.build_frames(spark)
    if tasks and isinstance(store, HadoopStore):
        frames.append(rows_of_carried_tasks(spark, store, reader.query, tasks))
    elif tasks or not frames:
        query = reader.query
        frames.append(rows_of_tasks(spark, tasks, query.decode_task, query.schema))
    return reduce(lambda one, other: one.unionAll(other), frames)


def source_of(
    spark: SparkSession, table: str | PathLike[str], options: dict[str, Any]
) -> TailerSource:
    """Return the source of a table with these options, values as Python has them; one that is None
    is not given."""
    use_this_python()
    options = {name: value for name, value in options.items() if value is not None}
    times = [name for name in options if name.lower() in ("startingtimestamp", "endingtimestamp")]
    zone = zone_of(spark) if times else None
    texts = {name: _format_option(value) for name, value in options.items()}
    for name in times:
        with suppress(ValueError):  # the source says what is wrong
            texts[name] = as_time(options[name], zone)
    return TailerSource({"path": fspath(table), **texts}, spark)


def _format_option(value: Any) -> str:
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value)
    return str(value)


def _spark_files(
    spark: SparkSession,
    reader: ChangeReader | ChangeStreamReader,
    orders: Sequence[Order],
    removals: tuple[Removal, ...],
    spark_reader: SparkReader,
) -> SparkFiles | None:
    """Return what takes the files for Spark; None if the query can have none of them.

    Ids are made of places in the files, and names that differ by case alone are not Spark's to
    tell apart. A client of Spark Connect has no Java to tell of the files.
    """
    options = reader.options
    first = next((order.file for order in orders if isinstance(order, FileOrder)), None)
    if spark_reader == "never" or options.with_ids or java_session(spark) is None or first is None:
        return None
    if spark.conf.get("spark.sql.caseSensitive") != "false":
        return None
    store = open_table(options)
    if isinstance(store, LocalStore):
        place: str | None = f"file://{store.root}"
    elif isinstance(store, HadoopStore):
        place = store.root
    elif options.in_session:
        place = reached_by_hadoop(options.table, first.location, spark)
    else:
        place = None
    if place is None:
        return None
    query = reader.query
    return SparkFiles(store, place, query.make_decode_options(removals), query.schema)
