"""A copy of a table, kept by MERGE from a stream of its changes, exactly once.

Each batch of ``foreachBatch`` is one commit of the mirror, with a transaction id of the
application and a version that grows with the batches, so that a batch which comes again after a
crash is not merged twice. Batches out of sequence are refused, because Delta itself would skip
them silently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from tailer.changes import METADATA_FIELDS
from tailer.errors import ConfigError, SinkRejected
from tailer.log.table import TableLog
from tailer.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["mirror_into"]

_CONF = "spark.databricks.delta."
_LEAVING = ("delete", "update_preimage")
_BESIDES = {*(f.name for f in METADATA_FIELDS), "_event_id", "_origin"}


def mirror_into(
    target: str,
    key: Sequence[str],
    app: str,
    store: Mapping[str, Any] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that merges changes into the Delta table at
    ``target``.

    ``key`` names the columns that identify the rows, also in the source. ``app`` is the
    application's own name in the mirror's log: one for each checkpoint, for ever. ``store`` has
    the options of the mirror's store. The mirror is created if it does not exist. Raises
    :class:`SinkRejected` if checkpoint and mirror do not belong together.
    """
    if not key:
        raise ConfigError("a mirror needs the key columns that tell its rows apart")

    def merge(frame: DataFrame, batch: int) -> None:
        spark = frame.sparkSession
        missing = [name for name in key if name not in frame.columns]
        if missing:
            raise ConfigError(f"the changes have no column {missing[0]!r} to be the mirror's key")
        data = [name for name in frame.columns if name not in _BESIDES]
        done = _version_of(target, app, store)
        _check_batch(target, app, batch, done)
        if done is None:
            empty = frame.select(*data).limit(0).write.format("delta").mode("append")
            empty.option("txnAppId", app).option("txnVersion", 0).save(target)
        last = _last_changes(frame, key)
        last.createOrReplaceTempView("tailer_changes")
        settings = {
            "write.txnAppId": app,
            "write.txnVersion": str(batch + 1),
            "commitInfo.userMetadata": json.dumps({"app": app, "batch": batch}),
        }
        _with_settings(spark, settings, _statement(target, key, data))
        spark.catalog.dropTempView("tailer_changes")

    return merge


def _version_of(target: str, app: str, store: Mapping[str, Any] | None) -> int | None:
    """Return the version of the application's last transaction in the mirror; None if it has
    none."""

    async def read() -> int | None:
        opened = open_store(target, store or {})
        log = TableLog(opened)
        try:
            if not await log.files():
                return None
            transaction = (await log.snapshot()).transactions.get(app)
            return None if transaction is None else transaction.version
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


def _last_changes(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the last change of each key; in one version, rows that come are later than rows that
    leave."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    leaves = f.col("_change_type").isin(*_LEAVING)
    newest_first = [f.col("_commit_version").desc(), leaves.cast("int").asc()]
    rank = f.row_number().over(Window.partitionBy(*map(_quoted, key)).orderBy(*newest_first))
    ranked = frame.withColumn("_leaves", leaves).withColumn("_rank", rank)
    return ranked.where("_rank = 1").drop("_rank")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _statement(target: str, key: Sequence[str], data: Sequence[str]) -> str:
    on = " AND ".join(f"t.{_quoted(k)} <=> s.{_quoted(k)}" for k in key)
    columns = ", ".join(map(_quoted, data))
    values = ", ".join(f"s.{_quoted(name)}" for name in data)
    update = ", ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in data)
    return (
        f"MERGE INTO delta.{_quoted(target)} AS t USING tailer_changes AS s ON {on} "  # noqa: S608  # names are quoted
        f"WHEN MATCHED AND s._leaves THEN DELETE WHEN MATCHED THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED AND NOT s._leaves THEN INSERT ({columns}) VALUES ({values})"
    )


def _with_settings(spark: SparkSession, settings: Mapping[str, str], statement: str) -> None:
    for name, value in settings.items():
        spark.conf.set(_CONF + name, value)
    try:
        spark.sql(statement)
    finally:
        for name in settings:
            spark.conf.unset(_CONF + name)
