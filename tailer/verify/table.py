"""Verification of exact rows: a snapshot, and the events after it, give the later snapshot.

All rows go through the comparison's engine with a sign: the rows of the earlier snapshot and the
added rows count +1, the removed rows and the rows of the later snapshot -1. A sum other than zero
is a wrong event, from any source: also from a writer's wrong cdc files. That all sums are zero is
seen in sums of 128 bits of hash for each row, unless rows have nested columns.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import anyio.lowlevel
import anyio.to_thread
import pyarrow as pa
import pyarrow.compute as pc
from anyio.from_thread import BlockingPortal
from msgspec import structs

from tailer.changes import CHANGE_TYPE, COMING_KINDS, METADATA_FIELDS, ChangeBatch, Offset
from tailer.compare.engine import Engine, Unbalanced
from tailer.compare.stream import REF_FIELDS, RowStream
from tailer.decode.variant import canonicalize_variants
from tailer.delta.snapshot import TableState
from tailer.errors import CorruptRow, ungrouping
from tailer.feed.options import FeedOptions
from tailer.feed.progress import Observer
from tailer.feed.read import read_changes
from tailer.feed.read_context import ReadContext
from tailer.log.table import TableLog
from tailer.plan.mapping_removals import find_mapping_removals
from tailer.sink.pulling import pull_batches

_COMING = pa.array(COMING_KINDS)
_EXAMPLES_MAX = 5

T = TypeVar("T")

_Side = Literal["leaving", "coming"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for the versions first..last.

    ``missing``: rows of the later snapshot that the events do not produce; ``surplus``: rows that
    they produce and that are not in it. ``examples`` has up to five of them, with a column
    ``surplus`` (negative: missing). ``events`` counts the events.
    """

    first: int
    last: int
    events: int
    missing: int
    surplus: int
    examples: pa.Table | None

    @property
    def exact(self) -> bool:
        """Whether the events are right."""
        return not (self.missing or self.surplus)


async def verify_versions(
    log: TableLog,
    first: int,
    last: int,
    options: FeedOptions,
    observer: Observer | None = None,
) -> AsyncGenerator[Verdict, None]:
    """Yield verdicts on the versions first..last: one on all of them together if it is exact.

    Otherwise, or if the range has no single schema in which all rows can be read, yield one for
    each version, in order. Memory is bounded by ``options.diff``. ``observer`` is told of the rows
    that are read.
    """
    observer = observer or Observer()
    try:
        verdict = await _verify_range(log, first, last, options, observer)
    except CorruptRow:
        if first == last:
            raise
        verdict = None
    if verdict is not None and (verdict.exact or first == last):
        yield verdict
        return
    for version in range(first, last + 1):
        yield await _verify_range(log, version, version, options, observer)


async def _verify_range(
    log: TableLog, first: int, last: int, options: FeedOptions, observer: Observer
) -> Verdict:
    state = (await log.load_snapshot(last)).state
    removals = await find_mapping_removals(log, first, last, state)
    options = structs.replace(
        options, decode=structs.replace(options.decode, removals=removals), spans=True
    )
    try:
        return await _verify_in_schema(log, first, last, options, observer, state)
    except CorruptRow:
        if first < last or first == 0:
            raise
        before = (await log.load_snapshot(first - 1)).state
        if before.schema == state.schema:
            raise
    # No row can be read in both schemas, so no row may remain: each side is checked in its schema.
    left = await _verify_in_schema(log, first, last, options, observer, before, "leaving")
    came = await _verify_in_schema(log, first, last, options, observer, state, "coming")
    return Verdict(
        first,
        last,
        left.events + came.events,
        left.missing + came.missing,
        left.surplus + came.surplus,
        left.examples if came.exact else came.examples,
    )


async def _verify_in_schema(
    log: TableLog,
    first: int,
    last: int,
    options: FeedOptions,
    observer: Observer,
    state: TableState,
    side: _Side | None = None,
) -> Verdict:
    """Return the verdict in one schema: on all rows, or on those of one side."""
    decode = structs.replace(options.decode, target=None if side else state, columns=None)
    options = structs.replace(options, decode=decode)

    def compare(portal: BlockingPortal) -> Verdict:
        signed = SignedRows(portal, log, (first, last), options, observer, state, side)
        with Engine(options.diff) as engine:
            missing, surplus, examples = compare_rows(engine, signed)
        return Verdict(first, last, signed.events, missing, surplus, examples)

    return await run_in_engine_thread(compare)


async def run_in_engine_thread(work: Callable[[BlockingPortal], T]) -> T:
    """Run blocking work in a thread, which reads the table through the portal that it is given."""
    with ungrouping():
        async with BlockingPortal() as portal, anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_when_cancelled, portal)
            try:
                result = await anyio.to_thread.run_sync(work, portal)
            except (CancelledError, RuntimeError):  # the thread's: its portal was stopped
                await anyio.lowlevel.checkpoint_if_cancelled()
                raise
            tasks.cancel_scope.cancel()
    return result


async def _stop_when_cancelled(portal: BlockingPortal) -> None:
    """Take no more calls of the thread: within a cancelled scope they would never end."""
    try:
        await anyio.sleep_forever()
    finally:
        await portal.stop(cancel_remaining=True)


class RowSource(Protocol):
    """Rows with signs, which can be read more than once; ``names`` are those of their columns."""

    names: list[str]

    def open_stream(self) -> RowStream:
        """Return the rows as a stream for the engine, from the beginning."""


def compare_rows(
    engine: Engine, signed: RowSource, examples_max: int = _EXAMPLES_MAX
) -> Unbalanced:
    """Return the number of missing rows and of surplus rows, and examples of them. If there are
    any, the engine's table ``unbalanced`` has all of them.

    Sums of the rows' hashes say whether there are any; only then are rows grouped by value.
    """
    # An engine that fails leaves rows unread, and their source must be closed here.
    with closing(signed.open_stream()) as rows:
        if engine.is_balanced(rows):
            return Unbalanced(0, 0, None)
    found = engine.find_unbalanced(signed.open_stream, examples_max)
    if found.examples is None:
        return found
    names = [*signed.names[: found.examples.num_columns - 1], "surplus"]
    return found._replace(examples=found.examples.rename_columns(names))


class SignedRows:
    """All rows of both snapshots and of the events between them, each with its sign."""

    def __init__(
        self,
        portal: BlockingPortal,
        log: TableLog,
        versions: tuple[int, int],
        options: FeedOptions,
        observer: Observer,
        state: TableState,
        side: _Side | None = None,
    ) -> None:
        self.side = side
        self.portal = portal
        self.log = log
        self.first, self.last = versions
        self.options = options
        self.observer = observer
        self.events = 0
        shaper = ReadContext.from_options(log, options).shaper
        fields = list(shaper.shape_schema(state))[: -len(METADATA_FIELDS)]
        self.names = [f.name for f in fields]
        numbered = (pa.field(f"c{i}", f.type) for i, f in enumerate(fields))
        self.schema = pa.schema([*REF_FIELDS, *numbered])

    def open_stream(self) -> RowStream:
        """Return the rows as a stream for the engine, from the beginning."""
        self.events = 0
        self.observer.begin_comparison()
        return RowStream(self.schema, self._sign_batches())

    def _sign_batches(self) -> Iterator[pa.RecordBatch]:
        if self.first and self.side != "coming":
            for batch in pull_batches(self.portal, self._read_snapshot(self.first - 1)):
                yield self._sign_rows(batch, pa.repeat(pa.scalar(1, pa.int8()), batch.num_rows))
        yield from self.sign_changes()
        if self.side != "leaving":
            for batch in pull_batches(self.portal, self._read_snapshot(self.last)):
                yield self._sign_rows(batch, pa.repeat(pa.scalar(-1, pa.int8()), batch.num_rows))

    def sign_changes(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the events, and count them in ``events``."""
        start = Offset(self.first)
        changes = read_changes(self.log, start, self.last, self.options, self.observer)
        for batch in pull_batches(self.portal, changes):
            comes = pc.is_in(batch.rows.column(CHANGE_TYPE), value_set=_COMING)
            sign = pc.if_else(comes, pa.scalar(1, pa.int8()), pa.scalar(-1, pa.int8()))
            meant = pa.repeat(pa.scalar(True), batch.num_rows)
            if self.side is not None:
                meant = comes if self.side == "coming" else pc.invert(comes)
            count = pc.sum(meant).as_py() or 0
            if count:
                self.events += count
                yield self._sign_rows(batch, sign).filter(meant)

    def _read_snapshot(self, version: int) -> AsyncGenerator[ChangeBatch, None]:
        start = Offset(version, snapshot=True)
        return read_changes(self.log, start, version, self.options, self.observer)

    def _sign_rows(self, batch: ChangeBatch, sign: pa.Array) -> pa.RecordBatch:
        self.observer.count_compared(batch.num_rows)
        values = [self.make_comparable(c) for c in batch.rows.columns[: -len(METADATA_FIELDS)]]
        if [v.type for v in values] != [f.type for f in list(self.schema)[len(REF_FIELDS) :]]:
            raise CorruptRow(
                "a removed row does not have the schema of the version before, or an added row "
                "not that of its own",
                version=batch.version,
            )
        return pa.RecordBatch.from_arrays([sign, batch.positions, *values], schema=self.schema)

    def make_comparable(self, column: pa.Array) -> pa.Array:
        """Convert a column of a snapshot or an event so that equal values compare as equal."""
        return canonicalize_variants(column)
