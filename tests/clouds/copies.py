"""Tables that are copied to a cloud's storage and followed there, beside their originals."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from msgspec import structs

from sinks.jsonl import format_batch
from tailer.changes import ChangeBatch, Offset
from tailer.errors import TailerError
from tailer.plan.rules import ChangeSource
from tailer.storage import open_store
from tailer.store import Store
from tests.clouds.servers import Container
from tests.s3.tables import QUICK, Collected, deliver

#: Tables that are read at once, each with its requests.
_AT_ONCE = 8


@dataclass(frozen=True)
class Original:
    """A table on the local disk, and the versions that its log has."""

    name: str
    table: Path
    first: int
    last: int


@dataclass
class Followed(Collected):
    """What a feed delivers, byte for byte: the lines of each batch between its offsets, with the
    events' ids and their files. ``ended`` is the sentence that the feed ended with, if it is an
    error."""

    batches: list[tuple[Offset, Offset, bytes]] = field(default_factory=list)
    ended: str = ""

    async def write(self, batch: ChangeBatch) -> None:
        """Keep a batch."""
        lines = bytes(format_batch(batch, ids=True, origin=True, row_ids=True))
        self.batches.append((batch.offset, batch.next_offset, lines))

    @property
    def rows(self) -> int:
        """How many rows there were."""
        return sum(lines.count(b"\n") for *_, lines in self.batches)


def unpacked(archive: Path, folder: Path) -> Original:
    """A table of an archive."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="tar")
    name = archive.name.removesuffix(".tar.gz")
    table = folder / name / "table"
    names = [file.stem for file in (table / "_delta_log").glob("*.json")]
    versions = [int(name) for name in names if name.isdecimal()]
    return Original(name, table, min(versions), max(versions))


async def copied(originals: Sequence[Original], container: Container) -> None:
    """Copy tables to a container. A commit whose log has no time of its own has its file's, so that
    the originals get the times of their copies."""
    import obstore

    limit, client = anyio.CapacityLimiter(_AT_ONCE), container.other_client

    async def copy(original: Original) -> None:
        async with limit:
            for file in original.table.rglob("*"):
                if file.is_file() and not (file.name[0] == "." and file.suffix == ".crc"):
                    key = f"{original.name}/{file.relative_to(original.table).as_posix()}"
                    await obstore.put_async(client, key, file.read_bytes(), use_multipart=False)
            store = open_store(container.address(original.name), container.options)
            async with aclosing(store):
                times = {s.name: s.mtime_ms async for s in store.list("_delta_log")}
        for name, time_ms in times.items():
            os.utime(original.table / "_delta_log" / name, ns=(time_ms * 10**6,) * 2)

    async with anyio.create_task_group() as tasks:
        for original in originals:
            tasks.start_soon(copy, original)


async def followed(
    originals: Sequence[Original], container: Container | None, source: ChangeSource = "auto"
) -> dict[str, Followed]:
    """Follow each table from its first version to its last: the copies in a container, or the
    originals."""
    limit = anyio.CapacityLimiter(_AT_ONCE)
    sinks = {original.name: Followed() for original in originals}
    options = structs.replace(QUICK, change_source=source)

    async def follow(original: Original) -> None:
        sink, address = sinks[original.name], str(original.table)
        store: Store = open_store(address)
        if container is not None:
            address = container.address(original.name)
            store = open_store(address, container.options)
        start = Offset(original.first)
        async with limit, aclosing(store):
            try:
                await deliver(store, start, original.last, sink=sink, options=options)
            except TailerError as e:
                sink.ended = str(e).replace(address, original.name)

    async with anyio.create_task_group() as tasks:
        for original in originals:
            tasks.start_soon(follow, original)
    return sinks
