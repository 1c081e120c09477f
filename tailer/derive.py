"""Deriving a version's changes: the async edge of :mod:`tailer.decode.diff`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import anyio.to_thread
import pyarrow as pa
from anyio.from_thread import BlockingPortal

from tailer.changes import ChangeFile, Origin
from tailer.decode.diff import Difference, OpenFile, by_row_ids, by_value
from tailer.decode.engine import DiffOptions
from tailer.decode.plan import Rewrite, changed_files, row_ids_hold
from tailer.decode.rows import DecodeOptions
from tailer.decode.vectors import RowSelection
from tailer.delta.commit import Commit
from tailer.errors import CorruptRow, TableError, first_error
from tailer.fetch import fetch
from tailer.store import Store

__all__ = ["derive"]


async def derive(
    store: Store,
    commit: Commit,
    rewrite: Rewrite,
    decode: DecodeOptions,
    options: DiffOptions,
    key: tuple[str, ...],
    noops: Callable[[int], None],
) -> list[ChangeFile]:
    """The work orders of a version that rewrites files: only the rows that really changed.

    ``noops`` is told how many rows were rewritten as updates with equal values. Raises
    :class:`TableError` for a key column that the version does not have.
    """
    if not rewrite.needs_diff:
        return [*rewrite.leaving, *rewrite.coming]
    _check_key(commit, key)

    try:
        async with BlockingPortal() as portal:  # the engine pulls rows from threads of its own

            def open_file(file: ChangeFile) -> tuple[pa.NativeFile, RowSelection]:
                fetched = portal.call(fetch, store, file, decode.on_read)
                return fetched.source, fetched.selection

            work = partial(_difference, commit, rewrite, open_file, decode, options, key)
            origin, difference = await anyio.to_thread.run_sync(work)
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    if difference is None:
        return [*rewrite.leaving, *rewrite.coming]
    noops(difference.noops)
    return changed_files(rewrite, difference, origin)


def _difference(
    commit: Commit,
    rewrite: Rewrite,
    open_file: OpenFile,
    decode: DecodeOptions,
    options: DiffOptions,
    key: tuple[str, ...],
) -> tuple[Origin, Difference | None]:
    """How the rows were told apart, and which changed; None where no two can be equal."""
    sides = (rewrite.leaving, rewrite.coming, commit.after, open_file, decode, options)
    if row_ids_hold(commit, rewrite):
        found = by_row_ids(*sides)
        if found is not None:
            return "row_ids", found
    try:
        return "cancel_out", by_value(*sides, key=key)
    except CorruptRow:
        if commit.before == commit.after:
            raise
        # The rows that leave can't even be read in the new schema, so none of them is equal.
        return "files", None


def _check_key(commit: Commit, key: tuple[str, ...]) -> None:
    missing = [name for name in key if name not in commit.after.schema.names]
    if missing:
        raise TableError(
            f"the key column {missing[0]!r} does not exist in this version",
            version=commit.version,
            hint=f"its columns are {', '.join(commit.after.schema.names)}",
        )
