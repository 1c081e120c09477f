"""From a change file to its bytes: the open data file and its deletion vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from msgspec import Struct
from pyroaring import BitMap64

from tailer.changes import ChangeFile
from tailer.decode.tracking import OnRead
from tailer.decode.unreadable_files import UNREADABLE, make_unreadable_error
from tailer.decode.vectors import (
    ALL_ROWS,
    RowSelection,
    find_stored_range,
    parse_dv_file,
    parse_inline_dv,
)
from tailer.delta.actions import DeletionVectorDescriptor
from tailer.delta.paths import find_dv_location
from tailer.errors import CorruptLog, FileGone, TableError
from tailer.store import BlockingFiles, Store


class Fetched(Struct, frozen=True):
    """A change file with the data to decode it; the code that decodes it closes ``source``."""

    file: ChangeFile
    source: pa.NativeFile
    selection: RowSelection

    def read_content(self) -> bytes:
        """Read the whole data file, and close it. Raises the error of a file that can't be read."""
        with self.source:
            try:
                return bytes(self.source.read())
            except UNREADABLE as e:
                raise make_unreadable_error(self.file, e) from None


async def fetch_file(store: Store, file: ChangeFile, on_read: OnRead | None = None) -> Fetched:
    """Open a change file's data file and read its deletion vectors.

    A cdc file has none: the vectors of its version belong to data files, which are not read there.
    ``on_read`` is called with the size of the deletion vectors in bytes; decoding reports the data
    file's. Raises :class:`FileGone` for a missing file, :class:`CorruptLog` for a deletion vector
    that fails its checks; both name version and file.
    """
    vectors = find_stored_vectors(store, file)
    for where in (file.location, *vectors.values()):
        await store.expect(where, file.version, snapshot=file.origin == "snapshot")
    stored: dict[DeletionVectorDescriptor, bytes] = {}
    for dv, where in vectors.items():
        with _name_vector(store, file, dv):
            offset, length = find_stored_range(dv)
            stored[dv], _ = await store.read(where, offset, length)
    selection = _read_selection(store, file, stored, on_read)
    with _name_data_file(store, file):
        source = await store.open(file.location, file.size)
    return Fetched(file, _check_file_size(store, file, source), selection)


def fetch_blocking(
    store: BlockingFiles, file: ChangeFile, on_read: OnRead | None = None
) -> Fetched:
    """Do what :func:`fetch_file` does, in the calling thread."""
    stored: dict[DeletionVectorDescriptor, bytes] = {}
    for dv, where in find_stored_vectors(store, file).items():
        with _name_vector(store, file, dv):
            offset, length = find_stored_range(dv)
            stored[dv], _ = store.read_here(where, offset, length)
    selection = _read_selection(store, file, stored, on_read)
    with _name_data_file(store, file):
        source = store.open_here(file.location)
    return Fetched(file, _check_file_size(store, file, source), selection)


def find_stored_vectors(
    store: Store | BlockingFiles, file: ChangeFile
) -> dict[DeletionVectorDescriptor, str]:
    """Return the deletion vectors to read, with their files; none where the rows are known."""
    places: dict[DeletionVectorDescriptor, str] = {}
    for dv in (file.only, file.without) if file.rows is None else ():
        if dv is not None:
            with _name_vector(store, file, dv):
                where = find_dv_location(dv)
            if where is not None:
                places[dv] = where
    return places


def _read_selection(
    store: Store | BlockingFiles,
    file: ChangeFile,
    stored: Mapping[DeletionVectorDescriptor, bytes],
    on_read: OnRead | None,
) -> RowSelection:
    """Return the rows of a file that are changes; ``stored`` are its vectors that lie in files."""

    def bitmap(dv: DeletionVectorDescriptor | None) -> BitMap64 | None:
        if dv is None:
            return None
        with _name_vector(store, file, dv):
            if dv not in stored:
                return parse_inline_dv(dv)
            if on_read is not None:
                on_read(len(stored[dv]))
            return parse_dv_file(stored[dv], dv)

    if file.rows is not None:
        return RowSelection.from_sets(file.rows, None)
    if file.only is None and file.without is None:
        return ALL_ROWS
    return RowSelection.from_sets(bitmap(file.only), bitmap(file.without))


#: What sizes a Parquet file may have, in bytes: from its two marks and a length on to a pebibyte.
_SIZES = range(12, 2**50)


def _check_file_size(
    store: Store | BlockingFiles, file: ChangeFile, source: pa.NativeFile
) -> pa.NativeFile:
    """Return an open file. Raises :class:`CorruptLog` if its size is not the one in the log.

    The store knows the size from its first answer, so that this takes no request.
    """
    found = source.size()
    if file.size is None or found == file.size:
        return source
    source.close()
    why, hint = ": it was truncated or replaced", "restore it from a backup, or skip this version"
    if file.size not in _SIZES:
        why = ", which is the size of no Parquet file"
        hint = "its writer must count the bytes; rewrite the file, or skip this version"
    raise CorruptLog(
        f"the data file has {found} bytes, and the log says {file.size}{why}",
        table=store.root,
        version=file.version,
        path=file.path,
        hint=hint,
    )


@contextmanager
def _name_data_file(store: Store | BlockingFiles, file: ChangeFile) -> Iterator[None]:
    """Name the data file if it is missing, and the version in all errors."""
    try:
        yield
    except FileNotFoundError:
        kind = "cdc" if file.change_type is None else "data"
        raise make_gone_error(store, file, file.path, kind) from None
    except TableError as e:
        raise e.at(version=file.version) from None


@contextmanager
def _name_vector(
    store: Store | BlockingFiles, file: ChangeFile, dv: DeletionVectorDescriptor
) -> Iterator[None]:
    """Name the deletion vector's file, or the data file of an inline one, in the block's errors."""
    where = None
    try:
        where = find_dv_location(dv)
        yield
    except FileNotFoundError:
        raise make_gone_error(store, file, str(where), "deletion vector") from None
    except TableError as e:
        raise e.at(table=store.root, version=file.version, path=where or file.path) from None


def make_gone_error(
    store: Store | BlockingFiles, file: ChangeFile, path: str, kind: str
) -> FileGone:
    """Return the error for a file of a ``kind`` that a change needs, and that is not there."""
    error = FileGone(
        f"the {kind} file is gone",
        table=store.root,
        version=file.version,
        path=path,
        hint="VACUUM or a lifecycle rule removed it before it was read; start after this version, "
        "or with a snapshot",
    )
    error.file, error.rows = file.path, file.logged_rows()
    return error
