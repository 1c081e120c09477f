"""One table for the functions of the package, and what they must not leave behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.support.waiting import eventually

SCHEMA = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("n", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Versions 1 to 4 insert ten rows each."""
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    for version in range(4):
        insert(table, version * 10)
    return table


def insert(table: TableBuilder, first: int, count: int = 10) -> None:
    """Insert rows with the ids from ``first`` on, as one version."""
    table.insert([{"id": i, "price": float(i), "n": 2} for i in range(first, first + count)])


def open_files() -> set[str]:
    """What this process has open, by descriptor."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it was the listing's own
            found.add(f"{descriptor} {descriptor.readlink()}")
    return found


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No thread and no descriptor is left when a test has ended."""
    threads, files = own_threads(), open_files()
    yield
    eventually(lambda: own_threads() <= threads, why="no thread is left")
    # A client of the cloud keeps its connections for the next read.
    if "bucket" not in request.fixturenames:
        eventually(lambda: len(open_files()) <= len(files), why="no descriptor is left")


def own_threads() -> set[threading.Thread]:
    """The threads that Python has started: an engine's own ones, once they have called it, stay."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("Dummy-")}
