"""Any values in Avro, as another library reads them, and the whole way to a topic's reader."""

from __future__ import annotations

import io
import math
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import given
from msgspec import structs

from sinks.formats.avro_schema import Names, build_record_schema, make_avro_name
from sinks.formats.avro_values import record_parts
from sinks.formats.binary_parts import join_parts
from sinks.formats.load import load_encoder
from tailer.changes import METADATA_FIELDS
from tailer.testing.batches import change_batch
from tests.property.test_json import arrays
from tests.support.topic_consumer import canonical_row
from tests.support.topic_records import Message, rows_of, topic_values


def as_read(value: Any, data_type: pa.DataType) -> Any:
    """A value of ``to_pylist`` as fastavro gives it."""
    types = pa.types
    if value is None:
        return None
    if types.is_list(data_type):
        return [as_read(item, data_type.value_type) for item in value]
    if types.is_struct(data_type):
        names = Names()
        return {
            names.reserve_name(make_avro_name(field.name)): as_read(value[field.name], field.type)
            for field in data_type
        }
    if types.is_map(data_type):
        pairs = [
            (as_read(k, data_type.key_type), as_read(v, data_type.item_type)) for k, v in value
        ]
        if types.is_string(data_type.key_type):
            return dict(pairs)
        return [{"key": key, "value": item} for key, item in pairs]
    return value


def same(found: Any, expected: Any) -> bool:
    """Equal in value and kind, where NaN equals NaN."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[k], expected[k]) for k in found)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float) and math.isnan(expected):
        return math.isnan(found)
    return type(found) is type(expected) and bool(found == expected)


@given(arrays())
def test_any_value_is_read_back_by_another_library(array: pa.Array) -> None:
    schema = fastavro.parse_schema(build_record_schema([pa.field("x", array.type)], "Row", Names()))
    encoded = join_parts(record_parts([array]), len(array)).to_pylist()
    for data, value in zip(encoded, array.to_pylist(), strict=True):
        rest = io.BytesIO(data)
        found: Any = fastavro.schemaless_reader(rest, schema)
        assert rest.read() == b""
        assert same(found["x"], as_read(value, array.type))


@given(arrays())
def test_any_value_is_what_a_reader_of_the_topic_finds(array: pa.Array) -> None:
    field = pa.field("x", array.type)
    batch = change_batch(pa.schema([field]), [{"x": None}] * len(array))
    columns = [array, *batch.rows.columns[1:]]
    batch = structs.replace(
        batch, rows=pa.RecordBatch.from_arrays(columns, schema=pa.schema([field, *METADATA_FIELDS]))
    )
    expected = [canonical_row({"x": value}) for value in array.to_pylist()]
    for name, options in (
        ("rows", {}), ("debezium", {"table": "t"}), ("debezium", {"schema": True, "table": "t"}),
        ("cloudevents", {}),
    ):  # fmt: skip
        records = load_encoder(name, options).encode(batch)
        found = []
        for i, value in enumerate(records.whole_values().to_pylist()):
            headers = {
                key: one if isinstance(one, bytes) else str(one[i]).encode()
                for key, one in records.whole_headers()
            }
            rows = rows_of(Message(0, i, None, value, headers))
            found += [canonical_row(topic_values(row, [field])) for row in rows]
        assert found == expected, name
