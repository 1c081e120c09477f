"""How many changes each file of a version has, for batches that end between two of its files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from tailer.changes import ChangeFile, Offset
from tailer.store import Store

#: The number of files whose changes are counted at the same time.
_AT_ONCE = 16


class Counts:
    """Counts the changes of files from their footers, because the log's counts are hints.

    The counts of the latest version are kept for the next batch, which may begin in it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._place: tuple[int, bool] | None = None
        self._known: list[int] = []

    async def changes(
        self, offset: Offset, files: Sequence[ChangeFile]
    ) -> AsyncGenerator[tuple[ChangeFile, int], None]:
        """Yield each file of the offset's version with its number of changes."""
        from tailer.feed.rows.counting import known_changes  # on demand: not every batch counts

        if self._place != (place := (offset.version, offset.snapshot)):
            self._place, self._known = place, []
        known = self._known
        for at, file in enumerate(files):
            if at == len(known):
                work = (known_changes(self._store, one) for one in files[at : at + _AT_ONCE])
                for found in await asyncio.gather(*work, return_exceptions=True):
                    if isinstance(found, BaseException):
                        if at == len(known):
                            raise found
                        break
                    known.append(found)
            yield file, known[at]
