"""From a work order to its bytes: the open data file and its deletion vectors."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyroaring import BitMap64

from tailer.changes import ChangeFile
from tailer.decode.tracking import OnRead
from tailer.decode.vectors import (
    ALL_ROWS,
    RowSelection,
    parse_dv_file,
    parse_inline_dv,
    stored_length,
)
from tailer.delta.actions import DeletionVectorDescriptor
from tailer.delta.paths import dv_location
from tailer.errors import FileGone, TableError
from tailer.store import Elsewhere, Store

__all__ = ["Fetched", "fetch"]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A work order with what decoding it needs; ``source`` is closed by whoever decodes."""

    file: ChangeFile
    source: pa.NativeFile
    selection: RowSelection


async def fetch(store: Store, file: ChangeFile, on_read: OnRead | None = None) -> Fetched:
    """Open a work order's data file and read its deletion vectors.

    ``on_read`` is told how many bytes the deletion vectors take; decoding tells of the data file.
    Raises :class:`FileGone` for a file that is not there, :class:`CorruptLog` for a deletion
    vector that does not pass its checks; both name version and file.
    """
    if isinstance(store, Elsewhere):
        vectors = [dv_location(dv) for dv in (file.only, file.without) if dv is not None]
        for where in (file.location, *vectors):
            if where is not None:
                await store.expect(where, file.version, snapshot=file.origin == "snapshot")
    selection = ALL_ROWS
    if file.rows is not None:
        selection = RowSelection.of(file.rows, None)
    elif file.only is not None or file.without is not None:
        selection = RowSelection.of(
            await _rows_of(store, file, file.only, on_read),
            await _rows_of(store, file, file.without, on_read),
        )
    try:
        return Fetched(file, await store.open(file.location, file.size), selection)
    except FileNotFoundError:
        kind = "cdc" if file.change_type is None else "data"
        raise _gone(store, file, file.path, kind) from None


async def _rows_of(
    store: Store,
    file: ChangeFile,
    dv: DeletionVectorDescriptor | None,
    on_read: OnRead | None,
) -> BitMap64 | None:
    if dv is None:
        return None
    where = None
    try:
        where = dv_location(dv)
        if where is None:
            return parse_inline_dv(dv)
        offset, length = stored_length(dv)
        stored, _ = await store.read(where, offset, length)
        if on_read is not None:
            on_read(len(stored))
        return parse_dv_file(stored, dv)
    except FileNotFoundError:
        raise _gone(store, file, str(where), "deletion vector") from None
    except TableError as e:
        raise e.at(table=store.root, version=file.version, path=where or file.path) from None


def _gone(store: Store, file: ChangeFile, path: str, kind: str) -> FileGone:
    error = FileGone(
        f"the {kind} file is gone",
        table=store.root,
        version=file.version,
        path=path,
        hint="VACUUM or a lifecycle rule removed it before it was read; start after this version, "
        "or with a snapshot",
    )
    error.file = file.path
    return error
