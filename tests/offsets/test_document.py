"""Documents' names: one for each feed, short enough for any folder, and those of old are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.changes import Offset
from tailer.errors import OffsetError
from tailer.offsets.document import document_name, older_name
from tailer.offsets.local import LocalOffsetStore

NAMES = st.one_of(st.text(), st.text(alphabet="\u0123\u1234é4%~C3A9", max_size=6), st.text("aé"))


@given(st.sets(NAMES, min_size=2, max_size=20))
def test_no_two_feeds_have_one_document(feeds: set[str]) -> None:
    assert len({document_name(feed) for feed in feeds}) == len(feeds)


@given(NAMES | st.text(min_size=80))
def test_a_name_fits_into_a_folder(feed: str) -> None:
    name = document_name(feed)
    assert name.isascii()
    assert "/" not in name
    assert len(f"{name}.offset.json") <= 255


@pytest.mark.parametrize("feed", ["orders", "a b/c", "x" * 243, "~%\n", "\u00e9\u0134" * 200])
def test_only_names_that_clashed_or_were_too_long_are_new(feed: str) -> None:
    same = feed.isascii() and len(document_name(feed)) <= 243
    assert (older_name(feed) is None) is same


def test_two_feeds_shared_a_name_and_have_one_each_now() -> None:
    feeds = ("\u0123" + "4", "\u1234")
    assert older_name(feeds[0]) == older_name(feeds[1]) == "%1234"
    assert document_name(feeds[0]) != document_name(feeds[1])


def older_file(folder: Path, feed: str) -> Path:
    return folder / f"{older_name(feed)}.offset.json"


async def kept(folder: Path, feed: str, offset: Offset) -> LocalOffsetStore:
    offsets = LocalOffsetStore(folder, feed)
    await offsets.acquire()
    await offsets.save(offset)
    await offsets.release()
    return offsets


@pytest.mark.anyio
async def test_a_document_under_its_older_name_is_found(tmp_path: Path) -> None:
    feed, other = "\u0123" + "4", "\u1234"
    (await kept(tmp_path, feed, Offset(7))).path.rename(older_file(tmp_path, feed))
    found = await kept(tmp_path, feed, Offset(8))
    assert found.path == older_file(tmp_path, feed)
    assert await LocalOffsetStore(tmp_path, feed).load() == Offset(8)
    assert await LocalOffsetStore(tmp_path, other).load() is None, "it is another feed's"
    await kept(tmp_path, other, Offset(3))
    assert await LocalOffsetStore(tmp_path, feed).load() == Offset(8)
    assert await LocalOffsetStore(tmp_path, other).load() == Offset(3)


@pytest.mark.anyio
async def test_a_damaged_document_under_its_older_name_is_said(tmp_path: Path) -> None:
    older_file(tmp_path, "\u1234").write_text("{")
    with pytest.raises(OffsetError, match="damaged"):
        await LocalOffsetStore(tmp_path, "\u1234").load()


@pytest.mark.anyio
async def test_a_feed_with_a_very_long_name_keeps_its_offset(tmp_path: Path) -> None:
    feed = "\u1234" * 400
    await kept(tmp_path, feed, Offset(7))
    assert await LocalOffsetStore(tmp_path, feed).load() == Offset(7)
