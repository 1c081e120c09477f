"""The executors' side: from a task's orders to rows, with the daemon's fetch and decode.

Rows are decoded in the task's thread, so that memory is bounded by the batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby

import pyarrow as pa
from anyio.from_thread import BlockingPortal
from msgspec import structs

from tailer.changes import ChangeBatch, ChangeFile, DecodedRows, Offset
from tailer.compare.row_cache import iterate_kept_rows
from tailer.decode.byte_range import ByteRange
from tailer.decode.options import DiffOptions
from tailer.decode.output import FileLayouts
from tailer.decode.rows import DecodeOptions, Skip, decode_file
from tailer.decode.small_files import SmallFiles
from tailer.decode.vectors import ALL_ROWS
from tailer.errors import ConfigError, TableError
from tailer.feed.derive import derive_changes
from tailer.feed.rows.fetch import Fetched, fetch_blocking, fetch_file
from tailer.spark.options import SourceOptions
from tailer.spark.orders import FileOrder, Order, RewriteOrder
from tailer.spark.table_store import store_portal
from tailer.spark.types import conform_array
from tailer.store import Store
from tailer.store.side_by_side import side_by_side

#: Small files that are held in memory at once, and how many are fetched at the same time.
_TOGETHER_MAX = 256
_FETCHES_MAX = 8


def decode_order(
    portal: BlockingPortal,
    store: Store,
    order: FileOrder | RewriteOrder,
    options: SourceOptions,
    decode: DecodeOptions,
) -> Iterator[tuple[ChangeFile, DecodedRows]]:
    """Yield an order's rows, file by file and batch by batch."""
    skip, left = Skip(order.skip), order.take
    for file, part in _find_order_files(portal, store, order, options, decode):
        for rows in _task_rows(portal, store, file, part, decode, skip):
            if left is None:
                yield file, rows
                continue
            if left < rows.batch.num_rows:
                rows = rows.slice(0, left)  # noqa: PLW2901
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
) -> Iterator[DecodedRows]:
    if file.kept is not None:  # finding the changes has decoded them
        yield from iterate_kept_rows(file, skip)
        return
    fetched = portal.call(fetch_file, store, file)
    with fetched.source:
        yield from decode_file(fetched.source, file, fetched.selection, decode, skip, part)


def _find_order_files(
    portal: BlockingPortal,
    store: Store,
    order: FileOrder | RewriteOrder,
    options: SourceOptions,
    decode: DecodeOptions,
) -> Iterable[tuple[ChangeFile, ByteRange | None]]:
    if isinstance(order, FileOrder):
        return [(order.file, order.part)]
    _check_spill_folder(options.diff)
    diff = structs.replace(options.diff, bucket=order.bucket)
    files = portal.call(
        derive_changes, store, order.commit, order.rewrite, decode, diff, options.key, _ignore_count
    )
    return [(file, None) for file in files]


def _check_spill_folder(diff: DiffOptions) -> None:
    folder = diff.spill_folder
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"spillFolder {folder} is not a folder that this executor may write to; make it on "
            "every worker, or leave the option out for the system's own"
        )


def _ignore_count(_: int) -> None:
    """Ignore a task's no-op updates: they are not counted."""


@contextmanager
def _open_task_store(
    options: SourceOptions, given: Store | None
) -> Iterator[tuple[BlockingPortal, Store]]:
    """Provide the table's store, and name the table in the block's errors."""
    with store_portal(options, given) as (portal, store):
        try:
            yield portal, store
        except TableError as e:
            raise e.at(table=store.root) from None


def spark_batches(
    orders: Iterable[Order],
    options: SourceOptions,
    decode: DecodeOptions,
    schema: pa.Schema,
    given: Store | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows in exactly the Arrow schema that Spark compares with. ``given`` is a
    store that has the task's files, if it is not the table's own."""
    small = None if options.with_ids else SmallFiles(decode, FileLayouts(decode))
    with _open_task_store(options, given) as (portal, store):
        for order in _group_small_files(orders, small):
            if isinstance(order, list):
                assert small is not None
                for rows in _decode_small_files(portal, store, order, small, decode):
                    yield _conform_columns(list(rows.batch.columns), schema)
                continue
            for file, rows in decode_order(portal, store, order, options, decode):
                yield _build_output(file, rows, options, schema)


def _build_output(
    file: ChangeFile, rows: DecodedRows, options: SourceOptions, schema: pa.Schema
) -> pa.RecordBatch:
    columns = list(rows.batch.columns)
    if options.with_ids:
        columns += _build_ids(file, rows)
    return _conform_columns(columns, schema)


def _conform_columns(columns: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [conform_array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _group_small_files(
    orders: Iterable[Order], small: SmallFiles | None
) -> Iterator[Order | list[ChangeFile]]:
    """Yield the orders; whole small files that follow each other come as lists."""

    def joins(order: Order) -> bool:
        if small is None or not isinstance(order, FileOrder):
            return False
        part = order.skip or order.take is not None or order.part is not None
        return not part and small.can_take(order.file)

    for together, some in groupby(orders, joins):
        if not together:
            yield from some
            continue
        files = [order.file for order in some if isinstance(order, FileOrder)]
        yield from (files[at : at + _TOGETHER_MAX] for at in range(0, len(files), _TOGETHER_MAX))


def _decode_small_files(
    portal: BlockingPortal,
    store: Store,
    files: list[ChangeFile],
    small: SmallFiles,
    decode: DecodeOptions,
) -> Iterator[DecodedRows]:
    """Yield the rows of small files, decoded in as few steps as possible."""
    contents = _fetch_contents(portal, store, files, decode)
    while files:
        counts, rows = small.decode_files(files, contents)
        if rows is not None:
            yield rows
        else:
            for file, content in zip(files, contents[: len(counts)], strict=False):
                yield from decode_file(pa.BufferReader(content), file, ALL_ROWS, decode, Skip(0))
        files, contents = files[len(counts) :], contents[len(counts) :]


def _fetch_contents(
    portal: BlockingPortal, store: Store, files: list[ChangeFile], decode: DecodeOptions
) -> list[bytes]:
    here = store.blocking_files()
    if here is not None:
        return [fetch_blocking(here, file, decode.on_read).read_content() for file in files]
    contents: list[bytes] = []
    for at in range(0, len(files), _FETCHES_MAX):
        fetched = portal.call(_fetch_files, store, files[at : at + _FETCHES_MAX])
        contents += [one.read_content() for one in fetched]
    return contents


async def _fetch_files(store: Store, files: list[ChangeFile]) -> list[Fetched]:
    """Fetch files at the same time."""
    return await side_by_side(fetch_file(store, file) for file in files)


def _build_ids(file: ChangeFile, rows: DecodedRows) -> list[pa.Array]:
    at = Offset(file.version, snapshot=file.origin == "snapshot")
    batch = ChangeBatch(rows.batch, rows.positions, file.state, file, file.timestamp_ms, at, at)
    return [batch.event_ids(), pa.repeat(pa.scalar(file.origin), batch.num_rows)]
