"""Every built-in offset store against the public suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.offsets import OffsetStore
from tailer.offsets.local import LocalOffsetStore
from tailer.offsets.memory import MemoryOffsetStore
from tailer.offsets.s3 import s3_offsets
from tailer.testing.conformance import OffsetStoreConformance, PersistentOffsetStoreConformance
from tailer.testing.conformance.offsets import MakeOffsetStore
from tests.s3.fixture import Bucket


class TestLocalOffsetStore(PersistentOffsetStoreConformance):
    @pytest.fixture
    def make_offsets(self, tmp_path: Path) -> MakeOffsetStore:
        def make(feed: str) -> OffsetStore:
            return LocalOffsetStore(tmp_path / "state", feed)

        return make


class TestMemoryOffsetStore(OffsetStoreConformance):
    @pytest.fixture
    def make_offsets(self) -> MakeOffsetStore:
        return lambda _: MemoryOffsetStore()


class TestS3Offsets(PersistentOffsetStoreConformance):
    @pytest.fixture
    def make_offsets(self, bucket: Bucket) -> MakeOffsetStore:
        def make(feed: str) -> OffsetStore:
            return s3_offsets(bucket.address("state"), feed, bucket.options, standby=False)

        return make
