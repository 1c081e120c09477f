"""A writer of catalog-managed tables: stages, asks the catalog to ratify, publishes.

It follows the protocol's text and the catalog's API, and shares no code with this project.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from tests.clouds.servers import Container

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
_LOG = "_delta_log"


class Files(Protocol):
    """The files below a table's location."""

    def write(self, name: str, data: bytes, time_s: int | None = None) -> None:
        """Write a file, which its storage says is of this time if it can."""

    def read(self, name: str) -> bytes:
        """A file's bytes."""

    def remove(self, name: str) -> None:
        """Remove a file."""


@dataclass(frozen=True)
class LocalFiles:
    """Files of a local folder."""

    root: Path

    def write(self, name: str, data: bytes, time_s: int | None = None) -> None:
        """See :class:`Files`."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if time_s is not None:
            os.utime(path, (time_s, time_s))

    def read(self, name: str) -> bytes:
        """See :class:`Files`."""
        return (self.root / name).read_bytes()

    def remove(self, name: str) -> None:
        """See :class:`Files`."""
        (self.root / name).unlink()


@dataclass
class CloudFiles:
    """Files below a key of a container, written with its account's own key."""

    container: Container
    key: str

    @cached_property
    def _client(self) -> Any:
        return self.container.other_client

    def write(self, name: str, data: bytes, time_s: int | None = None) -> None:  # noqa: ARG002
        """See :class:`Files`."""
        import obstore

        obstore.put(self._client, f"{self.key}/{name}", data, use_multipart=False)

    def read(self, name: str) -> bytes:
        """See :class:`Files`."""
        import obstore

        return bytes(obstore.get(self._client, f"{self.key}/{name}").bytes())

    def remove(self, name: str) -> None:
        """See :class:`Files`."""
        import obstore

        obstore.delete(self._client, f"{self.key}/{name}")


@dataclass(frozen=True)
class Staged:
    """A staged commit; nobody may read it before it is ratified."""

    version: int
    name: str
    timestamp_ms: int
    size: int

    @property
    def file(self) -> str:
        """Its file, below the table's location."""
        return f"{_LOG}/_staged_commits/{self.name}"


@dataclass
class ManagedTable:
    """One table ``main.SCHEMA.NAME`` on a server of the API. ``published`` is the newest version
    that lies in ``_delta_log``; ``container`` is where the catalog has its tables, if that is no
    local folder."""

    endpoint: str
    token: str = ""
    name: str = "orders"
    schema: str = "sales"
    container: Container | None = None
    feature: str = "catalogManaged"
    table_id: str = ""
    location: str = ""
    latest: int = 0
    published: int = 0
    staged: dict[int, Staged] = field(default_factory=dict)
    _clock_ms: int = 1_767_225_600_000

    @property
    def address(self) -> str:
        """The address to follow it by."""
        return f"uc://main.{self.schema}.{self.name}"

    @property
    def root(self) -> Path:
        """Its local folder."""
        return Path(self.location.removeprefix("file://"))

    @property
    def log(self) -> Path:
        """The local folder of its log."""
        return self.root / _LOG

    @cached_property
    def files(self) -> Files:
        """Its files."""
        if self.container is None:
            return LocalFiles(self.root)
        return CloudFiles(self.container, urlsplit(self.location).path.strip("/"))

    @property
    def path(self) -> str:
        """Its path in the Delta API."""
        return f"/delta/v1/catalogs/main/schemas/{self.schema}/tables/{self.name}"

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request; its status, and its answer."""
        request = urllib.request.Request(  # noqa: S310 - a server of the tests
            f"{self.endpoint}/api/2.1/unity-catalog{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json", "authorization": f"Bearer {self.token}"},
        )
        try:
            with urllib.request.urlopen(request) as answer:  # noqa: S310
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as e:
            with e:
                return e.code, json.loads(e.read() or b"null")

    def create(self) -> ManagedTable:
        """Make the table, with version 0."""
        self.call("POST", "/catalogs", {"name": "main"})
        self.call("POST", "/schemas", {"name": self.schema, "catalog_name": "main"})
        tables = self.path.rpartition("/")[0]
        staging = tables.replace("/tables", "/staging-tables")
        status, made = self.call("POST", staging, {"name": self.name})
        assert status == 200, made
        self.table_id = made["table-id"]
        self.location = made["location"]
        columns = {
            "type": "struct",
            "fields": [
                {"name": name, "type": kind, "nullable": True, "metadata": {}}
                for name, kind in (("id", "long"), ("v", "string"))
            ],
        }
        required = made["required-properties"]
        properties = {k: v for k, v in required.items() if v is not None}
        properties["delta.enableChangeDataFeed"] = "true"
        now, info = self._info("CREATE TABLE")
        readers = [self.feature, "v2Checkpoint", "vacuumProtocolCheck"]
        writers = [*readers, "inCommitTimestamp", "changeDataFeed", "appendOnly", "invariants"]
        self._write(
            f"{_LOG}/{0:020d}.json",
            info,
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7,
                          "readerFeatures": readers, "writerFeatures": writers}},
            {"metaData": {"id": self.table_id, "format": {"provider": "parquet", "options": {}},
                          "schemaString": json.dumps(columns), "partitionColumns": [],
                          "configuration": properties, "createdTime": now}},
        )  # fmt: skip
        status, answer = self.call("POST", tables, {
            "name": self.name, "location": made["location"], "table-type": "MANAGED",
            "data-source-format": "DELTA", "columns": columns, "properties": properties,
            "last-commit-timestamp-ms": now,
            "protocol": {"min-reader-version": 3, "min-writer-version": 7,
                         "reader-features": readers, "writer-features": writers},
        })  # fmt: skip
        assert status == 200, answer
        return self

    def _info(self, operation: str) -> tuple[int, dict[str, Any]]:
        self._clock_ms = max(self._clock_ms + 1, int(time.time() * 1000))
        now = self._clock_ms
        info = {"inCommitTimestamp": now, "timestamp": now, "operation": operation}
        return now, {"commitInfo": {**info, "txnId": str(uuid.uuid4())}}

    def _write(self, name: str, *actions: dict[str, Any]) -> int:
        data = "".join(json.dumps(action) + "\n" for action in actions).encode()
        self.files.write(name, data)
        return len(data)

    def stage(self, version: int | None = None, text: str = "", *more: dict[str, Any]) -> Staged:
        """Write the data and the staged commit of a version."""
        version = self.latest + 1 if version is None else version
        file = f"part-{version}-{uuid.uuid4()}.parquet"
        rows = pa.table({"id": [version], "v": [text or f"v{version}"]}, SCHEMA)
        data = pa.BufferOutputStream()
        pq.write_table(rows, data)
        written = data.getvalue().to_pybytes()
        self.files.write(file, written)
        now, info = self._info("WRITE")
        name = f"{version:020d}.{uuid.uuid4()}.json"
        add = {"path": file, "partitionValues": {}, "size": len(written), "modificationTime": now,
               "dataChange": True}  # fmt: skip
        size = self._write(f"{_LOG}/_staged_commits/{name}", info, *more, {"add": add})
        return Staged(version, name, now, size)

    def ratify(self, staged: Staged, published: int | None = None) -> int:
        """Ask the catalog to ratify; the status: 200, or 409 where the version is taken.
        ``published`` tells it the newest version that lies in ``_delta_log``."""
        commit = {
            "version": staged.version, "timestamp": staged.timestamp_ms, "file-name": staged.name,
            "file-size": staged.size, "file-modification-timestamp": staged.timestamp_ms,
        }  # fmt: skip
        updates: list[dict[str, Any]] = [{"action": "add-commit", "commit": commit}]
        if published is not None:
            updates.append(self._backfilled(published))
        status, answer = self._update(updates)
        assert status in (200, 409), answer
        if status == 200:
            self.latest = max(self.latest, staged.version)
            self.staged[staged.version] = staged
        return status

    def _backfilled(self, published: int) -> dict[str, Any]:
        return {"action": "set-latest-backfilled-version", "latest-published-version": published}

    def _update(self, updates: list[dict[str, Any]]) -> tuple[int, Any]:
        requirements = [{"type": "assert-table-uuid", "uuid": self.table_id}]
        body = {"requirements": requirements, "updates": updates}
        return self.call("POST", self.path, body)

    def commit(self, text: str = "", *more: dict[str, Any]) -> Staged:
        """Stage and ratify the next version."""
        staged = self.stage(None, text, *more)
        assert self.ratify(staged) == 200
        return staged

    def commit_by_path(self, *more: dict[str, Any]) -> None:
        """Commit the next version as to a table that no catalog manages."""
        staged = self.stage(None, "", *more)
        self.files.write(f"{_LOG}/{staged.version:020d}.json", self.files.read(staged.file))
        self.files.remove(staged.file)
        self.latest = self.published = staged.version

    def become_managed(self) -> None:
        """Have a table by path managed by its catalog, from its next version on."""
        readers = ["catalogManaged", "v2Checkpoint", "vacuumProtocolCheck"]
        writers = [*readers, "inCommitTimestamp", "changeDataFeed"]
        self.commit_by_path({"protocol": {
            "minReaderVersion": 3, "minWriterVersion": 7,
            "readerFeatures": readers, "writerFeatures": writers,
        }})  # fmt: skip
        protocol = {"min-reader-version": 3, "min-writer-version": 7,
                    "reader-features": readers, "writer-features": writers}  # fmt: skip
        status, answer = self._update([
            {"action": "set-protocol", "protocol": protocol},
            {"action": "update-metadata-snapshot-version", "last-commit-version": self.latest,
             "last-commit-timestamp-ms": self._clock_ms},
        ])  # fmt: skip
        assert status == 200, answer

    def publish(self, *, tell: bool = True, clean: bool = False) -> int:
        """Publish the next version that is ratified; ``tell`` the catalog, and ``clean`` up what
        was staged. Returns the version."""
        version = self.published + 1
        data = self.files.read(self.staged[version].file)
        # Another file, with another time.
        self.files.write(f"{_LOG}/{version:020d}.json", data, 1_000_000_000 + version)
        self.published = version
        if tell:
            self.backfilled(version)
        if clean:
            self.clean(version)
        return version

    def clean(self, version: int) -> None:
        """Remove what was staged for a version that is published."""
        self.files.remove(self.staged[version].file)

    def backfilled(self, version: int) -> None:
        """Tell the catalog that all versions up to this one are published."""
        status, answer = self._update([self._backfilled(version)])
        assert status == 200, answer
