"""A round's sink, and what it holds at the end: one small class a sink.

A target says what it promises (``proof``), which server it needs, and what it has. ``fences``: a
second daemon with another state is kept from writing by the target itself; otherwise two daemons
share their state.
"""

from __future__ import annotations

import io
import json
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import deltalake
import fastavro
import pyarrow as pa
import redis

from tests.kafka.topics import create_topic
from tests.support.iceberg import Lake
from tests.support.message_targets import (
    nats_entries,
    nats_messages,
    rabbitmq_messages,
    redis_messages,
)
from tests.support.published import tables
from tests.support.topic_records import read_topic
from tests.torture.databases import COPIES, CopyTarget
from tests.torture.events import Record, Rename, Seen, proven
from tests.torture.servers import Servers, Webhook
from tests.torture.target import Setting, Target

AT_LEAST_ONCE, EXACTLY_ONCE = "at least once", "exactly once"


class JsonLines(Target):
    """A file, at least once."""

    proof = AT_LEAST_ONCE
    fences = False
    local = True

    def options(self) -> dict[str, Any]:
        own = {"key": ["id"]} if self.setting.format == "debezium" else {}
        return {"path": "out.jsonl", "format": self.setting.format, **own}

    def seen(self, rename: Rename) -> Seen:
        lines = (self.setting.folder / "out.jsonl").read_bytes().splitlines()
        records = [Record(line) for line in lines if b'"_notice"' not in line]
        return proven(records, rename, exactly_once=False)


class Files(Target):
    """Parquet files, exactly once."""

    proof = EXACTLY_ONCE
    local = True

    def options(self) -> dict[str, Any]:
        return {"path": "out", "format": self.setting.format}

    def seen(self, rename: Rename) -> Seen:
        files = tables(self.setting.folder / "out")
        return rows_seen(pa.concat_tables(files, promote_options="permissive").to_pylist(), rename)


def rows_seen(rows: list[dict[str, Any]], rename: Rename) -> Seen:
    """What rows of change events prove, each there once."""
    records = [Record(json.dumps(row, default=str).encode(), row["_event_id"]) for row in rows]
    return proven(records, rename, exactly_once=True)


class Delta(CopyTarget):
    """A copy in a Delta table, or a log."""

    local = True

    def options(self) -> dict[str, Any]:
        return {"path": "out", **self.mode()}

    def table_rows(self) -> list[dict[str, Any]]:
        table = deltalake.DeltaTable(self.setting.folder / "out")
        rows: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
        return rows


class Iceberg(CopyTarget):
    """A copy in an Iceberg table, or a log."""

    local = True

    @property
    def lake(self) -> Lake:
        """The catalog."""
        return Lake(self.setting.folder / "lake")

    def options(self) -> dict[str, Any]:
        return {"table": "lake.orders", "catalog": self.lake.properties, **self.mode()}

    def table_rows(self) -> list[dict[str, Any]]:
        return self.lake.rows()


class Messages(Target):
    """A broker's messages."""

    #: Whether several requests are on their way at the same time: then the events of each key have
    #: their order.
    overlapping = False

    @property
    def keyed(self) -> bool:
        """Whether events have a key."""
        return self.setting.format == "debezium"

    def format_options(self) -> dict[str, Any]:
        """The options of the format."""
        own = {"key": ["id"]} if self.keyed else {}
        return {"format": self.setting.format, **own}

    def place(self, body: bytes) -> int:
        """What has an order of its own: all, or the events of a key."""
        if not (self.overlapping and self.keyed):
            return 0
        event = json.loads(body)
        row = event.get("data") or event.get("after") or event.get("before") or event
        return int(row["id"])

    def seen(self, rename: Rename) -> Seen:
        found = self.messages()
        records = [Record(body, event_id, self.place(body)) for event_id, body in found]
        exactly = self.proof == EXACTLY_ONCE
        return proven(records, rename, exactly_once=exactly, ordered=self.ordered)

    #: Whether messages stand in the order in which they were sent.
    ordered = True

    @abstractmethod
    def messages(self) -> list[tuple[str, bytes]]:
        """All messages, each with its event id where it is not in the body."""


class CopyOrMessages(Messages):
    """Messages, exactly once, or a copy."""

    def __init__(self, setting: Setting, servers: Servers) -> None:
        super().__init__(setting, servers)
        self.proof = "mirror" if setting.format == "mirror" else EXACTLY_ONCE

    def seen(self, rename: Rename) -> Seen:
        if self.proof != "mirror":
            return super().seen(rename)
        return Seen([json.loads(value) for value in self.entries()])

    @abstractmethod
    def entries(self) -> list[bytes]:
        """The copy's rows."""


class Redis(CopyOrMessages):
    """A stream, exactly once, or a copy."""

    server = "redis"

    def options(self) -> dict[str, Any]:
        url = self.through(self.peer.server.url())
        if self.proof == "mirror":
            return {"url": url, "mode": "mirror", "prefix": f"{self.name}:", "key": ["id"]}
        return {"url": url, "stream": self.name, **self.format_options()}

    def entries(self) -> list[bytes]:
        with closing(redis.Redis.from_url(self.peer.server.url())) as client:
            names: Any = client.keys(f"{self.name}:*")
            values: Any = client.mget(names) if names else []
        return list(values)

    def messages(self) -> list[tuple[str, bytes]]:
        return redis_messages(self.peer.server, self.name)


class Search(CopyTarget):
    """A copy in a search engine, or a log."""

    server = "search"

    def options(self) -> dict[str, Any]:
        return {"url": self.through(self.peer.server.url), "index": self.name, **self.mode()}

    def table_rows(self) -> list[dict[str, Any]]:
        return list(self.peer.server.documents(self.name).values())


class ClickHouse(CopyTarget):
    """A copy in ClickHouse, or a log, as a reader with FINAL sees it."""

    server = "clickhouse"

    def options(self) -> dict[str, Any]:
        url = self.through(self.peer.server.url)
        self.peer.server.query("CREATE DATABASE IF NOT EXISTS lake")
        return {"url": url, "database": "lake", "table": self.name, **self.mode()}

    def table_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.peer.server.rows(f"SELECT * FROM lake.{self.name} FINAL")
        ours = ("_version", "_is_deleted")
        return [{name: v for name, v in row.items() if name not in ours} for row in rows]


class Nats(CopyOrMessages):
    """A JetStream stream, exactly once, or a copy in a bucket."""

    server = "nats"

    def options(self) -> dict[str, Any]:
        servers = [self.through(self.peer.server.url())]
        if self.proof == "mirror":
            return {"servers": servers, "mode": "mirror", "bucket": self.name, "key": ["id"]}
        return {
            "servers": servers,
            "stream": self.name,
            "subject": self.name,
            **self.format_options(),
        }

    def entries(self) -> list[bytes]:
        return list(nats_entries(self.peer.server, self.name).values())

    def messages(self) -> list[tuple[str, bytes]]:
        return nats_messages(self.peer.server, self.name)


class RabbitMq(Messages):
    """A queue, at least once."""

    server = "rabbitmq"
    proof = AT_LEAST_ONCE
    fences = False

    def options(self) -> dict[str, Any]:
        kind = self.setting.chance.choice(("classic", "quorum"))
        url = self.through(self.peer.server.url())
        return {"url": url, "queue": self.name, "queue_type": kind, **self.format_options()}

    def messages(self) -> list[tuple[str, bytes]]:
        return rabbitmq_messages(self.peer.server, self.name)


class Http(Messages):
    """A webhook that keeps each event once."""

    server = "http"
    proof = AT_LEAST_ONCE
    fences = False
    overlapping = True

    def __init__(self, setting: Setting, servers: Servers) -> None:
        super().__init__(setting, servers)
        self._is_keyed = setting.chance.random() < 0.7
        file = self.peer.server.file  # of all rounds
        self.before = file.stat().st_size if file.exists() else 0

    def options(self) -> dict[str, Any]:
        url = self.through(f"http://127.0.0.1:{self.peer.server.port}/{self.name}")
        key = ["id"] if self.keyed else []
        few = self.setting.chance.choice((1, 7, 100))
        return {
            "url": url, "secrets": [Webhook.secret], "timeout_s": 5, "key": key,
            "request_events_max": few,
        }  # fmt: skip

    @property
    def keyed(self) -> bool:
        return self._is_keyed

    def messages(self) -> list[tuple[str, bytes]]:
        file = self.peer.server.file
        received = file.read_bytes()[self.before :] if file.exists() else b""
        return [("", line) for line in received.splitlines()]


class Aws(Messages):
    """One of AWS's services, at least once."""

    server = "aws"
    proof = AT_LEAST_ONCE
    fences = False
    overlapping = True

    @property
    def ordered(self) -> bool:  # type: ignore[override]
        return self.setting.sink in ("kinesis", "sqs", "sns")

    def options(self) -> dict[str, Any]:
        made = self.peer.server.options(self.setting.sink, self.name)
        return {**made, "endpoint_url": self.through(made["endpoint_url"]), **self.format_options()}

    def messages(self) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = self.peer.server.messages(self.setting.sink, self.name)
        return found


class Pubsub(Messages):
    """A topic, at least once, by its key, if it has one."""

    server = "pubsub"
    proof = AT_LEAST_ONCE
    fences = False
    overlapping = True

    def __init__(self, setting: Setting, servers: Servers) -> None:
        super().__init__(setting, servers)
        self.topic = self.peer.server.topic(self.name)

    def options(self) -> dict[str, Any]:
        url = self.through(self.peer.server.url)
        shared = self.setting.chance.choice((0, 0, 2))
        return {
            "topic": self.topic, "endpoint_url": url, "timeout_s": 5, "ordering_keys": shared,
            **self.format_options(),
        }  # fmt: skip

    def messages(self) -> list[tuple[str, bytes]]:
        found = self.peer.server.messages(self.name)
        return [(message.event_id, message.data) for message in found]


class Kafka(Target):
    """A topic of some partitions, by key: exactly once or at least once, as it is drawn."""

    server = "kafka"

    def __init__(self, setting: Setting, servers: Servers) -> None:
        super().__init__(setting, servers)
        self.exactly = setting.chance.random() < 0.7
        self.proof = EXACTLY_ONCE if self.exactly else AT_LEAST_ONCE
        self.fences = self.exactly
        self.partitions = setting.chance.randint(1, 3)
        self._schemas: dict[int, Any] = {}
        self._registry = servers.registry() if setting.format.startswith("avro") else None
        create_topic(self.bootstrap, self.name, self.partitions)

    @property
    def bootstrap(self) -> str:
        """The broker's address, by the link."""
        return f"127.0.0.1:{self.peer.link.port}"

    def options(self) -> dict[str, Any]:
        kind, _, envelope = self.setting.format.partition(" ")
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap, "topic": self.name, "format": kind,
            "key": ["id"], "delivery": "exactly-once" if self.exactly else "at-least-once",
            "delivery_timeout_ms": 8000, "transactional_id": self.name,
            "progress_topic": f"{self.name}-progress",
            "compression": self.setting.chance.choice(("none", "gzip", "zstd", "lz4", "snappy")),
        }  # fmt: skip
        if self._registry is not None:
            options["registry"] = {"url": self._registry.url}
            options["envelope"] = "debezium" if envelope else "rows"
        return options

    def seen(self, rename: Rename) -> Seen:
        records, kinds = [], {}
        for message in read_topic(self.bootstrap, self.name):
            assert message.value is not None
            event_id = message.headers["_event_id"].decode()
            kinds[event_id] = message.headers
            records.append(Record(message.value, event_id, message.partition, message.key))
        if self._registry is None:
            return proven(records, rename, exactly_once=self.exactly)

        def rows(record: Record) -> list[dict[str, Any]]:
            return self._avro_rows(record, kinds[record.event_id])

        return proven(records, rename, exactly_once=self.exactly, decode=rows)

    def _avro_rows(self, record: Record, headers: Mapping[str, bytes]) -> list[dict[str, Any]]:
        event = self._avro(record.body)
        about = {"_commit_version": int(headers["_commit_version"])}
        if "envelope" not in self.setting.format:
            own = {name: value for name, value in event.items() if name[0] != "_"}
            return [{**own, **about, "_change_type": headers["_change_type"].decode()}]
        images = (("delete", event["before"]), ("insert", event["after"]))
        return [{**row, **about, "_change_type": kind} for kind, row in images if row is not None]

    def _avro(self, data: bytes) -> Any:
        number = int.from_bytes(data[1:5], "big")
        if number not in self._schemas:
            assert self._registry is not None
            answer = json.loads(self._registry.call("GET", f"/schemas/ids/{number}")[1])
            self._schemas[number] = fastavro.parse_schema(json.loads(answer["schema"]))
        return fastavro.schemaless_reader(io.BytesIO(data[5:]), self._schemas[number])


TARGETS: Mapping[str, type[Target]] = {
    "jsonl": JsonLines, "files": Files, "delta": Delta, "iceberg": Iceberg, **COPIES,
    "kafka": Kafka, "redis": Redis, "nats": Nats, "rabbitmq": RabbitMq, "search": Search,
    "clickhouse": ClickHouse, "http": Http, "sqs": Aws, "sns": Aws, "kinesis": Aws, "firehose": Aws,
    "pubsub": Pubsub,
}  # fmt: skip


def target_of(setting: Setting, servers: Servers) -> Target:
    """A new target."""
    return TARGETS[setting.sink](setting, servers)
