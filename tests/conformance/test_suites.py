"""The suites find what they are there to find: each is run on what breaks its contract."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BROKEN_STORE = '''
import pytest
from tailer.store.local import LocalStore
from tailer.testing.conformance import StoreConformance


class EncodingStore(LocalStore):
    """Takes locations for URIs, lists inclusively, and never sees that a file has changed."""

    async def read(self, location, offset=0, length=None):
        from urllib.parse import unquote
        return await super().read(unquote(location), offset, length)

    async def list(self, folder, start_after=""):
        async for status in super().list(folder):
            if status.name >= start_after:
                yield status

    async def stat(self, location):
        from dataclasses import replace
        return replace(await super().stat(location), tag="")


class TestStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path):
        return EncodingStore(str(tmp_path))

    @pytest.fixture
    def put(self, tmp_path):
        async def put(location, data):
            (tmp_path / location).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / location).write_bytes(data)
        return put
'''

BROKEN_OFFSETS = '''
import pytest
from tailer.offsets.memory import MemoryOffsetStore
from tailer.testing.conformance import PersistentOffsetStoreConformance


class TestOffsets(PersistentOffsetStoreConformance):
    """One shared offset for all feeds, which anyone may own."""

    @pytest.fixture
    def make_offsets(self):
        shared = MemoryOffsetStore()
        return lambda feed: shared
'''

BROKEN_SINK = '''
import json
import pytest
from tailer.sink import Sink
from tailer.testing.conformance import SinkConformance
from tailer.testing.conformance.sink import Event


class HastySink(Sink):
    """Keeps everything in memory until it is closed, and makes its ids as it goes."""

    def __init__(self, target):
        self.target, self.held = target, []

    async def open(self, feed):
        return None

    async def write(self, batch):
        self.held += [
            Event(str(len(self.target) + i), row["_change_type"], row["_commit_version"], None)
            for i, row in enumerate(batch.rows.to_pylist())
        ]

    async def aclose(self):
        self.target += self.held


class TestSink(SinkConformance):
    @pytest.fixture
    def target(self):
        return []

    @pytest.fixture
    def make_sink(self, target):
        return lambda: HastySink(target)

    @pytest.fixture
    def read_events(self, target):
        return lambda: target
'''


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        (
            BROKEN_STORE,
            {
                "test_a_location_is_plain_text[data/percent%20sign%.parquet]",
                "test_start_after_is_exclusive",
                "test_the_tag_changes_with_the_file_and_not_without",
                "test_list_stat_and_read_give_one_status",
            },
        ),
        (
            BROKEN_OFFSETS,
            {
                "test_feeds_do_not_see_each_other",
                "test_only_one_owner_at_a_time",
            },
        ),
        (
            BROKEN_SINK,
            {
                "test_events_lie_in_the_target_in_order",
                "test_a_written_batch_is_there_before_the_sink_is_closed",
                "test_a_sink_that_was_never_closed_has_lost_nothing",
                "test_a_batch_that_comes_again_is_the_same",
                "test_the_faults_of_its_target_are_known",
            },
        ),
    ],
    ids=["store", "offsets", "sink"],
)
@pytest.mark.slow
def test_what_breaks_the_contract_is_found(tmp_path: Path, text: str, broken: set[str]) -> None:
    (tmp_path / "test_theirs.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfE", "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    failed = {line.split("::")[-1].split(" - ")[0] for line in done.stdout.splitlines()
              if line.startswith("FAILED")}  # fmt: skip
    assert broken <= failed, done.stdout
    assert " passed" in done.stdout, "what it does hold is held"
    assert "ERROR" not in done.stdout
