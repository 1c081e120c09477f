"""What an earlier release left behind is read, and the feeds go on as that release would have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sinks.kafka.progress import Progress
from tailer.changes import Offset
from tailer.offsets.s3 import S3OffsetStore
from tests.s3.fixture import Bucket
from tests.s3.objects import Objects
from tests.upgrade.history import configured, make_table, run_feeds

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parent / "data"
RELEASES = sorted(folder.name for folder in DATA.iterdir())
#: Within version 3, as the leases and the progress record have it.
PLACE = Offset(
    3, 4, table_id="upgraded", timestamp_floor_ms=1_700_000_002_000, counted_by="0f5c0c0d1b2a"
)


def states(folder: Path) -> dict[str, Any]:
    return {file.name: json.loads(file.read_text()) for file in folder.glob("state/*.json")}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("case", ["cut", "nothing"])
async def test_feeds_write_what_the_release_would_have_written(
    release: str, case: str, tmp_path: Path
) -> None:
    """``cut`` goes on from that release's state; ``nothing`` starts with none."""
    if case == "cut":
        shutil.copytree(DATA / release / "cut", tmp_path, dirs_exist_ok=True)
    make_table(tmp_path / "orders")
    feeds = configured(tmp_path)
    if case == "nothing":
        await feeds["recorded"].offsets.acquire()
        await feeds["recorded"].offsets.save_orders({"accepted": [6], "skips": [5]})
    assert set((await run_feeds(feeds)).values()) == {None}
    whole = DATA / release / "whole"
    for file in sorted(whole.glob("*.jsonl")):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name
    found, expected = states(tmp_path), states(whole)
    assert set(found) == set(expected)
    for name, document in expected.items():
        orders = dict(found[name].pop("orders", {}))
        orders.pop("delivery", None)  # the form of the records, which is known from now on
        assert orders == document.pop("orders", {})
        assert list(found[name]) == list(document), "the release can read it, too"
        assert found[name]["offset"] == document["offset"]
        assert list(found[name]["offset"]) == list(document["offset"])


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("lease", ["held", "released"])
async def test_a_lease_on_s3_is_taken_over_with_offset_and_orders(
    release: str, lease: str, bucket: Bucket
) -> None:
    async with Objects(bucket) as objects:
        stored = (DATA / release / "lease" / f"{lease}.json").read_bytes()
        await objects.put("state/orders.offset.json", stored)
        # The owner of the lease that is held is no process of this machine: it runs out.
        store = S3OffsetStore(bucket.address("state"), "orders", bucket.options)
        await store.acquire()
        assert await store.load() == PLACE
        assert await store.load_orders() == {"skips": [9]}
        assert store.epoch == 2
        await store.save(PLACE)
        before, after = (
            json.loads(stored),
            json.loads(await objects.get("state/orders.offset.json")),
        )
        await store.release()
    assert set(after) == set(before) | {"owner"}
    assert json.dumps(after["offset"]) == json.dumps(before["offset"])


@pytest.mark.parametrize("release", RELEASES)
def test_progress_in_a_topic_is_read_and_written_as_it_was(release: str) -> None:
    value = (DATA / release / "progress.json").read_bytes().rstrip()
    progress = Progress.from_bytes(value)
    assert progress.offset == PLACE
    assert progress.begun is not None
    assert (progress.epoch, progress.begun.id, progress.events) == (7, "upgraded:3", 4)
    assert progress.to_bytes() == value
