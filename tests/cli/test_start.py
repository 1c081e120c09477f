"""What a command loads: no Arrow where it needs none, and no pandas for the sake of Arrow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder

PROBE = """
import json, sys
from tailer.cli.main import main
status = main(sys.argv[1:])
print("\\n" + json.dumps(sorted(sys.modules)))
sys.exit(status)
"""


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
    table.create()
    table.commit(table.add([{"id": 1}]))
    return table


def loaded(*arguments: str) -> set[str]:
    """The modules of a command's process."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("command", ["history", "snapshot"])
def test_a_log_without_checkpoints_is_read_without_pyarrow(
    table: TableBuilder, command: str
) -> None:
    assert loaded(command, str(table.folder)) & {"pyarrow", "tailer.feed"} == set()


#: Sees who makes a value of Arrow's in a way that loads pandas, where it and numpy are installed.
ASKING = """
import sys
import pyarrow as pa

asked = []

def asking(make):
    def made(value, *arguments, **options):
        if not isinstance(value, (pa.Array, pa.Scalar)):
            asked.append(sys._getframe(1).f_code.co_filename)
        return make(value, *arguments, **options)
    return made

pa.array, pa.scalar = asking(pa.array), asking(pa.scalar)
from tailer.cli.main import main
status = main(sys.argv[1:])
print(f"\\n{sorted(set(asked))}")
sys.exit(status)
"""


@pytest.mark.parametrize("command", ["read", "snapshot"])
def test_rows_are_made_without_asking_for_pandas(tmp_path: Path, command: str) -> None:
    """Inserts, the images of updates in either order, and a deletion vector."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = TableBuilder(tmp_path / "t", schema, properties={"delta.enableChangeDataFeed": "true"})
    features = ["deletionVectors"]
    table.create(table.protocol(3, 7, readerFeatures=features, writerFeatures=features))
    add = table.add([{"id": i, "text": "t"} for i in range(5)])
    table.commit(add)
    for kinds in (["update_preimage", "update_postimage"], ["update_postimage", "delete"]):
        changes = [{"id": 1, "text": "t", "_change_type": kind} for kind in kinds]
        table.commit(table.cdc(changes))
    after = {"add": {**add["add"], "deletionVector": table.vector([1, 3])}}
    table.commit(table.remove(add), after)
    rows = tmp_path / "rows.arrow"
    more = {
        "read": ["--from", "0", "--output", str(rows)],
        "snapshot": ["--output", str(rows)],
    }[command]
    done = subprocess.check_output(
        [sys.executable, "-c", ASKING, command, str(table.folder), *more], text=True
    )
    assert done.splitlines()[-1] == "[]"
    if command == "read":
        with pa.memory_map(str(rows)) as file:
            assert pa.ipc.open_file(file).read_all().num_rows == 5 + 2 + 2 + 2
