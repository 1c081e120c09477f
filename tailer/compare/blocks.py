"""A comparison by value in two steps, for a cluster that moves rows between its tasks.

1. Each task decodes some of the files and gives their rows in blocks (:func:`labelled`). Rows of
   equal values (of equal keys, where there is a key) have one label.
2. The blocks of a label come together, and the changes of its rows are found as those of all rows
   otherwise are (:func:`changed`).

Nothing is decoded twice, and rows travel as Arrow has them: a cluster takes longer to move a row of
some values than the engine to compare it. Rows that are equal at one place of a file that leaves
and of one that comes, in one task, are partners already and don't travel at all. Then a row without
a partner may not be the first of its value, as it otherwise is; so ``paired`` is for those who do
not see places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.changes import METADATA_FIELDS, ChangeFile, Rows
from tailer.compare.comparison import Comparison, files_and_positions, refs_by_file, value_schema
from tailer.compare.diff import Difference, changed_files, updates
from tailer.compare.engine import Engine
from tailer.compare.row_cache import RowCache
from tailer.compare.stream import COMING, LEAVING, PLACED, REF_FIELDS, RowStream
from tailer.decode.options import DiffOptions
from tailer.decode.output import output_schema
from tailer.decode.vectors import positions_of
from tailer.delta.arrow_types import holds_arrow_variant
from tailer.delta.snapshot import TableState
from tailer.errors import spilling
from tailer.files.spill import SpillFolder
from tailer.plan.rules import Rewrite

__all__ = ["BLOCK", "changed", "labelled", "travels", "unpacked"]

#: What a cluster moves: a label, and a stream of rows that have it.
BLOCK = pa.schema([("label", pa.int32()), ("rows", pa.binary())])

#: Rows that are put into blocks together.
_GATHERED_BYTES = 16 * 1024 * 1024


def travels(data_type: pa.DataType) -> bool:
    """Return whether values of a type can be in blocks: they are compared in a canonical form, and
    the original of a variant would be lost."""
    return not holds_arrow_variant(data_type)


def labelled(
    sides: Comparison, key: tuple[str, ...], labels: int, *, paired: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of those files that a comparison reads, in blocks of so many ``labels``."""
    pairs = sides.pairs() if paired else {}
    rows = sides.value_rows(pairs, RowCache(0, (False, False)) if pairs else None)
    by = [sides.after.schema.names.index(name) for name in key]
    with Engine(sides.options, ordered=True) as engine:
        for batch in _gathered(rows.batches, value_schema(sides.after)):
            yield from _blocks(batch, engine.labels(batch, by, labels))


def _gathered(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are not placed, many at a time."""
    found, size = list[pa.RecordBatch](), 0
    for batch in batches:
        if batch.num_rows and batch.column(0)[0].as_py() != PLACED:
            found.append(batch.select(schema.names))
            size += found[-1].nbytes
        if size >= _GATHERED_BYTES:
            yield _joined(found)
            found, size = [], 0
    if found:
        yield _joined(found)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(batches) if len(batches) > 1 else batches[0]


def _blocks(rows: pa.RecordBatch, labels: pa.Int32Array) -> Iterator[pa.RecordBatch]:
    """Yield the rows in blocks by their labels."""
    rows, at, found = rows.take(pc.array_sort_indices(labels)), 0, []
    counts = sorted((e["values"], e["counts"]) for e in pc.value_counts(labels).to_pylist())
    for _, length in counts:
        found.append(_packed(rows.slice(at, length)))
        at += length
    columns = [pa.array([label for label, _ in counts], pa.int32()), pa.array(found, pa.binary())]
    yield pa.RecordBatch.from_arrays(columns, schema=BLOCK)


def _packed(rows: pa.RecordBatch) -> bytes:
    """Return the rows as a compressed stream: a cluster takes longer to move bytes than Arrow to
    compress them."""
    sink = pa.BufferOutputStream()
    codec = "lz4" if pa.Codec.is_available("lz4") else None
    with pa.ipc.new_stream(
        sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
    ) as to:
        to.write_batch(rows)
    return bytes(sink.getvalue())


def unpacked(block: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a block."""
    with pa.ipc.open_stream(block) as stream:
        yield from stream


class _Blocks:
    """Blocks that are read several times: in memory up to a bound, then in a file."""

    def __init__(self, schema: pa.Schema, options: DiffOptions) -> None:
        self._schema = schema
        self._bytes_max = options.keep_bytes_max
        self._folder = options.spill_folder
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._written: list[int] = []
        self._path: Path | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, blocks: pa.RecordBatch) -> None:
        """Keep these blocks."""
        for packed in blocks.column(1):
            for rows in unpacked(packed.as_buffer()):
                self._rows.append(rows)
                self._bytes += rows.nbytes
        if self._bytes > self._bytes_max:
            self._write()

    def _write(self) -> None:
        """Move what is in memory into the file."""
        with spilling(self._folder):
            if self._path is None:
                spill = SpillFolder("tailer-blocks-", self._folder)
                self._stack.callback(spill.close)
                self._path = Path(spill.folder, "blocks")
            with self._path.open("ab") as file:
                for rows in self._rows:
                    self._written.append(file.write(rows.serialize()))
        self._rows, self._bytes = [], 0

    def table(self) -> pa.Table:
        """Return the rows of all blocks; a file's are read where they are needed."""
        buffers = list[pa.Buffer]()
        if self._path is not None:
            source: Any = self._stack.enter_context(pa.memory_map(str(self._path)))
            buffers = [source.read_buffer(size) for size in self._written]
        written = [pa.ipc.read_record_batch(buffer, self._schema) for buffer in buffers]
        return pa.Table.from_batches([*written, *self._rows], self._schema)


def changed(
    blocks: Iterable[pa.RecordBatch],
    rewrite: Rewrite,
    state: TableState,
    columns: tuple[str, ...] | None,
    options: DiffOptions,
    key: tuple[str, ...],
) -> list[ChangeFile]:
    """Return the work orders for the changed rows of some labels of a rewrite, with these rows.

    ``state`` is the table's after it, and that of the output, which has these ``columns`` (None:
    all).
    """
    with _Blocks(value_schema(state), options) as held:
        for batch in blocks:
            held.add(batch)
        by = [state.schema.names.index(name) for name in key]
        rows, changes, updated = _compared(held.table(), by, options)
    kept = [
        _by_file(rows, side, files, state, columns)
        for side, files in ((LEAVING, rewrite.leaving), (COMING, rewrite.coming))
    ]
    left, came = map(refs_by_file, changes)
    updated_left, updated_came = map(refs_by_file, updated)
    difference = Difference(left, came, updated_left, updated_came, 0, *kept)
    return changed_files(rewrite, difference, "cancel_out")


def _compared(
    table: pa.Table, by: Sequence[int], options: DiffOptions
) -> tuple[pa.Table, tuple[BitMap64, BitMap64], tuple[BitMap64, BitMap64]]:
    """Return the changed rows, their references by side, and those of the updates among them."""
    with Engine(options) as engine:
        found = engine.unmatched(lambda: _stream(table))
        refs, updated = (found.leaving, found.coming), (BitMap64(), BitMap64())
        rows = table.filter(_members(table, *refs)).combine_chunks()
        if by and all(refs):
            updated = updates(engine, found, lambda: _keys(rows, by))
    return rows, refs, updated


def _stream(table: pa.Table) -> RowStream:
    return RowStream(table.schema, iter(table.to_batches()))


def _keys(rows: pa.Table, by: Sequence[int]) -> RowStream:
    """Return the columns with these numbers, numbered anew, with the references."""
    refs = [field.name for field in REF_FIELDS]
    keys = rows.select([*refs, *(f"c{number}" for number in by)])
    return _stream(keys.rename_columns([*refs, *(f"c{i}" for i in range(len(by)))]))


def _members(table: pa.Table, left: BitMap64, came: BitMap64) -> pa.ChunkedArray:
    """Return which rows have one of these references, given by side."""
    leave, come = (pc.is_in(table["#ref"], value_set=positions_of(refs)) for refs in (left, came))
    return pc.if_else(pc.equal(table["#side"], pa.scalar(LEAVING, pa.int8())), leave, come)


def _by_file(
    rows: pa.Table,
    side: int,
    files: Sequence[ChangeFile],
    state: TableState,
    columns: tuple[str, ...] | None,
) -> dict[int, list[Rows]]:
    """Return the rows of one side by file, as decoding gives them."""
    own = rows.filter(pc.equal(rows["#side"], pa.scalar(side, pa.int8()))).sort_by("#ref")
    numbers, positions = files_and_positions(own["#ref"].combine_chunks())
    schema = output_schema(state, columns)
    names = schema.names[: -len(METADATA_FIELDS)]
    chosen = [f"c{state.schema.names.index(name)}" for name in names]
    data, at, found = own.select(chosen).combine_chunks(), 0, dict[int, list[Rows]]()
    for entry in pc.value_counts(numbers).to_pylist():
        number, count = entry["values"], entry["counts"]
        file = files[number]
        given = (file.change_type, file.version, file.timestamp_ms * 1000)
        constants = [
            pa.repeat(pa.scalar(value, field.type), count)
            for value, field in zip(given, METADATA_FIELDS, strict=True)
        ]
        arrays = [column.combine_chunks() for column in data.slice(at, count).columns]
        batch = pa.RecordBatch.from_arrays([*arrays, *constants], schema=schema)
        found[number] = [Rows(batch, positions.slice(at, count))]
        at += count
    return found
