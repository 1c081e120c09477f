"""From a group of files to their rows: what a worker thread does, without knowing that it is one.

The rules of :class:`SpanDecoder`:

- It knows neither threads nor offsets, and it never waits for anything but bytes. Whoever calls
  :meth:`SpanDecoder.decode_step` decides where it runs.
- One step gives about as much as a batch may have: the rows of many small files, or some of a
  large one. A step with the rows of more than one item is within the bounds of a batch.
- An error is raised, after all rows before it were given: if it has rows already, a step returns
  them, and the next call raises.
- Small files that follow each other are decoded in one go, where their rows may come together.
  If anything is wrong with one of them, they are decoded one by one, which finds the one at fault.

A worked example. A group has the small files a and b of version 7, the end of 7, a small c and a
large d of version 8, and the end of 8. The first step gives the rows of a, b and c, which were
decoded together, with the end of 7 between them; d's first rows would be too many. The second step
gives rows of d, the third one the rest of them and the end of 8, and is the last.

What must never happen: that a file of a store that only the event loop can read is decoded in the
event loop. It would wait for itself. So :meth:`SpanDecoder.is_quick` is never true for such a file.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial

import pyarrow as pa
from msgspec import structs

from tailer.changes import ChangeFile, DecodedRows
from tailer.compare.row_cache import iterate_kept_rows
from tailer.decode.byte_range import ByteRange
from tailer.decode.row_order import keep_pairs_whole
from tailer.decode.rows import LeftOut, Skip, decode_file
from tailer.decode.small_files import SmallFiles
from tailer.decode.vectors import ALL_ROWS
from tailer.feed.read_context import ReadContext
from tailer.feed.rows.fetch import Fetched, fetch_blocking
from tailer.feed.rows.span import DecodedEntries, DecodedStep, SpanEntry

#: A file of so few rows and encoded bytes takes no longer than a hop into a thread.
_QUICK_ROWS = 100
_QUICK_BYTES = 16 * 1024


class SpanDecoder:
    """Decodes one group of a span's entries, except for the rows that ``skip`` skips.

    ``small`` decodes small files, if their rows may come together.
    """

    def __init__(
        self, context: ReadContext, small: SmallFiles | None, group: Sequence[SpanEntry], skip: Skip
    ) -> None:
        self._context = context
        self._small = small
        self._group = group
        self._skip = skip
        self._rest = self._decode_group()
        self._held: DecodedEntries | None = None  # did not fit into the step before
        self._read = DecodedStep()  # what was read since that step
        self._error: Exception | None = None

    def is_quick(self) -> bool:
        """Return whether the first step takes no longer than a hop into a thread. Never of a cdc
        file: the log does not count its rows."""
        entries = [entry for entry in self._group if entry.file_to_read is not None]
        if len(entries) != 1:
            return not entries
        file, opened = entries[0].file, entries[0].opened
        if opened is not None or file is None or file.size is None or file.without is not None:
            return False
        rows = file.logged_rows()
        return file.size <= _QUICK_BYTES and rows is not None and rows <= _QUICK_ROWS

    def decode_step(self) -> DecodedStep:
        """Decode the next step. Not to be called after the last one."""
        if self._error is not None:
            raise self._error
        step, rows = DecodedStep(), 0
        bounds = self._context.decode
        try:
            while (decoded := self._held or next(self._rest, None)) is not None:
                self._held = None
                if decoded.rows is not None:
                    count, size = decoded.rows.batch.num_rows, int(decoded.rows.batch.nbytes)
                    too_many = rows + count > bounds.batch_rows_max
                    if rows and (too_many or step.size + size > bounds.batch_bytes_max):
                        self._held = decoded
                        break
                    # Not before: what is held may be left to another decoder, which counts it.
                    valid = self._make_valid(decoded.rows)
                    decoded = structs.replace(decoded, rows=valid)
                    rows += count
                    step.size += int(valid.batch.nbytes)
                step.decoded.append(decoded)
            step.is_last = decoded is None
        except Exception as e:
            if not step.decoded:
                raise
            self._error = e
        step.files_read, step.bytes_read = self._read.files_read, self._read.bytes_read
        self._read = DecodedStep()
        return step

    @property
    def next_entry(self) -> SpanEntry | None:
        """The entry whose rows, or whose further rows, the next step begins with; None after the
        last one, and if the next one raises."""
        return None if self._held is None or self._error else self._held.counts[0][0]

    def close(self) -> None:
        """Close the files of the group. Not to be called while a step is decoded."""
        self._rest.close()
        for entry in self._group:
            entry.close()

    def _decode_group(self) -> Generator[DecodedEntries]:
        at = 0
        while at < len(self._group):
            end = self._find_small_end(at)
            if end > at:
                yield from self._decode_small_files(self._group[at:end])
                at = end
                continue
            entry = self._group[at]
            at += 1
            if entry.file is None:
                yield DecodedEntries([(entry, 0)])
            elif entry.is_unread:
                yield DecodedEntries([(entry, entry.file.logged_rows() or 0)])
            else:
                yield from self._decode_file(entry, entry.file, entry.opened)

    def _find_small_end(self, at: int) -> int:
        """Return the end of the small files from a place on, with the ends of versions between and
        after them; the place itself if there are not at least two of them."""
        if self._small is None or self._skip.remaining:
            return at
        files, end = 0, at
        while end < len(self._group):
            entry = self._group[end]
            if entry.file is not None:
                whole = entry.byte_range is None and not entry.is_unread
                if not (whole and self._small.can_take(entry.file)):
                    break
                files += 1
            elif not files:
                break
            end += 1
        return end if files > 1 else at

    def _decode_file(
        self, entry: SpanEntry, file: ChangeFile, opened: Fetched | None
    ) -> Iterator[DecodedEntries]:
        left_out = LeftOut(partial(self._context.unread.find_row_groups, file))
        if file.kept is not None:  # finding the changes has decoded them
            found = iterate_kept_rows(file, self._skip)
        else:
            found = self._decode_rows(opened or self._open_file(file), left_out, entry.byte_range)
        for rows in found:
            if left_out.count:
                yield DecodedEntries([(entry, left_out.count)])
                left_out.count = 0
            yield DecodedEntries([(entry, rows.batch.num_rows)], rows)
        if left_out.count:
            yield DecodedEntries([(entry, left_out.count)])
        if entry.byte_range is None or entry.byte_range.is_last:
            self._count_read_files([file])

    def _decode_rows(
        self, opened: Fetched, left_out: LeftOut, part: ByteRange | None
    ) -> Iterator[DecodedRows]:
        file, context = opened.file, self._context
        with opened.source:
            rows = decode_file(
                opened.source,
                file,
                opened.selection,
                context.decode,
                self._skip,
                part,
                layouts=context.layouts,
                left_out=left_out,
            )
            is_plain_cdc = file.change_type is None and file.kinds is None
            yield from keep_pairs_whole(rows) if is_plain_cdc else rows

    def _open_file(self, file: ChangeFile) -> Fetched:
        blocking_files = self._context.blocking_files
        assert blocking_files is not None  # or the file was opened before
        return fetch_blocking(blocking_files, file, self._context.decode.on_read)

    def _make_valid(self, rows: DecodedRows) -> DecodedRows:
        if rows.utf8:
            return rows
        valid = self._context.texts.make_valid(rows.batch)
        return rows if valid is rows.batch else structs.replace(rows, batch=valid)

    def _count_read_files(self, files: Sequence[ChangeFile]) -> None:
        self._read.files_read += len(files)
        self._read.bytes_read += sum(file.size or 0 for file in files)

    def _decode_small_files(self, entries: Sequence[SpanEntry]) -> Iterator[DecodedEntries]:
        """Decode small files, of which the first entry is one, in as few goes as possible."""
        assert self._small is not None
        files: list[ChangeFile] = []
        contents: list[bytes] = []
        places: list[int] = []
        error: Exception | None = None
        for place, entry in enumerate(entries):
            if entry.file is not None:
                try:
                    contents.append((entry.opened or self._open_file(entry.file)).read_content())
                except Exception as e:  # noqa: BLE001 - raised after the rows before it
                    entries, error = entries[:place], e
                    break
                files.append(entry.file)
                places.append(place)
        done = 0
        while done < len(files):
            counts, rows = self._small.decode_files(files[done:], contents[done:])
            first, done = done, done + len(counts)
            last = places[done] if done < len(files) else len(entries)
            if rows is not None:
                each = iter(counts)
                of_entry = [
                    (e, 0 if e.file is None else next(each)) for e in entries[places[first] : last]
                ]
                yield DecodedEntries(of_entry, rows)
                self._count_read_files(files[first:done])
                continue
            of_file = iter(contents[first:done])
            for entry in entries[places[first] : last]:
                if entry.file is None:
                    yield DecodedEntries([(entry, 0)])
                else:
                    source = pa.BufferReader(next(of_file))
                    yield from self._decode_file(
                        entry, entry.file, Fetched(entry.file, source, ALL_ROWS)
                    )
        if error is not None:
            raise error
