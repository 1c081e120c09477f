"""The programs that `tailer read` is measured against, each run by itself in a fresh process.

`python -m tests.benchmarks.contenders NAME TABLE OUTPUT` writes the feed as one Arrow IPC file:

    bare        the files of the feed, scanned by pyarrow; the least that any reader has to do
    deltalake   deltalake's load_cdf as it comes: string views, batches of 8 thousand rows
    deltalake=  the same, cast to the columns that the others write

`digest FILE` prints a summary of such a file by which two of them are compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tests.benchmarks.tables import ENDING_VERSION, STARTING_VERSION, FeedFile, bench_table

BATCH_ROWS = 65_536
DATA_COLUMNS = ["id", "quantity", "score", "token", "status", "changed_at", "due", "amount"]
FEED_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("quantity", pa.int32()),
        ("score", pa.float64()),
        ("token", pa.string()),
        ("status", pa.string()),
        ("changed_at", pa.timestamp("us", "UTC")),
        ("due", pa.date32()),
        ("amount", pa.decimal128(18, 2)),
        ("_change_type", pa.string()),
        ("_commit_version", pa.int64()),
        ("_commit_timestamp", pa.timestamp("us", "UTC")),
    ]
)


def bare(name: str, output: Path) -> None:
    """Scan the files of the feed with pyarrow's defaults, one after the other."""
    with pa.OSFile(str(output), "wb") as file, pa.ipc.new_file(file, FEED_SCHEMA) as writer:
        for feed_file in bench_table(name).feed_files():
            for batch in _scan(feed_file):
                writer.write_batch(batch)


def _scan(file: FeedFile) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    own_type = [] if file.change_type else ["_change_type"]
    # Spark writes INT96, which pyarrow takes for nanoseconds unless it is told.
    parquet = pq.ParquetFile(file.path, coerce_int96_timestamp_unit="us")
    for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=DATA_COLUMNS + own_type):
        rows = batch.num_rows
        columns = list(batch.columns)
        # INT96 has no zone; the values are UTC, and the cast leaves the bytes as they are.
        columns[5] = columns[5].cast(FEED_SCHEMA.field("changed_at").type)
        if file.change_type:
            columns.append(pa.repeat(file.change_type, rows))
        columns.append(pa.repeat(pa.scalar(file.version, pa.int64()), rows))
        time = pa.scalar(file.timestamp_ms * 1000, FEED_SCHEMA.field("_commit_timestamp").type)
        columns.append(pa.repeat(time, rows))
        yield pa.RecordBatch.from_arrays(columns, schema=FEED_SCHEMA)


def deltalake(name: str, output: Path, schema: pa.Schema | None) -> None:
    """Stream load_cdf into the file, cast to `schema` if there is one."""
    from deltalake import DeltaTable

    feed = DeltaTable(str(bench_table(name).path)).load_cdf(
        starting_version=STARTING_VERSION, ending_version=ENDING_VERSION
    )
    reader = pa.RecordBatchReader.from_stream(feed)
    with (
        pa.OSFile(str(output), "wb") as file,
        pa.ipc.new_file(file, schema or reader.schema) as writer,
    ):
        for batch in reader:
            writer.write_batch(batch.cast(schema) if schema else batch)


def digest(output: Path) -> None:
    """Print rows, bytes and, for each version and change type, a sum over each column."""
    groups = ["_commit_version", "_change_type"]
    with pa.memory_map(str(output)) as file:
        reader = pa.ipc.open_file(file)
        batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        sums = pa.concat_tables(_sums(batch.cast(FEED_SCHEMA), groups) for batch in batches)
        names = [name for name in sums.column_names if name not in groups]
        total = sums.group_by(groups).aggregate([(name, "sum") for name in names])
    total = total.sort_by([(name, "ascending") for name in groups])
    rows = sum(total.column("rows_sum_sum").to_pylist())
    size = output.stat().st_size
    print(json.dumps({"rows": rows, "bytes": size, "sums": total.to_pydict()}))


def _sums(batch: pa.RecordBatch, groups: list[str]) -> pa.Table:
    """Each column as integers whose sum, modulo 2**64, does not depend on the rows' order."""
    import pyarrow.compute as pc

    # The tokens are hexadecimal, and 15 digits of them fit into an integer.
    digits = pc.binary_join_element_wise("0x", pc.utf8_slice_codeunits(batch["token"], 0, 15), "")
    numbers = {
        "rows": pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows),
        "id": batch["id"],
        "quantity": batch["quantity"],
        "score": batch["score"].view(pa.int64()),
        "token": digits.cast(pa.int64()),
        "status": pc.utf8_length(batch["status"]),
        "changed_at": batch["changed_at"].cast(pa.int64()),
        "due": batch["due"].cast(pa.int32()),
        "amount": pc.multiply(batch["amount"], 100).cast(pa.int64()),
        "_commit_timestamp": batch["_commit_timestamp"].cast(pa.int64()),
    }
    table = pa.table({**{name: batch[name] for name in groups}, **numbers})
    return table.group_by(groups).aggregate([(name, "sum") for name in numbers])


def main() -> None:
    """Run what the first argument names."""
    match sys.argv[1:]:
        case ["digest", output]:
            digest(Path(output))
        case ["bare", name, output]:
            bare(name, Path(output))
        case ["deltalake", name, output]:
            deltalake(name, Path(output), None)
        case ["deltalake=", name, output]:
            deltalake(name, Path(output), FEED_SCHEMA)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
