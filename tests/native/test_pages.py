"""Pages that lie: nothing is read or written beyond a buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.sanitizers import watch


@pytest.mark.slow
def test_nothing_is_read_or_written_beyond_a_buffer(tmp_path: Path) -> None:
    rows = {"id": range(3000), "text": ["a", None, "a longer one"] * 1000, "x": [0.5, None] * 1500}
    table = pa.table({name: list(values) for name, values in rows.items()})
    table = table.append_column("amount", table["id"].cast(pa.decimal128(22, 2)))
    ways: list[dict[str, Any]] = [
        {}, {"data_page_size": 64, "row_group_size": 1000}, {"use_dictionary": False},
        {"data_page_version": "2.0"},
    ]  # fmt: skip
    for number, options in enumerate(ways):
        for codec in ("none", "snappy", "zstd"):
            path = tmp_path / f"{number}-{codec}.parquet"
            pq.write_table(table, path, compression=codec, **options)
    watch("tailer/native/_pages.c", "pages_fuzz", tmp_path)
