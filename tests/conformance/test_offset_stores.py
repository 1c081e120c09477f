"""Every built-in offset store against the public suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.offsets import OffsetStore
from tailer.offsets.local import LocalOffsetStore
from tailer.offsets.memory import MemoryOffsetStore
from tailer.testing.conformance import OffsetStoreConformance, PersistentOffsetStoreConformance
from tailer.testing.conformance.offsets import MakeOffsetStore


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
