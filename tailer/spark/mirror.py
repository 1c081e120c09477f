"""A copy of a table, kept by MERGE from a stream of its changes, exactly once.

Each batch of ``foreachBatch`` is one commit of the mirror, with a transaction id of the
application and a version that grows with the batches, so that a batch which comes again after a
crash is not merged twice. Batches out of sequence are refused, because Delta itself would skip
them silently. Columns that are new in the changes are added to the mirror before, in a commit of
their own, which changes nothing when it comes again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import anyio
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as f

from tailer.changes import CHANGE_TYPE, COMMIT_VERSION, METADATA_FIELDS
from tailer.errors import ConfigError, SinkRejected, TransientError
from tailer.log.table import TableLog
from tailer.spark.error_sentence import begin_with_sentence
from tailer.spark.hadoop_store import find_fault
from tailer.spark.session_access import session_access
from tailer.spark.types import quote_name
from tailer.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

__all__ = ["mirror_into"]

_CONF = "spark.databricks.delta."
_LEAVING = ("delete", "update_preimage")
#: Our columns of changes, and those that `withIds` adds after them.
_OURS = tuple(field.name for field in METADATA_FIELDS)
_IDS = ("_event_id", "_origin")
#: Types of which each holds all values of those before it.
_WIDENING = (("tinyint", "smallint", "int", "bigint"), ("float", "double"))


def mirror_into(
    target: str | PathLike[str],
    key: str | Sequence[str],
    app: str,
    store: Mapping[str, Any] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that merges changes into the Delta table at
    ``target``, an address or the name of a table in the session's catalog.

    ``key`` names the column, or the columns, that identify the rows, also in the source. ``app`` is
    the application's own name in the mirror's log: one for each checkpoint, for ever. ``store`` has
    the options of the mirror's store, by default the session's. The mirror is created if it does
    not exist, and gets columns that are new in the changes. Raises :class:`SinkRejected` if
    checkpoint and mirror do not belong together, or the mirror can't take the changes.
    """
    wanted = [name.strip() for name in key.split(",")] if isinstance(key, str) else list(key)
    if not wanted or "" in wanted:
        raise ConfigError("a mirror needs the key columns that tell its rows apart")

    @begin_with_sentence
    def merge(frame: DataFrame, batch: int) -> None:
        keys, data = _find_columns(frame, wanted)
        mirror, access = session_access(fspath(target), frame.sparkSession)
        exists, done = _read_mirror_state(mirror, app, access if store is None else store)
        _check_batch(mirror, app, batch, done)
        with _reword_refusals(mirror):
            if exists and done != batch + 1:  # and not merged already
                _add_new_columns(frame, mirror, data)
            if done is None:
                empty = frame.select(*map(quote_name, data)).limit(0).write.format("delta")
                empty = empty.mode("append").option("txnAppId", app).option("txnVersion", 0)
                empty.save(mirror)
            _merge_changes(frame, mirror, keys, data, app, batch)

    return merge


def _find_columns(frame: DataFrame, wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the key columns and all columns of the source, as the frame spells them."""
    names = frame.columns
    if any(name not in names for name in _OURS):
        raise ConfigError(
            f"a mirror is made of changes, with the columns {', '.join(_OURS)}: the frame has only "
            f"{', '.join(names)}"
        )
    # After these three come our ids; a column before them is the table's, whatever its name.
    ids = set(names[names.index(_OURS[-1]) + 1 :]) & set(_IDS)
    data = [name for name in names if name not in {*_OURS, *ids}]
    exact = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    by_name = {name if exact else name.lower(): name for name in data}
    for name in wanted:
        if (name if exact else name.lower()) not in by_name:
            raise ConfigError(
                f"the changes have no column {name!r} to be the mirror's key; they have "
                f"{', '.join(data)}"
            )
    return [by_name[name if exact else name.lower()] for name in wanted], data


class _MirrorState(NamedTuple):
    """Whether the mirror exists, and the version of the application's last transaction in it; None
    if it has none."""

    exists: bool
    done: int | None


def _read_mirror_state(target: str, app: str, store: Mapping[str, Any]) -> _MirrorState:
    async def read() -> _MirrorState:
        opened = open_store(target, store)
        log = TableLog(opened)
        try:
            if not await log.list_files():
                return _MirrorState(exists=False, done=None)
            transaction = (await log.load_snapshot()).transactions.get(app)
            return _MirrorState(True, None if transaction is None else transaction.version)
        finally:
            await opened.aclose()

    return anyio.run(read)


def _check_batch(target: str, app: str, batch: int, done: int | None) -> None:
    """Check the order: batch n is transaction n + 1, and comes when n is done, or again."""
    if done is None and batch > 0:
        raise SinkRejected(
            f"{target}: the mirror knows nothing of {app!r}, whose checkpoint is at batch {batch}: "
            "it is another table now, or an older copy; create it again with a new checkpoint"
        )
    if done is not None and not batch <= done <= batch + 1:
        raise SinkRejected(
            f"{target}: the mirror has batch {done - 1} of {app!r}, and the checkpoint is at batch "
            f"{batch}: they do not belong together; a new checkpoint needs another application name"
        )


@contextmanager
def _reword_refusals(target: str) -> Iterator[None]:
    """Turn what Spark or Delta refuses into one sentence."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as e:
        if "TailerSourceError: " in str(e):  # the reading failed, and says why
            raise
        if isinstance(fault := find_fault(str(e), target), TransientError):
            raise fault from e
        cause = next((line.strip() for line in str(e).splitlines() if line.strip()), "no reason")
        raise SinkRejected(f"{target}: the changes can't be merged into the mirror: {cause}") from e


def _add_new_columns(frame: DataFrame, target: str, data: Sequence[str]) -> None:
    """Add the columns and fields of the changes that the mirror lacks, for a new batch.

    Raises :class:`SinkRejected`, with the statements to run, for what may be a renamed column, and
    for a type that the mirror can't hold.
    """
    own = {f.name.lower(): f for f in frame.sparkSession.read.format("delta").load(target).schema}
    fields = {f.name: f for f in frame.schema if f.name in data}
    missing = [f for name, f in fields.items() if name.lower() not in own]
    left = [f.name for name, f in own.items() if name not in {n.lower() for n in data}]
    table = f"delta.{quote_name(target)}"
    if missing and left:
        new, old = quote_name(missing[0].name), quote_name(left[0])
        raise SinkRejected(
            f"{target}: the changes have the new column {missing[0].name!r}, and no column "
            f"{left[0]!r} any more; run ALTER TABLE {table} RENAME COLUMN {old} TO {new} if it was "
            "renamed (the mirror needs column mapping), or "
            f"{_format_add_columns(table, missing)} if it is another one"
        )
    nested = []
    for name, field in fields.items():
        own_field = own.get(name.lower())
        if own_field is None or _can_hold(own_field, field):
            continue
        if not _is_nested(field):
            was, now = own_field.dataType.simpleString(), field.dataType.simpleString()
            raise SinkRejected(
                f"{target}: the column {name!r} is {now} in the changes and {was} in the mirror; "
                f"run ALTER TABLE {table} ALTER COLUMN {quote_name(name)} TYPE {now}, for which "
                "the mirror needs delta.enableTypeWidening, or make it again with a new checkpoint"
            )
        nested.append(name)
    if missing or nested:
        more = [quote_name(name) for name in (*(f.name for f in missing), *nested)]
        empty = frame.select(*more).limit(0).write.format("delta").mode("append")
        empty.option("mergeSchema", "true").save(target)


def _format_add_columns(table: str, fields: Iterable[StructField]) -> str:
    columns = ", ".join(f"{quote_name(f.name)} {f.dataType.simpleString()}" for f in fields)
    return f"ALTER TABLE {table} ADD COLUMNS ({columns})"


def _can_hold(own_field: StructField, field: StructField) -> bool:
    """Return whether a column of the mirror holds all values of one of the changes."""
    own, other = own_field.dataType.simpleString(), field.dataType.simpleString()
    return own == other or any(
        own in line and other in line and line.index(other) <= line.index(own) for line in _WIDENING
    )


def _is_nested(field: StructField) -> bool:
    return field.dataType.typeName() in ("struct", "array", "map")


def _merge_changes(
    frame: DataFrame, target: str, keys: Sequence[str], data: Sequence[str], app: str, batch: int
) -> None:
    spark, leaves = frame.sparkSession, _find_free_name("leaves", frame.columns)
    view = f"tailer_changes_{uuid4().hex}"
    _select_last_changes(frame, keys, leaves).createOrReplaceTempView(view)
    settings = {
        "write.txnAppId": app,
        "write.txnVersion": str(batch + 1),
        "commitInfo.userMetadata": json.dumps({"app": app, "batch": batch}),
    }
    try:
        _run_with_settings(
            spark, settings, _build_merge_statement(target, view, keys, data, leaves)
        )
    finally:
        spark.catalog.dropTempView(view)


def _select_last_changes(frame: DataFrame, keys: Sequence[str], leaves: str) -> DataFrame:
    """Return the last change of each key, and in a column ``leaves`` whether its row leaves; in one
    version, rows that come are later than rows that leave."""
    rank = _find_free_name("rank", [*frame.columns, leaves])
    gone = f.col(CHANGE_TYPE).isin(*_LEAVING)
    newest_first = [f.col(COMMIT_VERSION).desc(), gone.cast("int").asc()]
    order = f.row_number().over(Window.partitionBy(*map(quote_name, keys)).orderBy(*newest_first))
    ranked = frame.withColumn(leaves, gone).withColumn(rank, order)
    return ranked.where(f.col(rank) == 1).drop(rank)


def _find_free_name(name: str, taken: Iterable[str]) -> str:
    """Return a name for a column of ours that no column has, in any case."""
    taken_names = {one.lower() for one in taken}
    while name in taken_names:
        name += "_"
    return name


def _build_merge_statement(
    target: str, view: str, keys: Sequence[str], data: Sequence[str], leaves: str
) -> str:
    on = " AND ".join(f"t.{quote_name(k)} <=> s.{quote_name(k)}" for k in keys)
    columns = ", ".join(map(quote_name, data))
    values = ", ".join(f"s.{quote_name(name)}" for name in data)
    update = ", ".join(f"t.{quote_name(name)} = s.{quote_name(name)}" for name in data)
    return (
        f"MERGE INTO delta.{quote_name(target)} AS t USING {view} AS s ON {on} "  # noqa: S608  # names are quoted
        f"WHEN MATCHED AND s.{leaves} THEN DELETE WHEN MATCHED THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED AND NOT s.{leaves} THEN INSERT ({columns}) VALUES ({values})"
    )


def _run_with_settings(spark: SparkSession, settings: Mapping[str, str], statement: str) -> None:
    for name, value in settings.items():
        spark.conf.set(_CONF + name, value)
    try:
        spark.sql(statement)
    finally:
        for name in settings:
            spark.conf.unset(_CONF + name)
