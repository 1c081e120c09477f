"""What a command loads: nothing that it does not use, and never pandas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.support.components import require_crate

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


def loaded(folder: Path, *arguments: str) -> set[str]:
    """The modules of a command's process, in which a module ``pandas`` can be imported."""
    (folder / "pandas.py").write_text('__version__ = "9.9.9"\n')
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(json.loads(done.stdout.splitlines()[-1]))


#: What records and annotations are looked at with, for a tenth of a command's start.
INSPECTION = {"ast", "dataclasses", "dis", "inspect", "typing_extensions"}


def looked_at(modules: set[str]) -> set[str]:
    """What looks at Python's code, but where others load it: numpy; Python's protocols from 3.12
    on, which load inspect; argparse from 3.14 on."""
    if "numpy" in modules or sys.version_info >= (3, 14):
        return set()
    ours = {"dataclasses", "typing_extensions"} if sys.version_info >= (3, 12) else INSPECTION
    return modules & ours


@pytest.mark.parametrize("command", ["history", "snapshot"])
def test_a_log_without_checkpoints_is_read_without_pyarrow_or_event_loop(
    table: TableBuilder, tmp_path: Path, command: str
) -> None:
    found = loaded(tmp_path, command, str(table.folder))
    needless = {"asyncio", "hashlib", "importlib.metadata", "pandas", "pyarrow", "tailer.feed"}
    assert found & needless == set()
    assert looked_at(found) == set()


def test_a_checkpoint_needs_pyarrow_without_its_functions_and_file_systems(
    table: TableBuilder, tmp_path: Path
) -> None:
    require_crate()
    table.checkpoint(1)
    table.commit_path(0).unlink()
    found = loaded(tmp_path, "history", str(table.folder))
    needless = {"pyarrow.compute", "pyarrow.fs", "pyarrow._parquet", "hashlib", "pandas"}
    assert "pyarrow" in found
    assert found & needless == set()


#: What a read may load that is not Python's, ours, or one of these packages' own dependencies.
#: What pyarrow loads by itself where it is installed comes last.
PACKAGES = {"anyio", "msgspec", "pyarrow", "pyroaring", "tailer"}
PACKAGES |= {"cython_runtime", "numpy"}
ARROW = {"ipc", "lib", "types", "util"}


@pytest.mark.parametrize("version", ["0", "1"])
def test_a_read_loads_arrow_without_its_functions_and_file_systems(
    table: TableBuilder, tmp_path: Path, version: str
) -> None:
    require_crate()
    arguments = ["--from", version, "--to", version, "--output", str(tmp_path / "rows.arrow")]
    modules = loaded(tmp_path, "read", str(table.folder), *arguments)
    foreign = {name.split(".")[0] for name in modules} - sys.stdlib_module_names
    foreign = {name for name in foreign if not name.startswith(("__main__", "_"))}
    assert foreign - PACKAGES == set()
    arrow = {name.split(".")[1] for name in modules if name.startswith("pyarrow.")}
    assert {name for name in arrow if not name.startswith("_")} <= ARROW
    needless = {"email", "hashlib", "http", "multiprocessing", "xml"}
    assert (needless | {"tailer.decode.variant"}) & modules == set()
    assert looked_at(modules) == set()


def test_a_command_that_begins_without_an_event_loop_can_go_on_in_one(
    table: TableBuilder, tmp_path: Path
) -> None:
    """anyio needs typing_extensions, which msgspec was loaded without: a rewrite is compared in an
    event loop."""
    before, after = table.add([{"id": 5}, {"id": 6}]), table.add([{"id": 6}, {"id": 7}])
    table.commit(before)
    table.commit(table.remove(before), after)
    output = tmp_path / "rows.jsonl"
    arguments = ["--from", "3", "--to", "3", "--output", str(output)]
    modules = loaded(tmp_path, "read", str(table.folder), *arguments)
    assert "anyio" in modules
    assert sys.version_info >= (3, 13) or "typing_extensions" in modules
    assert output.read_text().count("\n") == 2


def test_flat_rows_are_read_without_loading_arrows_functions(tmp_path: Path) -> None:
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
    found = loaded(tmp_path, "read", str(table.folder), "--from", "1", "--output", str(rows))
    with pa.memory_map(str(rows)) as file:
        assert pa.ipc.open_file(file).read_all().num_rows == 5 + 2 + 2 + 2
    assert "pyarrow._compute" in found
    assert found & {"dateutil", "pyarrow.compute"} == set()


@pytest.mark.parametrize("command", ["read", "snapshot", "tail", "verify"])
def test_rows_are_made_without_pandas(table: TableBuilder, tmp_path: Path, command: str) -> None:
    """pyarrow would load it, where it is installed, with the first value that it makes."""
    more = {
        "read": ["--starting-version", "1", "--output", str(tmp_path / "rows.arrow")],
        "snapshot": ["--output", str(tmp_path / "rows.arrow")],
        "tail": ["--from", "1", "--to", "1"],
        "verify": ["--from", "1", "--to", "1"],
    }[command]
    found = loaded(tmp_path, command, str(table.folder), *more)
    assert "pyarrow" in found
    assert "pandas" not in found


@pytest.mark.parametrize("command", ["history", "read", "verify"])
def test_garbage_is_collected_once_a_command_is_loaded(
    table: TableBuilder, tmp_path: Path, command: str
) -> None:
    more = {
        "history": [],
        "read": ["--from", "1", "--output", str(tmp_path / "rows.arrow")],
        "verify": ["--from", "1", "--to", "1"],
    }[command]
    program = (
        "import atexit, gc\nfrom tailer.__main__ import run\n"
        "atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 10_000))\nrun()"
    )
    ended = subprocess.check_output(
        [sys.executable, "-c", program, command, str(table.folder), *more], text=True
    )
    assert ended.splitlines()[-1] == "True True"
