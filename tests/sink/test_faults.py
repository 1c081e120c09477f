"""What a target's errors mean, by their codes."""

from __future__ import annotations

import pytest

from sinks.mysql.database import Mysql
from sinks.postgres.database import Postgres
from sinks.sqlite import SqliteFile
from tailer.errors import RowsRefused, SinkRejected, TargetRefused, TransientError
from tailer.sink import FaultTable

TABLE = FaultTable(for_good="42* 28P01 3*", rows="22* 23505", unclear="400", passing="42P05 31")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("42501", TargetRefused), ("28P01", TargetRefused), ("3D000", TargetRefused),
        ("22001", RowsRefused), ("23505", RowsRefused), (400, SinkRejected), ("400", SinkRejected),
        ("42P05", TransientError), (31, TransientError), ("23514", TransientError),
        ("", TransientError), ("nobody knows it", TransientError), ("28P0", TransientError),
    ],
)  # fmt: skip
def test_a_code_is_an_error(code: str | int, kind: type[Exception]) -> None:
    error = TABLE.error(code, "what was said")
    assert type(error) is kind
    assert str(error) == "what was said"


def test_a_code_is_listed_once() -> None:
    with pytest.raises(ValueError, match="listed twice: 22, 7"):
        FaultTable(for_good="7 22", rows="22 7 8")


@pytest.mark.parametrize(
    ("table", "codes"),
    [
        # Failovers, interrupted statements, time-outs, resources, disks, what nobody knows.
        (Postgres.faults, "25006 08006 40001 53100 53300 55P03 57P01 57P03 58030 XX000 ZZ123"),
        (Mysql.faults, "3 1030 1040 1047 1105 1114 1203 1205 1213 1290 1317 1836 1969 2999 3572"),
        (SqliteFile.faults, "SQLITE_BUSY_SNAPSHOT SQLITE_IOERR_WRITE SQLITE_FULL SQLITE_NEW"),
    ],
)  # fmt: skip
def test_faults_of_servers_pass(table: FaultTable, codes: str) -> None:
    assert {code: table.verdict(code) for code in codes.split()} == dict.fromkeys(
        codes.split(), "passing"
    )


def test_refusals_are_those_of_rows() -> None:
    for table, codes in ((Postgres.faults, "22001 22P02 23502 23514"),
                         (Mysql.faults, "1048 1264 1406 3819 4025 4040"),
                         (SqliteFile.faults, "SQLITE_CONSTRAINT_CHECK SQLITE_TOOBIG")):  # fmt: skip
        assert {table.verdict(code) for code in codes.split()} == {"rows"}
