"""A catalog of Iceberg tables, and what is in a table of it."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table

from tailer.changes import Offset
from tailer.sink import Sink, make_sink
from tests.support.iceberg_rest import RestCatalog


def make_lake(folder: Path, request: pytest.FixtureRequest) -> Lake:
    """Return one in the catalog that a fixture's parameter names."""
    if request.param == "sql_catalog":
        return Lake(folder)
    server: RestCatalog = request.getfixturevalue(request.param)
    return Lake(folder, server.url, f"lake{uuid.uuid4().hex}")


@dataclass(frozen=True, slots=True)
class Lake:
    """A catalog in SQLite and its warehouse, both in a folder; or a REST catalog with a ``url``,
    where others have other namespaces."""

    folder: Path
    url: str = ""
    namespace: str = "lake"

    @property
    def name(self) -> str:
        """Return the name of the table."""
        return f"{self.namespace}.orders"

    @property
    def properties(self) -> dict[str, str]:
        """Return what pyiceberg takes for it."""
        if self.url:
            return {"type": "rest", "uri": self.url}
        self.folder.mkdir(exist_ok=True)
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    def open(self) -> Catalog:
        """Return a catalog of its own."""
        return load_catalog("default", **self.properties)

    @property
    def kind(self) -> type[Catalog]:
        """Return the class of the catalog."""
        return type(self.open())

    def make_sink(self, **more: Any) -> Sink:
        """Return the sink of the table."""
        options = {"table": self.name, "catalog": self.properties}
        return make_sink("iceberg", {**options, **more}, self.folder)

    def table(self) -> Table:
        """Return that table."""
        return self.open().load_table(self.name)

    def toml(self, **more: Any) -> str:
        """Return the sink's lines of a configuration."""
        catalog = ", ".join(f"{name} = {json.dumps(v)}" for name, v in self.properties.items())
        lines = {"type": "iceberg", "table": self.name, **more}
        words = [f"{name} = {json.dumps(value)}" for name, value in lines.items()]
        return "\n".join([*words, f"catalog = {{{catalog}}}"])

    def offset(self) -> Offset | None:
        """Return that of the newest snapshot; None if there is no table."""
        with suppress(NoSuchTableError):
            snapshot = self.table().current_snapshot()
            if snapshot is not None and snapshot.summary is not None:
                said = json.loads(snapshot.summary.additional_properties["delta-tailer"])
                return Offset.from_json(said["offset"])
        return None

    def update(self, column: str, value: str, where: str) -> None:
        """Set a column of the rows that meet a condition, both in SQL, as an engine does."""
        table = self.table()
        held = table.scan(where).to_arrow()
        query = f'SELECT * REPLACE ({value} AS "{column}") FROM held'
        changed: Any = duckdb.sql(query)
        table.overwrite(changed.to_arrow_table().cast(held.schema), where)

    def rows(self, name: str = "") -> list[dict[str, Any]]:
        """Return its rows in the order of their commits; none if there is no table."""
        catalog, name = self.open(), name or self.name
        if not catalog.table_exists(name):
            return []
        table = catalog.load_table(name)
        entries = table.inspect.entries().to_pylist()
        order = {entry["data_file"]["file_path"]: entry["sequence_number"] for entry in entries}
        found: list[dict[str, Any]] = []
        for task in sorted(table.scan().plan_files(), key=lambda t: order[t.file.file_path]):
            scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
            found += scan.to_table([task]).to_pylist()
        return found
