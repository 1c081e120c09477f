"""One table for the functions of the package, and what they must not leave behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def interrupted(loops: int = 1) -> Iterator[None]:
    """The block waits for a commit in the last of so many loops, and gets one Ctrl-C."""

    def interrupt() -> None:
        # Not while a loop is begun: a machine may take long for that.
        eventually(lambda: sum(each.name == "tailer" for each in own_threads()) >= loops)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Thread(target=interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    timer.join()


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
