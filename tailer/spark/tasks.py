"""The executors' side: from a task's orders to rows, with the daemon's fetch and decode.

Rows are decoded in the task's thread, so that memory is bounded by the batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from anyio.from_thread import BlockingPortal

from tailer.changes import ChangeBatch, ChangeFile, Offset, Rows
from tailer.decode.bucket import engine_version
from tailer.decode.byte_range import ByteRange
from tailer.decode.row_cache import kept_rows
from tailer.decode.rows import DecodeOptions, Skip, decode_file
from tailer.errors import ConfigError, TableError
from tailer.feed.derive import derive
from tailer.feed.fetch import fetch
from tailer.spark.opening import store_portal
from tailer.spark.options import SourceOptions
from tailer.spark.orders import FileOrder, Order, RewriteOrder, VersionOrder
from tailer.spark.types import conform
from tailer.store import Store

__all__ = ["decoded", "spark_batches"]


def decoded(
    portal: BlockingPortal,
    store: Store,
    order: FileOrder | RewriteOrder,
    options: SourceOptions,
    decode: DecodeOptions,
) -> Iterator[tuple[ChangeFile, Rows]]:
    """Yield an order's rows, file by file and batch by batch."""
    skip, left = Skip(order.skip), order.take
    for file, part in _files(portal, store, order, options, decode):
        for rows in _task_rows(portal, store, file, part, decode, skip):
            if left is None:
                yield file, rows
                continue
            if left < rows.batch.num_rows:
                ids = None if rows.row_ids is None else rows.row_ids.slice(0, left)
                rows = Rows(rows.batch.slice(0, left), rows.positions.slice(0, left), ids)  # noqa: PLW2901
            left -= rows.batch.num_rows
            if rows.batch.num_rows:
                yield file, rows
            if not left:
                return


def _task_rows(
    portal: BlockingPortal,
    store: Store,
    file: ChangeFile,
    part: ByteRange | None,
    decode: DecodeOptions,
    skip: Skip,
) -> Iterator[Rows]:
    if file.kept is not None:  # finding the changes has decoded them
        yield from kept_rows(file, skip)
        return
    fetched = portal.call(fetch, store, file)
    with fetched.source:
        yield from decode_file(fetched.source, file, fetched.selection, decode, skip, part)


def _files(
    portal: BlockingPortal,
    store: Store,
    order: FileOrder | RewriteOrder,
    options: SourceOptions,
    decode: DecodeOptions,
) -> Iterable[tuple[ChangeFile, ByteRange | None]]:
    if isinstance(order, FileOrder):
        return [(order.file, order.part)]
    if order.bucket is not None and order.bucket.engine != engine_version():
        raise ConfigError(
            f"the driver has DuckDB {order.bucket.engine} and this executor {engine_version()}, "
            "and buckets of a comparison only fit together if all have one version; install the "
            "same one everywhere, or set derivedFanOut to 1"
        )
    folder = options.diff.spill_folder
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"spillFolder {folder} is not a folder that this executor may write to; make it on "
            "every worker, or leave the option out for the system's own"
        )
    diff = replace(options.diff, bucket=order.bucket)
    files = portal.call(
        derive, store, order.commit, order.rewrite, decode, diff, options.key, _ignore
    )
    return [(file, None) for file in files]


def _ignore(_: int) -> None:
    """Ignore a task's no-op updates: they are not counted."""


def spark_batches(
    orders: Iterable[Order], options: SourceOptions, decode: DecodeOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows in exactly the Arrow schema that Spark compares with."""
    with store_portal(options) as (portal, store):
        try:
            for order in orders:
                assert not isinstance(order, VersionOrder), "only the pipeline asks for those"
                for file, rows in decoded(portal, store, order, options, decode):
                    columns = list(rows.batch.columns)
                    if options.with_ids:
                        columns += _ids(file, rows)
                    arrays = [conform(c, f.type) for c, f in zip(columns, schema, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except TableError as e:
            raise e.at(table=store.root) from None


def _ids(file: ChangeFile, rows: Rows) -> list[pa.Array]:
    at = Offset(file.version, snapshot=file.origin == "snapshot")
    batch = ChangeBatch(rows.batch, rows.positions, file.state, file, file.timestamp_ms, at, at)
    return [batch.event_ids(), pa.repeat(pa.scalar(file.origin), batch.num_rows)]
