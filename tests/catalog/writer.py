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
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["SCHEMA", "ManagedTable", "Staged"]

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@dataclass(frozen=True)
class Staged:
    """A staged commit; nobody may read it before it is ratified."""

    version: int
    name: str
    timestamp_ms: int


@dataclass
class ManagedTable:
    """One table ``main.sales.NAME`` on a server of the API. ``published`` is the newest version
    that lies in ``_delta_log``."""

    endpoint: str
    token: str = ""
    name: str = "orders"
    feature: str = "catalogManaged"
    table_id: str = ""
    root: Path = field(default_factory=Path)
    latest: int = 0
    published: int = 0
    staged: dict[int, Staged] = field(default_factory=dict)
    _clock_ms: int = 1_767_225_600_000

    @property
    def address(self) -> str:
        """The address to follow it by."""
        return f"uc://main.sales.{self.name}"

    @property
    def log(self) -> Path:
        """The folder of its log."""
        return self.root / "_delta_log"

    @property
    def path(self) -> str:
        """Its path in the Delta API."""
        return f"/delta/v1/catalogs/main/schemas/sales/tables/{self.name}"

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
            return e.code, json.loads(e.read() or b"null")

    def create(self) -> ManagedTable:
        """Make the table, with version 0."""
        self.call("POST", "/catalogs", {"name": "main"})
        self.call("POST", "/schemas", {"name": "sales", "catalog_name": "main"})
        tables = self.path.rpartition("/")[0]
        staging = tables.replace("/tables", "/staging-tables")
        status, made = self.call("POST", staging, {"name": self.name})
        assert status == 200, made
        self.table_id = made["table-id"]
        self.root = Path(made["location"].removeprefix("file://"))
        (self.log / "_staged_commits").mkdir(parents=True)
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
            self.log / f"{0:020d}.json",
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

    def _write(self, path: Path, *actions: dict[str, Any]) -> None:
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))

    def stage(self, version: int | None = None, text: str = "", *more: dict[str, Any]) -> Staged:
        """Write the data and the staged commit of a version."""
        version = self.latest + 1 if version is None else version
        file = f"part-{version}-{uuid.uuid4()}.parquet"
        rows = pa.table({"id": [version], "v": [text or f"v{version}"]}, SCHEMA)
        pq.write_table(rows, self.root / file)
        now, info = self._info("WRITE")
        name = f"{version:020d}.{uuid.uuid4()}.json"
        size = (self.root / file).stat().st_size
        add = {"path": file, "partitionValues": {}, "size": size, "modificationTime": now,
               "dataChange": True}  # fmt: skip
        self._write(self.log / "_staged_commits" / name, info, *more, {"add": add})
        return Staged(version, name, now)

    def ratify(self, staged: Staged, published: int | None = None) -> int:
        """Ask the catalog to ratify; the status: 200, or 409 where the version is taken.
        ``published`` tells it the newest version that lies in ``_delta_log``."""
        path = self.log / "_staged_commits" / staged.name
        commit = {
            "version": staged.version, "timestamp": staged.timestamp_ms, "file-name": staged.name,
            "file-size": path.stat().st_size, "file-modification-timestamp": staged.timestamp_ms,
        }  # fmt: skip
        updates: list[dict[str, Any]] = [{"action": "add-commit", "commit": commit}]
        if published is not None:
            updates.append(self._backfilled(published))
        status, _ = self._update(updates)
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
        path = self.log / f"{staged.version:020d}.json"
        (self.log / "_staged_commits" / staged.name).rename(path)
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
        staged = self.log / "_staged_commits" / self.staged[version].name
        path = self.log / f"{version:020d}.json"
        path.write_bytes(staged.read_bytes())  # another file, with another time
        os.utime(path, (1_000_000_000 + version, 1_000_000_000 + version))
        self.published = version
        if tell:
            self.backfilled(version)
        if clean:
            staged.unlink()
        return version

    def backfilled(self, version: int) -> None:
        """Tell the catalog that all versions up to this one are published."""
        status, answer = self._update([self._backfilled(version)])
        assert status == 200, answer
