"""The command line with shared tables: what it prints, and its exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.cli.main import main
from tests.sharing.reference_server import ReferenceServer, serving
from tests.sharing.shared import NAME, golden_table, orders

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReferenceServer]:
    table = orders(tmp_path / "orders")
    names = [NAME, ("share", "schema", "second"), ("share", "other", "third"), ("b", "x", "fourth")]
    with serving(dict.fromkeys(names, table.folder)) as running:
        running.profile(tmp_path)
        yield running


def run(capsys: Capture, *arguments: object, status: int = 0) -> list[str]:
    """The lines that a command prints; on stderr, if it fails."""
    assert main([str(a) for a in arguments]) == status, capsys.readouterr().err
    printed = capsys.readouterr()
    assert (printed.err == "") == (status == 0)
    return (printed.err if status else printed.out).splitlines()


def test_shares_lists_all_tables_as_addresses(
    server: ReferenceServer,  # noqa: ARG001  # running
    tmp_path: Path,
    capsys: Capture,
) -> None:
    profile = tmp_path / "test.share"
    assert run(capsys, "shares", profile) == [
        f"{profile}#b.x.fourth",
        f"{profile}#share.schema.table",
        f"{profile}#share.schema.second",
        f"{profile}#share.other.third",
    ]
    listed = run(capsys, "shares", profile, "--share", "share", "--schema", "schema", "--json")
    assert [json.loads(line)["name"] for line in listed] == ["table", "second"]


def test_shares_goes_by_schemas_where_there_is_no_list_of_all_tables(
    server: ReferenceServer, tmp_path: Path, capsys: Capture
) -> None:
    server.faults.refuse += [("all-tables", 404, {})] * 2
    listed = run(capsys, "shares", tmp_path / "test.share")
    assert sorted(line.rpartition(".")[2] for line in listed) == [
        "fourth", "second", "table", "third"
    ]  # fmt: skip


@pytest.mark.usefixtures("server")
def test_a_mistake_is_one_sentence_and_a_status(tmp_path: Path, capsys: Capture) -> None:
    profile = tmp_path / "test.share"
    (line,) = run(capsys, "shares", tmp_path / "none.share", status=2)
    assert "can't be read" in line
    (line,) = run(capsys, "shares", profile, "--schema", "x", status=2)
    assert "give --share too" in line
    (line,) = run(capsys, "snapshot", f"{profile}#share.schema.none", status=1)
    assert "404 (RESOURCE_DOES_NOT_EXIST: no table share.schema.none)" in line
    (line,) = run(capsys, "tail", f"{profile}#share.schema", status=2)
    assert "profile.share#share.schema.table" in line


@pytest.mark.usefixtures("server")
def test_snapshot_and_history_tell_of_a_shared_table(tmp_path: Path, capsys: Capture) -> None:
    address = f"{tmp_path}/test.share#share.schema.table"
    found = json.loads("\n".join(run(capsys, "snapshot", address)))
    assert (found["version"], found["files"], found["rows"]) == (3, 3, 3)
    assert found["change_data_feed"]
    assert json.loads("\n".join(run(capsys, "snapshot", address, "--version", 1)))["rows"] == 1
    time = ("--timestamp", "2026-01-01T00:02:30Z")
    assert json.loads("\n".join(run(capsys, "snapshot", address, *time)))["version"] == 2
    lines = [json.loads(line) for line in run(capsys, "history", address, "--json")]
    assert [line["version"] for line in lines] == [3, 2, 1, 0]
    assert lines[0]["timestamp"] == "2026-01-01T00:03:00.000+00:00"


@pytest.mark.parametrize("name", ["cdf_dv", "cdf_overwrite_schema"])
def test_read_writes_the_same_file_as_from_the_table_itself(
    name: str, tmp_path: Path, capsys: Capture
) -> None:
    """One schema for the whole file, that of the end version."""
    table = golden_table(name, tmp_path)
    with serving({NAME: table}) as server:
        address = f"{server.profile(tmp_path)}#share.schema.table"
        found = []
        for source in (address, table):
            file = tmp_path / "changes.arrow"
            run(capsys, "read", source, "--from", "0", "--output", file)
            with pa.ipc.open_file(file) as reader:
                found.append(reader.read_all())
            file.unlink()
        assert found[0].schema.equals(found[1].schema, check_metadata=True)
        assert found[0].equals(found[1])


def test_check_reaches_a_shared_table(
    server: ReferenceServer, tmp_path: Path, capsys: Capture
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[feeds.orders]\ntable = "test.share#share.schema.table"\nfrom = "2"\n'
        '[feeds.orders.sink]\ntype = "jsonl"\npath = "-"\n'
    )
    (line,) = run(capsys, "check", config)
    assert line.startswith("orders: ok, ")
    assert "test.share#share.schema.table" in line
    assert "from version 2" in line
    server.token = "another"
    assert main(["check", str(config)]) == 1
    assert "401 (UNAUTHENTICATED: the token is not known)" in capsys.readouterr().out


def test_options_of_the_store_come_from_the_command_line_and_from_the_configuration(
    server: ReferenceServer, tmp_path: Path, capsys: Capture
) -> None:
    address = f"{tmp_path}/test.share#share.schema.table"
    delta = ("--store-option", "response_format=delta")
    assert run(capsys, "history", address, *delta)
    assert server.requests[-1].capabilities.startswith("responseformat=delta;")
    (line,) = run(capsys, "history", address, "--store-option", "poll_interval_s=5", status=2)
    assert "a number of seconds, 30 or greater" in line
    config = tmp_path / "config.toml"
    config.write_text(
        '[feeds.orders]\ntable = "test.share#share.schema.table"\n[feeds.orders.store]\n'
        'max_versions_per_rpc = 10\n[feeds.orders.sink]\ntype = "jsonl"\npath = "-"\n'
    )
    (line,) = run(capsys, "check", config, status=2)
    assert "'max_versions_per_rpc' of a shared table is not known" in line


def test_verify_proves_a_shared_table(tmp_path: Path, capsys: Capture) -> None:
    table = golden_table("cdf_restore_dv", tmp_path)
    with serving({NAME: table}) as server:
        address = f"{server.profile(tmp_path)}#share.schema.table"
        for source in ("auto", "derived"):
            lines = run(capsys, "verify", address, "--change-source", source)
            assert lines
            assert all(line.endswith(": exact") for line in lines)
