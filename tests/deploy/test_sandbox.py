"""The daemon within the sandbox of the shipped unit, and on a disk that is full."""

from __future__ import annotations

import ctypes
import json
import shutil
import signal
import urllib.request
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.testing.table import TableBuilder
from tests.deploy.test_files import DEPLOY
from tests.support.components import free_port, require
from tests.support.programs import Program, started, whole_lines
from tests.support.sandbox import with_disk, within_unit

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
UNIT = DEPLOY / "systemd" / "delta-tailer.service"


def table_of(folder: Path) -> TableBuilder:
    table = TableBuilder(folder, SCHEMA)
    table.create()
    return table


def configure(folder: Path, out: Path, http: str = "") -> Path:
    config = folder / "tailer.toml"
    config.write_text(
        f'[daemon]\nhttp = "{http}"\nstate = "{out.parent / "state"}"\n[feeds.orders]\n'
        'table = "orders"\nfrom = "earliest"\nretry_max_s = 0.3\nbatch_rows_max = 50\n'
        f'[feeds.orders.sink]\ntype = "jsonl"\npath = "{out}"\n'
    )
    return config


def ids(file: Path) -> list[int] | None:
    return [json.loads(line)["id"] for line in whole_lines(file)] if file.exists() else None


def wait_for(program: Program, file: Path, *wanted: int) -> None:
    program.wait_for(lambda: ids(file) == list(wanted))


def library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def test_the_daemon_does_all_that_it_does_within_the_unit_s_sandbox(tmp_path: Path) -> None:
    require("systemd-analyze", shutil.which("systemd-analyze") is not None)
    require("libseccomp", library("libseccomp.so.2"))
    table = table_of(tmp_path / "orders")
    first = table.add([{"id": i, "name": "a"} for i in range(3)])
    table.commit(first)
    var = tmp_path / "var"
    var.mkdir()
    out, port = var / "orders.jsonl", free_port()
    config = configure(tmp_path, out, f"127.0.0.1:{port}")
    with started("run", config, within=within_unit(UNIT, var)) as daemon:
        wait_for(daemon, out, 0, 1, 2)
        # A rewrite, which DuckDB compares: of three rows one is another.
        again = table.add([{"id": 0, "name": "a"}, {"id": 7, "name": "b"}, {"id": 2, "name": "a"}])
        table.commit(table.remove(first), again)
        wait_for(daemon, out, 0, 1, 2, 1, 7)
        address = f"http://127.0.0.1:{port}/metrics"
        text = urllib.request.urlopen(address, timeout=20).read().decode()
        began = next(x for x in text.splitlines() if x.startswith("process_start_time_seconds "))
        assert float(began.split()[1]) > 1.7e9, "it may see when it was started"
        out.rename(var / "old.jsonl")
        config.write_text("[a mistake")  # which keeps no file from being rotated
        daemon.process.send_signal(signal.SIGHUP)
        wait_for(daemon, out)  # empty
        daemon.wait_until(lambda: any("configuration not taken: " in e for e in daemon.errors))
        table.insert([{"id": 8, "name": "c"}])
        wait_for(daemon, out, 8)
        assert daemon.stop() == 0
    assert not [line for line in daemon.errors if "retrying" in line or "Traceback" in line]


def test_nothing_is_lost_nor_written_twice_on_a_disk_that_fills_up(tmp_path: Path) -> None:
    table = table_of(tmp_path / "orders")
    table.insert([{"id": 0, "name": "first"}])
    disk = tmp_path / "disk"
    disk.mkdir()
    config = configure(tmp_path, disk / "out.jsonl")
    with started("run", config, within=with_disk(disk, "1m")) as daemon:
        # What lies on the disk is seen as the daemon sees it.
        seen = Path(f"/proc/{daemon.process.pid}/root{disk}")
        out, filler, offset = (
            seen / name for name in ("out.jsonl", "filler", "state/orders.offset.json")
        )
        wait_for(daemon, out, 0)
        daemon.wait_for(
            lambda: offset.exists() and json.loads(offset.read_text())["offset"]["version"] >= 2
        )
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        table.insert([{"id": i, "name": "x" * 400} for i in range(1, 100)])
        daemon.wait_until(lambda: any("tries again: " in line for line in daemon.errors))
        assert 99 not in (ids(out) or ())
        table.insert([{"id": 100, "name": "last"}])
        filler.unlink()
        wait_for(daemon, out, *range(101))
        assert daemon.stop() == 0
    (told,) = [line for line in daemon.errors if "tries again: " in line]
    assert "out.jsonl can't be written (No space left on device)" in told


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_table_that_is_unplugged_is_waited_for(tmp_path: Path, policy: str) -> None:
    table = table_of(tmp_path / "orders")
    table.insert([{"id": 0, "name": "a"}])
    out, plugged, away = tmp_path / "out.jsonl", tmp_path / "orders", tmp_path / "away"
    config = configure(tmp_path, out)
    config.write_text(config.read_text().replace("retry", f'on_data_loss = "{policy}"\nretry', 1))

    def told(daemon: Program) -> bool:
        waits = "the table is gone, its _delta_log has no commit; the feed waits until it is back"
        return any(f"tries again: {plugged}, version 2: {waits}" in e for e in daemon.errors)

    with started("run", config) as daemon:
        wait_for(daemon, out, 0)
        plugged.rename(away)
        daemon.wait_until(lambda: told(daemon))
        assert daemon.stop() == 0
    with started("run", config) as daemon:  # and where it is away from the start
        daemon.wait_until(lambda: told(daemon))
        away.rename(plugged)
        table.insert([{"id": 1, "name": "b"}])
        wait_for(daemon, out, 0, 1)
        assert daemon.stop() == 0
