"""What a DuckDB file has, as Python objects, by Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa


def rows_of(path: Path, query: str) -> list[dict[str, Any]]:
    """The rows of a query; the file is opened for it alone."""
    with duckdb.connect(path) as file:
        # DuckDB's own objects need another package for times with a zone.
        found: list[dict[str, Any]] = pa.table(file.sql(query)).to_pylist()
        return found
