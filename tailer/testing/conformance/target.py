"""What every sink must hold when its target is not what it was: removed, emptied, replaced.

A feed runs into the sink, and the target changes under it. After that, either all rows are in the
target, or the feed has stopped with an error, and the target has no row without those before it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.decode.rows import DecodeOptions
from tailer.errors import TailerError
from tailer.feed.options import FeedOptions, RetryOptions
from tailer.feed.orders import Orders
from tailer.feed.progress import FeedProgress
from tailer.feed.run import Feed, run_feed
from tailer.log.starts import find_start_offset
from tailer.log.table import TableLog
from tailer.offsets.memory import MemoryOffsetStore
from tailer.sink import Sink
from tailer.store.local import LocalStore
from tailer.testing.conformance.sink import MakeSink
from tailer.testing.table import TableBuilder

__all__ = ["Change", "ReadIds", "SourceTable", "TargetConformance"]

#: Changes a target, as another program would.
Change = Callable[[], object]
#: The values of the column ``id`` in the target, in any order; none if there is no target.
ReadIds = Callable[[], Sequence[int]]

CHANGES = ("removed", "emptied", "replaced")
#: A feed that neither comes to its end nor stops by then does not notice.
_PATIENCE_S = 120.0


@pytest.mark.anyio
class TargetConformance:
    """Subclass it and provide the fixtures ``make_sink``, ``changes`` and ``read_ids``.

    The table has the columns ``id``, a mirror's key, and ``name``. The feed's name is ``orders``.
    """

    #: The changes after which the feed may go on with an empty target, because its documentation
    #: says so: readers empty a queue.
    may_go_on: frozenset[str] = frozenset()

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Return the event loop's name: asyncio."""
        return "asyncio"

    @pytest.fixture
    def make_sink(self) -> MakeSink:
        """Return a function that makes sinks on one target, which is empty at first."""
        raise NotImplementedError

    @pytest.fixture
    def changes(self) -> Mapping[str, Change]:
        """Return what can happen to the target, of: ``removed`` with all that the feed has there,
        its offset too; ``emptied``, which leaves the target itself; ``replaced`` by another one.
        What a target does not have may be missing."""
        raise NotImplementedError

    @pytest.fixture
    def read_ids(self) -> ReadIds:
        """Return a function that reads the target back."""
        raise NotImplementedError

    @pytest.fixture
    def source(self, tmp_path: Path) -> SourceTable:
        """Return the feed's table, without rows, and its state."""
        return SourceTable(tmp_path / "source" / "orders")

    @pytest.mark.parametrize("what", CHANGES)
    async def test_at_rest(
        self,
        make_sink: MakeSink,
        changes: Mapping[str, Change],
        read_ids: ReadIds,
        source: SourceTable,
        what: str,
    ) -> None:
        """The feed has delivered all, and the next version comes later."""
        if what not in changes:
            return
        source.insert(1, 2, 3)
        feed = await source.feed(make_sink(), last=4)
        ends: list[TailerError | None] = []

        async def run() -> None:
            ends.append(await _end_of(feed))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            with anyio.fail_after(_PATIENCE_S):
                while feed.progress.events_delivered < 3:  # noqa: ASYNC110  # it has no event
                    await anyio.sleep(0.01)
            await anyio.to_thread.run_sync(changes[what])
            source.insert(4)
        self._check_ids(read_ids, what, ends[0])

    @pytest.mark.parametrize("what", CHANGES)
    async def test_between_batches(
        self,
        make_sink: MakeSink,
        changes: Mapping[str, Change],
        read_ids: ReadIds,
        source: SourceTable,
        what: str,
    ) -> None:
        """The next batch waits by then, and may be encoded."""
        if what not in changes:
            return
        source.insert([1, 2, 3, 4])
        sink = make_sink()
        written = 0

        async def count(batch: ChangeBatch) -> None:
            nonlocal written
            written += batch.num_rows
            if written == 2:
                await anyio.to_thread.run_sync(changes[what])

        if not sink.traits.keeps_offset:
            pieces = sink.write_pieces

            async def counted_pieces(batch: ChangeBatch) -> AsyncGenerator[Offset, None]:
                async for offset in pieces(batch):
                    yield offset
                await count(batch)

            sink.write_pieces = counted_pieces  # type: ignore[method-assign]
        else:
            write = sink.write

            async def counted(batch: ChangeBatch) -> None:
                await write(batch)
                await count(batch)

            sink.write = counted  # type: ignore[method-assign]
        end = await _end_of(await source.feed(sink, last=1))
        assert written >= 2
        self._check_ids(read_ids, what, end)

    @pytest.mark.parametrize("what", CHANGES)
    async def test_at_a_restart(
        self,
        make_sink: MakeSink,
        changes: Mapping[str, Change],
        read_ids: ReadIds,
        source: SourceTable,
        what: str,
    ) -> None:
        """The target changes while the feed is stopped; and the feed is started twice."""
        if what not in changes:
            return
        source.insert(1, 2, 3)
        assert await _end_of(await source.feed(make_sink(), last=3)) is None
        await anyio.to_thread.run_sync(changes[what])
        source.insert(4)
        for _ in range(2):
            end = await _end_of(await source.feed(make_sink(), last=4))
            self._check_ids(read_ids, what, end)

    def _check_ids(self, read_ids: ReadIds, what: str, end: TailerError | None) -> None:
        found = sorted(set(read_ids()))
        if what not in self.may_go_on:
            whole = [1, 2, 3, 4]
            expected = whole if end is None else whole[: len(found)]
            assert found == expected, f"{found}, after the target was {what}, and: {end}"


class SourceTable:
    """A table, and the state of a feed from it."""

    def __init__(self, folder: Path) -> None:
        schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
        self.table = TableBuilder(folder, schema, cdf=True)
        self.table.create()
        self.offsets = MemoryOffsetStore()

    def insert(self, *versions: int | list[int]) -> None:
        """Commit versions with the rows of these ids."""
        for ids in versions:
            rows = ids if isinstance(ids, list) else [ids]
            self.table.insert([{"id": i, "name": f"name {i}"} for i in rows])

    async def feed(self, sink: Sink, last: int) -> Feed:
        """Return the feed as another process would start it."""
        orders = Orders()
        orders.restore_orders(await self.offsets.load_orders())
        return Feed(
            name="orders",
            log=TableLog(LocalStore(str(self.table.folder))),
            sink=sink,
            offsets=self.offsets,
            start=lambda log: find_start_offset(log, "earliest"),
            progress=FeedProgress("orders", lambda: 0.0),
            jitter=lambda: 0.0,
            options=FeedOptions(
                decode=DecodeOptions(batch_rows_max=1),
                retry=RetryOptions(pause_min_s=0.01, pause_max_s=0.1),
            ),
            last=last,
            orders=orders,
        )


async def _end_of(feed: Feed) -> TailerError | None:
    """Run a feed to its end; return the error with which it stopped."""
    try:
        with anyio.fail_after(_PATIENCE_S):
            await run_feed(feed)
    except TailerError as e:
        return e
    return None
