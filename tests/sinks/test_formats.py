"""What a consumer reads is what the table has, in every format and for every type."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import math
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from msgspec import structs

from sinks.formats.load import FORMATS as NAMES
from sinks.formats.load import encoder_settings, load_encoder
from tailer.delta.arrow_types import VARIANT
from tailer.errors import ConfigError, CorruptRow, TableError
from tailer.sink.encoder import Encoder, Records
from tailer.testing.batches import change_batch, empty_batch
from tests.sinks.formats import FORMATS, ROWS, SCHEMA, MemoryRegistry, all_types
from tests.support.source import ROOT

#: The formats in which each row is a record.
SMALL = pa.schema([("id", pa.int64()), ("v", pa.string())])
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001


def encoder(name: str, registry: MemoryRegistry | None = None, **options: Any) -> Encoder:
    wanted, own = FORMATS[name]
    common = {"name": "feed", "topic": "orders", "table": "orders"}
    return load_encoder(wanted, {**common, **own, **options}, registry or MemoryRegistry())


def texts(records: Records) -> list[Any]:
    """JSON values with exact numbers."""
    return [
        None if value is None else json.loads(value, parse_float=Decimal)
        for value in records.whole_values().to_pylist()
    ]


def headers(records: Records, name: str) -> list[Any]:
    found = dict(records.whole_headers())[name]
    if isinstance(found, bytes):
        return [found] * records.num_records
    return list(found.to_pylist())


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    """A row as docs/formats.md says that JSON has it."""

    def number(value: float) -> Any:
        if math.isfinite(value):
            return Decimal(repr(value))
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

    def one(name: str, value: Any) -> Any:
        if value is None:
            return None
        if name in ("float", "double"):
            return number(value)
        if name == "binary":
            return base64.b64encode(value).decode()
        if name == "date":
            return value.isoformat()
        if name in ("timestamp", "timestamp_ntz"):
            zone = "Z" if name == "timestamp" else ""
            return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
        if name == "variant":
            return 5
        if name == "map":
            return dict(value)
        if name == "dates":
            return {key.isoformat(): item for key, item in value}
        return value

    return {name: one(name, value) for name, value in row.items()}


def same(found: Any, expected: Any) -> bool:
    """Equal, where NaN equals NaN."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[k], expected[k]) for k in found)
    if isinstance(expected, float) and math.isnan(expected):
        return bool(math.isnan(found))
    return bool(found == expected)


def test_rows_have_every_value_exactly() -> None:
    found = texts(encoder("rows").encode(all_types()))
    kinds = ["insert", "delete", "update_preimage", "update_postimage"]
    for row, expected, kind in zip(found, ROWS, kinds, strict=True):
        assert {name: row[name] for name in SCHEMA.names} == as_json(expected)
        assert list(row) == [
            *SCHEMA.names, "_change_type", "_commit_version", "_commit_timestamp", "_event_id",
            "_origin",
        ]  # fmt: skip
        assert row["_change_type"] == kind
        assert row["_commit_version"] == 7
        assert row["_commit_timestamp"] == "2026-01-01T00:00:00.000000Z"


def test_cloudevents_have_the_row_as_their_data() -> None:
    batch = all_types()
    records = encoder("cloudevents").encode(batch)
    assert headers(records, "content-type") == [b"application/cloudevents+json; charset=utf-8"] * 4
    ids = headers(records, "_event_id")
    for event, row, number in zip(texts(records), ROWS, ids, strict=True):
        assert event["data"] == as_json(row)
        assert event["datacontenttype"] == "application/json"
        assert event["id"] == number
        assert event["specversion"] == "1.0"
        assert all(name.isalnum() and name.islower() for name in event)


def test_debezium_has_before_and_after() -> None:
    found = texts(encoder("debezium").encode(all_types(paired=True)))
    first, second, third, last = (as_json(row) for row in ROWS)
    images = [(event["before"], event["after"], event["op"]) for event in found]
    assert images == [(None, first, "c"), (second, None, "d"), (third, last, "u")]
    assert [event["source"]["index"] for event in found] == [3, 4, 6]
    assert [event["source"]["unpaired"] for event in found] == [False] * 3
    moment = 1_767_225_600_000
    for event in found:
        for place in (event, event["source"]):
            assert [place[n] for n in ("ts_ms", "ts_us", "ts_ns")] == [
                moment, moment * 1000, moment * 1_000_000,
            ]  # fmt: skip


def test_debezium_says_which_images_are_alone() -> None:
    found = texts(encoder("debezium").encode(all_types()))
    assert [event["op"] for event in found] == ["c", "d", "d", "c"]
    assert [event["source"]["unpaired"] for event in found] == [False, False, True, True]


def test_rows_of_the_snapshot_are_reads() -> None:
    found = texts(encoder("debezium").encode(all_types(snapshot=True)))
    assert [event["op"] for event in found] == ["r"] * 4
    assert [event["source"]["snapshot"] for event in found] == ["true"] * 4
    # As the topic of commit ends calls it.
    assert {e["transaction"]["id"].partition(":")[2] for e in found} == {"7:snapshot"}


def connect_value(schema: dict[str, Any], value: Any) -> Any:
    """A payload read by its own Connect schema, which must fit it in every place."""
    if value is None:
        assert schema["optional"], schema
        return None
    name, kind = schema.get("name"), schema["type"]
    if kind == "struct":
        fields = {field["field"]: field for field in schema["fields"]}
        assert value.keys() == fields.keys()
        return {key: connect_value(fields[key], value[key]) for key in value}
    if kind == "array":
        return [connect_value(schema["items"], item) for item in value]
    if kind == "map":
        return {key: connect_value(schema["values"], item) for key, item in value.items()}
    if name == "org.apache.kafka.connect.data.Decimal":
        unscaled = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        digits = tuple(map(int, str(abs(unscaled))))
        return Decimal((int(unscaled < 0), digits, -int(schema["parameters"]["scale"])))
    if name == "io.debezium.time.Date":
        return dt.date(1970, 1, 1) + dt.timedelta(days=value)
    if name == "io.debezium.time.MicroTimestamp":
        return EPOCH + dt.timedelta(microseconds=value)
    if name == "io.debezium.time.ZonedTimestamp":
        return dt.datetime.fromisoformat(value)
    if name == "io.debezium.data.Json":
        return json.loads(value)
    if kind == "bytes":
        return base64.b64decode(value, validate=True)
    if kind in ("float", "double"):
        return float(value)
    bits = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}.get(kind)
    if bits is not None:
        assert type(value) is int
        assert -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
        return value
    assert type(value) is {"string": str, "boolean": bool}[kind]
    return value


def connect_row(row: dict[str, Any]) -> dict[str, Any]:
    found = dict(row)
    if found["variant"] is not None:
        found["variant"] = 5
    if found["map"] is not None:
        found["map"] = dict(found["map"])
    if found["dates"] is not None:
        found["dates"] = [{"key": key, "value": value} for key, value in found["dates"]]
    return found


def test_a_debezium_payload_fits_its_own_schema() -> None:
    records = encoder("debezium_schema", key=["id", "date"]).encode(all_types(paired=True))
    found = [connect_value(e["schema"], e["payload"]) for e in texts(records)]
    first, second, third, last = (connect_row(row) for row in ROWS)
    expected = [(None, first), (second, None), (third, last)]
    for event, (before, after) in zip(found, expected, strict=True):
        assert same(event["before"], before) if before else event["before"] is None
        assert same(event["after"], after) if after else event["after"] is None
    assert records.keys is not None
    keys = [json.loads(key) for key in records.keys.to_pylist()]
    assert [connect_value(k["schema"], k["payload"]) for k in keys] == [
        {"id": row["id"], "date": row["date"]} for row in (ROWS[0], ROWS[1], ROWS[3])
    ]


def test_key_fields_are_optional_only_where_the_table_says_so() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    batch = change_batch(schema, [{"id": 1, "name": None}])
    records = encoder("debezium_schema", key=["id", "name"]).encode(batch)
    assert records.keys is not None
    (key,) = map(json.loads, records.keys.to_pylist())
    fields = {field["field"]: field["optional"] for field in key["schema"]["fields"]}
    assert fields == {"id": False, "name": True}
    assert connect_value(key["schema"], key["payload"]) == {"id": 1, "name": None}


def read_avro(registry: MemoryRegistry, value: bytes) -> Any:
    """A value in the wire format, read by another library with the schema that its id names."""
    assert value[0] == 0
    _, schema = registry.schemas[int.from_bytes(value[1:5], "big") - 1]
    rest = io.BytesIO(value[5:])
    found = fastavro.schemaless_reader(rest, fastavro.parse_schema(json.loads(schema)))
    assert rest.read() == b""
    return found


def avro_row(row: dict[str, Any]) -> dict[str, Any]:
    found = connect_row(row)
    if found["variant"] is not None:
        found["variant"] = "5"
    if found["struct"] is not None:
        found["struct"] = {"a_b": found["struct"]["a b"], "inner": found["struct"]["inner"]}
    return found


@pytest.mark.parametrize(
    ("strategy", "subjects"),
    [
        ("topic", ["orders-key", "orders-value"]),
        ("record", ["feed.orders.Key", "feed.orders.{}"]),
        ("topic_record", ["orders-feed.orders.Key", "orders-feed.orders.{}"]),
    ],
)
@pytest.mark.parametrize("envelope", ["rows", "debezium", "upsert"])
def test_subjects_are_named_by_the_strategy(
    strategy: str, subjects: list[str], envelope: str
) -> None:
    registry = MemoryRegistry()
    options = {"subject_name_strategy": strategy, "envelope": envelope, "key": ["id"]}
    encoder("avro", registry, **options).encode(all_types(paired=envelope != "rows"))
    record = "Envelope" if envelope == "debezium" else "Value"
    found = [subject for subject, _ in registry.schemas]
    assert found == [subject.format(record) for subject in subjects]


def test_avro_rows_are_read_back_by_another_library() -> None:
    registry = MemoryRegistry()
    records = encoder("avro", registry, key=["id", "money"]).encode(all_types())
    found = [read_avro(registry, value) for value in records.whole_values().to_pylist()]
    for row, expected in zip(found, ROWS, strict=True):
        assert row.pop("_commit_version") == 7
        assert row.pop("_commit_timestamp") == dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        assert row.pop("_change_type")
        assert same(row, avro_row(expected))
    assert records.keys is not None
    keys = [read_avro(registry, key) for key in records.keys.to_pylist()]
    assert keys == [{"id": row["id"], "money": row["money"]} for row in ROWS]
    assert [subject for subject, _ in registry.schemas] == ["orders-key", "orders-value"]
    assert headers(records, "_schema_id") == [b"2"] * 4


def test_avro_envelopes_are_read_back_by_another_library() -> None:
    registry = MemoryRegistry()
    records = encoder("avro_debezium", registry).encode(all_types(paired=True))
    found = [read_avro(registry, value) for value in records.whole_values().to_pylist()]
    json_form = texts(encoder("debezium").encode(all_types(paired=True)))
    first, second, third, last = (avro_row(row) for row in ROWS)
    expected = [(None, first), (second, None), (third, last)]
    for event, (before, after), other in zip(found, expected, json_form, strict=True):
        assert same(event["before"], before) if before else event["before"] is None
        assert same(event["after"], after) if after else event["after"] is None
        same_in_both = ("source", "transaction", "op", "ts_ms", "ts_us", "ts_ns")
        assert {k: event[k] for k in same_in_both} == {k: other[k] for k in same_in_both}


def test_a_changed_table_has_a_new_schema_and_the_same_one_is_asked_for_once() -> None:
    registry = MemoryRegistry()
    avro = encoder("avro", registry)
    one, wider = ({"id": 1}, pa.schema([*SMALL, ("n", pa.int32())]))
    for schema in (SMALL, SMALL, wider, SMALL):
        avro.encode(change_batch(schema, [one]))
    assert registry.asked == ["orders-value"] * 2
    old, new = (json.loads(schema)["fields"] for _, schema in registry.schemas)
    assert new[: len(old) - 3] == old[:-3]
    assert new[len(old) - 3] == {"name": "n", "type": ["null", "int"], "default": None}


def test_names_that_avro_does_not_allow_are_changed_and_kept_apart() -> None:
    registry = MemoryRegistry()
    schema = pa.schema(
        [("a b", pa.int64()), ("a_b", pa.int64()), ("1", pa.int64()), ("ü", SMALL_STRUCT)]
    )
    row = {"a b": 1, "a_b": 2, "1": 3, "ü": {"x": 4}}
    records = encoder("avro", registry).encode(change_batch(schema, [row]))
    found = read_avro(registry, records.whole_values()[0].as_py())
    assert {k: v for k, v in found.items() if not k.startswith("_c")} == {
        "a_b": 1, "a_b_2": 2, "_1": 3, "_": {"x": 4},
    }  # fmt: skip
    fields = json.loads(registry.schemas[0][1])["fields"]
    assert [field.get("delta.name") for field in fields[:4]] == ["a b", "a_b", "1", "ü"]


SMALL_STRUCT = pa.struct([("x", pa.int64())])


@pytest.mark.parametrize("name", FORMATS)
def test_a_slice_gives_the_bytes_that_its_rows_have_in_the_whole(name: str) -> None:
    made = encoder(name, MemoryRegistry(), key=["id"])
    batch = all_types(paired=made.paired)
    whole = made.encode(batch)
    for start in range(batch.num_rows):
        for count in range(1, batch.num_rows - start + 1):
            part = made.encode(
                structs.replace(
                    batch,
                    rows=batch.rows.slice(start, count),
                    positions=batch.positions.slice(start, count),
                    indices=batch.row_indices().slice(start, count),
                    before=None if batch.before is None else batch.before.slice(start, count),
                )
            )
            assert part.whole_values().equals(whole.whole_values().slice(start, count))
            assert part.keys is not None
            assert whole.keys is not None
            assert part.keys.equals(whole.keys.slice(start, count))


@pytest.mark.parametrize("name", FORMATS)
def test_a_batch_without_rows_gives_no_records(name: str) -> None:
    assert encoder(name).encode(empty_batch(SMALL)).num_records == 0


@pytest.mark.parametrize("name", FORMATS)
def test_a_tombstone_follows_each_delete_under_its_key(name: str) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "_change_type": "delete"},
        {"id": 2},
        {"id": 3, "_change_type": "delete"},
    ]
    made = encoder(name, key=["id"], tombstones=True)
    records = made.encode(change_batch(SMALL, rows))
    assert records.whole_values().is_null().to_pylist() == [False, True, False, False, True]
    assert records.keys is not None
    keys = records.keys.to_pylist()
    assert keys[0] == keys[1] != keys[2] != keys[3] == keys[4]
    ids = headers(records, "_event_id")
    assert ids[1] == ids[0] + "-t"
    assert len(set(ids)) == 5
    alone = made.encode(change_batch(SMALL, [{"id": 2}]))
    assert alone.whole_values().null_count == 0


@pytest.mark.parametrize("name", FORMATS)
def test_a_key_column_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(TableError, match="version 1: the key column 'nr' does not exist"):
        encoder(name, key=["nr"]).encode(change_batch(SMALL, [{"id": 1}]))


@pytest.mark.parametrize("name", FORMATS)
def test_a_value_that_cannot_be_written_is_named_with_its_file(name: str) -> None:
    schema = pa.schema([("v", VARIANT)])
    broken = change_batch(schema, [{"v": {"value": b"\xff", "metadata": b""}}])
    with pytest.raises(CorruptRow, match=r"version 1, part-0.parquet: a variant is damaged"):
        encoder(name).encode(broken)


def test_row_headers_say_what_an_event_is() -> None:
    records = encoder("rows").encode(all_types())
    assert headers(records, "_event_id") == all_types().event_ids().to_pylist()
    assert headers(records, "_commit_version") == [b"7"] * 4
    assert headers(records, "_origin") == [b"cdf"] * 4
    assert headers(records, "_change_type")[1] == "delete"
    snapshot = encoder("rows").encode(all_types(snapshot=True))
    assert headers(snapshot, "_snapshot") == [b"true"] * 4


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("xml", {}, "there is no format 'xml'; known are rows, debezium"),
        (
            "rows",
            {"keys": ["id"]},
            r"'keys' of format 'rows' is not known \(did you mean 'key'\?\)",
        ),
        ("rows", {"ids": 1}, "option 'ids' of format 'rows' is 1, and must be true or false"),
        (
            "rows",
            {"key": [1]},
            "option 'key' of format 'rows' is \\[1\\], and must be a list of strings",
        ),
        ("rows", {"tombstones": True}, "tombstones need a key"),
        ("avro", {}, "option 'url' of the schema registry is missing"),
        ("avro", {"envelope": "x"}, "must be one of rows, debezium"),
        ("avro", {"registry": {"url": "ftp://x"}}, "it does not begin with http:// or https://"),
        ("avro", {"registry": {"url": "http://[x"}}, "its host is not a name or an address"),
        ("avro", {"registry": {"url": "http://u:p@x"}}, "it has a user in it"),
    ],
)
def test_a_wrong_option_is_named(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_encoder(name, options)


def test_every_format_lists_its_options() -> None:
    for name in NAMES:
        assert {"key", "name", "topic"} <= encoder_settings(name).keys()


def test_what_lies_beneath_a_null_struct_is_never_shown() -> None:
    hidden = pa.StructArray.from_arrays(
        [pa.array([{"value": b"\xff", "metadata": b""}], VARIANT)],
        names=["v"],
        mask=pa.array([True]),
    )
    batch = change_batch(SMALL, [{"id": 1}])
    rows = batch.rows.add_column(2, pa.field("s", hidden.type), hidden)
    for name in ("rows", "debezium_schema", "avro"):
        assert encoder(name).encode(structs.replace(batch, rows=rows)).num_records == 1


def test_the_table_of_types_in_the_docs_leaves_none_out() -> None:
    text = (ROOT / "docs" / "formats.md").read_text()
    named = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")}
    assert {
        "byte, short, integer", "long", "float, double", "decimal(p,s)", "boolean", "string",
        "binary", "date", "timestamp", "timestamp_ntz", "struct", "array", "map with string keys",
        "map with other keys", "variant",
    } <= named  # fmt: skip
    assert set(NAMES) <= {name.strip("`") for name in named}


def test_row_ids_have_their_place_in_every_format() -> None:
    batch = structs.replace(all_types(), row_ids=pa.array([5, None, 2**62, 0], pa.int64()))
    expected = [5, None, 2**62, 0]
    registry = MemoryRegistry()
    enveloped = encoder("avro_debezium", registry).encode(batch)
    events = [read_avro(registry, value) for value in enveloped.whole_values().to_pylist()]
    assert [event["source"]["row_id"] for event in events] == expected
    for name in ("debezium", "debezium_schema"):
        found = texts(encoder(name).encode(batch))
        payloads = [event.get("payload", event) for event in found]
        assert [payload["source"]["row_id"] for payload in payloads] == expected
    shown = [None if number is None else str(number) for number in expected]
    cloud = texts(encoder("cloudevents").encode(batch))
    assert [event["deltarowid"] for event in cloud] == shown
    assert headers(encoder("rows").encode(batch), "_row_id") == shown
