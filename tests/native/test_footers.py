"""Footers that lie: nothing is read beyond a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.sanitizers import watch


@pytest.mark.slow
def test_nothing_is_read_beyond_a_file(tmp_path: Path) -> None:
    rows = {"id": range(50), "text": ["a", None] * 25, "flag": [True, False] * 25}
    table = pa.table({name: list(values) for name, values in rows.items()})
    nested = pa.table({"tags": [["x"], [], None] * 5, "place": [{"x": 1.0}] * 15})
    ways: list[dict[str, Any]] = [
        {}, {"compression": "none", "data_page_size": 64}, {"data_page_version": "2.0"},
    ]  # fmt: skip
    for number, options in enumerate(ways):
        pq.write_table(table, tmp_path / f"{number}.parquet", **options)
        pq.write_table(nested, tmp_path / f"nested-{number}.parquet", **options)
    pq.write_table(table.slice(0, 0), tmp_path / "empty.parquet")
    watch("tailer/native/_footers.c", "footers_fuzz", tmp_path)
