"""docs/extending.md: its storage is installed as a package is, and holds the public suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tailer.storage
from tailer.errors import ConfigError
from tailer.plugins.entry_points import installed_points
from tailer.storage import open_offset_store, open_store
from tailer.store import Store
from tailer.testing.conformance import StoreConformance
from tailer.testing.conformance.store import Put
from tailer.testing.table import TableBuilder
from tests.support.packages import documented_blocks, install_package
from tests.support.source import ROOT

CODE, TOML = documented_blocks("extending.md", "A storage in forty lines")
LINES_MAX = 50


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the package installed, with its entry point."""
    folder = tmp_path_factory.mktemp("site")
    install_package(folder, CODE, TOML)
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(site)
    caches = (installed_points, tailer.storage._load_storage)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def packed(folder: Path, archive: Path) -> str:
    with zipfile.ZipFile(archive, "w") as target:
        for path in sorted(folder.rglob("*")):
            target.write(path, path.relative_to(folder))
    return f"zip://{archive}"


def test_it_has_few_lines() -> None:
    assert len([line for line in CODE.splitlines() if line]) <= LINES_MAX


def test_a_command_reads_a_table_of_the_scheme(site: Path, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
    table.create()
    table.commit(table.add([{"id": 7}]))
    address = packed(table.folder, tmp_path / "t.zip")
    done = subprocess.run(
        [sys.executable, "-m", "tailer", "read", address, "--from", "0", "--output", "-"],
        env={**os.environ, "PYTHONPATH": str(site)}, cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [7]


@pytest.mark.usefixtures("installed")
def test_what_it_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no offsets are kept at 'zip://"):
        open_offset_store(f"zip://{tmp_path}/state", "orders", lease_s=60.0)
    with pytest.raises(
        ConfigError, match=r"no store for 'zap://x'.*, s3://, uc://, zip:// and profile"
    ):
        open_store("zap://x")


@pytest.mark.usefixtures("installed")
class TestZipStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        with zipfile.ZipFile(tmp_path / "t.zip", "w"):
            return open_store(f"zip://{tmp_path}/t.zip")

    @pytest.fixture
    def put(self, tmp_path: Path) -> Put:
        files: dict[str, bytes] = {}

        async def put(location: str, data: bytes) -> None:
            new = {location: data} if location not in files else files
            files[location] = data
            with zipfile.ZipFile(tmp_path / "t.zip", "a" if new is not files else "w") as archive:
                for path, content in new.items():
                    archive.writestr(path, content)

        return put
