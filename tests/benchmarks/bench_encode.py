"""Encoding: rows to the bytes of each format, against what a loop over Python rows would do.

`python -m tests.benchmarks.bench_encode [--rounds N] [--quick]` encodes 100,000 events as flat
rows, as nested ones and as binary, and compares the processor time with `orjson` over `to_pylist`
(JSON formats) and `fastavro` over `to_pylist` (Avro). The bounds: 8 times as fast for flat rows in
the format `rows`, and no format slower for any rows. Rounds are interleaved and medians quoted.
"""

from __future__ import annotations

import base64
import io
import json
import random
import time
from collections.abc import Callable
from decimal import Decimal
from statistics import median
from typing import Any

import fastavro
import orjson
import pyarrow as pa

from sinks.formats.load import load_encoder
from tailer.changes import METADATA_FIELDS, ChangeBatch
from tailer.testing.batches import change_batch
from tests.benchmarks.results import Results, options
from tests.sinks.formats import MemoryRegistry

ROWS, ROWS_QUICK = 100_000, 100
FLAT_TIMES_MIN = 8.0
SEED = 7


def flat() -> dict[str, pa.Array]:
    """Eight columns of an ordinary table."""
    chance = random.Random(SEED)
    return {
        "id": pa.array(range(ROWS), pa.int64()),
        "customer": pa.array([f"customer {i}" for i in range(ROWS)]),
        "city": pa.array([chance.choice(["Berlin", "Paris", "Rome"]) for _ in range(ROWS)]),
        "amount": pa.array([chance.random() * 1000 for _ in range(ROWS)]),
        "quantity": pa.array([chance.randrange(100) for _ in range(ROWS)], pa.int32()),
        "paid": pa.array([i % 2 == 0 for i in range(ROWS)]),
        "at": pa.array(range(1_700_000_000_000_000, 1_700_000_000_000_000 + ROWS)).cast(
            pa.timestamp("us", "UTC")
        ),
        "day": pa.array([19_000 + i % 100 for i in range(ROWS)], pa.int32()).cast(pa.date32()),
    }


def nested() -> dict[str, pa.Array]:
    """Structs, lists, maps, lists of structs, and nulls among them."""
    items = pa.list_(pa.struct([("sku", pa.string()), ("price", pa.decimal128(9, 2))]))
    return {
        "id": pa.array(range(ROWS)),
        "address": pa.array([None if i % 7 == 0 else {"zip": i, "city": "x"} for i in range(ROWS)]),
        "numbers": pa.array([[i, None, i + 2] for i in range(ROWS)]),
        "tags": pa.array([[("k", str(i))] for i in range(ROWS)], pa.map_(pa.string(), pa.string())),
        "items": pa.array([[{"sku": "a", "price": Decimal("1.50")}] * 2] * ROWS, items),
    }


def binary() -> dict[str, pa.Array]:
    """Bytes of many lengths."""
    chance = random.Random(SEED)
    return {"data": pa.array([chance.randbytes(chance.randrange(100)) for _ in range(ROWS)])}


TABLES: dict[str, Callable[[], dict[str, pa.Array]]] = {
    "flat": flat,
    "nested": nested,
    "binary": binary,
}


def batch_of(columns: dict[str, pa.Array]) -> ChangeBatch:
    """The columns as inserts of one version."""
    schema = pa.schema([(name, column.type) for name, column in columns.items()])
    empty = change_batch(schema, [])
    metadata = [
        pa.repeat(pa.scalar("insert"), ROWS),
        pa.repeat(pa.scalar(1, pa.int64()), ROWS),
        pa.repeat(pa.scalar(1_767_225_600_000_000, METADATA_FIELDS[2].type), ROWS),
    ]
    rows = pa.RecordBatch.from_arrays([*columns.values(), *metadata], schema=empty.rows.schema)
    places = pa.arange(0, ROWS)
    return ChangeBatch(
        rows, places, empty.state, empty.file, empty.timestamp_ms, empty.offset, empty.next_offset
    )


def plain(value: Any) -> Any:
    """What orjson does not write by itself."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def by_orjson(batch: ChangeBatch) -> list[bytes]:
    return [orjson.dumps(row, default=plain) for row in batch.rows.to_pylist()]


def by_orjson_enveloped(batch: ChangeBatch) -> list[bytes]:
    found = []
    ids = batch.event_ids().to_pylist()
    for i, row in enumerate(batch.rows.to_pylist()):
        version = row["_commit_version"]
        data = {k: v for k, v in row.items() if k[0] != "_"}
        source = {"table_id": "t", "commit_version": version, "index": i, "event_id": ids[i]}
        event = {"before": None, "after": data, "source": source, "op": "c", "ts_ms": 0}
        found.append(orjson.dumps(event, default=plain))
    return found


def by_fastavro(schema: Any) -> Callable[[ChangeBatch], list[bytes]]:
    def encode(batch: ChangeBatch) -> list[bytes]:
        found = []
        for row in batch.rows.to_pylist():
            row["tags"] = dict(row.get("tags") or ())
            output = io.BytesIO()
            fastavro.schemaless_writer(output, schema, row)
            found.append(output.getvalue())
        return found

    return encode


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds."""
    started = time.process_time()
    work()
    return time.process_time() - started


def compare(name: str, batch: ChangeBatch, rounds: int) -> dict[str, float]:
    """How many times as fast each format is as its loop; printed with rows a second."""
    registry = MemoryRegistry()
    options: dict[str, dict[str, Any]] = {
        "rows": {},
        "debezium": {"name": "feed"},
        "cloudevents": {},
        "avro": {"topic": "t"},
    }
    encoders = {kind: load_encoder(kind, own, registry) for kind, own in options.items()}
    for encoder in encoders.values():
        encoder.encode(batch)
    (_, schema), *_ = registry.schemas
    loops: dict[str, Callable[[ChangeBatch], list[bytes]]] = {
        "rows": by_orjson,
        "debezium": by_orjson_enveloped,
        "cloudevents": by_orjson_enveloped,
        "avro": by_fastavro(fastavro.parse_schema(json.loads(schema))),
    }
    ours: dict[str, list[float]] = {kind: [] for kind in encoders}
    theirs: dict[str, list[float]] = {kind: [] for kind in encoders}
    for _ in range(rounds):
        for kind, encoder in encoders.items():
            ours[kind].append(seconds(lambda encoder=encoder: encoder.encode(batch)))  # type: ignore[misc]
            theirs[kind].append(seconds(lambda kind=kind: loops[kind](batch)))  # type: ignore[misc]
    times = {}
    for kind in encoders:
        one, other = median(ours[kind]), median(theirs[kind])
        rates = [batch.num_rows / taken for taken in (one, other)]
        times[kind] = other / one
        print(f"{name:7} {kind:12} {rates[0]:10,.0f} rows/s  loop {rates[1]:9,.0f} rows/s"
              f"  {times[kind]:5.1f} times")  # fmt: skip
    return times


def main() -> None:
    """Compare all, and end with 1 where a bound is not met."""
    asked = options(__doc__).parse_args()
    results = Results(asked.quick)
    rounds, rows = (1, ROWS_QUICK) if asked.quick else (asked.rounds, ROWS)
    found = {n: compare(n, batch_of(make()).slice(0, rows), rounds) for n, make in TABLES.items()}
    for name, times in found.items():
        for kind, each in times.items():
            if each < 1:
                results.complain(f"{kind} is slower than a loop for {name} rows")
    if found["flat"]["rows"] < FLAT_TIMES_MIN:
        results.complain(f"flat rows are less than {FLAT_TIMES_MIN:g} times as fast")
    results.end()


if __name__ == "__main__":
    main()
