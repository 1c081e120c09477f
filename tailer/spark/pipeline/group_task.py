"""What a task of Spark does for a feed: decode a group of files, or compare those of a version.

It is sent as it is, decodes with the daemon's own loop, and sends each step back: the counts of its
entries, by their places in the group, and its rows as Arrow streams. At last comes what it has
counted, with an error of ours if there is one. Without that, something is missing: PySpark takes a
connection that was cut off for the end of the results.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from anyio.from_thread import BlockingPortal
from msgspec import Struct, structs

from tailer.changes import ChangeFile, DecodedRows
from tailer.decode.options import DecodeOptions
from tailer.decode.output import FileLayouts
from tailer.decode.rows import Skip
from tailer.decode.small_files import SmallFiles
from tailer.errors import TailerError, healing
from tailer.feed.derive import derive_changes
from tailer.feed.options import FeedOptions
from tailer.feed.progress import Observer
from tailer.feed.read_context import ReadContext
from tailer.feed.rows.decoding import SpanDecoder
from tailer.feed.rows.files import open_files
from tailer.feed.rows.span import DecodedEntries, DecodedStep, SpanEntry
from tailer.log.table import TableLog
from tailer.shape.columns import TableColumns
from tailer.spark.options import SourceOptions
from tailer.spark.orders import RewriteOrder
from tailer.spark.table_store import store_portal

#: A task that has decoded so many bytes leaves the rest to another one: what a task sends is in the
#: driver's memory as a whole, Java's too, and one row group may have a gigabyte.
SENT_BYTES_MAX = 64 * 1024 * 1024
_WRITE = pa.ipc.IpcWriteOptions(compression="lz4")


class TaskObserver(Observer):
    """What a task has read and met, which the driver counts as its own. ``error`` is what it ended
    with, after all that it has sent."""

    def __init__(self) -> None:
        self.read_bytes = self.noops = 0
        #: Of each version and column: how many texts were made valid, and the first of them.
        self.texts: dict[tuple[int, str], tuple[int, bytes]] = {}
        self.error: TailerError | None = None

    def count_read_bytes(self, count: int) -> None:
        self.read_bytes += count

    def count_noops(self, rows: int) -> None:
        self.noops += rows

    def note_replaced_texts(self, version: int, name: str, texts: int, example: bytes) -> None:
        """Keep what a task's own log would say, which nobody reads."""
        before, first = self.texts.get((version, name), (0, example))
        self.texts[version, name] = before + texts, first

    def add_to(self, context: ReadContext) -> None:
        """Count it all there."""
        counts = {
            context.observer.count_read_bytes: self.read_bytes,
            context.observer.count_noops: self.noops,
        }
        for add, count in counts.items():
            if count:
                add(count)
        for (version, name), (texts, example) in self.texts.items():
            context.texts.report_replaced(version, name, texts, example)


class PackedStep(Struct, frozen=True):
    """A step without its entries: for each :class:`DecodedEntries` the places of its entries with
    their counts, and its rows, packed."""

    decoded: list[tuple[list[tuple[int, int]], bytes | None]]
    size: int
    files_read: int
    bytes_read: int

    def unpack(self, group: Sequence[SpanEntry]) -> DecodedStep:
        """Return the step, with the entries of the group at these places."""
        decoded = [
            DecodedEntries(
                [(group[place], count) for place, count in counts],
                None if rows is None else _unpack_rows(rows),
            )
            for counts, rows in self.decoded
        ]
        return DecodedStep(decoded, self.size, self.files_read, self.bytes_read)


class Rest(Struct, frozen=True):
    """What is left of a group: the entries from this place on, but for the first one's first
    ``skip`` changes."""

    place: int
    skip: int


#: What a task sends: steps, and what is left of its group or, of a comparison, the files; and at
#: last its counts.
Sent = PackedStep | Rest | list[ChangeFile] | TaskObserver


@dataclass(frozen=True)
class TableAccess:
    """How the tasks of one feed read its table: ``source`` names it; ``columns`` is what the feed
    knows of its columns."""

    source: SourceOptions
    feed: FeedOptions
    decode: DecodeOptions
    columns: TableColumns = field(repr=False)

    async def open_context(self, log: TableLog, counts: TaskObserver) -> ReadContext:
        """Return the feed's own context, on this machine."""
        context = ReadContext.from_options(log, self.feed, counts, columns=self.columns)
        decode = structs.replace(self.decode, on_read=counts.count_read_bytes)
        texts = context.texts.reporting_to(counts.note_replaced_texts)
        return structs.replace(context, decode=decode, layouts=FileLayouts(decode), texts=texts)


@dataclass(frozen=True)
class GroupTask:
    """The task to decode a group, of entries without their versions, but for the first ``skip``
    changes."""

    access: TableAccess
    group: list[SpanEntry]
    skip: int = 0

    def run(self) -> Iterator[bytes]:
        """Yield what is sent, each pickled."""
        return _send_all(self.access, self._decode)

    def _decode(
        self, portal: BlockingPortal, log: TableLog, counts: TaskObserver
    ) -> Iterator[Sent]:
        group = list(self.group)
        places = {id(entry): place for place, entry in enumerate(group)}
        context = portal.call(self.access.open_context, log, counts)
        error = portal.call(open_files, context, group)
        small = SmallFiles(context.decode, context.layouts) if self.access.feed.spans else None
        decoder = SpanDecoder(context, small, group, Skip(self.skip))
        sent = {id(entry): 0 for entry in group} | {id(group[0]): self.skip}
        size = 0
        try:
            while True:
                step = decoder.decode_step()
                yield _pack_step(step, places)
                if step.is_last:
                    break
                size += step.size
                for entry, count in (each for decoded in step.decoded for each in decoded.counts):
                    sent[id(entry)] += count
                following = decoder.next_entry
                if size >= SENT_BYTES_MAX and following is not None:
                    yield Rest(places[id(following)], sent[id(following)])
                    return
        finally:
            decoder.close()
        if error is not None:
            raise error

    @classmethod
    def from_group(
        cls, access: TableAccess, group: Sequence[SpanEntry], skip: int = 0
    ) -> GroupTask:
        """Return the task for a group of a span."""
        nothing: Any = None  # counts are by places, so no task needs to know a version
        files = (e.file and structs.replace(e.file, stats=None) for e in group)
        return cls(
            access,
            [
                structs.replace(entry, version=nothing, file=file)
                for entry, file in zip(group, files, strict=True)
            ],
            skip,
        )


@dataclass(frozen=True)
class CompareTask:
    """The task to find what really changed in a version that rewrites files."""

    access: TableAccess
    order: RewriteOrder

    def run(self) -> Iterator[bytes]:
        """Yield what is sent, each pickled."""
        return _send_all(self.access, self._compare)

    def _compare(
        self, portal: BlockingPortal, log: TableLog, counts: TaskObserver
    ) -> Iterator[Sent]:
        access, diff = self.access, self.access.feed.diff
        decode = structs.replace(access.decode, on_read=counts.count_read_bytes)
        if diff.spill_folder is not None and not os.access(diff.spill_folder, os.W_OK):
            diff = structs.replace(diff, spill_folder=None)  # it is the driver's machine's
        files = portal.call(
            derive_changes, log.store, self.order.commit, self.order.rewrite, decode, diff,
            access.feed.key, counts.count_noops,
        )  # fmt: skip
        # Their rows are decoded by other tasks, as those of all files are.
        yield [structs.replace(file, kept=None) for file in files]


def _send_all(
    access: TableAccess, work: Callable[[BlockingPortal, TableLog, TaskObserver], Iterator[Sent]]
) -> Iterator[bytes]:
    """Yield what a task's work sends, then its counts with its error, each pickled."""
    counts = TaskObserver()
    try:
        with (
            healing(f"{access.source.table}: a task can't go on"),
            store_portal(access.source) as (portal, store),
        ):
            for sent in work(portal, TableLog(store), counts):
                yield pickle.dumps(sent)
    except TailerError as e:
        counts.error = e
    yield pickle.dumps(counts)


def load_sent(sent: bytes) -> Sent:
    """Return what a task has sent."""
    # Our own executors made it, as they make all that Spark itself unpickles.
    found: Any = pickle.loads(sent)  # noqa: S301
    return found  # type: ignore[no-any-return]


def _pack_step(step: DecodedStep, places: dict[int, int]) -> PackedStep:
    decoded = [
        (
            [(places[id(entry)], count) for entry, count in each.counts],
            None if each.rows is None else _pack_rows(each.rows),
        )
        for each in step.decoded
    ]
    return PackedStep(decoded, step.size, step.files_read, step.bytes_read)


def _pack_rows(rows: DecodedRows) -> bytes:
    """Pack rows, and what belongs to each of them, into two Arrow streams."""
    besides = {"positions": rows.positions}
    if rows.row_ids is not None:
        besides["row_ids"] = rows.row_ids
    sink = pa.BufferOutputStream()
    for part in (rows.batch, pa.RecordBatch.from_pydict(besides)):
        with pa.ipc.new_stream(sink, part.schema, options=_WRITE) as writer:
            writer.write_batch(part)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpack_rows(packed: bytes) -> DecodedRows:
    source = pa.BufferReader(packed)
    # To its end, because the second stream begins there.
    (batch,), (besides,) = ([*pa.ipc.open_stream(source)] for _ in range(2))
    ids = besides.column("row_ids") if "row_ids" in besides.schema.names else None
    return DecodedRows(batch, besides.column("positions"), ids, utf8=True)
