"""Servers that feeds deal with, each behind a link that can lie in its place.

A sink's server gets the events of a local table; a store's server has a table whose events go to a
local file. Requests pass to the real server also while its answers are lies.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import deltalake
import pyarrow as pa

from tailer.testing.table import TableBuilder
from tests.catalog.writer import ManagedTable
from tests.clouds.servers import Container
from tests.hostile.lies import PROTOCOLS
from tests.s3.fixture import Bucket
from tests.share_server.serving import configuration, token
from tests.support.components import free_port
from tests.support.link import Link, running_link
from tests.support.programs import started, whole_lines
from tests.torture.places import CatalogPlace
from tests.torture.servers import Servers
from tests.torture.target import Setting
from tests.torture.targets import target_of

SCHEMA = pa.schema([("id", pa.int64())])
_SINKS = (
    "postgres",
    "mysql",
    "redis",
    "nats",
    "rabbitmq",
    "kafka",
    "pubsub",
    "http",
    "sqs",
    "sns",
    "kinesis",
    "firehose",
    "registry",
)
_STORES = ("s3", "az", "gs", "uc", "sharing")
PEERS = (*_SINKS, *_STORES)
#: What each of them speaks.
PROTOCOL_OF: Mapping[str, str] = {
    name: name if name in PROTOCOLS else "http" for name in PEERS
}  # fmt: skip
#: A sink's answer is awaited so long; where nothing can be set, that is far longer.
_TIMEOUT: Mapping[str, Mapping[str, Any]] = {
    **{name: {"timeout_s": 1} for name in _SINKS[:-1]}, "kafka": {"delivery_timeout_ms": 3000},
}  # fmt: skip


class HostilePeer(ABC):
    """A server, the link to it, and a feed that needs it."""

    link: Link
    address: str
    sections: str = ""
    written: int = 0

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder

    def insert(self) -> None:
        """Write a row: the next number."""
        self.written += 1
        self._insert(self.written)

    def lied_to(self, lie: str) -> bytes:  # noqa: ARG002
        """How the requests begin to which the answer is this lie."""
        return b""

    @abstractmethod
    def _insert(self, number: int) -> None:
        """Write a row."""

    def config(self) -> str:
        """The lines of the feed, and of what it needs."""
        feed = {"table": self.address, "from": "earliest", "retry_max_s": 1}
        return (
            f"{self.sections}\n[feeds.{self.kind}]\n{_lines(feed)}"
            f"[feeds.{self.kind}.sink]\n{_lines(self.sink())}"
        )

    @abstractmethod
    def sink(self) -> dict[str, Any]:
        """The options of the feed's sink."""

    @abstractmethod
    def ids(self) -> list[int]:
        """The rows that came, in order; each once where that is promised."""


class _SinkPeer(HostilePeer):
    """The server of a sink; the table is in a local folder."""

    def __init__(self, folder: Path, kind: str, servers: Servers, form: str = "rows") -> None:
        super().__init__(kind, folder)
        self.table = TableBuilder(folder / "orders", SCHEMA, cdf=True)
        self.table.create()
        self.address = str(self.table.folder)
        form = "log" if kind in ("postgres", "mysql") else form
        self.target = target_of(Setting(kind, form, folder, random.Random(4)), servers)
        self.link = self.target.peer.link

    def _insert(self, number: int) -> None:
        self.table.insert([{"id": number}])

    def sink(self) -> dict[str, Any]:
        """See :class:`HostilePeer`."""
        return {"type": self.kind, **self.target.options(), **_TIMEOUT.get(self.kind, {})}

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.target.seen(lambda row: row).rows)


class _RegistryPeer(_SinkPeer):
    """A schema registry. Each row has a column of its own, so that its schema is new."""

    def __init__(self, folder: Path, servers: Servers, link: Link) -> None:
        super().__init__(folder, "kafka", servers, "avro")
        self.kind, self.link = "registry", link

    def _insert(self, number: int) -> None:
        self.table.schema = pa.schema([*SCHEMA, (f"c{number}", pa.int64())])
        self.table.commit(self.table.metadata(), self.table.add([{"id": number}]))

    def sink(self) -> dict[str, Any]:
        options = super().sink()
        url = str(options.pop("registry")["url"])
        there = url.replace(f":{urlsplit(url).port}", f":{self.link.port}")
        return {**options, "type": "kafka", "registry.url": there}


class _StorePeer(HostilePeer):
    """A server of tables; the events are in a local file."""

    def lied_to(self, lie: str) -> bytes:  # noqa: ARG002
        """See :class:`HostilePeer`. What HEAD is answered has no body."""
        return b"GET"

    def sink(self) -> dict[str, Any]:
        """See :class:`HostilePeer`."""
        return {"type": "jsonl", "path": str(self.folder / "out.jsonl")}

    def ids(self) -> list[int]:
        out = self.folder / "out.jsonl"
        lines = [json.loads(line) for line in whole_lines(out)] if out.exists() else []
        known = {line["_event_id"]: line["id"] for line in lines}
        return sorted(known.values())

    def led(self, options: Mapping[str, Any], url: str) -> dict[str, Any]:
        """Options that lead to the link in the server's place."""
        old, here = f":{urlsplit(url).port}", f":{self.link.port}"
        return {k: v.replace(old, here) if isinstance(v, str) else v for k, v in options.items()}


class _CloudPeer(_StorePeer):
    """A bucket or a container."""

    def __init__(self, kind: str, folder: Path, place: Bucket | Container, link: Link) -> None:
        super().__init__(kind, folder)
        self.link, self.place = link, place
        self.address = place.address("t")
        options = self.led(place.options, place.url)
        self.sections = f"[store.{self.address.partition(':')[0]}]\n{_lines(options)}"
        self._commit(pa.table({"id": pa.array([], pa.int64())}))

    def _insert(self, number: int) -> None:
        self._commit(pa.table({"id": [number]}))

    def _commit(self, rows: pa.Table) -> None:
        options = dict(self.place.deltalake)
        deltalake.write_deltalake(self.address, rows, mode="append", storage_options=options)


class _CatalogPeer(_StorePeer):
    """A catalog, whose table lies in a local folder."""

    def __init__(self, folder: Path, managed: ManagedTable, link: Link) -> None:
        super().__init__("uc", folder)
        self.link, self.managed = link, managed.create()
        self.address = managed.address

    def _insert(self, number: int) -> None:  # noqa: ARG002  # it counts by itself
        self.managed.commit()


class _SharingPeer(_StorePeer):
    """A server of `tailer share`."""

    def __init__(self, folder: Path, table: TableBuilder, profile: Path, link: Link) -> None:
        super().__init__("sharing", folder)
        self.link, self.table = link, table
        self.address = f"{profile}#s.x.t"

    def lied_to(self, lie: str) -> bytes:
        """See :class:`HostilePeer`."""
        table = b"/shares/s/schemas/x/tables/t"
        places = {"changes": table + b"/changes", "version": table + b"/version", "file": b"/files"}
        where = places.get(lie.partition(":")[0])
        return b"GET" if where is None else b"GET /delta-sharing" + where

    def _insert(self, number: int) -> None:
        self.table.insert([{"id": number}])


def _lines(options: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())


@contextmanager
def _sharing(folder: Path) -> Iterator[_SharingPeer]:
    table = TableBuilder(folder / "t", SCHEMA, cdf=True)
    table.create()
    port = free_port()
    with running_link(port) as link:
        url = f"http://127.0.0.1:{link.port}/delta-sharing"
        settings = f'address = "127.0.0.1:{port}"\npublic_url = "{url}"'
        config, profile = folder / "share.toml", folder / "alice.share"
        config.write_text(configuration({"s.x.t": table.folder}, settings, {"alice": ["s"]}))
        profile.write_text(token(config, "alice"))
        with started("share", config) as program:
            program.wait_until(lambda: any("sharing " in line for line in program.errors))
            yield _SharingPeer(folder, table, profile, link)
            assert program.stop() == 0, str(program)


@contextmanager
def at_peer(kind: str, folder: Path, servers: Servers) -> Iterator[HostilePeer]:
    """A peer of this kind, with its link, as long as the block runs."""
    if kind == "registry":
        with running_link(servers.registry().port) as link:
            yield _RegistryPeer(folder, servers, link)
    elif kind in _SINKS:
        yield _SinkPeer(folder, kind, servers)
    elif kind == "sharing":
        with _sharing(folder) as peer:
            yield peer
    elif kind == "uc":
        with servers.place("catalog", folder) as place:
            assert isinstance(place, CatalogPlace)
            assert place.link is not None
            yield _CatalogPeer(folder, place.managed, place.link)
    else:
        bucket = servers.bucket(kind)
        with running_link(urlsplit(bucket.url).port or 0) as link:
            yield _CloudPeer(kind, folder, bucket, link)
