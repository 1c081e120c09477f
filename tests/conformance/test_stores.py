"""Every built-in store against the public suite."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tailer.storage import open_store
from tailer.store import Store
from tailer.store.local import LocalStore
from tailer.testing.conformance import StoreConformance
from tailer.testing.conformance.store import Put
from tests.clouds.servers import Container


def put_file(root: Path) -> Put:
    async def put(location: str, data: bytes) -> None:
        file = root / location
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = root / f".{uuid.uuid4()}.tmp"
        temporary.write_bytes(data)
        temporary.rename(file)

    return put


class TestLocalStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(str(tmp_path))

    @pytest.fixture
    def put(self, tmp_path: Path) -> Put:
        return put_file(tmp_path)


class TestLocalStoreByUri(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore((tmp_path / "with space").as_uri())

    @pytest.fixture
    def put(self, tmp_path: Path) -> Put:
        (tmp_path / "with space").mkdir()
        return put_file(tmp_path / "with space")


class TestCloudStore(StoreConformance):
    """On S3, Azure's and Google's storage."""

    key = "lake/orders table"

    @pytest.fixture
    async def store(self, container: Container) -> AsyncIterator[Store]:
        store = open_store(container.address(self.key), container.options)
        yield store
        await store.aclose()

    @pytest.fixture
    def put(self, container: Container) -> Put:
        async def put(location: str, data: bytes) -> None:
            await container.put(f"{self.key}/{location}".lstrip("/"), data)

        return put


@pytest.mark.slow
class TestCloudStoreOfAWholeContainer(TestCloudStore):
    key = ""
