"""Every built-in offset store against the public suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.offsets import LEASE_S, OffsetStore
from tailer.offsets.local import LocalOffsetStore
from tailer.offsets.memory import MemoryOffsetStore
from tailer.storage import open_offset_store
from tailer.testing.conformance import OffsetStoreConformance, PersistentOffsetStoreConformance
from tailer.testing.conformance.offsets import MakeOffsetStore
from tests.clouds.servers import Container


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


class TestCloudOffsets(PersistentOffsetStoreConformance):
    """On S3, Azure's and Google's storage."""

    @pytest.fixture
    def make_offsets(self, container: Container) -> MakeOffsetStore:
        def make(feed: str) -> OffsetStore:
            state = container.address("state")
            options = container.options
            return open_offset_store(state, feed, options, lease_s=LEASE_S, standby=False)

        return make
