"""Files that the real logrotate rotates, as deploy/logrotate says, while the daemon writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa

from tailer.testing.table import TableBuilder
from tests.deploy.test_files import DEPLOY, accepted, program
from tests.support.programs import started


def events(file: Path) -> list[tuple[int, str]]:
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    assert text.endswith(b"\n") or not text, f"{file} ends with a whole line"
    rows = [json.loads(line) for line in text.splitlines()]
    return [(row["id"], row["_event_id"]) for row in rows]


def test_logrotate_loses_nothing(tmp_path: Path) -> None:
    rotate = program("logrotate")
    table = TableBuilder(tmp_path / "orders", pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    out, config = tmp_path / "out" / "orders.jsonl", tmp_path / "tailer.toml"
    config.write_text(
        '[daemon]\nhttp = ""\n[feeds.orders]\ntable = "orders"\nfrom = "earliest"\n'
        f'[feeds.orders.sink]\ntype = "jsonl"\npath = "{out}"\n'
    )
    rules = tmp_path / "rules"
    with started("run", config) as daemon:
        shipped = (DEPLOY / "logrotate" / "delta-tailer").read_text()
        rules.write_text(
            shipped.replace("/var/lib/tailer/*.jsonl", f"{out.parent}/*.jsonl")
            .replace("/var/lib/tailer/state", str(tmp_path / "state"))
            .replace("systemctl reload delta-tailer", f"kill -HUP {daemon.process.pid}")
        )
        rules.chmod(0o644)
        daemon.wait_until(lambda: any(" following " in line for line in daemon.errors))
        for turn in range(3):
            table.insert([{"id": 2 * turn}])
            daemon.wait_for(lambda: out.exists() and out.stat().st_size)
            accepted(rotate, "--force", "--state", tmp_path / "rotated", rules, cwd=tmp_path)
            table.insert([{"id": 2 * turn + 1}])
            told = f"{out} was renamed or removed: its next lines go into a new file"
            daemon.wait_until(lambda: sum(told in e for e in daemon.errors) > turn)  # noqa: B023
            daemon.wait_for(out.exists)
        daemon.wait_for(lambda: b'"id":5' in out.read_bytes())
        assert daemon.stop() == 0
    files = sorted(out.parent.iterdir())
    assert [file.name for file in files] == [
        "orders.jsonl", "orders.jsonl.1", "orders.jsonl.2.gz", "orders.jsonl.3.gz",
    ]  # fmt: skip
    found = [event for file in reversed(files) for event in events(file)]
    assert sorted({number for number, _ in found}) == [0, 1, 2, 3, 4, 5]
    assert len(set(found)) == 6, "what lies in two files has the same id"


def test_the_rules_are_ones(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text((DEPLOY / "logrotate" / "delta-tailer").read_text())
    rules.chmod(0o644)
    said = accepted(program("logrotate"), "--debug", "--state", tmp_path / "state", rules)
    assert "error" not in said.lower().replace("errors", "")
