"""Verification of a topic: its events lead from a snapshot (or from nothing) to another.

It makes the comparison of :mod:`tailer.verify.table`, out of core, with the events taken from Kafka
instead of from the table. A column that was renamed meanwhile is identified by its physical name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import anyio.to_thread
import pyarrow as pa
from anyio.from_thread import BlockingPortal

from tailer.changes import Offset, is_arrow_variant, variant_json
from tailer.compare.stream import REF_FIELDS
from tailer.delta.arrow_types import holds_arrow_variant
from tailer.delta.snapshot import TableState
from tailer.errors import UnsupportedTable, first_error
from tailer.feed.options import FeedOptions
from tailer.log.follow import follow
from tailer.log.table import TableLog
from tailer.verify.records import TopicRow, read_topic, rows_of, typed_rows, variant_key
from tailer.verify.table import SignedRows, Verdict, compare_rows

__all__ = ["TopicSource", "verify_topic"]

_ROWS = 5000


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A topic, and the settings of the consumer that reads it."""

    name: str
    bootstrap_servers: str
    settings: Mapping[str, Any]


async def verify_topic(
    log: TableLog, topic: TopicSource, first: int | None, last: int, options: FeedOptions
) -> Verdict:
    """Return the verdict on a topic's events up to version ``last``.

    ``first`` None: the topic has everything, from the initial snapshot or version 0 on. Otherwise
    its events from version ``first`` on are applied to the snapshot before it.
    """
    state = (await log.snapshot(last)).state
    options = replace(options, decode=replace(options.decode, target=state, columns=None))
    names = await _names(log, last, state, options)
    try:
        async with BlockingPortal() as portal:
            signed = _TopicRows(portal, log, first or 0, last, options, state)
            signed.topic, signed.renamed = topic, names
            compare = partial(compare_rows, signed, options)
            missing, surplus, examples = await anyio.to_thread.run_sync(compare)
    except BaseExceptionGroup as group:
        raise first_error(group) from None
    return Verdict(first or 0, last, signed.events, missing, surplus, examples)


class _Names:
    """The final names of columns that had other names at some version."""

    def __init__(self, final: TableState) -> None:
        self._final = {final.physical_name(f): f.name for f in final.schema}
        self._versions: list[int] = []
        self._maps: list[dict[str, str | None]] = []

    def add(self, version: int, state: TableState) -> None:
        """Record the state from a version on."""
        found = {f.name: self._final.get(state.physical_name(f)) for f in state.schema}
        if not self._maps or self._maps[-1] != found:
            self._versions.append(version)
            self._maps.append(found)

    def renamed(self, row: TopicRow) -> TopicRow:
        """Return the row under the final names, without columns that were dropped."""
        at = max(0, bisect_right(self._versions, row.version) - 1)
        now, before = self._maps[at], self._maps[max(0, at - 1)]
        # What a row has beside the table's columns are ids, under whatever names.
        own = row.row.keys() & (now.keys() | before.keys())
        for names in (now, before):  # removed rows: old schema
            if names.keys() == own:
                found = {final: row.row[name] for name, final in names.items() if final}
                return replace(row, row=found)
        return row


async def _names(log: TableLog, last: int, final: TableState, options: FeedOptions) -> _Names:
    names = _Names(final)
    earliest = await log.earliest_version()
    async with aclosing(follow(log, Offset(earliest), last, options.follow)) as commits:
        async for commit in commits:
            names.add(commit.version, commit.after)
    return names


class _TopicRows(SignedRows):
    """Both snapshots, and the rows of a topic between them. Variants are their JSON."""

    topic: TopicSource
    renamed: _Names

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        columns = list(self.schema)[len(REF_FIELDS) :]
        for field in columns:
            if holds_arrow_variant(field.type) and not is_arrow_variant(field.type):
                raise UnsupportedTable("variants within other types can't be compared with a topic")
        self.target = pa.schema(
            [f.with_name(name) for name, f in zip(self.names, columns, strict=True)]
        )
        self.schema = pa.schema(
            [f.with_type(pa.string()) if is_arrow_variant(f.type) else f for f in self.schema]
        )

    def changes(self) -> Iterator[pa.RecordBatch]:
        """See :meth:`tailer.verify.table.SignedRows.changes`."""
        rows = self._topic_rows()
        while found := list(islice(rows, _ROWS)):
            sign = pa.array([row.sign for row in found], pa.int8())
            places = pa.arange(self.events, self.events + len(found))
            self.events += len(found)
            columns = typed_rows(found, self.target).columns
            yield pa.RecordBatch.from_arrays([sign, places, *columns], schema=self.schema)

    def _topic_rows(self) -> Iterator[TopicRow]:
        topic = self.topic
        for message in read_topic(topic.bootstrap_servers, topic.name, topic.settings):
            for row in rows_of(message):
                if self.first <= row.version <= self.last:
                    yield self.renamed.renamed(row)

    def comparable(self, column: pa.Array) -> pa.Array:
        """See :meth:`tailer.verify.table.SignedRows.comparable`."""
        if not is_arrow_variant(column.type):
            return column
        texts = [
            None if value is None else variant_key(variant_json(value["value"], value["metadata"]))
            for value in column.to_pylist()
        ]
        return pa.array(texts, pa.string())
