"""`tailer verify` says how far it is: lines on standard error, or what a terminal is drawn."""

from __future__ import annotations

import io
import re
import sqlite3
import sys
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from tailer.cli import progress
from tailer.cli.progress import ComparisonProgress
from tailer.feed.options import FeedOptions
from tailer.testing.table import TableBuilder
from tailer.verify.table import verify_versions
from tests.support.copies import Copy, make_copy_of
from tests.support.feeds import table_log

Capture = pytest.CaptureFixture[str]
SCHEMA = pa.schema([("id", pa.int64())])
FILES, ROWS = 5, 100
LINE = re.compile(
    r"orders: (?P<rows>\d+) rows compared"
    r"(, (?P<read>\d+) of (?P<bytes>\d+) bytes; its snapshot is read to (?P<share>[\d.]+)%"
    r"(, (?P<left>\d+) s left)?)?"
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy whose comparison is reported after every batch."""
    copy = make_copy_of(tmp_path, 'type = "sqlite"\npath = "copy.db"\nkey = ["id"]', SCHEMA)
    copy.table.create()
    text = copy.config.read_text()
    copy.config.write_text(text.replace("[daemon]\n", "[daemon]\nprogress_s = 0.0000001\n"))
    for file in range(FILES):
        copy.table.insert([{"id": file * ROWS + n} for n in range(ROWS)])
    copy.deliver(FILES)
    return copy


def read_lines(text: str) -> list[dict[str, str | None]]:
    found = [LINE.fullmatch(line) for line in text.splitlines()]
    assert all(found), text
    return [match.groupdict() for match in found if match is not None]


def test_a_comparison_says_how_much_is_compared_and_how_long_it_takes(
    copy: Copy, capsys: Capture
) -> None:
    assert copy.verify() == 0
    said = capsys.readouterr()
    assert said.out == f"version {FILES}, {FILES * ROWS} rows in the mirror: exact\n"
    lines = read_lines(said.err)
    assert lines[0]["share"] is None, "how much a copy has is not known before it is read"
    assert lines[-1]["rows"] == str(2 * FILES * ROWS)
    size = sum(file.stat().st_size for file in copy.table.folder.glob("*.parquet"))
    assert (lines[-1]["read"], lines[-1]["bytes"]) == (str(size), str(size))
    assert (lines[-1]["share"], lines[-1]["left"]) == ("100.0", "0")


def test_a_repair_says_it_of_each_time_that_rows_are_read(copy: Copy, capsys: Capture) -> None:
    with sqlite3.connect(copy.table.folder.parent / "copy.db") as database:
        database.execute("DELETE FROM orders WHERE id = 7")
    assert copy.verify("--repair") == 0
    said = capsys.readouterr()
    assert "repaired: 1 rows written" in said.out
    ends = [line["rows"] for line in read_lines(said.err) if line["share"] == "100.0"]
    whole = 2 * FILES * ROWS
    assert ends.count(str(whole - 1)) >= 2, "they differ, and then it is found where"
    assert str(FILES * ROWS) in ends, "the table's rows of what differs"
    assert ends[-1] == str(whole), "and the copy is proved again"


def test_it_may_be_silent(copy: Copy, capsys: Capture) -> None:
    copy.config.write_text(copy.config.read_text().replace("0.0000001", "0"))
    assert copy.verify() == 0
    assert capsys.readouterr().err == ""


def test_a_terminal_is_drawn_the_share_and_no_lines(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(progress, "_DELAY_S", 0)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert copy.verify() == 0
    drawn = terminal.getvalue()
    assert re.search(r"orders: *\d+%.*/[\d.]+k", drawn)
    assert "rows compared" not in drawn
    assert drawn.endswith("\r")


def test_the_proof_of_events_says_it_of_both_snapshots(copy: Copy, capsys: Capture) -> None:
    table: TableBuilder = copy.table

    async def run() -> None:
        with ComparisonProgress("orders", 1e-7) as told:
            async for _ in verify_versions(table_log(table), 2, FILES, FeedOptions(), told):
                pass

    anyio.run(run)
    lines = read_lines(capsys.readouterr().err)
    shares = [line["share"] for line in lines]
    changes = shares.index(None)
    assert shares[changes - 1] == "100.0", "the snapshot before"
    assert shares[-1] == "100.0", "and the one after"
    before, events, after = ROWS, (FILES - 1) * ROWS, FILES * ROWS
    assert lines[-1]["rows"] == str(before + events + after)
