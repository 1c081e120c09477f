"""The golden tables, shared."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.golden.compare import read_folder
from tests.share_server.serving import Served, served

DATA = Path(__file__).parents[1] / "golden" / "data"
TABLES = sorted(path.name.removesuffix(".tar.gz") for path in DATA.glob("*.tar.gz"))


@dataclass(frozen=True)
class Golden:
    """One unpacked case: its versions, and Spark's rows where Spark gives some."""

    folder: Path
    summary: dict[str, Any]

    @property
    def last(self) -> int:
        return int(self.summary["versions"][1])

    @property
    def start(self) -> int | None:
        """The first version of Spark's change feed."""
        changes = self.summary.get("changes")
        return None if changes is None else int(changes["startingVersion"])

    def changes(self) -> pa.Table:
        return read_folder(self.folder / "expected" / "changes")

    def snapshot(self) -> pa.Table | None:
        """Spark's rows of the last version."""
        if not isinstance(self.summary["snapshots"].get(str(self.last)), int):
            return None
        return read_folder(self.folder / "expected" / "snapshots" / str(self.last))


def golden(folder: Path, name: str) -> Golden:
    """A case of an unpacked folder."""
    summary = json.loads((folder / name / "expected" / "summary.json").read_text())
    return Golden(folder / name, summary)


@contextmanager
def served_goldens(folder: Path) -> Iterator[Served]:
    """All golden tables, unpacked into a folder and shared as `golden.d.NAME`."""
    for path in DATA.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="tar")
    tables = {f"golden.d.{name}": folder / name / "table" for name in TABLES}
    limits = "requests_per_s = 10000"
    with served(folder, tables, share=limits, dev=False) as running:
        yield running
