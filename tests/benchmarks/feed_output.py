"""Feeds as Arrow files: made of the bare files of a table, and summed up to be compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.benchmarks.feed_tables import SCHEMA, feed_files
from tests.benchmarks.tables import FeedFile

BATCH_ROWS = 65_536
FEED_SCHEMA = pa.schema(
    [
        *SCHEMA,
        ("_change_type", pa.string()),
        ("_commit_version", pa.int64()),
        ("_commit_timestamp", pa.timestamp("us", "UTC")),
    ]
)


def bare(table: Path, output: Path) -> None:
    """Scan the files of the feed with pyarrow's defaults, one after the other."""
    with pa.OSFile(str(output), "wb") as file, pa.ipc.new_file(file, FEED_SCHEMA) as writer:
        for feed_file in feed_files(table):
            for batch in _scan(feed_file):
                writer.write_batch(batch)


def _scan(file: FeedFile) -> Iterator[pa.RecordBatch]:
    own_type = [] if file.change_type else ["_change_type"]
    parquet = pq.ParquetFile(file.path)
    for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=[*SCHEMA.names, *own_type]):
        rows = batch.num_rows
        columns = list(batch.columns)
        if file.change_type:
            columns.append(pa.repeat(file.change_type, rows))
        columns.append(pa.repeat(pa.scalar(file.version, pa.int64()), rows))
        time = pa.scalar(file.timestamp_ms * 1000, FEED_SCHEMA.field("_commit_timestamp").type)
        columns.append(pa.repeat(time, rows))
        yield pa.RecordBatch.from_arrays(columns, schema=FEED_SCHEMA)


def digest(output: Path) -> None:
    """Print a sum over each column for each version and change type.

    The time of a commit is left out: deltalake takes it from another place.
    """
    groups = ["_commit_version", "_change_type"]
    with pa.memory_map(str(output)) as file:
        reader = pa.ipc.open_file(file)
        batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        if "place" in reader.schema.names:
            print(json.dumps(_nested_totals(batches)))
            return
        sums = pa.concat_tables(
            _sums(batch.select(FEED_SCHEMA.names).cast(FEED_SCHEMA), groups) for batch in batches
        )
        names = [name for name in sums.column_names if name not in groups]
        total = sums.group_by(groups).aggregate([(name, "sum") for name in names])
    total = total.sort_by([(name, "ascending") for name in groups])
    print(json.dumps(total.to_pydict()))


def _sums(batch: pa.RecordBatch, groups: list[str]) -> pa.Table:
    """Each column as integers whose sum, modulo 2**64, does not depend on the rows' order."""
    # The tokens are hexadecimal, and 15 digits of them fit into an integer.
    digits = pc.binary_join_element_wise("0x", pc.utf8_slice_codeunits(batch["token"], 0, 15), "")
    numbers = {
        "rows": pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows),
        "id": batch["id"],
        "quantity": batch["quantity"],
        "score": batch["score"].view(pa.int64()),
        "token": digits.cast(pa.int64()),
        "status": batch["status"].cast(pa.int64()),
        "changed_at": batch["changed_at"].cast(pa.int64()),
        "amount": batch["amount"].cast(pa.int64()),
    }
    table = pa.table({**{name: batch[name] for name in groups}, **numbers})
    return table.group_by(groups).aggregate([(name, "sum") for name in numbers])


def _nested_totals(batches: Iterable[pa.RecordBatch]) -> dict[str, int]:
    """The sums of all values of :func:`feed_tables.nested_table`; of a text, its length."""
    totals: Counter[str] = Counter()
    for batch in batches:
        tags, steps = batch["tags"].flatten(), batch["steps"].flatten()
        numbers = {
            "id": batch["id"],
            "height": batch["place"].field("height").view(pa.int64()),
            "count": batch["counts"].items,
            "amount": steps.field("amount"),
        }
        texts = {
            "city": batch["place"].field("city"),
            "tag": tags,
            "key": batch["counts"].keys,
            "kind": steps.field("kind"),
            "change": batch["_change_type"],
        }
        totals["rows"] += batch.num_rows
        totals.update({name: _total(values) for name, values in numbers.items()})
        totals.update({name: _total(_lengths(values)) for name, values in texts.items()})
    return {name: total % 2**64 for name, total in totals.items()}


def _total(values: pa.Array) -> int:
    return int(pc.sum(values.cast(pa.int64())).as_py() or 0)


def _lengths(texts: pa.Array) -> pa.Array:
    return pc.utf8_length(texts.cast(pa.string()))
