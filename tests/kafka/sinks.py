"""Kafka sinks without a feed: made, opened and written to in one line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from sinks.kafka.broker import KafkaBroker
from sinks.kafka.exactly_once import ExactlyOnce
from sinks.kafka.sink import KafkaSink
from tailer.changes import ChangeBatch, Offset
from tailer.errors import TailerError
from tailer.sink import make_sink
from tailer.testing.batches import change_batch
from tests.kafka.topics import create_topic

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
    sink = make_sink("kafka", settings, Path.cwd())
    assert isinstance(sink, KafkaSink)
    return sink


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


def broker_of(sink: KafkaSink) -> KafkaBroker:
    """The connection of an open sink."""
    assert sink._session is not None
    broker = sink._session.broker
    assert isinstance(broker, KafkaBroker)
    return broker


@dataclass
class Begun:
    """A transaction that is open, with all that was written in it at the broker."""

    broker: KafkaBroker

    def commit(self) -> None:
        self.broker.driver.commit()
        self.broker.markers.begin(self.broker.driver.written_partitions)


def begun(sink: KafkaSink, batch: ChangeBatch, *, progress: bool = False) -> Begun:
    """Begin a transaction and write a batch in it, with the progress behind it if that is asked
    for."""
    broker, session = broker_of(sink), session_of(sink)
    broker.markers.wait()
    broker.driver.begin_transaction()
    written(sink, batch)
    if progress:
        after = replace(session.transactions.progress, offset=batch.next_offset)
        broker._send_progress(after)
    broker.driver.flush()
    return Begun(broker)


def written(sink: KafkaSink, batch: ChangeBatch) -> None:
    """Send a batch in the open transaction."""
    broker, session = broker_of(sink), session_of(sink)
    ((name, _),) = sink.options.split_by_topic(broker.feed, batch)
    if name not in session._open_topics:
        session._open_topic(name)
    broker._writers[name].write(broker.encode(name, batch))


async def refused(sink: KafkaSink, kind: type[TailerError], feed: str = "orders") -> str:
    """The sentence with which opening is refused, by an error of this kind."""
    try:
        with pytest.raises(kind) as caught:
            await sink.open(feed)
    finally:
        await sink.aclose()
    return str(caught.value)
