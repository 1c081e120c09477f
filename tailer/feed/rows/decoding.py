"""From a run's files to their rows: what is done in a worker thread, in the calling thread.

Small files are decoded many at a time where their rows may come together, others one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from tailer.changes import ChangeFile, Rows
from tailer.compare.row_cache import kept_rows
from tailer.decode.damage import UNREADABLE, unreadable
from tailer.decode.rows import Skip, decode_file
from tailer.decode.small_files import SmallFiles
from tailer.decode.vectors import ALL_ROWS
from tailer.errors import FileGone, TableError
from tailer.feed.reading import Reading
from tailer.feed.rows.chunks import Entry, Item, Lost, Read, Together, Version, whole_pairs
from tailer.feed.rows.counting import logged_rows
from tailer.feed.rows.fetch import Fetched, fetch_here

__all__ = ["Decoding", "file_named"]


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """A small file that is in memory. Two of them are never the same, whatever their contents."""

    file: ChangeFile
    content: bytes


#: Consecutive small files, and the ends of versions between and after them.
_Stretch: TypeAlias = list[ChangeFile | Fetched | Version]


class Decoding:
    """Decodes the files of runs. ``joins``: the rows of several files may come together. A file
    that was not fetched is opened here."""

    def __init__(self, reading: Reading, *, joins: bool) -> None:
        self._reading = reading
        self._joins = joins
        self._small = SmallFiles(reading.decode, reading.shapes)

    def items(self, entries: Iterable[Entry], skip: Skip) -> Iterator[Item | Read]:
        """Yield what the entries contain, in order, except the rows that ``skip`` skips."""
        for entry in self._stretches(entries, skip):
            if isinstance(entry, list):
                yield from self._together(entry, skip)
            elif isinstance(entry, Exception):
                raise entry
            elif isinstance(entry, Lost | Version):
                yield entry
            else:
                yield from self._alone(entry, skip)

    def _stretches(self, entries: Iterable[Entry], skip: Skip) -> Iterator[Entry | _Stretch]:
        """Yield the entries; two or more small files that follow each other come as a list."""
        stretch: _Stretch = []
        for entry in entries:
            if isinstance(entry, Version):
                small = bool(stretch)
            elif isinstance(entry, ChangeFile | Fetched):
                file = entry if isinstance(entry, ChangeFile) else entry.file
                small = self._joins and not skip.remaining and self._small.takes(file)
            else:
                small = False
            if small and not isinstance(entry, Lost | Exception):
                stretch.append(entry)
                continue
            yield from _if_many(stretch)
            stretch = []
            yield entry
        yield from _if_many(stretch)

    def _alone(self, entry: ChangeFile | Fetched, skip: Skip) -> Iterator[Item | Read]:
        file = entry if isinstance(entry, ChangeFile) else entry.file
        for rows in self._rows(entry, file, skip):
            yield file, self._masked(rows)
        yield Read(1, file.size or 0)

    def _rows(self, entry: ChangeFile | Fetched, file: ChangeFile, skip: Skip) -> Iterator[Rows]:
        if file.kept is not None:  # finding the changes has decoded them
            yield from kept_rows(file, skip)
            return
        fetched = self._opened(entry)
        with fetched.source:
            reading = self._reading
            how = fetched.selection, reading.decode, skip
            decoded = decode_file(fetched.source, file, *how, shapes=reading.shapes)
            if file.change_type is None and file.kinds is None:
                decoded = whole_pairs(decoded)
            yield from decoded

    def _opened(self, entry: ChangeFile | Fetched) -> Fetched:
        if isinstance(entry, Fetched):
            return entry
        here = self._reading.here
        assert here is not None
        with file_named(entry):
            return fetch_here(here, entry, self._reading.decode.on_read)

    def _masked(self, rows: Rows) -> Rows:
        masked = self._reading.selector.rows(rows.batch)
        return rows if masked is rows.batch else replace(rows, batch=masked)

    def _together(self, stretch: _Stretch, skip: Skip) -> Iterator[Item | Read]:
        """Decode small files in as few steps as possible."""
        found: list[_Whole | Version] = []
        error = None
        try:
            found.extend(e if isinstance(e, Version) else self._whole(e) for e in stretch)
        except Exception as e:  # noqa: BLE001 - raised after the rows before it
            error = e
        at = 0
        while at < len(found):
            wholes = [whole for whole in found[at:] if isinstance(whole, _Whole)]
            if not wholes:
                break
            counts, rows = self._small.rows([w.file for w in wholes], [w.content for w in wholes])
            last = found.index(wholes[len(counts) - 1], at) + 1
            if rows is None:
                yield from self._one_by_one(found[at:last], skip)
            else:
                sizes = iter(counts)
                entries = [
                    e if isinstance(e, Version) else (e.file, next(sizes)) for e in found[at:last]
                ]
                yield Together(entries, self._masked(rows))
                yield Read(len(counts), sum(w.file.size or 0 for w in wholes[: len(counts)]))
            at = last
        for version in found[at:]:
            if isinstance(version, Version):
                yield version
        if error is not None:
            raise error

    def _whole(self, entry: ChangeFile | Fetched) -> _Whole:
        fetched = self._opened(entry)
        with fetched.source:
            try:
                return _Whole(fetched.file, fetched.source.read())
            except UNREADABLE as e:
                raise unreadable(fetched.file, e) from None

    def _one_by_one(self, found: list[_Whole | Version], skip: Skip) -> Iterator[Item | Read]:
        for entry in found:
            if isinstance(entry, Version):
                yield entry
            else:
                source = pa.BufferReader(entry.content)
                yield from self._alone(Fetched(entry.file, source, ALL_ROWS), skip)


def _if_many(stretch: _Stretch) -> Iterator[Entry | _Stretch]:
    if sum(not isinstance(entry, Version) for entry in stretch) > 1:
        yield stretch
    else:
        yield from stretch


@contextmanager
def file_named(file: ChangeFile) -> Iterator[None]:
    """Add the version to the errors of opening a file, and its rows if it is lost."""
    try:
        yield
    except TableError as e:
        if isinstance(e, FileGone):
            e.rows = logged_rows(file)
        raise e.at(version=file.version) from None
