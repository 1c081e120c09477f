"""Pairing a version's updates: the async edge of :mod:`tailer.compare.pairing`."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from msgspec import structs

from tailer.changes import ChangeBatch, ChangeFile, Offset
from tailer.compare.pairing import Pairing, drop_before_index, find_pairs
from tailer.compare.pairs import VersionRows, may_have_images
from tailer.decode.rows import OpenFile
from tailer.delta.commit import Commit
from tailer.errors import OffsetError
from tailer.feed.read_context import EmitBatch, ReadContext
from tailer.feed.rows.comparing import compare_files
from tailer.feed.rows.span import Span, Version, VersionFiles
from tailer.feed.rows.span_reader import read_span
from tailer.process.threads import run_blocking


class PairedFiles(NamedTuple):
    """A version's files in reading order, and the pairs among their rows, if any."""

    files: VersionFiles
    pairing: Pairing | None


async def pair_updates(context: ReadContext, commit: Commit, version: VersionFiles) -> PairedFiles:
    """Find the pairs among the rows of a version's files.

    Raises :class:`TableError` for a key column that the version does not have.
    """
    if not commit.header.cdcs and version.count is None:
        return PairedFiles(version, None)  # only whole files, whatever their number
    files = list(version.in_order)
    if not may_have_images(files):
        return PairedFiles(VersionFiles.from_list(files), None)

    def lost(file: ChangeFile) -> int | None:
        return (file.logged_rows() or 0) if file in context.lost else None

    def pairs(open_file: OpenFile) -> Pairing | None:
        images = partial(context.texts.make_valid, counted=False)  # read again to be delivered
        rows = VersionRows(files, commit.after, open_file, context.decode, images, lost)
        return find_pairs(rows, commit.before, context.options.diff, context.options.key)

    pairing = await compare_files(context.log.store, pairs)
    return PairedFiles(VersionFiles.from_list(files), pairing)


async def read_paired(
    context: ReadContext, version: Version, pairing: Pairing, first: Offset, emit: EmitBatch
) -> None:
    """Read a version's batches from an offset on, with each update in one row.

    The version is always read from its first row on, because a preimage before the offset may
    belong to a postimage after it.
    """
    at = first

    async def fold(batch: ChangeBatch) -> None:
        nonlocal at
        rows = batch.offset.index + batch.num_rows
        last = batch.next_offset.version != first.version
        folded = await run_blocking(pairing.fold_batch, batch)
        folded = structs.replace(drop_before_index(folded, first.index), offset=at)
        if last and first.index > rows:
            raise OffsetError(
                f"the offset names change {first.index} of a version that has {rows}",
                version=first.version,
                hint="it was saved under another change source, or set wrongly; set it again",
            )
        if folded.num_rows or last:
            at = folded.next_offset
            await emit(folded)

    try:
        await read_span(
            context, Span.from_version(version, structs.replace(first, index=0)), fold, spans=False
        )
    finally:
        pairing.close()
