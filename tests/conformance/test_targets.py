"""Every sink whose target was removed, emptied or replaced, against the public suite."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import psycopg
import pyarrow as pa
import pymysql
import pytest
import redis

from tailer.sink import make_sink as made_sink
from tailer.testing.conformance import TargetConformance
from tailer.testing.conformance.sink import MakeSink
from tailer.testing.conformance.target import Change, ReadIds
from tests.support.brokers import Nats, RabbitMq, Redis
from tests.support.message_targets import (
    nats_entries,
    nats_events,
    rabbitmq_events,
    redis_events,
    with_nats,
    with_queue,
)
from tests.support.published import Files
from tests.support.sql_targets import SqlTarget, sql_target

MIRROR = {"key": ["id"]}
LOG = {"mode": "log"}
JUNK = json.dumps({"id": 1, "_change_type": "insert", "_commit_version": 1})


def in_turn(*work: Callable[[], object]) -> Change:
    """All of this, one after the other."""

    def change() -> None:
        for each in work:
            each()

    return change


def removed(folder: Path, pattern: str) -> None:
    for file in folder.glob(pattern):
        file.unlink()


@pytest.fixture
def name() -> str:
    """The name of a new stream or queue."""
    return f"t{uuid.uuid4().hex}"


# In files


class TestJsonl(TargetConformance):
    may_go_on = frozenset({"removed", "emptied", "replaced"})  # as rotated files do

    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> MakeSink:
        return lambda: made_sink("jsonl", {"path": "orders.jsonl"}, tmp_path)

    @pytest.fixture
    def changes(self, tmp_path: Path) -> Mapping[str, Change]:
        file, other = tmp_path / "orders.jsonl", tmp_path / "other"
        return {
            "removed": partial(os.unlink, file),
            "emptied": lambda: file.write_bytes(b""),
            "replaced": in_turn(other.touch, lambda: other.replace(file)),
        }

    @pytest.fixture
    def read_ids(self, tmp_path: Path) -> ReadIds:
        def read() -> Sequence[int]:
            lines = (tmp_path / "orders.jsonl").read_text().splitlines()
            return [json.loads(line)["id"] for line in lines if '"_notice"' not in line]

        return read


class TestFiles(TargetConformance):
    may_go_on = frozenset({"emptied"})  # readers take the files

    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> MakeSink:
        return Files("out", tmp_path).sink

    @pytest.fixture
    def changes(self, tmp_path: Path) -> Mapping[str, Change]:
        folder = tmp_path / "out"
        return {
            "removed": lambda: shutil.rmtree(folder),
            "emptied": lambda: removed(folder, "*.parquet"),
            "replaced": in_turn(lambda: shutil.rmtree(folder), folder.mkdir),
        }

    @pytest.fixture
    def read_ids(self, tmp_path: Path) -> ReadIds:
        return lambda: [row["id"] for row in Files("out", tmp_path).rows()]


class DeltaTarget(TargetConformance):
    options: Mapping[str, Any]

    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> MakeSink:
        return lambda: made_sink("delta", {"path": "copy", **self.options}, tmp_path)

    @pytest.fixture
    def changes(self, tmp_path: Path) -> Mapping[str, Change]:
        folder = tmp_path / "copy"
        gone, other = partial(shutil.rmtree, folder), pa.table({"id": [0], "name": ["theirs"]})
        return {
            "removed": gone,
            "emptied": lambda: deltalake.DeltaTable(folder).delete(),
            "replaced": in_turn(gone, lambda: deltalake.write_deltalake(folder, other)),
        }

    @pytest.fixture
    def read_ids(self, tmp_path: Path) -> ReadIds:
        def read() -> Sequence[int]:
            if not (tmp_path / "copy" / "_delta_log").exists():
                return []
            found = deltalake.DeltaTable(tmp_path / "copy").to_pyarrow_table()
            return [key for key in found["id"].to_pylist() if key]

        return read


class TestDeltaMirror(DeltaTarget):
    options = MIRROR


class TestDeltaLog(DeltaTarget):
    options = LOG
    may_go_on = frozenset({"emptied"})


class FileTarget(TargetConformance):
    """A database in one file."""

    kind: str
    options: Mapping[str, Any] = MIRROR

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / f"lake.{self.kind}"

    @pytest.fixture
    def make_sink(self, tmp_path: Path, file: Path) -> MakeSink:
        return lambda: made_sink(self.kind, {"path": file.name, **self.options}, tmp_path)

    def removed(self, file: Path) -> None:
        removed(file.parent, f"{file.name}*")


class SqliteTarget(FileTarget):
    kind = "sqlite"

    @pytest.fixture
    def changes(self, tmp_path: Path, file: Path) -> Mapping[str, Change]:
        other = tmp_path / "other"

        def run(path: Path, statement: str) -> None:
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                connection.execute(statement)

        return {
            "removed": lambda: self.removed(file),
            "emptied": lambda: run(file, "DELETE FROM orders"),
            "replaced": in_turn(
                lambda: run(other, "CREATE TABLE others (id)"), lambda: other.replace(file)
            ),
        }

    @pytest.fixture
    def read_ids(self, file: Path) -> ReadIds:
        def read() -> Sequence[int]:
            with closing(sqlite3.connect(file)) as connection, suppress(sqlite3.OperationalError):
                return [row[0] for row in connection.execute("SELECT id FROM orders")]
            return []

        return read


class TestSqliteMirror(SqliteTarget):
    pass


class TestSqliteLog(SqliteTarget):
    options = LOG
    may_go_on = frozenset({"emptied"})


class TestDuckdbMirror(FileTarget):
    """Nobody else can empty its table while the sink has it open."""

    kind = "duckdb"

    @pytest.fixture
    def changes(self, tmp_path: Path, file: Path) -> Mapping[str, Change]:
        other = tmp_path / "other"

        def make() -> None:
            duckdb.connect(other).close()

        return {
            "removed": lambda: self.removed(file),
            "replaced": in_turn(make, lambda: self.removed(file), lambda: other.replace(file)),
        }

    @pytest.fixture
    def read_ids(self, file: Path) -> ReadIds:
        def read() -> Sequence[int]:
            with duckdb.connect(file) as connection, suppress(duckdb.CatalogException):
                return [row[0] for row in connection.execute("SELECT id FROM orders").fetchall()]
            return []

        return read


# In servers


class ServerTarget(TargetConformance):
    """A table in a database server."""

    kind: str
    options: Mapping[str, Any] = MIRROR

    @pytest.fixture
    def target(self, tmp_path: Path, request: pytest.FixtureRequest) -> SqlTarget:
        return sql_target(self.kind, tmp_path, request)

    @pytest.fixture
    def make_sink(self, tmp_path: Path, target: SqlTarget) -> MakeSink:
        return lambda: made_sink(self.kind, {**target.options, **self.options}, tmp_path)

    @pytest.fixture
    def changes(self, target: SqlTarget) -> Mapping[str, Change]:
        orders = f"{target.prefix}orders"

        def run(*statements: str) -> Change:
            return in_turn(*(partial(target.query, statement) for statement in statements))

        schema = target.prefix.rstrip(".")
        database = {"postgres": f"SCHEMA {schema} CASCADE", "mysql": f"DATABASE {schema}"}
        made = {"postgres": f"SCHEMA {schema}", "mysql": f"DATABASE {schema}"}
        return {
            "removed": run(f"DROP {database[self.kind]}", f"CREATE {made[self.kind]}"),
            "emptied": run(f"TRUNCATE TABLE {orders}"),
            "replaced": run(
                f"CREATE TABLE {orders}_other (LIKE {orders})",
                f"DROP TABLE {orders}",
                f"ALTER TABLE {orders}_other RENAME TO "
                f"{orders if self.kind == 'mysql' else 'orders'}",
            ),
        }

    @pytest.fixture
    def read_ids(self, target: SqlTarget) -> ReadIds:
        def read() -> Sequence[int]:
            with suppress(psycopg.errors.UndefinedTable, pymysql.err.ProgrammingError):
                return [row[0] for row in target.query(f"SELECT id FROM {target.prefix}orders")]
            return []

        return read


class TestPostgresMirror(ServerTarget):
    kind = "postgres"


class TestPostgresLog(ServerTarget):
    kind = "postgres"
    options = LOG
    may_go_on = frozenset({"emptied", "replaced"})


class TestMysqlMirror(ServerTarget):
    kind = "mysql"


class TestMysqlLog(ServerTarget):
    kind = "mysql"
    options = LOG
    may_go_on = frozenset({"emptied", "replaced"})


class TestRedis(TargetConformance):
    @pytest.fixture
    def make_sink(self, redis_server: Redis, name: str) -> MakeSink:
        options = {"url": redis_server.url(), "stream": name}
        return lambda: made_sink("redis", options, Path())

    @pytest.fixture
    def changes(self, redis_server: Redis, name: str) -> Mapping[str, Change]:
        def run(*commands: tuple[str, ...]) -> Change:
            def change() -> None:
                with closing(redis.Redis.from_url(redis_server.url())) as client:
                    for command in commands:
                        client.execute_command(*command)  # type: ignore[no-untyped-call]

            return change

        both = ("DEL", name, f"delta-tailer:{{{name}}}:{name}")
        return {
            "removed": run(both),
            "emptied": run(("DEL", name)),
            "replaced": run(both, ("XADD", name, "*", "id", "0", "event", JUNK)),
        }

    @pytest.fixture
    def read_ids(self, redis_server: Redis, name: str) -> ReadIds:
        return lambda: [event.payload["id"] for event in redis_events(redis_server, name)]


class TestNats(TargetConformance):
    may_go_on = frozenset({"emptied"})

    @pytest.fixture
    def make_sink(self, nats_server: Nats, name: str, monkeypatch: pytest.MonkeyPatch) -> MakeSink:
        monkeypatch.setattr("sinks.nats.stream._BUCKET", f"{name}-b")
        options = {"servers": [nats_server.url()], "stream": name, "subject": name}
        return lambda: made_sink("nats", options, Path())

    @pytest.fixture
    def changes(self, nats_server: Nats, name: str) -> Mapping[str, Change]:
        async def removed(jetstream: Any) -> None:
            await jetstream.delete_stream(name)
            await jetstream.delete_key_value(f"{name}-b")

        async def replaced(jetstream: Any) -> None:
            await jetstream.delete_stream(name)
            await jetstream.add_stream(name=name, subjects=[name])
            for number in range(3):
                headers = {"Nats-Msg-Id": str(number)}
                await jetstream.publish(name, JUNK.encode(), headers=headers)

        async def emptied(jetstream: Any) -> None:
            await jetstream.purge_stream(name)

        changes = {"removed": removed, "emptied": emptied, "replaced": replaced}
        return {n: lambda w=work: with_nats(nats_server, w) for n, work in changes.items()}  # type: ignore[misc]

    @pytest.fixture
    def read_ids(self, nats_server: Nats, name: str) -> ReadIds:
        return lambda: [event.payload["id"] for event in nats_events(nats_server, name)]


class TestNatsMirror(TargetConformance):
    @pytest.fixture
    def make_sink(self, nats_server: Nats, name: str, monkeypatch: pytest.MonkeyPatch) -> MakeSink:
        monkeypatch.setattr("sinks.nats.stream._BUCKET", f"{name}-b")
        servers = [nats_server.url()]
        options = {"servers": servers, "mode": "mirror", "bucket": name, "key": ["id"]}
        return lambda: made_sink("nats", options, Path())

    @pytest.fixture
    def changes(self, nats_server: Nats, name: str) -> Mapping[str, Change]:
        async def removed(jetstream: Any) -> None:
            await jetstream.delete_key_value(name)
            await jetstream.delete_key_value(f"{name}-b")

        async def replaced(jetstream: Any) -> None:
            await jetstream.delete_key_value(name)
            entries = await jetstream.create_key_value(bucket=name, direct=True)
            for number in range(3):
                await entries.put(str(number), JUNK.encode())

        async def emptied(jetstream: Any) -> None:
            await jetstream.purge_stream(f"KV_{name}")

        changes = {"removed": removed, "emptied": emptied, "replaced": replaced}
        return {n: lambda w=work: with_nats(nats_server, w) for n, work in changes.items()}  # type: ignore[misc]

    @pytest.fixture
    def read_ids(self, nats_server: Nats, name: str) -> ReadIds:
        return lambda: [json.loads(v)["id"] for v in nats_entries(nats_server, name).values()]


class TestRabbitmq(TargetConformance):
    may_go_on = frozenset({"emptied", "replaced"})  # as if its messages had been taken

    @pytest.fixture
    def make_sink(self, rabbitmq_server: RabbitMq, name: str) -> MakeSink:
        options = {"url": rabbitmq_server.url(), "queue": name, "queue_type": "classic"}
        return lambda: made_sink("rabbitmq", options, Path())

    @pytest.fixture
    def changes(self, rabbitmq_server: RabbitMq, name: str) -> Mapping[str, Change]:
        def replaced(channel: Any) -> None:
            channel.queue_delete(name)
            channel.queue_declare(name, durable=True)

        server = rabbitmq_server
        return {
            "removed": lambda: with_queue(server, lambda channel: channel.queue_delete(name)),
            "emptied": lambda: with_queue(server, lambda channel: channel.queue_purge(name)),
            "replaced": lambda: with_queue(server, replaced),
        }

    @pytest.fixture
    def read_ids(self, rabbitmq_server: RabbitMq, name: str) -> ReadIds:
        return lambda: [event.payload["id"] for event in rabbitmq_events(rabbitmq_server, name)]
