"""How many changes the files of a version have: for batches that end between two of them, and for
the progress of a query."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from tailer.changes import ChangeFile, Offset
from tailer.errors import TableError
from tailer.spark.orders import FileOrder, Order
from tailer.store import Store

#: The number of files whose changes are counted at the same time.
_AT_ONCE = 16


class FooterCounts:
    """Counts the changes of files from their footers, because the log's counts are hints.

    The counts of the latest version are kept for the next batch, which may begin in it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._place: tuple[int, bool] | None = None
        self._known: list[int] = []

    async def count_changes(
        self, offset: Offset, files: Sequence[ChangeFile]
    ) -> AsyncGenerator[tuple[ChangeFile, int], None]:
        """Yield each file of the offset's version with its number of changes."""
        from tailer.feed.rows.counting import (
            count_known_changes,  # on demand: not every batch counts
        )

        if self._place != (place := (offset.version, offset.snapshot)):
            self._place, self._known = place, []
        known = self._known
        for at, file in enumerate(files):
            if at == len(known):
                work = (count_known_changes(self._store, one) for one in files[at : at + _AT_ONCE])
                for found in await asyncio.gather(*work, return_exceptions=True):
                    if isinstance(found, BaseException):
                        if at == len(known):
                            raise found
                        break
                    known.append(found)
            yield file, known[at]


async def count_rows(store: Store, orders: Sequence[Order]) -> int:
    """Return how many rows are read for these orders, for people: by the log where it says so, else
    by the files' footers. A comparison reads more than it finds, and a lost file has none."""
    from tailer.feed.rows.counting import count_known_changes  # on demand: only a stream counts

    total = 0
    unknown: list[ChangeFile] = []
    for order in orders:
        if isinstance(order, FileOrder) and order.take is not None:
            total += order.take
            continue
        for file in files_of(order):
            logged = file.logged_rows()
            total += logged or 0
            if logged is None:
                unknown.append(file)
    for at in range(0, len(unknown), _AT_ONCE):
        work = (count_known_changes(store, file) for file in unknown[at : at + _AT_ONCE])
        for found in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(found, int):
                total += found
            elif not isinstance(found, TableError):
                raise found
    return total


def files_of(order: Order) -> Sequence[ChangeFile]:
    """Return the files of an order."""
    if isinstance(order, FileOrder):
        return [order.file]
    return order.rewrite.leaving + order.rewrite.coming
