"""The bars: what each kind of work may take of what a peer takes for the same.

A bar's name stands in the results; its bound is nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. ``benchmark`` measures it; its figure may be ``bound`` at most.

    A bar without a ``unit`` is a ratio of times.
    """

    name: str
    benchmark: str
    work: str
    against: str
    bound: float
    unit: str = ""


BARS: dict[str, Bar] = {
    bar.name: bar
    for bar in (
        Bar("small-read", "runs", "`read` of 5,000 versions of 100 rows", "load_cdf", 0.3),
        Bar("small-feed", "runs", "the same through a feed to JSON lines, offsets saved",
            "load_cdf to Arrow", 0.5),
        Bar("small-kafka", "kafka", "5,000 versions of 100 rows to Kafka, exactly once",
            "librdkafka with ready bytes, a transaction per 10,000 rows", 1.5),
        Bar("large-kafka", "kafka", "a version of 1,000,000 rows to Kafka, exactly once",
            "the same loop", 0.7),
        Bar("remote-small", "remote", "`read` of 300 versions on S3, each answer 20 ms late",
            "load_cdf", 0.7),
        Bar("remote-requests", "remote", "the same, requests", "", 2.2, "per version"),
        Bar("remote-large", "remote", "`read` of one file of 206 MB on S3, 20 ms late",
            "load_cdf", 1.0),
        Bar("files", "read", "`read` of 1,000 files of 1,000 rows in a version",
            "one file of 1,000,000 rows", 2.0),
        Bar("read", "read", "`read` of 2.1 M rows x 7 columns, 12 files, to Arrow",
            "load_cdf", 1.0),
        Bar("read-bare", "read", "the same", "a bare pyarrow scan that writes the file", 1.1),
        Bar("read-large", "read", "`read` of 21 M rows, 120 files, to Arrow", "load_cdf", 0.75),
        Bar("read-vectors", "read", "`read` of 2.1 M inserts and a tenth deleted by vectors",
            "load_cdf", 1.0),
        Bar("read-nested", "read", "`read` of 2.1 M rows with nested columns, written by Spark",
            "load_cdf", 1.0),
        Bar("start", "start", "`history` of a small table", "", 0.35, "s"),
        Bar("start-read", "start", "`read` of a version without rows", "`import pyarrow`", 0.25,
            "s more"),
        Bar("history", "log", "`history` of 50 commits with 100,000 adds",
            "json.loads of each line", 0.8),
        Bar("open-time", "log", "open a log of 300,000 files", "deltalake's open", 0.5),
        Bar("open-memory", "log", "the same, peak memory", "deltalake's open", 0.5,
            "of the memory"),
        Bar("derived-ids", "derive", "changes derived by row ids",
            "a bare scan of the files that leave and come", 2.0),
        Bar("derived-cancel", "derive", "changes derived by cancel-out", "the same scan", 2.5),
        Bar("derived-small", "derive", "300 versions of 20 changed rows, derived",
            "deltalake reads both versions, DuckDB's EXCEPT ALL", 1.5),
        Bar("shape", "shape", "2 M rows to lines, a condition and two computed columns",
            "the rows as they are", 1.15),
        Bar("shape-memory", "shape", "the same, peak memory beyond", "", 64.0, "MiB"),
        Bar("shape-small", "shape", "the same of 5,000 versions of 100 rows",
            "the rows as they are", 1.3),
        Bar("prune", "shape", "a condition that one of 100 files can meet, to lines",
            "the whole table", 0.25),
        Bar("prune-peer", "shape", "the same", "load_cdf with the condition, pyarrow or DuckDB",
            1.0),
        Bar("verify", "verify", "`verify` of 3 M rows in 10 versions",
            "a bare scan of what it must read", 4.0),
        Bar("spark-batch", "spark", "`changes()` of 3 M rows on Spark, all columns",
            "readChangeFeed", 0.5),
        Bar("spark-columns", "spark", "the same, two columns and a condition",
            "readChangeFeed", 0.5),
        Bar("spark-backlog", "spark", "`changes()` of 2,000 versions of 100 rows",
            "readChangeFeed", 0.25),
        Bar("spark-vectors", "spark", "`changes()` of 3 M rows and 1,000 deletion vectors",
            "readChangeFeed", 1.0),
        Bar("spark-stream", "spark", "`foreach_batch()`, `AvailableNow` of 3 M rows",
            "readChangeFeed", 1.0),
        Bar("spark-backlog-stream", "spark", "the same, of 2,000 versions of 100 rows",
            "readChangeFeed", 0.5),
        Bar("spark-source", "spark", '`format("tailer")` of 3 M rows on Spark, a batch',
            "readChangeFeed", 0.8),
        Bar("spark-source-stream", "spark", "the same, `AvailableNow`", "readChangeFeed", 1.25),
        Bar("spark-planning", "spark", "the source plans 1,000 versions of one file", "", 5.0, "s"),
        Bar("cluster-workers", "cluster", "12 M rows on a cluster of two workers of one core",
            "one worker", 0.625),
        Bar("cluster-memory", "cluster", "a MERGE of 3 M rows derived by a task, peak memory", "",
            1024.0, "MiB"),
        Bar("latency-p50", "daemon", "commit to event, 20 commits a second, median", "", 5.0, "ms"),
        Bar("latency-p99", "daemon", "the same, 99th percentile", "", 20.0, "ms"),
        *(
            Bar(f"sink-{kind}", "sinks", f"1,000,000 inserts to the sink `{kind}`", against, bound)
            for kind, against, bound in (
                ("files", "a bare scan that writes Parquet", 1.5),
                ("duckdb", "a bare scan that DuckDB inserts", 1.5),
                ("delta", "a bare scan that deltalake appends", 1.5),
                ("postgres", "COPY of a bare scan", 1.3),
                ("clickhouse", "a bare scan that ClickHouse's own client inserts", 1.5),
            )
        ),
        *(
            Bar(f"sink-{kind}-small", "sinks", f"10,000 versions of 100 rows to the sink `{kind}`",
                "one version of as many rows", 3.0)
            for kind in ("files", "duckdb", "delta", "postgres", "clickhouse")
        ),
        *(
            Bar(f"growth-{what}", "growth", f"growth: {what}, doubled four times",
                "slope of time over size, both logarithmic", 1.1, "slope")
            for what in ("versions", "files", "rows", "columns", "feeds")
        ),
    )
}  # fmt: skip
