"""Which groups of a span are decoded elsewhere, such as on a cluster, and which here.

| a group | is decoded |
|---|---|
| of a span with few bytes | here |
| with rows that a comparison has kept, or the rest of a file delivered in part | here |
| any other | where a slot is free first: here, or elsewhere as soon as that is ready |

With ``here_bytes_max`` of 0 there are no slots here. The batches are made here, in the groups'
order, wherever the rows come from.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from operator import attrgetter
from typing import TypeAlias

import anyio

from tailer.errors import ungrouping
from tailer.feed.read_context import ReadContext, RemoteDecoder
from tailer.feed.rows.files import SpanFiles, open_files
from tailer.feed.rows.group_lanes import LANES, Use, decode_in_lanes
from tailer.feed.rows.span import DecodedStep, SpanEntry

#: Decodes a group, and gives its steps.
Decode: TypeAlias = Callable[[list[SpanEntry], Use[DecodedStep]], Awaitable[None]]


async def decode_remotely(
    context: ReadContext,
    remote: RemoteDecoder,
    groups: SpanFiles,
    decode: Decode,
    use: Use[DecodedStep],
) -> None:
    """Decode the groups of a span, and use their steps in order. ``decode`` decodes a group in this
    process."""

    async def decode_here(group: list[SpanEntry], use: Use[DecodedStep]) -> None:
        error = await open_files(context, group)
        await decode(group, use)
        if error is not None:
            raise error

    async def decode_there(group: list[SpanEntry], use: Use[DecodedStep]) -> None:
        await remote.decode_group(context, group, use)

    async def all_groups() -> AsyncIterator[list[SpanEntry]]:
        for group in first:
            yield group
        async for group in groups:
            yield group

    first: list[list[SpanEntry]] = []
    size, error = 0, None
    try:
        async for group in groups:
            if groups.finder.skip.remaining:
                await decode_here(group, use)
                continue
            first.append(group)
            size += sum(entry.find_size() for entry in group)
            if size > remote.here_bytes_max:
                break
    except Exception as e:  # noqa: BLE001 - raised after the groups before it
        error = e
    if size > remote.here_bytes_max:
        await _share_groups(all_groups(), decode_here, decode_there, remote, use)
        return
    for group in first:
        await decode_here(group, use)
    if error is not None:
        raise error


async def _share_groups(
    groups: AsyncIterator[list[SpanEntry]],
    decode_here: Decode,
    decode_there: Decode,
    remote: RemoteDecoder,
    use: Use[DecodedStep],
) -> None:
    """Decode each group in the slot that is free first. A slot is the function that decodes."""
    free_slot, slots = anyio.create_memory_object_stream[Decode](math.inf)

    async def get_ready() -> None:
        for _ in range(await remote.start()):
            free_slot.send_nowait(decode_there)

    async def decode(group: list[SpanEntry], use: Use[DecodedStep]) -> None:
        if any(entry.file is not None and entry.file.kept is not None for entry in group):
            await decode_here(group, use)
            return
        decode_in_slot = await slots.receive()
        try:
            await decode_in_slot(group, use)
        finally:
            free_slot.send_nowait(decode_in_slot)

    for _ in range(LANES if remote.here_bytes_max else 0):
        free_slot.send_nowait(decode_here)
    with ungrouping():
        async with free_slot, slots, anyio.create_task_group() as tasks:
            tasks.start_soon(get_ready)
            await decode_in_lanes(groups, decode, use, attrgetter("size"), remote.lanes_max)
            tasks.cancel_scope.cancel()
