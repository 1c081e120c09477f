"""Repair of a mirror: the keys that differ get the table's rows, and nothing else is written.

The comparison of :mod:`tailer.verify.mirror` leaves the rows that differ in the engine. Their keys
are *settled* one after the other: in one transaction for some of them, the mirror's rows of these
keys are removed, and the table's rows are added. For example, of the table's version 12:

=== ============== ============= ===========================================
key mirror         table         what settles it
=== ============== ============= ===========================================
1   a              a             nothing: it does not differ
2   changed        b             the row ``b``, in the place of ``changed``
3                  c             the row ``c``
4   d, twice       d             one row ``d``
5   another        (none)        its removal, after all rows are written
6   changed        changed in 13 the feed, if it has written version 13 since
=== ============== ============= ===========================================

The feed may run meanwhile. Each transaction holds only while the mirror's offset is the one that is
expected. If the feed has moved it, the keys that it has written since are settled, because a change
replaces the row of its key; of the others, neither the table nor the feed has changed any.

What must never happen: a row older than the feed's own takes its place; the mirror's offset moves;
a key that does not differ is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from anyio.from_thread import BlockingPortal
from msgspec import structs

from tailer.changes import ChangeBatch, Offset, concat_batches
from tailer.compare.engine import Engine
from tailer.compare.stream import REF_FIELDS, RowStream
from tailer.errors import ConfigError, SinkRejected, TargetRefused, TransientError
from tailer.feed.copy_repairs import RepairCounts
from tailer.feed.options import FeedOptions
from tailer.feed.progress import Observer
from tailer.feed.read import read_changes
from tailer.log.table import TableLog
from tailer.shape.expressions import Condition
from tailer.sink import MirrorRepair, Sink
from tailer.sink.pulling import pull_batches
from tailer.verify.mirror import MirrorRows, MirrorVerdict, check_passed, find_held_version
from tailer.verify.table import run_in_engine_thread

#: How much is written, and how many keys are removed, in one transaction.
_ROWS_MAX = 50_000
_BYTES_MAX = 64 * 1024 * 1024


class Repair(NamedTuple):
    """What differed, and what was written."""

    verdict: MirrorVerdict
    counts: RepairCounts


class _Back(NamedTuple):
    """The earlier version that a mirror is taken back to, and what stores the offset after it."""

    version: int
    move: Callable[[], Awaitable[None]]


class _Extent(NamedTuple):
    """What is repaired: rows that meet a condition, or all; against the version that the mirror
    has, or an earlier one; or nothing, and counted alone."""

    where: Condition | None = None
    back: _Back | None = None
    dry_run: bool = False


async def repair_mirror(
    log: TableLog,
    sink: Sink,
    feed: str,
    options: FeedOptions,
    observer: Observer | None = None,
    *,
    where: Condition | None = None,
    dry_run: bool = False,
) -> Repair:
    """Compare the mirror of a feed with its table, and settle the keys that differ.

    ``observer`` is told of the rows that are read. ``where`` leaves out keys of which neither the
    table's row nor the mirror's meets it. With ``dry_run``, nothing is written, and the counts are
    what would be. Raises the errors of :func:`~tailer.verify.mirror.verify_mirror` and
    of the sink; what was written until then stays.
    """
    extent = _Extent(where, None, dry_run)
    repair = partial(_repair_copy, log, sink, feed, options, observer or Observer(), extent)
    return await run_in_engine_thread(repair)


async def rewind_mirror(
    log: TableLog,
    sink: Sink,
    feed: str,
    options: FeedOptions,
    version: int,
    move: Callable[[], Awaitable[None]],
) -> RepairCounts:
    """Make the mirror of a feed that is stopped the table as of an earlier version.

    ``move`` stores the offset after that version. It is called when all of the version has been
    read, and before anything is written: if this ends early, :func:`repair_mirror` does the rest.
    Raises :class:`ConfigError` for a version that the mirror has not passed, or whose columns are
    others, and the errors of the table if it no longer has the version.
    """
    extent = _Extent(back=_Back(version, move))
    back = partial(_repair_copy, log, sink, feed, options, Observer(), extent)
    return (await run_in_engine_thread(back)).counts


def _repair_copy(
    log: TableLog,
    sink: Sink,
    feed: str,
    options: FeedOptions,
    observer: Observer,
    extent: _Extent,
    portal: BlockingPortal,
) -> Repair:
    back = extent.back
    with Engine(options.diff) as engine:
        with sink.read_mirror(feed) as copy:
            if back is None:
                version = find_held_version(copy.offset, feed)
            else:
                version = back.version
                _check_passed(portal, log, feed, copy.offset, version)
            rows = MirrorRows(portal, log, copy, version, options, observer, extent.where)
            verdict = rows.compare(engine)
        if back is not None:
            portal.call(back.move)
        counts = RepairCounts()
        if not verdict.exact:
            if extent.dry_run:
                _Settling(engine, rows, _DryRun(copy.offset), copy.offset, counts).run()
            else:
                with sink.repair_mirror(feed) as mirror:
                    seen = copy.offset if back is None else mirror.offset
                    _Settling(engine, rows, mirror, seen, counts).run()
        return Repair(verdict, counts)


def _check_passed(
    portal: BlockingPortal, log: TableLog, feed: str, offset: Offset | None, version: int
) -> None:
    last = check_passed(feed, offset, version)
    before, after = (portal.call(log.load_snapshot, v).state for v in (version, last))
    if before.schema != after.schema:
        raise ConfigError(
            f"the table has other columns now than in version {version}, and a copy can't be taken "
            "back to them; `tailer offsets reset` creates it again"
        )


@dataclass(slots=True)
class _DryRun:
    """A :class:`MirrorRepair` that writes nothing."""

    offset: Offset | None

    def reload(self) -> bool:
        return False

    def replace(self, batch: ChangeBatch) -> None:
        pass

    def remove(self, keys: pa.Table) -> None:
        pass


class _Settling:
    """The keys that differ and are not settled, in the engine's table ``differing``."""

    def __init__(
        self,
        engine: Engine,
        rows: MirrorRows,
        mirror: MirrorRepair,
        seen: Offset | None,
        counts: RepairCounts,
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._mirror = mirror
        self._counts = counts
        self._seen = seen
        key = [f"c{i}" for i in range(len(rows.copy.key))]
        self._key = ", ".join(key)
        # No statement finds a row by a key that is null; the table has none, and verify names it.
        whole = " AND ".join(f"{name} IS NOT NULL" for name in key)
        engine.execute(
            "CREATE TEMP TABLE differing AS "
            f"SELECT DISTINCT {self._key} FROM unbalanced WHERE {whole}"
        )
        engine.execute("DROP TABLE unbalanced")

    def run(self) -> None:
        """Settle all keys."""
        self._catch_up()
        for batch in self._gather_rows():
            self._replace_rows(batch)
        while (keys := self._choose_open_keys()).num_rows:
            self._remove_keys(keys)

    def _gather_rows(self) -> Iterator[ChangeBatch]:
        """Yield the table's rows of the keys that differ, enough of them for a transaction."""
        waiting: list[ChangeBatch] = []
        count = size = 0
        # Also a row that does not meet the condition, if the mirror's row of its key does.
        rows = self._rows.read_snapshot(whole=True)
        with closing(pull_batches(self._rows.portal, rows)) as batches:
            self._rows.observer.begin_comparison()
            for batch in batches:
                self._rows.observer.count_compared(batch.num_rows)
                chosen = self._choose_open(batch)
                if chosen.num_rows:
                    waiting.append(chosen)
                    count, size = count + chosen.num_rows, size + int(chosen.rows.nbytes)
                if count >= _ROWS_MAX or size >= _BYTES_MAX:
                    yield _join_batches(waiting)
                    waiting, count, size = [], 0, 0
        if waiting:
            yield _join_batches(waiting)

    def _choose_open(self, batch: ChangeBatch) -> ChangeBatch:
        """Return the rows of a batch whose keys differ and are not settled."""
        if not batch.num_rows:
            return batch
        found = self._engine.query_table(
            f'SELECT "#ref" FROM rows SEMI JOIN differing USING ({self._key})',
            self._rows.stream_keys(batch),
        )
        places = pa.arange(0, batch.num_rows)
        return batch.kept(pc.is_in(places, value_set=found.column(0).combine_chunks()))

    def _choose_open_keys(self) -> pa.Table:
        """Return some of the keys that are not settled, as the mirror gave them."""
        found = self._engine.query_table(f"SELECT {self._key} FROM differing LIMIT {_ROWS_MAX}")
        types = list(self._rows.schema)[len(REF_FIELDS) :]
        columns = [
            found.column(i).cast(types[i].type).combine_chunks() for i in range(found.num_columns)
        ]
        return pa.table(columns, names=list(self._rows.copy.key))

    def _replace_rows(self, batch: ChangeBatch) -> None:
        while batch.num_rows:
            try:
                self._mirror.replace(batch)
            except (TransientError, ConfigError):
                if not self._mirror.reload():
                    raise
                self._catch_up()
                batch = self._choose_open(batch)
            except TargetRefused:
                raise
            except SinkRejected as e:
                self._replace_halves(batch, e)
                return
            else:
                self._counts.rows += batch.num_rows
                self._counts.transactions += 1
                self._note_settled(self._rows.stream_keys(batch))
                return

    def _replace_halves(self, batch: ChangeBatch, refused: SinkRejected) -> None:
        """Write what was refused in halves, or leave the only row as it is."""
        if batch.num_rows == 1:
            self._counts.refused += 1
            self._counts.reason = self._counts.reason or str(refused)
            self._note_settled(self._rows.stream_keys(batch))
            return
        first = pc.less(pa.arange(0, batch.num_rows), batch.num_rows // 2)
        for half in (first, pc.invert(first)):
            self._replace_rows(batch.kept(half))

    def _remove_keys(self, keys: pa.Table) -> None:
        try:
            self._mirror.remove(keys)
        except (TransientError, ConfigError):
            if not self._mirror.reload():
                raise
            self._catch_up()  # and what is still open is asked for again
        else:
            self._counts.removed += keys.num_rows
            self._counts.transactions += 1
            self._note_settled(
                self._rows.stream_held_keys([c.combine_chunks() for c in keys.columns])
            )

    def _note_settled(self, keys: RowStream) -> None:
        same = " AND ".join(f"differing.{name} = rows.{name}" for name in self._key.split(", "))
        self._engine.execute(f"DELETE FROM differing USING rows WHERE {same}", keys)

    def _catch_up(self) -> None:
        """Settle the keys that the feed has written since the mirror was last looked at."""
        at, seen = self._mirror.offset, self._seen
        if at == seen:
            return
        if at is None or seen is None or at.snapshot or at.position < seen.position:
            raise TransientError("the mirror was begun again meanwhile; repair it when it follows")
        last = at.version if at.index else at.version - 1
        changes = read_changes(self._rows.log, seen, last, self._rows.options)
        for batch in pull_batches(self._rows.portal, changes):
            if batch.state.schema != self._rows.state.schema:
                raise TransientError("the columns have changed meanwhile; repair it again")
            if batch.num_rows:
                self._note_settled(self._rows.stream_keys(batch))
        self._seen = at


def _join_batches(batches: list[ChangeBatch]) -> ChangeBatch:
    """Return the batches as one, whose rows have no places within their version."""
    return structs.replace(
        concat_batches([structs.replace(batch, indices=None) for batch in batches]), indices=None
    )
