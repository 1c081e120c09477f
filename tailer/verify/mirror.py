"""Verification of a mirror: it has the rows of the table's snapshot at its offset.

The rows of the mirror count +1 and those of the snapshot -1, in the comparison of
:mod:`tailer.verify.table`: out of core, and by sums of hashes as long as nothing is wrong.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.lowlevel
import pyarrow as pa
from anyio.from_thread import BlockingPortal
from msgspec import structs

from tailer.changes import METADATA_FIELDS, ChangeBatch, Offset
from tailer.compare.engine import Engine
from tailer.compare.stream import REF_FIELDS, RowStream
from tailer.errors import ConfigError, TableReplaced, TransientError
from tailer.feed.options import FeedOptions
from tailer.feed.progress import Observer
from tailer.feed.read import read_changes
from tailer.feed.read_context import ReadContext
from tailer.log.table import TableLog
from tailer.shape.expressions import Condition, join_conditions
from tailer.sink import MirrorCopy, Sink
from tailer.sink.pulling import pull_batches
from tailer.verify.table import compare_rows, run_in_engine_thread

_KEYS_MAX = 10


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key whose rows differ: ``missing`` from the mirror, ``surplus`` in it, or both, which is
    another value."""

    key: Mapping[str, Any]
    missing: bool
    surplus: bool


@dataclass(frozen=True, slots=True)
class MirrorVerdict:
    """The result at a version: how many rows the mirror lacks and has beyond the table's, and the
    first keys of these. A row with another value counts as both."""

    version: int
    rows: int
    missing: int
    surplus: int
    differences: Sequence[KeyDifference]

    @property
    def exact(self) -> bool:
        """Whether the mirror is the table."""
        return not (self.missing or self.surplus)


async def verify_mirror(
    log: TableLog,
    sink: Sink,
    feed: str,
    options: FeedOptions,
    at: int | None = None,
    observer: Observer | None = None,
) -> MirrorVerdict:
    """Compare the mirror of a feed with its table, at the version that the mirror has, or one that
    keeps versions at an earlier one. ``observer`` is told of the rows that are read.

    Raises :class:`TransientError` while the mirror is in the middle of a version, and
    :class:`ConfigError` for an earlier version that it can't be compared at.
    """
    compare = partial(_verify_copy, log, sink, feed, options, at, observer or Observer())
    return await run_in_engine_thread(compare)


def _verify_copy(
    log: TableLog, sink: Sink, feed: str, options: FeedOptions, at: int | None,
    observer: Observer, portal: BlockingPortal,
) -> MirrorVerdict:  # fmt: skip
    with Engine(options.diff) as engine, sink.read_mirror(feed) as copy:
        if at is None:
            version = find_held_version(copy.offset, feed)
        else:
            version = copy.at = at
            _check_kept(portal, log, feed, copy.offset, at)
        return MirrorRows(portal, log, copy, version, options, observer).compare(engine)


def _check_kept(
    portal: BlockingPortal, log: TableLog, feed: str, offset: Offset | None, version: int
) -> None:
    """Raise :class:`ConfigError` for a version that a history has not come to, or of which it no
    longer has the columns."""
    last = check_passed(feed, offset, version)
    then, now = (portal.call(log.load_snapshot, v).state.schema for v in (version, last))
    for field in then.fields:
        if field not in now.fields:
            raise ConfigError(
                f"the column {field.name!r} of version {version} was dropped, renamed or changed "
                "since, and the history has it as it is now; verify later versions"
            )


def check_passed(feed: str, offset: Offset | None, version: int) -> int:
    """Return the last version of which a copy with this offset has rows. Raises
    :class:`ConfigError` if it has not passed ``version``."""
    if offset is None or offset.snapshot or offset.position < (version + 1, 0):
        at = "has not begun" if offset is None else f"continues with version {offset.version}"
        raise ConfigError(
            f"the copy of the feed {feed!r} {at}, so it has not passed version {version}"
        )
    return offset.version if offset.index else offset.version - 1


def find_held_version(offset: Offset | None, feed: str) -> int:
    """Return the version that a mirror with this offset has. Raises :class:`TransientError` if it
    is in the middle of one."""
    if offset is None or offset.snapshot or offset.index:
        at = "at its beginning" if offset is None else f"in the middle of version {offset.version}"
        raise TransientError(
            f"the mirror of the feed {feed!r} is {at}; verify it when the feed has continued, or "
            "take it back to a version with `tailer offsets rewind`"
        )
    return offset.version - 1


def _find_differences(examples: pa.Table, key: Sequence[str]) -> list[KeyDifference]:
    """Return the keys of the examples, which are in the order of their keys."""
    found: dict[str, KeyDifference] = {}
    keys = zip(*(_list_values(examples.column(name)) for name in key), strict=True)
    for each, surplus in zip(keys, examples.column("surplus").to_pylist(), strict=True):
        values = dict(zip(key, each, strict=True))
        sides = found.get(str(values), KeyDifference(values, missing=False, surplus=False))
        found[str(values)] = KeyDifference(
            values, sides.missing or surplus < 0, sides.surplus or surplus > 0
        )
    return list(found.values())[:_KEYS_MAX]


def _list_values(column: pa.ChunkedArray) -> list[Any]:
    """Return values for people: of times beyond the years 1 to 9999, which Python lacks, texts."""
    try:
        return list(column.to_pylist())
    except OverflowError:
        return list(column.cast(pa.string()).to_pylist())


class MirrorRows:
    """The rows of a mirror and of its table, the key's columns first.

    ``version`` is the table's, ``state`` what it was then, ``count`` how many rows of the mirror
    were read. With ``where``, rows of both sides that do not meet it are left out. Where a column
    of it is masked, not selected, or of another type in the mirror, the mirror's rows can't tell
    whether they meet it, and all rows of both sides are compared.
    """

    def __init__(
        self,
        portal: BlockingPortal,
        log: TableLog,
        copy: MirrorCopy,
        version: int,
        options: FeedOptions,
        observer: Observer,
        where: Condition | None = None,
    ) -> None:
        self.portal = portal
        self.log = log
        self.copy = copy
        self.version = version
        self.options = options
        self.count = 0
        self._where: Condition | None = None
        self.state = portal.call(log.load_snapshot, self.version).state
        if copy.offset is not None and copy.offset.table_id not in (None, self.state.table_id):
            raise TableReplaced(
                f"the table has the id {self.state.table_id}, and the mirror is of "
                f"{copy.offset.table_id}; `tailer offsets reset` creates it again"
            )
        self.observer = Observer()  # of the first look
        with closing(pull_batches(portal, self.read_snapshot())) as batches:
            table = self._select_columns(next(batches)).schema
        rest = [name for name in table.names if name not in copy.key]
        self.names = [*(name for name in copy.key if name in table.names), *rest]
        self.table = pa.schema([table.field(name) for name in self.names])
        held = (copy.as_held(f.name, pa.array([], f.type)).type for f in self.table)
        numbered = [pa.field(f"c{i}", data_type) for i, data_type in enumerate(held)]
        self.schema = pa.schema([*REF_FIELDS, *numbered])
        self._shaper = ReadContext.from_options(log, options).shaper
        if where is not None and self._can_tell(where):
            self._where = where
        self.observer = observer

    def _can_tell(self, where: Condition) -> bool:
        """Return whether the mirror has what a condition is about as the table has it."""
        needed = self._shaper.list_unchanged(where, self.state)
        return needed is not None and all(
            self.copy.as_held(name, pa.array([], kind)).type == kind
            for name, kind in ((name, self.table.field(name).type) for name in needed)
        )

    def compare(self, engine: Engine) -> MirrorVerdict:
        """Return the verdict; the engine's table ``unbalanced`` then has the rows that differ."""
        missing, surplus, examples = compare_rows(engine, self, 2 * _KEYS_MAX + 1)
        differences = [] if examples is None else _find_differences(examples, self.copy.key)
        return MirrorVerdict(self.version, self.count, missing, surplus, differences)

    def open_stream(self) -> RowStream:
        self.count = 0
        self.observer.begin_comparison()
        return RowStream(self.schema, self._sign_batches())

    def read_snapshot(self, *, whole: bool = False) -> AsyncGenerator[ChangeBatch, None]:
        """Return the table's rows, as inserts; the ``whole`` table's also under a condition."""
        start, options = Offset(self.version, snapshot=True), self.options
        if self._where is not None and not whole:
            where = join_conditions(options.selection.where, self._where)
            selection = structs.replace(options.selection, where=where)
            options = structs.replace(options, selection=selection)
        return read_changes(self.log, start, self.version, options, self.observer)

    def _sign_batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self.copy.rows(self.table):
            self.portal.call(anyio.lowlevel.checkpoint)  # nothing else here ends with the caller
            if self._where is not None:
                met = self._shaper.find_met(self._where, self.state, batch)
                batch = batch.filter(met)  # noqa: PLW2901  # of the others nothing is asked
            yield _sign_rows(1, batch.columns, self.count, self.schema)
            self.count += batch.num_rows
            self.observer.count_compared(batch.num_rows)
        done = 0
        for changes in pull_batches(self.portal, self.read_snapshot()):
            data = self._select_columns(changes)
            columns = [self.copy.as_held(name, data.column(name)) for name in self.names]
            yield _sign_rows(-1, columns, done, self.schema)
            done += data.num_rows
            self.observer.count_compared(data.num_rows)

    def stream_keys(self, changes: ChangeBatch) -> RowStream:
        """Return the keys of a batch as a stream for the engine, each with its place there."""
        data = self._select_columns(changes)
        return self.stream_held_keys(
            [self.copy.as_held(name, data.column(name)) for name in self.copy.key]
        )

    def stream_held_keys(self, columns: Sequence[pa.Array]) -> RowStream:
        """Return keys that are in the mirror's form as a stream for the engine."""
        schema = pa.schema(list(self.schema)[: len(REF_FIELDS) + len(columns)])
        return RowStream(schema, iter([_sign_rows(1, columns, 0, schema)]))

    def _select_columns(self, changes: ChangeBatch) -> pa.RecordBatch:
        """Return the columns that a mirror has of a batch."""
        names = changes.rows.schema.names[: -len(METADATA_FIELDS)]
        data = changes.rows.select(names)
        if not self.options.decode.row_ids:  # which only a mirror by row id requires
            return data
        ids = pa.array([], pa.int64()) if changes.row_ids is None else changes.row_ids
        return data.append_column(self.copy.key[0], ids)


def _sign_rows(
    sign: int, columns: Sequence[pa.Array], first: int, schema: pa.Schema
) -> pa.RecordBatch:
    count = len(columns[0])
    side = pa.repeat(pa.scalar(sign, pa.int8()), count)
    place = pa.arange(first, first + count)
    return pa.RecordBatch.from_arrays([side, place, *columns], schema=schema)
