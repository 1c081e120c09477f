"""The URLs of shared files, on a disk that is full."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.errors import TransientError
from tailer.sharing.answers import SharedFile
from tailer.store.shared.links import LinkTable, Origin

ORIGIN = Origin("files", 1, 2)


def shared(count: int) -> list[SharedFile]:
    action = {"size": 1}
    return [SharedFile("add", action, f"{n}.parquet", "u" * 900) for n in range(count)]


def test_a_full_disk_is_waited_for_and_leaves_the_table_whole(tmp_path: Path) -> None:
    links = LinkTable(tmp_path / "links.db")
    links.store_links(shared(2), ORIGIN)
    links._db.execute("PRAGMA max_page_count = 100")
    for _ in range(2):
        with pytest.raises(TransientError, match="disk is full"):
            links.store_links(shared(5000), ORIGIN)
    assert "1.parquet" in links
    assert "2.parquet" not in links
    links._db.execute("PRAGMA max_page_count = 1000000")
    links.store_links(shared(5000), ORIGIN)
    assert "4999.parquet" in links
    links.drop_links(ORIGIN)
    assert "1.parquet" not in links
    links.close()
