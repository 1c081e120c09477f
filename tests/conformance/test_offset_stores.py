"""Every built-in offset store against the public suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.offsets import LEASE_S, OffsetStore
from tailer.offsets.local import LocalOffsetStore
from tailer.offsets.memory import MemoryOffsetStore
from tailer.offsets.s3 import s3_offsets
from tailer.storage import open_offset_store
from tailer.testing.conformance import OffsetStoreConformance, PersistentOffsetStoreConformance
from tailer.testing.conformance.offsets import MakeOffsetStore
from tests.clouds.servers import Container
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


class TestCloudOffsets(PersistentOffsetStoreConformance):
    """On Azure's and Google's storage."""

    @pytest.fixture
    def make_offsets(self, container: Container) -> MakeOffsetStore:
        def make(feed: str) -> OffsetStore:
            state = container.address("state")
            options = container.options
            return open_offset_store(state, feed, options, lease_s=LEASE_S, standby=False)

        return make
