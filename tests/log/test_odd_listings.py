"""Listings of a server that keeps no order, repeats a page or leaves a file out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from tailer.store import FileStatus, Store
from tailer.store.local import LocalStore
from tests.sharing.shared import orders, read_store
from tests.support.faulty import FaultyStore, Script

pytestmark = pytest.mark.anyio

Lie = Callable[[list[FileStatus]], list[FileStatus]]
LIES: dict[str, Lie] = {
    "in reverse": lambda files: files[::-1],
    "each page twice": lambda files: files + files,
    "two changed places": lambda files: [*files[1::-1], *files[2:]],
    "one left out": lambda files: files[:3] + files[4:],
    "the first left out": lambda files: files[1:],
}


class LyingStore(FaultyStore):
    """A store whose listings are as ``lie`` has them."""

    def __init__(self, inner: Store, lie: Lie) -> None:
        super().__init__(inner, Script({}))
        self._lie = lie

    async def list(self, folder: str, start_after: str = "") -> AsyncGenerator[FileStatus, None]:
        """See :class:`tailer.store.Store`."""
        for status in self._lie([one async for one in super().list(folder, start_after)]):
            yield status


@pytest.mark.parametrize("first", [0, 5])
@pytest.mark.parametrize("lie", LIES)
async def test_each_version_comes_once_and_in_order(tmp_path: Path, lie: str, first: int) -> None:
    table = orders(tmp_path / "t", 9)
    store = LyingStore(LocalStore(str(table.folder)), LIES[lie])
    rows = await read_store(store, first, 8)
    assert [row["id"] for row in rows] == list(range(max(1, first), 9))
