"""What the daemon says of its work: once a period where there is something, and once at its end."""

from __future__ import annotations

import importlib.metadata
import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.daemon.progress_log import FEEDS_MAX, ProgressLog
from tailer.errors import SinkRejected, TransientError
from tailer.feed.progress import FeedProgress
from tailer.sink import load_sink
from tailer.testing.table import TableBuilder
from tests.support.ordered import Setting
from tests.support.programs import started

SCHEMA = pa.schema([("id", pa.int64())])


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def said() -> tuple[logging.Logger, list[logging.LogRecord]]:
    """A logger, and the records that it was given."""
    handler = _Kept()
    logger = logging.getLogger("tests.progress")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    return logger, handler.records


def feed(events: int = 0, versions: int = 0, newest: int = -1) -> FeedProgress:
    """The figures of a feed that follows, and has delivered so much."""
    progress = FeedProgress("orders", lambda: 0.0)
    progress.note_start(Offset(versions))
    progress.events_delivered, progress.versions_delivered = events, versions
    progress.note_newest(newest)
    return progress


Said = tuple[logging.Logger, list[logging.LogRecord]]


def test_a_feed_says_what_is_new_since_the_last_time(said: Said) -> None:
    logger, records = said
    progress, orders = ProgressLog(logger), feed()
    progress.log_report({"orders": orders}, 60.0)
    assert records == [], "there is nothing to say"
    orders.events_delivered, orders.versions_delivered = 7, 2
    progress.log_report({"orders": orders}, 60.0)
    progress.log_report({"orders": orders}, 60.0)
    orders.events_delivered = 10
    progress.log_report({"orders": orders}, 60.0)
    assert [record.getMessage() for record in records] == [
        "feed orders delivered 7 events of 2 versions in 60 s; behind by nothing",
        "feed orders delivered 3 events of 0 versions in 60 s; behind by nothing",
    ]
    progress.log_report({"orders": feed(events=4, versions=1)}, 60.0)  # it was restarted
    assert "delivered 4 events of 1 versions" in records[-1].getMessage()
    progress.remove_feed("orders", feed(events=1))
    progress.log_end({}, "asked to")
    assert (
        records[-1]
        .getMessage()
        .startswith("ended, asked to: 1 feeds delivered 15 events of 3 versions")
    )


def test_a_feed_that_is_behind_says_so_while_it_is_on_its_way(said: Said) -> None:
    logger, records = said
    orders = feed(newest=4)
    progress = ProgressLog(logger)
    progress.log_report({"orders": orders}, 60.0)
    assert "delivered 0 events of 0 versions in 60 s; behind by 5 versions" in (
        records[0].getMessage()
    )
    orders.state = "paused"  # another line has said why
    progress.log_report({"orders": orders}, 60.0)
    assert len(records) == 1


def test_feeds_in_trouble_are_named_at_every_report(said: Said) -> None:
    logger, records = said
    feeds = {"a": feed(), "b": feed(), "c": feed()}
    feeds["a"].note_retry(TransientError("no broker"))
    feeds["b"].note_failure(SinkRejected("no \x1b[2J table"))
    feeds["b"].state = "failed"
    progress = ProgressLog(logger)
    for _ in range(2):
        progress.log_report(feeds, 60.0)
    assert [record.getMessage() for record in records] == 2 * [
        "2 of 3 feeds are in trouble; a is retrying: no broker; b is failed: no \\x1b[2J table"
    ]


def test_a_table_that_was_never_read_is_not_said_to_be_read(said: Said) -> None:
    logger, records = said
    unread = FeedProgress("orders", lambda: 0.0)
    ProgressLog(logger).log_end({"orders": unread}, "asked to")
    ProgressLog(logger).log_end({"orders": unread, "items": feed(newest=1)}, "asked to")
    assert records[0].getMessage().endswith("; the table was not read yet")
    assert "1 of their tables were not read yet, others are behind by 2" in (
        records[1].getMessage()
    )


def test_what_was_looked_up_of_a_feed_that_does_not_run_is_said(said: Said) -> None:
    logger, records = said
    orders = FeedProgress("orders", lambda: 0.0)
    orders.note_saved_offset(Offset(3))
    orders.note_newest(4)
    ProgressLog(logger).log_end({"orders": orders}, "asked to")
    assert "; behind by 2 versions, " in records[-1].getMessage()


def test_hundreds_of_feeds_do_not_fill_the_log(said: Said) -> None:
    logger, records = said
    feeds = {f"f{i:03}": feed(events=2, versions=1) for i in range(200)}
    ProgressLog(logger).log_report(feeds, 60.0)
    assert len(records) == FEEDS_MAX + 1
    assert f"{200 - FEEDS_MAX} more feeds delivered {2 * (200 - FEEDS_MAX)} events" in (
        records[-1].getMessage()
    )


def test_the_daemon_says_what_it_delivers_and_what_it_delivered(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    table.insert([{"id": i} for i in range(3)])
    config = tmp_path / "tailer.toml"
    config.write_text(
        '[daemon]\nhttp = ""\nlog_format = "json"\nprogress_s = 0.05\n[feeds.orders]\n'
        'table = "orders"\nfrom = "earliest"\n[feeds.orders.sink]\ntype = "jsonl"\npath = "o"\n'
    )
    with started("run", config) as program:

        def lines(event: str) -> list[dict[str, Any]]:
            found = [json.loads(line) for line in program.errors if line.startswith("{")]
            return [line for line in found if line.get("event") == event]

        def delivered() -> int:
            return sum(line["events"] for line in lines("progress"))

        program.wait_until(lambda: delivered() == 3)
        table.insert([{"id": 3}])
        program.wait_until(lambda: delivered() == 4)
        assert lines("ended") == []
        assert program.stop() == 0
    (ended,) = lines("ended")
    assert (ended["events"], ended["feeds"], ended["lag_versions"]) == (4, 1, 0)
    assert {line["feed"] for line in lines("progress")} == {"orders"}
    assert {line["level"] for line in [*lines("progress"), ended]} == {"info"}


# Reading the configuration again


def test_a_reload_names_the_feeds_of_a_new_pattern(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    for name in ("orders", "lake/one", "lake/two"):
        setting.table(name)
    setting.feed("orders")
    with setting.program() as program:
        program.wait_for(lambda: setting.ids("orders") == [0, 1, 2])
        setting.feed("lake", table="lake/*/", output="lake-{table}.jsonl")
        assert setting.ask("POST", "/api/v1/reload")[1] == {
            "started": ["lake/one", "lake/two"], "stopped": [], "restarted": [],
        }  # fmt: skip
        setting.feed("lake", "batch_rows_max = 1", table="lake/*/", output="lake-{table}.jsonl")
        assert setting.ask("POST", "/api/v1/reload")[1] == {
            "started": [], "stopped": [], "restarted": ["lake/one", "lake/two"],
        }  # fmt: skip
        assert program.stop() == 0


def test_what_is_installed_is_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    load_sink("jsonl")

    def look(**_: Any) -> None:
        raise AssertionError("all that is installed is gone through again")

    monkeypatch.setattr(importlib.metadata, "entry_points", look)
    assert load_sink("jsonl") is load_sink("jsonl")
