"""Faults that the code must not have, each as a switch: the simulator has to find them.

A switch replaces a piece of the real code by one with a known mistake.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import anyio
from msgspec import structs

import tailer.feed.run
import tailer.verify.repair
from sinks.messages import in_flight as in_flight_requests
from sinks.messages.messages import Messages, RequestLimits
from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import TableError, TransientError
from tailer.feed.publish import Publisher, Saver
from tailer.feed.read import ReadFunction
from tailer.feed.read_context import Emit, FeedItem, ReadContext
from tailer.network.clock import steady_now
from tailer.offsets.conditional import Seen
from tailer.offsets.held import HeldOffsets
from tailer.offsets.leased import LeasedOffsetStore, _encode_body
from tailer.store.unity.answers import CatalogTable
from tailer.store.unity.store import CatalogStore
from tests.simulation.bucket import Bucket, DiskStore
from tests.simulation.copies import HistorySink
from tests.simulation.disk import Disk
from tests.simulation.sinks import TransactionalSink

Switch = Callable[[Callable[[object, str, Any], None]], None]
INJECTED: dict[str, Switch] = {}


def _fault(name: str) -> Callable[[Switch], Switch]:
    def known(switch: Switch) -> Switch:
        INJECTED[name] = switch
        return switch

    return known


@contextmanager
def injected(name: str) -> Iterator[None]:
    """Have that fault in the code."""
    before: list[tuple[Any, str, Any]] = []

    def put(target: Any, attribute: str, value: Any) -> None:
        before.append((target, attribute, getattr(target, attribute)))
        setattr(target, attribute, value)

    INJECTED[name](put)
    try:
        yield
    finally:
        for target, attribute, value in before:
            setattr(target, attribute, value)


@_fault("an offset is saved before its batch is written")
def _saved_first(put: Any) -> None:
    real = Publisher.publish

    async def publish(self: Publisher, item: ChangeBatch | Notice) -> None:
        await self.saver.save(self.offsets, item.next_offset)
        await real(self, item)

    put(Publisher, "publish", publish)


@_fault("an fsync is left out")
def _no_fsync(put: Any) -> None:
    put(Disk, "_fsync", lambda *_: None)


@_fault("the fence of an offset store is ignored")
def _no_fence(put: Any) -> None:
    async def write(self: LeasedOffsetStore, **changes: Any) -> None:
        async with self._writing:
            held = self._require_held()
            while True:
                assert held.document is not None
                document = {**held.document, **changes, "sequence": held.document["sequence"] + 1}
                started = steady_now()
                etag = await self._object.put(_encode_body(document), self._require_etag(held))
                if etag:
                    self._held, self._renewed_at = Seen(document, etag, started), started
                    return
                seen = await self._object.get()
                held = replace(held, etag=seen.etag)  # whoever has written meanwhile

    put(LeasedOffsetStore, "_write_object", write)


@_fault("the index at a batch's end is one too many")
def _off_by_one(put: Any) -> None:
    real = Saver.save

    async def save(self: Saver, offsets: Any, offset: Offset) -> None:
        await real(
            self,
            offsets,
            structs.replace(offset, index=offset.index + 1) if offset.index else offset,
        )

    put(Saver, "save", save)


@_fault("a retry starts where reading was, not at the saved offset")
def _wrong_retry(put: Any) -> None:
    read: dict[Saver, Offset] = {}
    real_seen, real_begin = Publisher.prepare_item, Saver.choose_start

    def seen(self: Publisher, item: FeedItem) -> FeedItem:
        read[self.saver] = item.next_offset
        return real_seen(self, item)

    async def begin(self: Saver, **arguments: Any) -> Offset:
        return read.get(self) or await real_begin(self, **arguments)

    put(Publisher, "prepare_item", seen)
    put(Saver, "choose_start", begin)


@_fault("a lease is renewed after it was lost")
def _renewed_lease(put: Any) -> None:
    async def renew_always(self: LeasedOffsetStore) -> None:
        while True:
            await anyio.sleep(self._lease_s / 3)
            try:
                await self._write_object()
            except TableError:
                claimed = await self._claim_object(await self._object.get())
                if claimed is not None:
                    self._lost, self._held, self.epoch = None, claimed, claimed.epoch
            except TransientError:
                continue

    put(LeasedOffsetStore, "_renew_always", renew_always)


@_fault("the offset of a notice is saved a second time")
def _notice_twice(put: Any) -> None:
    told: dict[Saver, Offset] = {}
    real = Publisher.publish

    async def publish(self: Publisher, item: ChangeBatch | Notice) -> None:
        await real(self, item)
        if isinstance(item, Notice):
            told[self.saver] = item.next_offset
        elif self.saver in told:
            await self.saver.save(self.offsets, told.pop(self.saver))

    put(Publisher, "publish", publish)


@_fault("what was read ahead is kept across a failure")
def _kept_ahead(put: Any) -> None:
    ahead: dict[int, ChangeBatch | Notice] = {}
    real = tailer.feed.run.send_items  # type: ignore[attr-defined]  # replaced where it is called

    async def send_items(
        context: ReadContext, start: Offset, last: int | None, emit: Emit, read: ReadFunction
    ) -> None:
        kept = ahead.pop(id(context.log), None)
        if kept is not None and kept.offset.position > start.position:
            await emit(kept)

        async def keep(item: FeedItem) -> None:
            ahead[id(context.log)] = item
            await emit(item)

        await real(context, start, last, keep, read)

    put(tailer.feed.run, "send_items", send_items)


@_fault("an order is forgotten at a restart")
def _forgotten_orders(put: Any) -> None:
    async def load_orders(_: HeldOffsets) -> dict[str, Any]:
        return {}

    put(HeldOffsets, "load_orders", load_orders)


@_fault("a cancelled write counts as done")
def _cancelled_write(put: Any) -> None:
    real = Publisher.publish

    async def publish(self: Publisher, item: ChangeBatch | Notice) -> None:
        sink = self.calls.sink
        if "write" not in vars(sink):
            whole = sink.write

            async def write(batch: ChangeBatch) -> None:
                with anyio.move_on_after(0.2):
                    await whole(batch)

            sink.write = write  # type: ignore[method-assign]
        await real(self, item)

    put(Publisher, "publish", publish)


@_fault("the offset behind a run is one version too far")
def _beyond_the_run(put: Any) -> None:
    real = Publisher.publish

    async def publish(self: Publisher, item: ChangeBatch | Notice) -> None:
        if isinstance(item, ChangeBatch) and item.span:
            item = structs.replace(
                item, next_offset=item.next_offset.next_version(item.timestamp_ms)
            )
        await real(self, item)

    put(Publisher, "publish", publish)


@_fault("a staged commit is read before it is ratified")
def _not_ratified(put: Any) -> None:
    real = CatalogStore._list_places

    def places(self: CatalogStore, table: CatalogTable, location: str, version: int) -> list[str]:
        bucket = getattr(self._files, "_bucket", None)
        if version <= table.latest or not isinstance(bucket, Bucket):
            return real(self, table, location, version)
        folder = f"table/_delta_log/_staged_commits/{version:020d}."
        staged = [name for name in bucket.files if name.startswith(folder)]
        return [name.removeprefix("table/") for name in staged[:1]]

    put(CatalogStore, "_list_places", places)


@_fault("a version is taken twice, staged and published")
def _staged_and_published(put: Any) -> None:
    real = CatalogStore._list_places

    def places(self: CatalogStore, table: CatalogTable, location: str, version: int) -> list[str]:
        if version == table.latest + 1 and table.latest in table.commits:
            return [f"_delta_log/{table.latest:020d}.json"]
        return real(self, table, location, version)

    put(CatalogStore, "_list_places", places)


@_fault("a folder counts as at rest right after a change")
def _at_rest(put: Any) -> None:
    def rest_mark(self: DiskStore, folder: str) -> str:
        return str(int(self._bucket.changed_at.get(f"{self._folder}/{folder}", 0.0)))

    put(DiskStore, "rest_mark", rest_mark)


@_fault("requests in flight do not mind the rows' keys")
def _no_lanes(put: Any) -> None:
    def divide(messages: Messages, limits: RequestLimits, in_flight: int) -> list[Any]:
        return [in_flight_requests._RequestLane(messages, limits)] * in_flight

    put(in_flight_requests, "_divide", divide)


@_fault("what is on its way counts as taken")
def _taken_early(put: Any) -> None:
    real = in_flight_requests.send_requests

    async def send_requests(
        messages: Messages, limits: RequestLimits, in_flight: int, send: Any, note_taken: Any
    ) -> None:
        note_taken(len(messages))
        await real(messages, limits, in_flight, send, lambda _: None)

    put(in_flight_requests, "send_requests", send_requests)


@_fault("a repair races the feed by one version")
def _racing_repair(put: Any) -> None:
    real = tailer.verify.repair.read_changes  # type: ignore[attr-defined]  # replaced where it is called

    def read_changes(log: Any, seen: Offset, last: int, options: Any) -> Any:
        return real(log, seen, last - 1, options) if last > seen.version else _nothing()

    async def _nothing() -> AsyncGenerator[ChangeBatch, None]:
        nothing: tuple[ChangeBatch, ...] = ()
        for batch in nothing:
            yield batch

    put(tailer.verify.repair, "read_changes", read_changes)


@_fault("a rewind forgets the fence of its topic")
def _no_rewound_fence(put: Any) -> None:
    put(TransactionalSink, "_fence", lambda _: None)


@_fault("a row of a history ends twice")
def _ends_twice(put: Any) -> None:
    def end(self: HistorySink, key: object, version: int, *, checked: bool) -> None:  # noqa: ARG001
        for row in self.target.history:
            if row.key == key and row.begun < version:
                row.ended = version

    put(HistorySink, "_end", end)
