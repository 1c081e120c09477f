"""Documents: one name for each feed, short enough for any folder; and what one looks like, which
every later release reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.changes import Offset
from tailer.feed.options import FeedOptions
from tailer.offsets.document import make_document_name
from tailer.offsets.local import LocalOffsetStore

#: As the first release writes it. Never change it: a later release must read it.
DOCUMENT = (
    '{"format": 1, "feed": "recorded", "epoch": 2, "offset": {"format": 1, "table_id": "kept", '
    '"version": 3, "index": 2, "snapshot": false, "timestamp_floor_ms": 1700000002000, '
    '"plan": "7c45662334b3"}, "orders": {"accepted": [6], "skips": [5]}, '
    '"checksum": "a714ee2cb6f1febaee22742780517018aaa644dfc80df6d6b66df75a24652d52"}\n'
)
PLACE = Offset(3, 2, False, "kept", 1_700_000_002_000, "7c45662334b3")

NAMES = st.one_of(st.text(), st.text(alphabet="\u0123\u1234é4%~C3A9", max_size=6), st.text("aé"))


@given(st.sets(NAMES, min_size=2, max_size=20))
def test_no_two_feeds_have_one_document(feeds: set[str]) -> None:
    assert len({make_document_name(feed) for feed in feeds}) == len(feeds)


@given(NAMES | st.text(min_size=80))
def test_a_name_fits_into_a_folder(feed: str) -> None:
    name = make_document_name(feed)
    assert name.isascii()
    assert "/" not in name
    assert len(f"{name}.offset.json") <= 255


async def kept(folder: Path, feed: str, offset: Offset) -> LocalOffsetStore:
    offsets = LocalOffsetStore(folder, feed)
    await offsets.acquire()
    await offsets.save(offset)
    await offsets.release()
    return offsets


@pytest.mark.anyio
async def test_a_feed_with_a_very_long_name_keeps_its_offset(tmp_path: Path) -> None:
    feed = "\u1234" * 400
    await kept(tmp_path, feed, Offset(7))
    assert await LocalOffsetStore(tmp_path, feed).load() == Offset(7)


@pytest.mark.anyio
async def test_a_document_of_the_first_release_is_read_and_written_as_it_was(
    tmp_path: Path,
) -> None:
    file = tmp_path / "recorded.offset.json"
    file.write_text(DOCUMENT)
    offsets = LocalOffsetStore(tmp_path, "recorded")
    assert await offsets.load() == PLACE
    assert await offsets.load_orders() == {"accepted": [6], "skips": [5]}
    await offsets.acquire()
    await offsets.save(PLACE)
    assert offsets.epoch == 3
    await offsets.release()
    before, after = json.loads(DOCUMENT), json.loads(file.read_text())
    assert list(after) == list(before)
    assert json.dumps(after["offset"]) == json.dumps(before["offset"])
    assert after["orders"] == before["orders"]


def test_the_options_count_as_in_the_first_release() -> None:
    """Or every feed would read a version again of which a part was delivered."""
    assert FeedOptions().counting_id() == "7c45662334b3"
