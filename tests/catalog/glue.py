"""Databases of AWS Glue, on moto's."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

#: How Spark registers a table of Delta.
SPARK = {"Parameters": {"spark.sql.sources.provider": "delta"}}


class Database:
    """A database of Glue."""

    def __init__(self, glue: Any) -> None:
        self.glue, self.name = glue, f"sales_{uuid4().hex[:8]}"
        glue.create_database(DatabaseInput={"Name": self.name})

    def table(self, name: str, location: str, more: Any = None, path: str | None = None) -> str:
        """Register a table; its address."""
        serde = {"SerdeInfo": {"Parameters": {"path": path}}} if path else {}
        storage = {"Location": location, **serde}
        table = {"Name": name, "StorageDescriptor": storage, **(SPARK if more is None else more)}
        self.glue.create_table(DatabaseName=self.name, TableInput=table)
        return f"glue://{self.name}.{name}"
