"""A small consumer that rebuilds a table from a topic of its change events, to verify a feed.

It holds the table in memory and decodes every value separately: for tests, and as an example of
what a consumer has to do.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from tests.support.topic_records import Message, TopicRow, rows_of, topic_values

#: A row in a form that equal rows share, and that can be counted.
Row = tuple[tuple[str, str], ...]


def canonical_row(values: Mapping[str, Any]) -> Row:
    """Return a row's values, by name; NaN equals NaN, maps have no order."""
    return tuple(sorted((name, _canonical(value)) for name, value in values.items()))


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        return repr(sorted((k, _canonical(v)) for k, v in value.items()))
    if isinstance(value, list):
        pairs = value and all(isinstance(item, tuple) for item in value)  # a map's entries
        texts = [_canonical(item) for item in value]
        return repr(sorted(texts) if pairs else texts)
    if isinstance(value, tuple):
        return repr([_canonical(item) for item in value])
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return f"{value.astimezone(dt.UTC).replace(tzinfo=None)!r}Z"
    return repr(0.0 if value == 0 and isinstance(value, float) else value)


class MultisetTable:
    """A table without a key: how often each row is there. Needs every image of every update."""

    def __init__(self) -> None:
        self.rows: Counter[Row] = Counter()

    def apply(self, message: Message, rows: Iterable[tuple[TopicRow, Row]]) -> None:  # noqa: ARG002
        """Apply the rows of one record, as :func:`consume` passes them."""
        for row, values in rows:
            self.rows[values] += row.sign

    def result(self) -> Counter[Row]:
        """Return the rows. Raises AssertionError for a row that left more often than it came."""
        assert all(count >= 0 for count in self.rows.values()), "a row left that was not there"
        return +self.rows


class KeyedTable:
    """A table whose rows are identified by the records' keys: the latest row of each key.

    A row that leaves removes its key only if it is the current row: if two rows exchange their
    keys, one of them has come before the other leaves. A tombstone always removes its key.
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, Row] = {}

    def apply(self, message: Message, rows: Iterable[tuple[TopicRow, Row]]) -> None:
        """Apply the rows of one record, as :func:`consume` passes them."""
        assert message.key is not None, f"the record at offset {message.offset} has no key"
        if message.value is None:
            self.rows.pop(message.key, None)
        for row, values in rows:
            if row.sign > 0:
                self.rows[message.key] = values
            elif self.rows.get(message.key) == values:
                del self.rows[message.key]

    def result(self) -> Counter[Row]:
        """Return the rows."""
        return Counter(self.rows.values())


def consume(
    messages: Iterable[Message],
    schema: pa.Schema,
    *tables: MultisetTable | KeyedTable,
    rename: Callable[[TopicRow], TopicRow] = lambda row: row,
) -> None:
    """Apply a topic's records, in order, to tables that are rebuilt from them.

    ``schema`` has the data columns of the final version; ``rename`` converts a row with older names
    to those.
    """
    for message in messages:
        rows = [(row, _values(rename(row), schema)) for row in rows_of(message)]
        for table in tables:
            table.apply(message, rows)


def _values(row: TopicRow, schema: pa.Schema) -> Row:
    return canonical_row(topic_values(row, list(schema)))
