"""Version checksum files (rule 9 of tests/README.md): believed only where they fit the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.deltalog import DeltaLog
from tailer.log.checksums import Sums
from tailer.testing.table import TableBuilder

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Three versions, and at the end two live files of known sizes."""
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    first = table.add([{"id": 1}], size=100)
    table.commit(first, table.add([{"id": 2}], size=20))
    table.commit(
        {"commitInfo": {"txnId": "t"}}, table.remove(first), table.add([{"id": 3}], size=3)
    )
    return table


def log_of(table: TableBuilder) -> DeltaLog:
    return DeltaLog(str(table.folder))


def test_rule_9_sums_come_from_a_checksum_that_fits_without_the_list_of_files(
    table: TableBuilder,
) -> None:
    assert log_of(table).sums() == Sums(2, 23)
    # Nobody but the checksum says this, so it was the checksum that was read.
    table.checksum(numFiles=7, tableSizeBytes=70)
    assert log_of(table).sums() == Sums(7, 70)
    table.checksum(txnId="t")
    assert log_of(table).sums() == Sums(2, 23)


@pytest.mark.parametrize(
    "fields",
    [
        {"txnId": "another"},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metadata": {}},
        {"numMetadata": 2},
        {"numFiles": -1},
    ],
    ids=str,
)
def test_rule_9_a_bad_checksum_is_ignored(table: TableBuilder, fields: dict[str, Any]) -> None:
    table.checksum(**{"numFiles": 7, **fields})
    assert log_of(table).sums() == Sums(2, 23)
    assert log_of(table).update().version == 2


def test_rule_9_a_checksum_of_other_metadata_is_ignored(table: TableBuilder) -> None:
    other = table.metadata(name="another")["metaData"]
    table.checksum(numFiles=7, metadata=other)
    assert log_of(table).sums() == Sums(2, 23)
    assert log_of(table).checksum_errors() == ("metadata", "numFiles")


def test_what_a_checksum_has_wrong_is_told(
    table: TableBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert log_of(table).checksum_errors() is None
    table.checksum()
    assert log_of(table).checksum_errors() == ()
    table.checksum(tableSizeBytes=24)
    assert log_of(table).checksum_errors() == ("tableSizeBytes",)
    assert main(["snapshot", str(table.folder)]) == 0
    assert json.loads(capsys.readouterr().out)["checksum_errors"] == ["tableSizeBytes"]


def test_a_checksum_counts_behind_a_checkpoint_too(table: TableBuilder) -> None:
    table.checkpoint()
    table.checksum(txnId="t")
    for version in range(3):
        table.commit_path(version).unlink()
    assert log_of(table).sums() == Sums(2, 23)
    assert log_of(table).checksum_errors() == ()
