"""The programs of :mod:`tests.benchmarks.bench_sinks`, each run by itself in a fresh process.

    python -m tests.benchmarks.sinks_contenders sink KIND TABLE FOLDER OPTIONS
    python -m tests.benchmarks.sinks_contenders bare KIND TABLE FOLDER OPTIONS
    python -m tests.benchmarks.sinks_contenders receive PORT

The first is a feed of the table to the sink, its offsets saved in the folder. The second writes the
same rows by the fastest public client: those of the table's files by a bare scan, or, for a server
or lines, a ready piece again and again. OPTIONS are the sink's, as JSON. The third takes requests
and drops them.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa

#: Rows that a client sends at once.
PIECE_ROWS = 10_000
#: Events of a request, as the sink `http` sends them.
REQUEST_ROWS = 1_000
#: Rows of a feed's batch.
FEED_ROWS = 131_072
#: Documents of a request, as the sink `search` sends them.
BULK_ROWS = 5_000


async def sink(kind: str, table: Path, folder: Path, options: dict[str, Any]) -> None:
    """Run a feed to the table's last version, as the daemon does."""
    from tailer.changes import Offset
    from tailer.feed import Feed, FeedOptions, run_feed
    from tailer.feed.progress import FeedProgress
    from tailer.log.table import TableLog
    from tailer.offsets.local import LocalOffsetStore
    from tailer.sink import make_sink
    from tailer.storage import open_store

    async def start(_: TableLog) -> Offset:
        return Offset(1)

    log = TableLog(open_store(str(table)))
    await run_feed(
        Feed(
            name="bench",
            log=log,
            sink=make_sink(kind, options, folder),
            offsets=LocalOffsetStore(folder / "state", "bench"),
            start=start,
            progress=FeedProgress("bench", time.time),
            jitter=random.random,
            options=FeedOptions(),
            last=await log.latest_version(),
        )
    )


def batches(table: Path, count: int = 65_536) -> Iterator[pa.RecordBatch]:
    """The rows of the table's files."""
    import pyarrow.parquet as pq

    for path in sorted(table.glob("*.parquet")):
        with pq.ParquetFile(path) as parquet:
            yield from parquet.iter_batches(batch_size=count)


def pieces(table: Path) -> tuple[list[bytes], int]:
    """A ready piece of lines of JSON, and how many times it makes the table's rows."""
    count = sum(batch.num_rows for batch in batches(table))
    piece = next(batches(table)).slice(0, PIECE_ROWS).to_pylist()
    lines = [json.dumps(row, default=str).encode() for row in piece]
    return lines, max(1, count // len(lines))


def files(table: Path, folder: Path, _: dict[str, Any]) -> None:
    """Scan and write Parquet, with the metadata columns."""
    import pyarrow.parquet as pq

    from tailer.changes import METADATA_FIELDS

    def full(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = ("insert", 1, 1_700_000_000_000_000)
        more = [
            pa.repeat(pa.scalar(value, field.type), batch.num_rows)
            for value, field in zip(values, METADATA_FIELDS, strict=True)
        ]
        schema = pa.schema([*batch.schema, *METADATA_FIELDS])
        return pa.RecordBatch.from_arrays([*batch.columns, *more], schema=schema)

    found = map(full, batches(table))
    first = next(found)
    how = {"compression": "zstd", "compression_level": 1}
    with pq.ParquetWriter(folder / "rows.parquet", first.schema, **how) as writer:
        writer.write_batch(first)
        for batch in found:
            writer.write_batch(batch)


def duckdb(table: Path, folder: Path, _: dict[str, Any]) -> None:
    """Insert a bare scan into a table with the same key, in one transaction."""
    import duckdb as client

    with client.connect(folder / "rows.duckdb") as connection:
        reader = pa.RecordBatchReader.from_batches(next(batches(table)).schema, batches(table))
        connection.register("reader", reader)
        connection.execute("CREATE TABLE bench AS SELECT * FROM reader LIMIT 0")
        connection.execute("ALTER TABLE bench ADD PRIMARY KEY (id)")
        reader = pa.RecordBatchReader.from_batches(next(batches(table)).schema, batches(table))
        connection.register("reader", reader)
        connection.execute("INSERT INTO bench SELECT * FROM reader")


def delta(table: Path, folder: Path, _: dict[str, Any]) -> None:
    """Append a bare scan to a Delta table."""
    from deltalake import write_deltalake

    reader = pa.RecordBatchReader.from_batches(next(batches(table)).schema, batches(table))
    write_deltalake(folder / "rows", reader)


def sqlite(table: Path, folder: Path, _: dict[str, Any]) -> None:
    """Insert ready rows into a table with the same key, in one transaction."""
    connection = sqlite3.connect(folder / "rows.sqlite")
    connection.execute("CREATE TABLE bench (id INTEGER PRIMARY KEY, a, b, c, d, e, f)")
    for batch in batches(table):
        rows = zip(*(_plain(column) for column in batch.columns), strict=True)
        connection.executemany("INSERT INTO bench VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()


def _plain(column: pa.Array) -> list[Any]:
    """Values that SQLite takes."""
    if pa.types.is_timestamp(column.type) or pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    return list(column.to_pylist())


def postgres(table: Path, _: Path, options: dict[str, Any]) -> None:
    """COPY a bare scan, as CSV, into a table with the same key, in one transaction."""
    import psycopg
    from pyarrow import csv

    with psycopg.connect(options["dsn"]) as connection:
        connection.execute(
            "CREATE TABLE bench (id bigint PRIMARY KEY, quantity integer, score double precision, "
            "token text, status text, changed_at timestamptz, amount numeric(22, 2))"
        )
        with connection.cursor().copy("COPY bench FROM STDIN (FORMAT csv)") as copy:
            for batch in batches(table):
                out = pa.BufferOutputStream()
                csv.write_csv(batch, out, csv.WriteOptions(include_header=False))
                copy.write(memoryview(out.getvalue()))


def mysql(table: Path, _: Path, options: dict[str, Any]) -> None:
    """Insert ready rows into a table with the same key, in one transaction: the client makes one
    statement of many rows."""
    from urllib.parse import unquote, urlsplit

    import pymysql

    url = urlsplit(options["url"])
    connection = pymysql.connect(
        host=url.hostname, port=url.port or 3306, user=unquote(url.username or ""),
        password=unquote(url.password or ""), database=url.path.strip("/"),
    )  # fmt: skip
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE bench (id BIGINT PRIMARY KEY, quantity INT, score DOUBLE, token LONGTEXT,"
            " status LONGTEXT, changed_at DATETIME(6), amount DECIMAL(22, 2))"
        )
        for batch in batches(table):
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            cursor.executemany("INSERT INTO bench VALUES (%s, %s, %s, %s, %s, %s, %s)", rows)
        connection.commit()


def rabbitmq(table: Path, _: Path, options: dict[str, Any]) -> None:
    """Publish ready messages, without confirmations."""
    import pika

    lines, times = pieces(table)
    connection = pika.BlockingConnection(pika.URLParameters(options["url"]))
    channel = connection.channel()
    channel.queue_declare("bare", durable=True)
    for _time in range(times):
        for number, line in enumerate(lines):
            properties = pika.BasicProperties(message_id=str(number), delivery_mode=2)
            channel.basic_publish("", "bare", line, properties)
    connection.close()


def redis(table: Path, _: Path, options: dict[str, Any]) -> None:
    """XADD ready entries, a pipeline for each piece."""
    import redis as client

    lines, times = pieces(table)
    with client.Redis.from_url(options["url"]) as connection:
        for _time in range(times):
            pipeline = connection.pipeline(transaction=True)
            for number, line in enumerate(lines):
                pipeline.xadd("bare", {"id": str(number), "event": line})
            pipeline.execute()


def nats(table: Path, _: Path, options: dict[str, Any]) -> None:
    """Publish ready messages to JetStream, without waiting for each answer."""
    import nats as client

    async def publish() -> None:
        lines, times = pieces(table)
        connection = await client.connect(options["servers"])
        stream = connection.jetstream(publish_async_max_pending=PIECE_ROWS)
        await stream.add_stream(name="bare", subjects=["bare"])
        for turn in range(times):
            for number, line in enumerate(lines):
                headers = {"Nats-Msg-Id": f"{turn}-{number}"}
                await stream.publish_async("bare", line, headers=headers)
            await stream.publish_async_completed()
        await connection.close()

    anyio.run(publish)


def pubsub(table: Path, _: Path, options: dict[str, Any]) -> None:
    """Publish ready messages by Google's own publisher, in its batches; with a key, each message
    has an ordering key of its own."""
    import grpc
    from google.cloud import pubsub_v1
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

    lines, times = pieces(table)
    keyed = bool(options.get("key"))
    address = options["endpoint_url"].removeprefix("http://")
    client = pubsub_v1.PublisherClient(
        batch_settings=pubsub_v1.types.BatchSettings(max_messages=REQUEST_ROWS),
        publisher_options=pubsub_v1.types.PublisherOptions(enable_message_ordering=keyed),
        transport=PublisherGrpcTransport(channel=grpc.insecure_channel(address)),
    )
    for turn in range(times):
        sent = [
            client.publish(
                options["topic"], line, ordering_key=f"{turn}-{number}" if keyed else "",
                event_id=str(number),
            )
            for number, line in enumerate(lines)
        ]  # fmt: skip
        for each in sent:
            each.result()
    client.stop()


def clickhouse(table: Path, _: Path, options: dict[str, Any]) -> None:
    """Insert a bare scan, in requests as large as the sink's, by the client of ClickHouse's makers,
    into a table with the same key, whose rows are on disk when they are answered."""
    import clickhouse_connect

    address = {"dsn": options["url"], "database": options["database"]}
    with clickhouse_connect.get_client(
        **address, compress="lz4", autogenerate_session_id=False
    ) as client:
        client.command(
            "CREATE TABLE bench (id Int64, quantity Nullable(Int32), score Nullable(Float64),"
            " token Nullable(String), status Nullable(String), changed_at"
            " Nullable(DateTime64(6, 'UTC')), amount Nullable(Decimal(22, 2))) ENGINE ="
            " ReplacingMergeTree ORDER BY id SETTINGS fsync_after_insert=1, fsync_part_directory=1"
        )
        for batch in batches(table, FEED_ROWS):
            client.insert_arrow("bench", pa.table(batch))


def search(table: Path, _: Path, options: dict[str, Any]) -> None:
    """Index ready documents by OpenSearch's own client, four requests at a time."""
    import opensearchpy

    lines, times = pieces(table)
    engine = opensearchpy.OpenSearch(options["url"], timeout=60)

    def send(first: int) -> None:
        named = enumerate(lines[first % len(lines) :][:BULK_ROWS], first)
        body = "".join(f'{{"index":{{"_id":{n}}}}}\n{line.decode()}\n' for n, line in named)
        assert not engine.bulk(body=body, index="bare")["errors"]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send, range(0, times * len(lines), BULK_ROWS)))


def http(table: Path, _: Path, options: dict[str, Any]) -> None:
    """POST ready batches of as many events as the sink's."""
    import aiohttp

    async def post() -> None:
        lines, times = pieces(table)
        body = b"[" + b",".join(lines[:REQUEST_ROWS]) + b"]"
        async with aiohttp.ClientSession() as session:
            for _time in range(times * len(lines) // REQUEST_ROWS):
                async with session.post(options["url"], data=body) as answer:
                    answer.raise_for_status()

    anyio.run(post)


def receive(port: int) -> None:
    """Answer requests, and drop what they have."""
    from aiohttp import web

    async def take(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=204)

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/", take)
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None)


def jsonl(table: Path, folder: Path, _: dict[str, Any]) -> None:
    """Write ready lines."""
    lines, times = pieces(table)
    with (folder / "rows.jsonl").open("wb") as file:
        for _time in range(times):
            file.write(b"\n".join(lines) + b"\n")


CLIENTS = (
    files,
    duckdb,
    delta,
    sqlite,
    postgres,
    mysql,
    rabbitmq,
    redis,
    nats,
    pubsub,
    clickhouse,
    search,
    http,
    jsonl,
)
BARE: dict[str, Callable[[Path, Path, dict[str, Any]], None]] = {
    made.__name__: made for made in CLIENTS
}


def main() -> None:
    """Run what the first argument names."""
    match sys.argv[1:]:
        case ["sink", kind, table, folder, options]:
            anyio.run(sink, kind, Path(table), Path(folder), json.loads(options))
        case ["bare", kind, table, folder, options]:
            BARE[kind](Path(table), Path(folder), json.loads(options))
        case ["receive", port]:
            receive(int(port))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
