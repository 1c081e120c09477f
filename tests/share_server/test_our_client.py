"""`tailer` as a client of `tailer share`: the same rows as Spark's, and as of the table itself."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tests.golden.compare import CHANGE_COLUMNS, difference
from tests.share_server.goldens import TABLES, golden
from tests.share_server.serving import Served
from tests.support.extent import SHARE, WHOLE, sampled

# Every fifth of the plain ones, and all that travel in another shape than they lie.
CHOSEN = [
    name
    for number, name in enumerate(TABLES)
    if number % 5 == 0 or name.startswith(("cdf_", "mapping_", "rowtracking")) or "dv" in name
]


def read(*arguments: str, folder: Path) -> pa.Table | str:
    """What a command writes, or how it ends."""
    output = folder / "rows.arrow"
    status = main([*arguments, "--output", str(output)])
    if status != 0:
        return f"exit status {status}"
    with pa.OSFile(str(output)) as file:
        rows = pa.ipc.open_file(file).read_all()
    output.unlink()
    return rows


@sampled
@pytest.mark.timeout(600)
def test_changes_and_snapshots_are_sparks(goldens: Served, tmp_path: Path) -> None:
    complaints: list[str] = []
    compared = 0
    chosen = CHOSEN if WHOLE else CHOSEN[::SHARE]
    for name in chosen:
        case = golden(goldens.config.parent, name)
        address = f"{goldens.profile}#golden.d.{name}"
        there = case.snapshot()
        if there is not None:
            rows = read("snapshot", address, folder=tmp_path)
            if isinstance(rows, str):
                complaints.append(f"{name}: snapshot: {rows}")
            else:
                compared += 1
                wrong = difference(there, rows.drop_columns([*CHANGE_COLUMNS]))
                complaints += [f"{name}: snapshot: {line}" for line in wrong]
        if case.start is not None:
            start = ["--from", str(case.start), "--change-source", "cdf"]
            rows = read("read", address, *start, folder=tmp_path)
            if isinstance(rows, str):
                complaints.append(f"{name}: changes: {rows}")
            else:
                compared += 1
                wrong = difference(case.changes(), rows)
                complaints += [f"{name}: changes: {line}" for line in wrong]
    assert not complaints, "\n".join(["", *complaints])
    assert compared > len(chosen)
