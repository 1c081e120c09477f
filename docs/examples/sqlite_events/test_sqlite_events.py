"""The whole test of the sink: the public suite. Run it with pytest."""

import contextlib
import sqlite3

import pytest

from tailer.sink import make_sink as new_sink
from tailer.testing.conformance import SinkConformance, TargetFaults
from tailer.testing.conformance.sink import Event


class TestSqliteEvents(SinkConformance):
    @pytest.fixture
    def make_sink(self, tmp_path):
        return lambda: new_sink("sqlite_events", {"path": "events.db"}, tmp_path)

    @pytest.fixture
    def target_faults(self):
        return TargetFaults()  # a file can't stand still, and has no constraints

    @pytest.fixture
    def read_events(self, tmp_path):
        def read():
            with contextlib.closing(sqlite3.connect(tmp_path / "events.db")) as db:
                return [Event(*row) for row in db.execute("SELECT * FROM events ORDER BY rowid")]

        return read
