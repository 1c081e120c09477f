"""A daemon is killed again and again while a real writer commits, some of the times with a second
daemon on the same target. In the end a copy is the table; files and targets that keep the offset
have each event once, and others may have some twice.

``TAILER_TORTURE_ROUNDS`` is how many times (3, a kind each; at most 200, and 75 for
those that keep no copy, which are 100 kills); ``--randomly-seed`` repeats the moments.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import psycopg
import pymysql
import pytest
import redis

from sinks.files.manifest import FOLDER
from tailer.changes import Offset
from tailer.testing.conformance.sink import Event
from tests.integration.killing import rows_left, rows_of_files, writing
from tests.integration.test_kill import Writer
from tests.support.brokers import Nats, Redis
from tests.support.clickhouse import ClickHouse
from tests.support.forking import Process
from tests.support.iceberg import Lake
from tests.support.iceberg_rest import RestCatalog
from tests.support.message_targets import (
    MESSAGE_SINKS,
    MessageTarget,
    message_target,
    nats_entries,
    nats_last,
    nats_offset,
)
from tests.support.outcomes import record_outcome
from tests.support.programs import run_tailer, running_daemon
from tests.support.published import manifest
from tests.support.search_engine import SearchEngine
from tests.support.sql_targets import SQL_SINKS, SqlTarget, sql_target
from tests.support.waiting import PATIENCE_S, eventually

ROUNDS = min(200, int(os.environ.get("TAILER_TORTURE_ROUNDS", "3")))
MESSAGE_ROUNDS = min(75, ROUNDS)
#: The servers that are prepared before the first test.
NEEDS = {
    "clickhouse": "clickhouse", "search": "opensearch", "elasticsearch": "elasticsearch",
    "pubsub": "pubsub", "iceberg-rest": "iceberg-rest",
}  # fmt: skip
KINDS = (
    *("clickhouse", "delta", "files", "iceberg", "nats-mirror", "redis-mirror", "search"),
    *("elasticsearch", "iceberg-rest"),
    *SQL_SINKS,
    *MESSAGE_SINKS,
)
CONFIG = """
[daemon]
http = ""
state = "{state}"
[feeds.orders]
table = "orders"
from = "snapshot"
batch_rows_max = 100
retry_max_s = 0.5
[feeds.orders.sink]
{sink}
"""


@dataclass(frozen=True)
class Target:
    """A sink's target: its options, its offset, its rows by id, and what each write changes."""

    sink: str
    offset: Callable[[], Offset | None]
    rows: Callable[[], list[dict[str, Any]]]
    changed: Callable[[], object]
    #: Whether a second daemon has another state; if not, it waits for the first one.
    fences: bool = True


def files_offset(folder: Path) -> Offset | None:
    found = [entry["offset"] for entry in manifest(folder)]
    return Offset.from_json(found[-1]) if found and found[-1] else None


def without_repeats(events: Sequence[Event]) -> list[Event]:
    """The events in the order of their first appearance; one that came again is the same."""
    first: dict[str, Event] = {}
    for event in events:
        assert first.setdefault(event.event_id, event) == event, "what came again was another"
    return list(first.values())


def state_offset(folder: Path) -> Offset | None:
    """What the daemon has saved."""
    file = folder / "one" / "orders.offset.json"
    kept = json.loads(file.read_text())["offset"] if file.exists() else None
    return None if kept is None else Offset.from_json(kept)


def message_rows(target: MessageTarget) -> list[dict[str, Any]]:
    """The rows that the messages leave."""
    events = target.events()
    if not target.offset:
        events = without_repeats(events)
    ids = [event.event_id for event in events]
    assert len(set(ids)) == len(ids), "an event is there twice"
    if target.by_key:
        of_rows: dict[int, list[int]] = defaultdict(list)
        for event in events:
            of_rows[event.payload["id"]].append(event.commit_version)
        assert all(found == sorted(found) for found in of_rows.values()), "a row's are out of order"
        events = sorted(events, key=lambda event: event.commit_version)
    return rows_left(
        [
            {**e.payload, "_change_type": e.change_type, "_commit_version": e.commit_version}
            for e in events
        ]
    )


def delta_offset(folder: Path) -> Offset | None:
    """The offset of the last commit."""
    if not (folder / "_delta_log").exists():
        return None
    info = json.loads(deltalake.DeltaTable(folder).history(1)[0]["delta-tailer"])
    return Offset.from_json(info["offset"])


def delta_rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deltalake.DeltaTable(folder).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def sql_offset(target: SqlTarget) -> Offset | None:
    """What the database says, if it can be read now."""
    undefined = (psycopg.errors.UndefinedTable, pymysql.err.ProgrammingError)
    with suppress(duckdb.Error, sqlite3.Error, *undefined):
        found = target.query(f'SELECT "offset" FROM {target.prefix}_delta_tailer')
        if found and found[0][0]:
            return Offset.from_json(json.loads(found[0][0]))
    return None


def sql_rows(target: SqlTarget) -> list[dict[str, Any]]:
    names = ("id", "name", "amount")
    found = target.query(f"SELECT {', '.join(names)} FROM {target.prefix}orders ORDER BY id")
    return [dict(zip(names, row, strict=True)) for row in found]


def clickhouse_target(server: ClickHouse) -> Target:
    database = server.database()
    there = f"SELECT 1 FROM system.tables WHERE database = '{database}' AND name ="

    def offset() -> Offset | None:
        if not server.rows(f"{there} 'delta_tailer_offsets'"):
            return None
        newest = f"SELECT argMax(progress, place) AS said FROM {database}.delta_tailer_offsets"
        said = json.loads(server.rows(newest)[0]["said"] or "{}").get("offset")
        return None if said is None else Offset.from_json(json.loads(said))

    def rows() -> list[dict[str, Any]]:
        return server.rows(f"SELECT id, name, amount FROM {database}.orders FINAL ORDER BY id")

    options = f'type = "clickhouse"\nurl = "{server.url}"\ndatabase = "{database}"\nkey = ["id"]'
    return Target(options, offset, rows, offset)


def search_target(server: SearchEngine) -> Target:
    index = f"t{uuid.uuid4().hex}"

    def offset() -> Offset | None:
        found = server.call("GET", f"/delta-tailer/_doc/{index}")[1].get("_source", {})
        return Offset.from_json(json.loads(found["offset"])) if found.get("offset") else None

    def rows() -> list[dict[str, Any]]:
        found = (
            {**row, "amount": float(row["amount"])} for row in server.documents(index).values()
        )
        return sorted(found, key=lambda row: row["id"])

    options = f'type = "search"\nurl = "{server.url}"\nindex = "{index}"\nkey = ["id"]'
    return Target(options, offset, rows, offset)


def redis_mirror_target(server: Redis) -> Target:
    prefix = f"t{uuid.uuid4().hex}:"

    def offset() -> Offset | None:
        with closing(redis.Redis.from_url(server.url())) as client:
            found: Any = client.hget(f"delta-tailer:{{{prefix}}}:{prefix}mirror", "offset")
        return Offset.from_json(json.loads(found)) if found else None

    def rows() -> list[dict[str, Any]]:
        with closing(redis.Redis.from_url(server.url())) as client:
            names: Any = client.keys(f"{prefix}*")
            values: Any = client.mget(names) if names else []
        found = [json.loads(value) for value in values]
        return sorted(found, key=lambda row: row["id"])

    options = f'url = "{server.url()}"\nprefix = "{prefix}"\nkey = ["id"]'
    return Target(f'type = "redis"\nmode = "mirror"\n{options}', offset, rows, offset)


def nats_mirror_target(server: Nats) -> Target:
    bucket = f"t{uuid.uuid4().hex}"
    stream = f"KV_{bucket}"

    def rows() -> list[dict[str, Any]]:
        found = [json.loads(value) for value in nats_entries(server, bucket).values()]
        return sorted(found, key=lambda row: row["id"])

    lines = {"servers": [server.url()], "mode": "mirror", "bucket": bucket, "key": ["id"]}
    options = "\n".join(f"{name} = {json.dumps(value)}" for name, value in lines.items())
    return Target(
        f'type = "nats"\n{options}', lambda: nats_offset(server, stream), rows,
        lambda: nats_last(server, stream),
    )  # fmt: skip


def times(*paths: Path) -> list[tuple[int, int]]:
    """When the files were written last, and their sizes."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            at = path.stat()
            found.append((at.st_mtime_ns, at.st_size))
    return found


def iceberg_target(lake: Lake, at: Path) -> Target:
    return Target(
        lake.toml(key=["id"]), lake.offset,
        lambda: sorted(lake.rows(), key=lambda row: row["id"]),
        lambda: times(at / "catalog.db"),
    )  # fmt: skip


def target_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> Target:
    out = folder / "out"
    match kind:
        case "clickhouse":
            return clickhouse_target(request.getfixturevalue("clickhouse"))
        case "nats-mirror":
            return nats_mirror_target(request.getfixturevalue("nats_server"))
        case "search":
            return search_target(request.getfixturevalue("opensearch"))
        case "elasticsearch":
            return search_target(request.getfixturevalue("elasticsearch"))
        case "redis-mirror":
            return redis_mirror_target(request.getfixturevalue("redis_server"))
        case "files":
            return Target(
                'type = "files"\npath = "out"',
                lambda: files_offset(out), lambda: rows_of_files(out), lambda: times(out / FOLDER),
            )  # fmt: skip
        case "delta":
            return Target(
                'type = "delta"\npath = "out"\nkey = ["id"]',
                lambda: delta_offset(out), lambda: delta_rows(out),
                lambda: times(out / "_delta_log"),
            )  # fmt: skip
        case "iceberg":
            return iceberg_target(Lake(out), out)
        case "iceberg-rest":
            server: RestCatalog = request.getfixturevalue("rest_catalog")
            return iceberg_target(Lake(out, server.url, f"lake{uuid.uuid4().hex}"), server.folder)
    if kind in MESSAGE_SINKS:
        to = message_target(kind, folder, request)
        offset = to.offset or (lambda: state_offset(folder))
        return Target(to.toml, offset, lambda: message_rows(to), to.changed, bool(to.offset))
    sql = sql_target(kind, folder, request)

    def changed() -> object:
        if "path" not in sql.options:
            return sql_offset(sql)
        file = folder / sql.options["path"]
        return times(file, *(file.with_name(f"{file.name}{end}") for end in (".wal", "-wal")))

    options = sql.toml(key=["id"])
    return Target(options, lambda: sql_offset(sql), lambda: sql_rows(sql), changed)


class Daemons:
    """`tailer run`, to be killed and started again; the second has another state, as on another
    machine."""

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder = folder
        self.target = target
        self.errors = folder / "stderr.txt"
        for name in ("one", "two"):
            text = CONFIG.format(state=name if target.fences else "one", sink=target.sink)
            (folder / f"{name}.toml").write_text(text)

    def running(self, config: str = "one") -> AbstractContextManager[Process]:
        return running_daemon(self.folder / f"{config}.toml", self.errors)

    def starts(self) -> int:
        """How often a daemon has begun to follow the table."""
        return self.errors.read_text().count("following") if self.errors.exists() else 0

    def wait_for_write(self, within_s: float) -> None:
        """Until the target changes: a kill then lands in a write, or behind it and before the
        offset is saved in the daemon's state too."""
        before, end = self.target.changed(), time.monotonic() + within_s
        while self.target.changed() == before and time.monotonic() < end:
            time.sleep(0.0002)


def kill(daemons: Daemons, moments: random.Random, number: int) -> str:
    """One round; what it was."""
    what = ("two daemons", "behind a write", "between two writes")[number % 3]
    with daemons.running() as process:
        daemons.wait_for_write(20.0)
        for _ in range(moments.randrange(6)):
            daemons.wait_for_write(0.5)
        if what == "two daemons":
            with daemons.running("two") as other:
                for _ in range(moments.randrange(2, 8)):
                    daemons.wait_for_write(0.5)
                first, second = moments.sample((process, other), 2)
                first.kill()
                daemons.wait_for_write(0.5)
                second.kill()
        else:
            assert process.poll() is None, daemons.errors.read_text()[-2000:]
        if what == "between two writes":
            time.sleep(moments.uniform(0.0, 0.1))
        process.kill()
    return what


@pytest.mark.slow
@pytest.mark.timeout(300 + 20 * ROUNDS)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.needs(NEEDS[kind])] if kind in NEEDS else [])
        for kind in KINDS
    ],
)
def test_the_target_is_exact_when_daemons_are_killed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(2**32)
    moments, seen = random.Random(seed), Counter[str]()
    target = target_of(kind, tmp_path, request)
    daemons = Daemons(tmp_path, target)
    last = Offset(0)
    with writing(Writer(tmp_path, seed)) as writer:
        for number in range(MESSAGE_ROUNDS if kind in MESSAGE_SINKS else ROUNDS):
            seen[kill(daemons, moments, number)] += 1
            assert writer.error is None, writer.error
            at = target.offset() or last
            assert at.position >= last.position, "the offset never goes back"
            writer.read_version, last = at.version, at
    writer.finish()
    end = writer.table.version() + 1
    starts = daemons.starts()
    with daemons.running() as process:

        def at_end() -> bool:
            assert process.poll() is None, daemons.errors.read_text()[-2000:]
            at = target.offset()
            # It may have been at the end before it started.
            return daemons.starts() > starts and at is not None and at.version >= end

        eventually(at_end, PATIENCE_S, lambda: f"{target.offset()} is not {end}", pause_s=0.2)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    found = target.rows()
    expected: list[dict[str, Any]] = writer.table.to_pyarrow_table().to_pylist()
    assert found == sorted(expected, key=lambda row: row["id"])
    if kind not in (*MESSAGE_SINKS, "files"):
        done = run_tailer("verify", str(tmp_path / "one.toml"), "orders")
        assert done.returncode == 0, done
    # With two daemons, both are killed.
    kills = seen.total() + seen["two daemons"]
    record_outcome(
        capsys, kind, seed=seed, kills=kills, **seen, versions=end, rows=len(found),
        lost=0, doubled=0,
    )  # fmt: skip
