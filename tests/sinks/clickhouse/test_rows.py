"""The ClickHouse sink beyond the public suites: values, names and versions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from tailer.errors import ConfigError, RowsRefused, TargetRefused
from tailer.testing.batches import change_batch, change_span, empty_batch
from tests.sinks.clickhouse.conftest import held, log_of, names_of, new, read_back
from tests.support.clickhouse import ClickHouse
from tests.support.sinks import NAMED, named, rows, write

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_attempt")]


# Values and names

EXTREMES: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [-128, 127]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1]),
    "integer": (pa.int32(), [-(2**31), 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), [float("inf"), 1.401298464324817e-45]),
    "double": (pa.float64(), [float("-inf"), 5e-324]),
    "decimal": (pa.decimal128(38, 38), [Decimal("0." + "9" * 38), Decimal("-0." + "9" * 38)]),
    "small": (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal("0.00")]),
    "string": (pa.string(), ["", "NUL \x00 größe 😀 \\N ' ` \n\t"]),
    "binary": (pa.binary(), [b"", bytes(range(256))]),
    "date": (pa.date32(), [dt.date(1900, 1, 1), dt.date(2299, 12, 31)]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [
            dt.datetime(1900, 1, 1, tzinfo=dt.UTC),
            dt.datetime(2299, 12, 31, 23, 59, 59, 999_999, dt.UTC),
        ],
    ),
    "ntz": (pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), None]),  # noqa: DTZ001
    "list": (pa.list_(pa.int32()), [[], [None, 1]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", None)]]),
    "struct": (pa.struct({"a": pa.int64()}), [{"a": None}, {"a": 2**63 - 1}]),
}


async def test_the_extremes_of_every_type(options: dict[str, Any]) -> None:
    schema = pa.schema([("id", pa.int64()), *((n, kind) for n, (kind, _) in EXTREMES.items())])
    found = [{"id": i, **{n: values[i] for n, (_, values) in EXTREMES.items()}} for i in (0, 1)]
    found.append({"id": 2, **dict.fromkeys(EXTREMES)})
    batch = change_batch(schema, found, last=True)
    await write(new(options), batch)
    table = read_back(new(options), schema)
    with new(options).read_mirror("orders") as copy:
        for name in schema.names:
            assert (
                table[name].combine_chunks().equals(copy.as_held(name, batch.rows.column(name)))
            ), name


async def test_text_that_is_no_text_is_kept(options: dict[str, Any]) -> None:
    bad = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    batch = rows((1, "a"))
    at = batch.rows.schema.get_field_index("name")
    batch = structs.replace(batch, rows=batch.rows.set_column(at, "name", bad))
    await write(new(options), batch)
    assert read_back(new(options), NAMED)["name"].combine_chunks().equals(bad)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.date32(), dt.date(1899, 12, 31)),
        (pa.date32(), dt.date(2300, 1, 1)),
        (pa.timestamp("us", "UTC"), dt.datetime(1899, 12, 31, 23, 59, 59, 999_999, dt.UTC)),
        (pa.timestamp("us"), dt.datetime(2300, 1, 1)),  # noqa: DTZ001
    ],
)
async def test_a_time_that_not_every_release_holds_is_refused(
    clickhouse: ClickHouse, options: dict[str, Any], kind: pa.DataType, value: Any
) -> None:
    """Some would make another time of it."""
    schema = pa.schema([("id", pa.int64()), ("at", kind)])
    sink = new(options)
    await sink.open("orders")
    batch = change_batch(schema, [{"id": 1}, {"id": 2, "at": value}], last=True)
    with pytest.raises(
        RowsRefused, match=r"version 1: the column 'at' has a time beyond the years"
    ):
        await sink.write(batch)
    await sink.write(batch.slice(0, 1))
    await sink.aclose()
    assert held(clickhouse, options) == [{"id": 1, "at": None}]


async def test_names_with_a_meaning_are_names(
    clickhouse: ClickHouse, options: dict[str, Any]
) -> None:
    names = [
        "a.b",
        "name.null",
        "name",
        "a\nb",
        "`",
        "\\",
        "'",
        "_part",
        "SELECT",
        "_table",
        "é.x.y",
    ]
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in names)])
    row: dict[str, Any] = {"id": 1, **{name: f"of {name}" for name in names}}
    await write(new(options), change_batch(schema, [row], last=True))
    assert held(clickhouse, options) == [row]


@pytest.mark.parametrize("name", ["", "a\0", "_row_exists", "_block_number"])
async def test_names_that_no_column_has_are_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(TargetRefused, match="the name of the column"):
        new(options).check_columns(pa.schema([("id", pa.int64()), (name, pa.string())]))


async def test_a_deleted_row_keeps_its_key_alone(
    clickhouse: ClickHouse, options: dict[str, Any]
) -> None:
    await write(new(options), named(), rows((1, "name 1"), kind="delete", version=2))
    clickhouse.query(f"OPTIMIZE TABLE lake.{options['table']} FINAL")
    every = clickhouse.rows(
        f"SELECT id, name, _is_deleted FROM lake.{options['table']} ORDER BY id"
    )
    assert [tuple(row.values()) for row in every] == [(0, "name 0", 0), (1, None, 1)]


# Versions and processes


async def test_an_older_process_is_told(clickhouse: ClickHouse, options: dict[str, Any]) -> None:
    old = new(options)
    await write(old, named())
    await old.open("orders")
    await write(new(options), rows((0, "b"), kind="delete", version=2))
    for late in (rows((9, "late"), version=2), empty_batch(NAMED, version=2)):
        with pytest.raises(ConfigError, match="is written by another process now"):
            await old.write(late)
    await old.aclose()
    assert set(names_of(clickhouse, options)) == {1}


async def test_of_two_that_claim_at_the_same_time_one_writes(options: dict[str, Any]) -> None:
    await write(new(options), named())
    first, second = new(options), new(options)
    for sink in (first, second):
        await sink._look_at_table("orders")
    await first._progress.claim("orders", "mirror")
    try:
        await second._progress.claim("orders", "mirror")
    except ConfigError:
        await first._progress.confirm()
    else:
        with pytest.raises(ConfigError, match="another process"):
            await first._progress.confirm()
    for sink in (first, second):
        await sink.aclose()


async def test_a_log_has_each_event_once(clickhouse: ClickHouse, options: dict[str, Any]) -> None:
    log = log_of(options)
    batch = change_span(
        NAMED, [[[{"id": i, "name": "a"} for i in range(3)]], [[{"id": 9, "name": "b"}]]]
    )
    await write(new(log), batch)
    await new(log).set_offset("orders", batch.offset)
    await write(new(log), batch)
    found = clickhouse.rows(f"SELECT * FROM lake.{options['table']} FINAL ORDER BY _seq")
    assert [row["id"] for row in found] == [0, 1, 2, 9]
    assert [row["_event_id"] for row in found] == batch.event_ids().to_pylist()


async def test_what_comes_late_to_a_log_is_there_once(
    clickhouse: ClickHouse, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, batches = new(log_of(options)), [named(), named(5, version=2)]
    await old.open("orders")
    await old.write(batches[0])

    async def pass_by() -> None:
        pass

    monkeypatch.setattr(old._progress, "confirm", pass_by)  # it stood still behind it
    await write(new(log_of(options)), *batches[1:])
    await old.write(batches[1])
    await old.aclose()
    found = clickhouse.rows(f"SELECT * FROM lake.{options['table']} FINAL ORDER BY _seq")
    assert [row["id"] for row in found] == [0, 1, 5, 6]
    assert await new(log_of(options)).look("orders") == batches[1].next_offset
