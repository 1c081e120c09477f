"""What the tests that kill a daemon share: a writer that keeps at work, and what its events are."""

from __future__ import annotations

import json
import random
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import deltalake
import pyarrow as pa

from tailer.changes import COMING_KINDS
from tests.support.published import tables

#: A writer goes no further ahead of the daemon, so that the daemon has work and never too much.
BACKLOG_VERSIONS_MAX = 6


class AnyWriter(threading.Thread):
    """Commits again and again to a table, until it ends, and never far ahead of the daemon."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.random = random.Random(seed)
        self.next_id = 0
        self.newest = 0
        self.read_version = 0  # set from outside: how far the daemon has come
        self.ending = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                if self.newest - self.read_version > BACKLOG_VERSIONS_MAX:
                    self.ending.wait(0.01)
                else:
                    self.commit()
                    self.newest = self.version()
        except BaseException as e:  # noqa: BLE001 - the test raises it
            self.error = e

    @abstractmethod
    def commit(self) -> None:
        """Write one version, or a few."""

    @abstractmethod
    def version(self) -> int:
        """The newest version."""

    def finish(self) -> None:
        """Write no more; raises what kept it from writing."""
        self.ending.set()
        self.join()
        assert self.error is None, self.error


class PacedWriter(AnyWriter):
    """A writer with the ``table`` object of delta-rs."""

    def __init__(self, seed: int, table: deltalake.DeltaTable) -> None:
        super().__init__(seed)
        self.table = table

    def version(self) -> int:
        self.table.update_incremental()
        return self.table.version()


W = TypeVar("W", bound=AnyWriter)


@contextmanager
def writing(writer: W) -> Iterator[W]:
    """The writer at work, and at its end with the block at the latest."""
    writer.start()
    try:
        yield writer
    finally:
        writer.ending.set()
        writer.join()


def without_repeats(lines: list[bytes]) -> list[dict[str, Any]]:
    """The events in the order of their first appearance; a repeated line is the same line."""
    first: dict[str, bytes] = {}
    for line in lines:
        event_id = json.loads(line)["_event_id"]
        assert first.setdefault(event_id, line) == line, f"{event_id} came again and was another"
    return [json.loads(line) for line in first.values()]


def rows_of_files(folder: Path) -> list[dict[str, Any]]:
    """The rows that the events in a folder of the files sink leave, each event once."""
    events = pa.concat_tables(tables(folder), promote_options="default").to_pylist()
    ids = [event["_event_id"] for event in events]
    assert len(set(ids)) == len(ids), "an event is there twice"
    return rows_left(events)


def rows_left(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that events leave, by id; a column without a value counts as one that is not there.

    What is out of order, comes twice, or leaves as another row than came, is an AssertionError.
    """
    assert in_order(events), "events are out of order"
    rows: dict[int, dict[str, Any]] = {}
    # Within a version, what leaves comes first: delta-rs writes postimages before preimages.
    for event in sorted(events, key=lambda e: (e["_commit_version"], _coming(e))):
        row = {n: value for n, value in event.items() if n[0] != "_" and value is not None}
        if _coming(event):
            assert row["id"] not in rows, f"came and was there: {event}"
            rows[row["id"]] = row
        else:
            left = rows.pop(row["id"], None)
            assert left is not None, f"left and was not there: {event}"
            assert left == row, f"left as another row than came: {event}, {left}"
    return [rows[key] for key in sorted(rows)]


def _coming(event: dict[str, Any]) -> bool:
    return event["_change_type"] in COMING_KINDS


def in_order(events: Sequence[dict[str, Any]]) -> bool:
    """Whether no event comes behind one of a later version."""
    versions = [event["_commit_version"] for event in events]
    return versions == sorted(versions)
