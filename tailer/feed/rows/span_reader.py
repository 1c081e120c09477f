"""The one loop that pulls: a span's files, their rows, the batches with their offsets.

    SpanFiles -> SpanDecoder -> BatchAssembler -> emit

Nothing below this loop runs unless it asks: files are opened when it asks for a group, rows are
decoded when it asks for a step. What is asked decides what is in memory.

- **Where the worker thread begins:** at ``decoder.decode_step``. A step takes long, so it is taken
  in a worker thread. Only a step that takes no longer than the hop into one, such as the first step
  of a single small local file, is taken in the event loop. All else in this file runs in the event
  loop.
- **Lanes:** of a large span, two groups are decoded at the same time, each by this loop, and
  their batches are made in the groups' order. Files of a few KiB are mostly the interpreter's work:
  two threads that decode them wait for each other's turn and take longer than one, so groups of
  them take turns.
- **Who closes:** the decoder closes the files of its group, :class:`SpanFiles` all others.
- **Elsewhere:** groups of a large span may be decoded by other processes, which run the same
  decoder (:mod:`tailer.feed.rows.remote_groups`); the batches are made here, in order.
- **What must never happen:** a second caller of ``decoder.decode_step`` while one is in a thread.
  The loop awaits each step before the next one, also when it is cancelled.
"""

from __future__ import annotations

from contextlib import aclosing, nullcontext
from operator import attrgetter

import anyio

from tailer.decode.small_files import SmallFiles
from tailer.errors import TableError
from tailer.feed.read_context import EmitBatch, ReadContext
from tailer.feed.rows.batches import BatchAssembler
from tailer.feed.rows.counting import IndexFinder
from tailer.feed.rows.decoding import SpanDecoder
from tailer.feed.rows.files import GROUP_BYTES, DecodedBy, SpanFiles
from tailer.feed.rows.group_lanes import Use, decode_in_lanes
from tailer.feed.rows.remote_groups import Decode, decode_remotely
from tailer.feed.rows.span import DecodedStep, Span, SpanEntry
from tailer.process.threads import run_blocking

_TINY_BYTES = 8 * 1024


async def read_span(context: ReadContext, span: Span, emit: EmitBatch, *, spans: bool) -> None:
    """Read the batches of a span. The last one leads to the version after the last one.

    ``spans``: the rows of a step, of several files and versions, come as one batch; else each batch
    is of one file, and a version without changes gives one empty batch.
    """
    finder = context.make_finder(span.first)
    assembler = BatchAssembler(context, finder, span.first, spans=spans)

    async def emit_step(step: DecodedStep) -> None:
        for batch in assembler.add_step(step.decoded):
            await emit(batch)
        context.observer.count_fetched(step.files_read, step.bytes_read)

    try:
        await decode_span(context, span, finder, emit_step, spans=spans)
    except TableError as e:
        e.at(table=context.log.store.root)
        raise


async def decode_span(
    context: ReadContext, span: Span, finder: IndexFinder, use: Use[DecodedStep], *, spans: bool
) -> None:
    """Decode the files of a span, and use the steps in their order."""
    small = SmallFiles(context.decode, context.layouts) if spans else None

    async def decode_group(group: list[SpanEntry], use: Use[DecodedStep]) -> None:
        decoder = SpanDecoder(context, small, group, finder.skip)
        in_place = decoder.is_quick()
        try:
            while True:
                step = (
                    decoder.decode_step() if in_place else await run_blocking(decoder.decode_step)
                )
                await use(step)
                if step.is_last:  # another step in a thread would only find this out
                    return
                in_place = False
        finally:
            decoder.close()

    remote, known_bytes = context.remote, span.known_bytes
    if known_bytes is not None and remote is not None and known_bytes <= remote.here_bytes_max:
        remote = None
    decoded_by = DecodedBy.THIS_PROCESS if remote is None else DecodedBy.OTHERS
    async with aclosing(SpanFiles(context, span, finder, decoded_by)) as groups:
        if remote is not None:
            await decode_remotely(context, remote, groups, _take_turns(decode_group), use)
        elif finder.skip.remaining or (known_bytes is not None and known_bytes <= GROUP_BYTES):
            async for group in groups:
                await decode_group(group, use)
        else:
            await decode_in_lanes(groups, _take_turns(decode_group), use, attrgetter("size"))


def _take_turns(decode: Decode) -> Decode:
    """Return what decodes as ``decode`` does, but one tiny group at a time."""
    turns = anyio.Lock()

    async def in_turn(group: list[SpanEntry], use: Use[DecodedStep]) -> None:
        async with turns if _is_tiny(group) else nullcontext():
            await decode(group, use)

    return in_turn


def _is_tiny(group: list[SpanEntry]) -> bool:
    """Return whether another group like this one is better decoded after it than beside it."""
    sizes = [entry.file.size for entry in group if entry.file is not None and not entry.is_unread]
    return sum(_TINY_BYTES if size is None else size for size in sizes) < _TINY_BYTES * len(sizes)
