"""The servers of stores and sinks, started when the first round needs one, and kept for all rounds.

A daemon reaches a sink's server through a :class:`~tests.support.link.Link`; the proof at the end
goes past it.
"""

from __future__ import annotations

import os
import sys
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.catalog.real import running_real_server
from tests.catalog.server import TOKEN, CatalogServer, serving_catalog
from tests.catalog.writer import ManagedTable
from tests.clouds.servers import Container, run_cloud
from tests.kafka.broker import KAFKA, OLDER_KAFKA, Broker
from tests.s3.fixture import ACCOUNT as S3_ACCOUNT
from tests.s3.fixture import REGION, Bucket, run_server
from tests.support.aws import Aws
from tests.support.brokers import Nats, RabbitMq, Redis
from tests.support.clickhouse import ClickHouse
from tests.support.link import Link, running_link
from tests.support.mysql import Mysql
from tests.support.opensearch import OpenSearch
from tests.support.postgres import Postgres
from tests.support.pubsub import Pubsub
from tests.support.registry import Registry
from tests.support.servers import Server
from tests.support.source import ROOT
from tests.torture.places import CatalogPlace, Place, local_place, remote_place

_STARTS = 3


@dataclass(frozen=True)
class Peer:
    """A sink's server, the way to it, and how it is ended and started again. ``lasting``: it has
    its data again when it comes back."""

    server: Any
    link: Link
    lasting: bool = True

    def kill(self) -> None:
        """End it as a power cut would."""
        self.server.kill() if isinstance(self.server, Broker) else self.server.stop()

    def end(self) -> None:
        """End it as its operator would."""
        self.server.stop() if isinstance(self.server, Broker) else self.server.end()

    def start(self) -> None:
        """Start it again, with its data; on a busy machine at the second or third attempt."""
        for _ in range(_STARTS - 1):
            with suppress(AssertionError, RuntimeError):
                self.server.start()
                return
            self.kill()
        self.server.start()

    @property
    def older(self) -> bool:
        """Whether it is a version that can be upgraded."""
        return isinstance(self.server, Broker) and self.server.home != KAFKA.path()

    def upgrade(self) -> None:
        """End it in order, and start the newest version on its data."""
        self.end()
        self.server.home = KAFKA.path()
        self.start()

    def still(self) -> AbstractContextManager[None]:
        """Have it stand still within the block."""
        standing: AbstractContextManager[None] = self.server.still()
        return standing


def has_older_kafka() -> bool:
    """Whether there is a version of Kafka to upgrade from."""
    try:
        return OLDER_KAFKA.path().exists()
    except (AssertionError, pytest.skip.Exception):
        return False


class Webhook(Server):
    """The receiver of docs/examples, which keeps each event once."""

    name = "webhook"
    secret = f"whsec_{b64encode(bytes(32)).decode()}"

    def start(self) -> None:
        program = ROOT / "docs/examples/webhook.py"
        self.launch("env", f"SECRETS={self.secret}", sys.executable, program, str(self.port))

    @property
    def file(self) -> Path:
        """What it has received."""
        return self.folder / "received.jsonl"


#: What a sink's server is; those of one name are one server.
_PEERS: dict[str, Callable[[], Any]] = {
    "postgres": Postgres, "mysql": Mysql, "redis": Redis, "nats": Nats, "rabbitmq": RabbitMq,
    "http": Webhook, "aws": Aws, "kafka": Broker, "pubsub": Pubsub, "search": OpenSearch,
    "clickhouse": ClickHouse,
}  # fmt: skip


class Servers:
    """All of them, each started when it is asked for."""

    #: What they set, for the daemons.
    environment = (*S3_ACCOUNT, "AWS_DEFAULT_REGION", "DATABRICKS_HOST", "DATABRICKS_TOKEN")

    def __init__(self, stack: ExitStack, folder: Path, *, real_catalog: bool = False) -> None:
        # The daemon finds the account where AWS's own tools do; moto takes any.
        os.environ.update(S3_ACCOUNT, AWS_DEFAULT_REGION=REGION)
        self._stack = stack
        self._real_catalog = real_catalog
        self._catalog: tuple[str, Link, CatalogServer | None] | None = None
        self._folder = folder
        self._peers: dict[str, Peer] = {}
        self._buckets: dict[str, Callable[[], Bucket | Container]] = {}
        self._registry: Registry | None = None

    def peer(self, name: str) -> Peer:
        """A sink's server."""
        if name not in self._peers:
            self._peers[name] = self._started(name, _PEERS[name]())
        return self._peers[name]

    def _started(self, name: str, server: Any) -> Peer:
        if isinstance(server, Broker):
            to = int(server.bootstrap.rpartition(":")[2])
            link = self._stack.enter_context(running_link(to))
            controller = server.voter.rpartition("@")[2]
            # A client goes where the broker says that it is.
            server.settings["advertised.listeners"] = (
                f"PLAINTEXT://127.0.0.1:{link.port},CONTROLLER://{controller}"
            )
        else:
            link = self._stack.enter_context(running_link(server.port))
        self._stack.enter_context(server)
        return Peer(server, link, lasting=name != "aws")

    def older_kafka(self) -> None:
        """From now on, Kafka's broker is of an older version, until somebody upgrades it."""
        if "kafka" in self._peers:
            self._peers["kafka"].server.close()
        self._peers["kafka"] = self._started("kafka", Broker(home=OLDER_KAFKA.path()))

    def registry(self) -> Registry:
        """The schema registry."""
        if self._registry is None:
            self._registry = self._stack.enter_context(Registry())
        return self._registry

    @contextmanager
    def place(self, store: str, folder: Path) -> Iterator[Place]:
        """A place for one table."""
        if store == "local":
            yield local_place(folder)
            return
        if store == "catalog":
            endpoint, link, own = self._catalog = self._catalog or self._started_catalog()
            managed = ManagedTable(endpoint, TOKEN, f"t{uuid.uuid4().hex}")
            state = str(folder / "state")
            yield CatalogPlace(managed.address, state, managed=managed, link=link, server=own)
            return
        with remote_place(self.bucket(store)) as place:
            yield place

    def bucket(self, store: str) -> Bucket | Container:
        """A new bucket or container of a store."""
        if store not in self._buckets:
            self._buckets[store] = self._made_by(store)
        return self._buckets[store]()

    def _started_catalog(self) -> tuple[str, Link, CatalogServer | None]:
        folder = self._folder / "catalog"
        folder.mkdir()
        if self._real_catalog:
            endpoint, own = self._stack.enter_context(running_real_server(folder)), None
        else:
            own = self._stack.enter_context(serving_catalog(folder))
            endpoint = own.endpoint
        to = int(endpoint.rpartition(":")[2])
        link = self._stack.enter_context(running_link(to))
        host = f"http://127.0.0.1:{link.port}"
        os.environ.update(DATABRICKS_HOST=host, DATABRICKS_TOKEN=TOKEN)
        return endpoint, link, own

    def _made_by(self, store: str) -> Callable[[], Bucket | Container]:
        if store == "s3":
            (self._folder / "s3").mkdir()
            server = self._stack.enter_context(run_server(self._folder / "s3"))
            return lambda: server.bucket(f"b-{uuid.uuid4()}")
        cloud = self._stack.enter_context(run_cloud("azure" if store == "az" else "gcs"))
        return cloud.container
