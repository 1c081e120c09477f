"""`tailer preview`: what a feed would send for some versions, without sending it."""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
from anyio import to_thread

from tailer.api.ranges import find_range
from tailer.changes import ChangeBatch
from tailer.cli.feeds import find_feed
from tailer.config.feeds import load_config
from tailer.daemon.assembly import make_feed_sink, make_table_log
from tailer.errors import TableError, printable
from tailer.feed.fitting import Fitting
from tailer.feed.read import read_changes
from tailer.sink import Sink
from tailer.sink.encoder import Records


async def preview(arguments: argparse.Namespace) -> int:
    """Print the records; return the exit status."""
    config = load_config(Path(arguments.config))
    feed = await find_feed(config, arguments.feed)
    sink, log = make_feed_sink(config, feed), make_table_log(config, feed)
    try:
        versions = await find_range(log, arguments.start, arguments.end)
        fitting = Fitting(log.store.root, [sink])
        options = feed.options.for_sink(sink)
        found = read_changes(log, versions.first, versions.end.version, options)
        async with aclosing(found) as batches:
            async for batch in batches:
                fitting.check_batch(batch)
                sent = await to_thread.run_sync(  # a schema registry is waited for
                    partial(_list_records, feed.name, sink, feed.sink.type, batch)
                )
                for target, records in sent:
                    for record in _make_objects(target, records, as_json=arguments.json):
                        print(_format_json(record) if arguments.json else _format_record(record))
    except TableError as e:
        raise e.at(table=log.store.root) from None
    finally:
        with anyio.CancelScope(shield=True):
            await log.store.aclose()
    return 0


def _list_records(
    feed: str, sink: Sink, kind: str, batch: ChangeBatch
) -> list[tuple[str, Records]]:
    """Return each target's name and what it would get; from a sink that sends no records, the rows
    as JSON."""
    found: list[tuple[str, Records]] = []
    for part in batch.by_file() if batch.num_rows else ():
        try:
            found += sink.preview(feed, part)
        except NotImplementedError:
            found.append((kind, _make_row_records(part)))
    return found


def _make_row_records(batch: ChangeBatch) -> Records:
    """Return the rows themselves, as records without keys."""
    rows = (json.dumps(row, default=str, separators=(",", ":")) for row in batch.rows.to_pylist())
    values = pa.array([row.encode() for row in rows], pa.binary())
    return Records(None, values, (("_event_id", batch.event_ids()),), batch.timestamp_ms)


def _make_objects(target: str, records: Records, *, as_json: bool) -> Iterator[dict[str, Any]]:
    """Yield the records one by one, as JSON objects; values that are JSON too are texts in them,
    unless ``as_json``."""
    values, headers = records.whole_values(), records.whole_headers()
    for place in range(records.num_records):
        key = None if records.keys is None else records.keys[place].as_py()
        yield {
            "target": target,
            "key": _decode_value(key, as_json=as_json),
            "headers": {
                name: _decode_value(_value_at(value, place), as_json=False)
                for name, value in headers
                if _value_at(value, place) is not None
            },
            "value": _decode_value(values[place].as_py(), as_json=as_json),
        }


def _value_at(value: pa.Array | bytes, place: int) -> Any:
    return value if isinstance(value, bytes) else value[place].as_py()


def _decode_value(value: Any, *, as_json: bool) -> Any:
    """Return bytes as what they are: JSON if it is asked for, a text, or base64."""
    if value is None:
        return None
    text = value if isinstance(value, str) else _decode_text(bytes(value))
    if text is None:
        return {"base64": base64.b64encode(value).decode()}
    try:
        return json.loads(text) if as_json else text
    except ValueError:
        return text


def _decode_text(value: bytes) -> str | None:
    """Return bytes as text; None if they are none, as what a registry's id stands before."""
    if value.startswith(b"\0") and not value.startswith(b"{", 5):  # by chance it may be UTF-8
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _format_record(record: dict[str, Any]) -> str:
    """Return a record for people: where it goes, its key and headers, then the value."""
    first = record["target"]
    if record["key"] is not None:
        first += f"  key {record['key']}"
    headers = [f"    {name}: {value}" for name, value in record["headers"].items()]
    value = "null" if record["value"] is None else str(record["value"])
    return "\n".join(printable(line) for line in (first, *headers, f"    {value}"))
