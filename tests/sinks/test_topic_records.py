"""Records of a topic, read back as rows of the table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from sinks.formats.load import load_encoder
from tailer.testing.batches import change_batch
from tests.support.topic_records import Message, rows_of, topic_values

#: A table may have columns with the names that outputs give to ids.
SCHEMA = pa.schema([("id", pa.int64()), ("_event_id", pa.string()), ("_origin", pa.string())])
ROW = {"id": 1, "_event_id": "the table's", "_origin": None}


@pytest.mark.parametrize("kind", ["rows", "debezium", "cloudevents"])
@pytest.mark.parametrize("ids", [False, True])
def test_columns_with_the_names_of_ids_have_their_own_values(kind: str, *, ids: bool) -> None:
    options: dict[str, Any] = {}
    if ids:
        if kind != "rows":
            return
        options = {"ids": True, "own_prefix": "tailer_"}
    batch = change_batch(SCHEMA, [ROW], last=True)
    if kind == "debezium":
        before = pa.nulls(1, pa.struct(list(SCHEMA)))
        batch = structs.replace(batch, before=before, indices=pa.array([0]))
    records = load_encoder(kind, options).encode(batch)
    headers = {
        name: value if isinstance(value, bytes) else value.cast(pa.binary())[0].as_py()
        for name, value in records.whole_headers()
    }
    (row,) = rows_of(Message(0, 0, None, records.whole_values()[0].as_py(), headers))
    assert topic_values(row, list(SCHEMA)) == ROW
