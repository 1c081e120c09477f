"""Kafka sinks without a feed: made, opened and written to in one line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from sinks.kafka.client.driver import Driver
from sinks.kafka.exactly_once import ExactlyOnce
from sinks.kafka.sink import KafkaSink
from tailer.changes import ChangeBatch, Offset
from tailer.errors import TailerError
from tailer.testing.batches import change_batch
from tests.kafka.topics import create_topic

__all__ = ["SCHEMA", "batch", "begun", "fresh", "made", "opened", "refused", "session_of"]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def fresh(prefix: str = "t") -> str:
    """A name that no other test uses."""
    return f"{prefix}-{uuid4().hex[:12]}"


def made(bootstrap: str, topic: str, **options: Any) -> KafkaSink:
    """A sink with progress of its own, so that tests in one broker do not meet."""
    settings = {
        "bootstrap_servers": bootstrap,
        "topic": topic,
        "progress_topic": f"{topic}-progress",
        "transactional_id": f"{topic}-writer",
        **options,
    }
    return KafkaSink.from_options(settings, Path.cwd())


@asynccontextmanager
async def opened(
    bootstrap: str, topic: str, feed: str = "orders", **options: Any
) -> AsyncIterator[tuple[KafkaSink, Offset | None]]:
    """An open sink and the offset that it resumes from. With ``partitions``, the topic is made."""
    if "partitions" in options:
        create_topic(bootstrap, topic, options.pop("partitions"))
    sink = made(bootstrap, topic, **options)
    try:
        yield sink, await sink.open(feed)
    finally:
        await sink.aclose()


def batch(
    version: int, ids: Sequence[int], *, index: int = 0, last: bool = True, name: str = "x"
) -> ChangeBatch:
    """Inserted rows with these ids."""
    rows = [{"id": i, "name": name} for i in ids]
    return change_batch(SCHEMA, rows, version=version, index=index, last=last)


def session_of(sink: KafkaSink) -> ExactlyOnce:
    """What an open sink works with."""
    assert isinstance(sink._session, ExactlyOnce)
    return sink._session


def begun(sink: KafkaSink, batch: ChangeBatch, *, progress: bool = False) -> Driver:
    """Begin a transaction and write a batch in it, with the progress behind it if that is asked
    for; all of it is with the broker, and what to commit it with is returned."""
    session = session_of(sink)
    assert session.driver is not None
    session.driver.begin()
    session._writer(batch).write(batch)
    if progress:
        session._send_progress(replace(session.progress, offset=batch.next_offset))
    session.driver.flush()
    return session.driver


async def refused(sink: KafkaSink, kind: type[TailerError], feed: str = "orders") -> str:
    """The sentence with which opening is refused, by an error of this kind."""
    try:
        with pytest.raises(kind) as caught:
            await sink.open(feed)
    finally:
        await sink.aclose()
    return str(caught.value)
