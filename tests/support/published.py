"""What the files sink has published, read back from a folder or a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq

from tailer.sink import Sink, make_sink
from tailer.storage import open_target


def manifest(folder: Path) -> list[dict[str, Any]]:
    """The ended publications of a local folder, in order."""
    found = sorted((folder / "_delta_tailer").glob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def tables(folder: Path) -> list[pa.Table]:
    """The Parquet files of a local folder, in order of their numbers; all are in the manifest."""
    found = sorted(folder.rglob("*.parquet"), key=lambda path: path.name)
    listed = [file["path"] for entry in manifest(folder) for file in entry["files"]]
    assert sorted(str(path.relative_to(folder)) for path in found) == sorted(listed)
    return [pq.ParquetFile(path).read() for path in found]


@dataclass
class Files:
    """A target of the files sink."""

    path: str
    folder: Path
    store: Mapping[str, Any] = field(default_factory=dict)

    def sink(self) -> Sink:
        """A new sink on the target."""
        return make_sink("files", {"path": self.path, "store": self.store}, self.folder)

    def rows(self) -> list[dict[str, Any]]:
        """All rows of all files, in order; also where an event loop runs."""
        with ThreadPoolExecutor(1) as other:
            return other.submit(anyio.run, self._rows).result()

    async def _rows(self) -> list[dict[str, Any]]:
        target = open_target(self.path, self.folder, self.store)
        rows: list[dict[str, Any]] = []
        try:
            for name in await target.names(""):
                if name.endswith(".parquet"):
                    data = await target.read(name)
                    assert data is not None
                    rows += pq.ParquetFile(pa.BufferReader(data)).read().to_pylist()
        finally:
            await target.aclose()
        return rows
