"""A catalog of Iceberg tables in a folder, and what is in a table of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table

from tailer.sink import Sink, make_sink


@dataclass(frozen=True, slots=True)
class Lake:
    """A catalog in SQLite and its warehouse, both in a folder."""

    folder: Path

    @property
    def properties(self) -> dict[str, str]:
        """Return what pyiceberg takes for it."""
        self.folder.mkdir(exist_ok=True)
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    def open(self) -> Catalog:
        """Return a catalog of its own."""
        return load_catalog("default", **self.properties)

    def make_sink(self, **more: Any) -> Sink:
        """Return the sink of the table ``lake.orders``."""
        options = {"table": "lake.orders", "catalog": self.properties}
        return make_sink("iceberg", {**options, **more}, self.folder)

    def table(self) -> Table:
        """Return that table."""
        return self.open().load_table("lake.orders")

    def rows(self, name: str = "lake.orders") -> list[dict[str, Any]]:
        """Return its rows in the order of their commits; none if there is no table."""
        catalog = self.open()
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
