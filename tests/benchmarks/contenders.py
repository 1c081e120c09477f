"""The programs that `tailer read` is measured against, each run by itself in a fresh process.

`python -m tests.benchmarks.contenders NAME TABLE OUTPUT` writes the feed as one Arrow IPC file:

    bare        the files of the feed, scanned by pyarrow; the least that any reader has to do
    deltalake   deltalake's load_cdf as it comes: string views, batches of 8 thousand rows
    except_all  each version and the one before, read by deltalake and compared by DuckDB
    filter, duckdb
                load_cdf with a condition (behind TABLE) in pyarrow or DuckDB, as lines of JSON

`scan FILE...` only reads files, and `digest FILE` prints a summary of such an Arrow file by which
two of them are compared. Nothing is loaded here that a contender does not need: the start of a
process is a part of what is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

BATCH_ROWS = 65_536


def scan(files: Sequence[str]) -> None:
    """Read files and drop what they hold."""
    import pyarrow.parquet as pq

    for path in files:
        with pq.ParquetFile(path) as parquet:
            for _ in parquet.iter_batches(batch_size=BATCH_ROWS):
                pass


def deltalake(table: Path, output: Path) -> None:
    """Stream load_cdf into the file."""
    from deltalake import DeltaTable

    last = len(list((table / "_delta_log").glob("*.json"))) - 1
    feed = DeltaTable(str(table)).load_cdf(starting_version=1, ending_version=last)
    reader = pa.RecordBatchReader.from_stream(feed)
    with pa.OSFile(str(output), "wb") as file, pa.ipc.new_file(file, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def except_all(table: Path, output: Path) -> None:
    """Find the rows that each version adds and removes, as one does without a change data feed."""
    import duckdb
    from deltalake import DeltaTable

    delta, found = DeltaTable(table), []
    last = delta.version()
    delta.load_as_version(0)
    before, connection = delta.to_pyarrow_table(), duckdb.connect()
    for version in range(1, last + 1):
        delta.load_as_version(version)
        connection.register("before", before)
        before = delta.to_pyarrow_table()
        connection.register("after", before)
        for one, other in (("before", "after"), ("after", "before")):
            changed = connection.sql(f"FROM {one} EXCEPT ALL FROM {other}")
            found.append(changed.to_arrow_table())
    rows = pa.concat_tables(found)
    with pa.OSFile(str(output), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)


def filter_lines(table: Path, low: int, high: int, output: Path) -> None:
    """Filter load_cdf by pyarrow, and write lines of JSON as one does without further packages."""
    import json

    import pyarrow.compute as pc
    from deltalake import DeltaTable

    reader = pa.RecordBatchReader.from_stream(DeltaTable(table).load_cdf(1))
    views = [pa.types.is_string_view(field.type) for field in reader.schema]
    texts = [  # which pyarrow can't filter as views
        field.with_type(pa.string()) if view else field
        for field, view in zip(reader.schema, views, strict=True)
    ]
    with output.open("w") as file:
        for read in reader:
            batch = read.cast(pa.schema(texts))
            chosen = pc.and_(pc.greater_equal(batch["id"], low), pc.less_equal(batch["id"], high))
            for row in batch.filter(chosen).to_pylist():
                file.write(json.dumps(row, default=str) + "\n")


def duckdb_lines(table: Path, low: int, high: int, output: Path) -> None:
    """Filter load_cdf by DuckDB, which writes the lines."""
    import duckdb
    from deltalake import DeltaTable

    connection = duckdb.connect()
    feed = pa.RecordBatchReader.from_stream(DeltaTable(table).load_cdf(1))
    connection.register("feed", feed)
    chosen = f"FROM feed WHERE id BETWEEN {low} AND {high}"
    connection.execute(f"COPY ({chosen}) TO '{output}' (FORMAT json)")


def main() -> None:
    """Run what the first argument names."""
    match sys.argv[1:]:
        case ["digest", output]:
            from tests.benchmarks.feed_output import digest

            digest(Path(output))
        case ["scan", *files]:
            scan(files)
        case ["bare", table, output]:
            from tests.benchmarks.feed_output import bare

            bare(Path(table), Path(output))
        case ["deltalake", table, output]:
            deltalake(Path(table), Path(output))
        case ["filter" | "duckdb" as name, table, low, high, output]:
            run = filter_lines if name == "filter" else duckdb_lines
            run(Path(table), int(low), int(high), Path(output))
        case ["except_all", table, output]:
            except_all(Path(table), Path(output))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
