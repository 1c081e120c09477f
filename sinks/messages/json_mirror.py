"""A copy of a table in a store of keys and values: the row as JSON under a text of its key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from anyio.from_thread import BlockingPortal

from sinks.formats.json import json_objects, json_values
from sinks.formats.parts import encode_naming_corrupt_file, table_name
from sinks.messages.messages import Messages
from sinks.messages.sink import MessageSink
from sinks.shared.json_copy import find_column
from sinks.shared.key_ids import find_ids, find_ids_of_texts
from sinks.shared.merge import KeyOrder, check_key
from sinks.shared.record_form import check_record_form
from tailer.changes import COMMIT_VERSION, METADATA_FIELDS, ChangeBatch, Offset
from tailer.errors import ConfigError, SinkRejected, TransientError
from tailer.sink import SinkTraits
from tailer.sink.encoder import Records
from tailer.sink.pulling import open_portal, pull_batches

#: The rows of a page by the names of their keys: bytes or texts, as the store's client has them.
N = TypeVar("N", bytes, str)


class JsonMirror(MessageSink):
    """What such copies have in common. Leaves stand before the class of their store's events, and
    say how keys are called and how rows are written and read."""

    #: A version may take a key from a row behind the one that gets it: a batch is one piece.
    piece_rows = piece_bytes = 1 << 40
    #: The columns that identify a row.
    key: tuple[str, ...]

    def _find_key(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the key of the options. Raises :class:`ConfigError` for those that no copy has."""
        what = {
            "format": ("a copy's rows are JSON objects", given["format"] == "rows"),
            "value_bytes_max": ("a copy has whole rows", not given["value_bytes_max"]),
            "key": ("name the columns that identify a row of the copy", bool(given["key"])),
        }
        for option, (said, good) in what.items():
            if not good:
                raise ConfigError(f"option {option!r} of sink {self.kind!r}: {said}")
        return tuple(given["key"])

    def _set_key(self, key: tuple[str, ...]) -> None:
        """Become the sink of a copy by this key."""
        self.key = key
        self.traits = SinkTraits(key_columns=key, spans=True, keeps_offset=True, copies=True)

    def check_record_form(
        self, feed: str, saved: Mapping[str, Any] | None, at: Offset | None
    ) -> Mapping[str, Any]:
        """Return the form. The store has the offset, and keys may get another place."""
        self._feed, self.written_before = feed, bool(saved)
        return check_record_form({"type": self.kind, "mode": "mirror"}, saved, feed, at)

    def preview(self, feed: str, batch: ChangeBatch) -> Iterator[tuple[str, Records]]:
        raise NotImplementedError

    @abstractmethod
    def name_keys(
        self, keys: pa.Table, find_ids: Callable[[pa.Table], pa.StringArray]
    ) -> pa.StringArray:
        """Return what each key is called in the store; ``find_ids`` gives the texts of columns."""

    @abstractmethod
    async def write_rows(
        self, names: pa.StringArray, values: pa.StringArray, expected: Offset | None
    ) -> bool:
        """Set rows, or remove those whose value is empty; return whether the offset was the
        expected one, without which nothing is written."""

    @abstractmethod
    def scan_rows(self) -> AsyncGenerator[Mapping[Any, dict[str, msgspec.Raw]], None]:
        """Yield the rows by the names of their keys, each once or twice, in pages."""

    async def find_offset(self) -> Offset | None:
        """Return the offset that the store has."""
        return await self._look_at_target()

    def _make_messages(self, batch: ChangeBatch) -> Messages:
        """Return the last change of each key: ``ids`` are the names of the keys, an empty value
        says that the row goes, and ``keys`` whether there was one (+ or -)."""
        rows = batch.rows.select(batch.rows.schema.names[: -len(METADATA_FIELDS)])
        check_key(batch, rows, self.key)
        keys = pa.table(rows).select(list(self.key))
        turns = KeyOrder(batch, keys)
        turns.check_turns(batch)
        last = pc.invert(turns.followed)
        order, stays = turns.order.filter(last), turns.comes.filter(last)
        values = self.format_rows(batch).take(order)
        values = pc.if_else(stays, values, pa.scalar("")).cast(pa.binary())
        expected = pc.if_else(turns.comes.filter(turns.first), "-", "+").cast(pa.binary())
        versions = batch.rows.column(COMMIT_VERSION).take(order)
        names = self.name_keys(keys.take(order), find_ids)
        return Messages(batch, values, names, versions, table_name(batch, ""), expected)

    def format_rows(self, batch: ChangeBatch) -> pa.StringArray:
        """Return the data columns of each row as JSON."""
        count = batch.rows.num_columns - len(METADATA_FIELDS)
        names = batch.rows.schema.names[:count]
        return encode_naming_corrupt_file(
            lambda part: json_objects(names, part.rows.columns[:count]), batch
        )

    def _replaces_rows(self, batch: ChangeBatch) -> bool:
        """Return whether rows are read again while the copy is there, and replace those of their
        keys."""
        return batch.offset.snapshot and self._at is not None and not self._at.snapshot

    def _make_key_error(self, where: str, name: str, *, there: bool) -> SinkRejected:
        does = "comes, and is there" if there else "leaves, and is not there"
        return SinkRejected(
            f"{where}: the key {name!r} {does}: the key columns do not identify a row, or another "
            "program or an eviction has changed the copy; `tailer verify --repair` sets it right"
        )

    def _keep_rows(
        self, names: Sequence[N], values: Sequence[bytes | None]
    ) -> dict[N, dict[str, msgspec.Raw]]:
        """Return the rows among values, by the names of their keys. One under a name that is not
        its key's belongs to somebody else."""
        parsed: dict[N, dict[str, msgspec.Raw]] = {}
        for name, value in zip(names, values, strict=True):
            try:
                # What is raw is not decoded, so it may be no UTF-8.
                row = msgspec.json.decode((value or b"").decode(), type=dict[str, msgspec.Raw])
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if all(column in row for column in self.key):
                parsed[name] = row
        texts, rows = [pa.field(n, pa.string()) for n in self.key], list(parsed.values())
        keys = pa.table([find_column(rows, field) for field in texts], names=list(self.key))
        wanted = self.name_keys(keys, find_ids_of_texts)
        if names and isinstance(names[0], bytes):
            wanted = wanted.cast(pa.binary())
        found = zip(parsed.items(), wanted.to_pylist(), strict=True)
        return {name: row for (name, row), right in found if name == right}

    @contextmanager
    def read_mirror(self, feed: str) -> Iterator[JsonCopy]:
        with self._open_blocking(feed) as portal:
            yield JsonCopy(portal, self)

    @contextmanager
    def repair_mirror(self, feed: str) -> Iterator[JsonRepair]:
        with self._open_blocking(feed) as portal:
            yield JsonRepair(portal, self)

    @contextmanager
    def _open_blocking(self, feed: str) -> Iterator[BlockingPortal]:
        self._feed = feed
        with open_portal(self._disconnect) as portal:
            yield portal


class JsonCopy:
    """See :class:`tailer.sink.MirrorCopy`. Values are compared as JSON."""

    def __init__(self, portal: BlockingPortal, sink: JsonMirror) -> None:
        self.offset: Offset | None = portal.call(sink.find_offset)
        self.key = sink.key
        self.at: int | None = None
        self._portal = portal
        self._sink = sink

    def as_held(self, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG002  # the same for all
        return json_values(column)

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        seen = set[Any]()
        for found in pull_batches(self._portal, self._sink.scan_rows()):
            rows = [row for name, row in found.items() if name not in seen]
            seen.update(found)
            columns = [find_column(rows, field) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, names=schema.names)
        if self._portal.call(self._sink.find_offset) != self.offset:
            raise TransientError("the feed has written the copy meanwhile; verify it again")


class JsonRepair:
    """See :class:`tailer.sink.MirrorRepair`."""

    def __init__(self, portal: BlockingPortal, sink: JsonMirror) -> None:
        self._portal = portal
        self._sink = sink
        self.offset: Offset | None = portal.call(sink.find_offset)

    def reload(self) -> bool:
        before, self.offset = self.offset, self._portal.call(self._sink.find_offset)
        return self.offset != before

    def replace(self, batch: ChangeBatch) -> None:
        keys = pa.table(batch.rows.select(list(self._sink.key)))
        values = self._sink.format_rows(batch)
        self._write(self._sink.name_keys(keys, find_ids), values)

    def remove(self, keys: pa.Table) -> None:
        keys = keys.select(list(self._sink.key))
        names = self._sink.name_keys(keys, find_ids_of_texts)
        self._write(names, pa.array([""] * len(names), pa.string()))

    def _write(self, names: pa.StringArray, values: pa.StringArray) -> None:
        if not self._portal.call(self._sink.write_rows, names, values, self.offset):
            raise TransientError("the feed has written the copy meanwhile; repair it again")
