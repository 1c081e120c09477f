"""A copy in ClickHouse, read back for `tailer verify`, and set right for `--repair`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import closing

import pyarrow as pa
from anyio.from_thread import BlockingPortal

from sinks.clickhouse.client import ClickHouseClient
from sinks.clickhouse.columns import hold_type, make_comparable, quote_name, read_column
from sinks.clickhouse.progress import ProgressRows
from sinks.clickhouse.rows import RowMaker
from sinks.shared.row_versions import find_last_version, find_table_version
from tailer.changes import ChangeBatch, Offset
from tailer.errors import TargetRefused, TransientError
from tailer.sink.pulling import pull_batches

#: How long a feed may take between its rows and their offset, in seconds.
_SETTLE_S = 5.0
#: What a whole stream of Arrow's ends with.
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class _Chunks:
    """Parts of an answer as a file that Arrow reads."""

    closed = False

    def __init__(self, parts: Generator[bytes, None, None]) -> None:
        self._parts = parts
        self._left = b""
        self.end = b""

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer only at the end."""
        while len(self._left) < size and (part := next(self._parts, None)) is not None:
            self._left += part
        found, self._left = self._left[:size], self._left[size:]
        self.end = (self.end + found)[-len(_END) :]
        return found


class ClickHouseCopy:
    """See :class:`tailer.sink.MirrorCopy`."""

    def __init__(
        self, portal: BlockingPortal, client: ClickHouseClient, progress: ProgressRows,
        maker: RowMaker, table: str,
    ) -> None:  # fmt: skip
        self.offset: Offset | None = progress.now.at
        self.key = maker.key
        self.at: int | None = None
        self._portal = portal
        self._client = client
        self._progress = progress
        self._began = progress.now
        self._maker = maker
        self._table = table

    def as_held(self, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG002  # the same for all
        return make_comparable(column)

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._began.made is None:
            return
        names = ", ".join(map(quote_name, schema.names))
        query = f"SELECT {names} FROM {self._table} FINAL"
        with closing(pull_batches(self._portal, self._client.stream(query))) as parts:
            chunks = _Chunks(parts)
            yield from self._read_stream(chunks, schema)
        self.check_unchanged()

    def _read_stream(self, chunks: _Chunks, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            with pa.ipc.open_stream(pa.PythonFile(chunks, "r")) as reader:
                for batch in reader:
                    pairs = zip(batch.columns, schema, strict=True)
                    columns = [read_column(column, field.type) for column, field in pairs]
                    yield pa.RecordBatch.from_arrays(columns, names=schema.names)
        except (pa.ArrowException, OSError, ValueError) as e:
            raise TransientError(
                f"{self._client.location}: an answer that is not whole, or not of the table's "
                f"types ({e})"
            ) from e
        if chunks.end != _END or chunks.read(1):
            raise TransientError(f"{self._client.location}: an answer that is not whole")

    def find_newest(self) -> int:
        """Return the greatest row version that the table has."""
        version = quote_name(self._maker.first)
        query = f"SELECT toString(max({version})) AS newest FROM {self._table}"
        [row] = self._portal.call(self._client.ask, query)
        return int(row["newest"])

    def check_unchanged(self) -> None:
        """Raise :class:`TransientError` if the feed has written since the offset was read, or is
        about to have: rows are there before their offset. A feed that has stopped there has left a
        part of a version, which differs from the table."""
        give_up = time.monotonic() + _SETTLE_S
        while True:
            if self._portal.call(self._progress.load) != self._began:
                raise TransientError(
                    f"{self._progress.where} was written by the feed meanwhile; verify it again"
                )
            if not self._is_ahead() or time.monotonic() > give_up:
                return
            time.sleep(_SETTLE_S / 10)

    def _is_ahead(self) -> bool:
        newest = find_table_version(self.find_newest(), self._began.era)
        return self.offset is not None and newest >= self.offset.version


class ClickHouseRepair:
    """See :class:`tailer.sink.MirrorRepair`. What it writes has the last row version before those
    of the feed's next write, which so wins in any order."""

    def __init__(
        self, portal: BlockingPortal, progress: ProgressRows, copy: ClickHouseCopy, maker: RowMaker,
        write: Callable[[pa.Table], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._portal = portal
        self._progress = progress
        self._copy = copy
        self._maker = maker
        self._write = write
        self._known = progress.now

    @property
    def offset(self) -> Offset | None:
        return self._known.at

    def reload(self) -> bool:
        before, self._known = self._known, self._portal.call(self._progress.load)
        return self._known != before

    def replace(self, batch: ChangeBatch) -> None:
        self._write_over(lambda version: self._maker.make_repair_rows(batch, version))

    def remove(self, keys: pa.Table) -> None:
        columns = self._known.read_columns()
        held = [keys[name].cast(hold_type(columns.field(name).type)) for name in keys.column_names]
        held_keys = pa.table(held, names=keys.column_names)
        self._write_over(lambda version: self._maker.make_removals(held_keys, version))

    def _write_over(self, make: Callable[[int], pa.Table]) -> None:
        """Insert rows. If the table has later versions, a feed has stopped in the middle of one:
        then an era begins, in which it writes that version again."""
        self._check_overtaken()
        if self._copy.find_newest() > self._find_version():
            self._copy.check_unchanged()
            self._portal.call(self._begin_era)
        version = self._find_version()
        if self._copy.find_newest() > version:
            raise TargetRefused(
                f"{self._progress.where}: some rows have a later version than the feed's: another "
                "program gives them versions of its own; delete them, and repair the copy again"
            )
        rows = make(version)
        columns = set(self._known.read_columns().names)
        if not columns.issuperset(rows.column_names):
            raise TransientError(
                f"{self._progress.where}: its columns have changed meanwhile; repair it again"
            )
        self._portal.call(self._write, rows)

    async def _begin_era(self) -> None:
        now = self._known
        await self._progress.claim(now.feed, now.mode)
        await self._progress.save(era=now.era + 1)
        self._known = self._progress.now

    def _find_version(self) -> int:
        at = self.offset
        if at is None or self._known.made is None:
            raise TargetRefused("there is no copy to be repaired")
        return find_last_version(self._known.era, at.version - 1)

    def _check_overtaken(self) -> None:
        if self._portal.call(self._progress.load) != self._known:
            raise TransientError("the feed has written the copy meanwhile; repair it again")
