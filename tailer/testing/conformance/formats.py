"""What every format must hold: the same changes are the same bytes, however they are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch
from tailer.errors import TailerError
from tailer.sink.encoder import Encoder
from tailer.testing.batches import change_batch, change_span, empty_batch
from tailer.testing.conformance.sink import SCHEMA, TYPES, VALUES

__all__ = ["FormatConformance"]

#: A new encoder with the same options.
MakeEncoder = Callable[[], Encoder]

_KINDS = ("insert", "update_preimage", "update_postimage", "delete")


def _make_span() -> ChangeBatch:
    """Three versions: of two files, of one, and of two again; each key occurs twice."""
    rows = [
        {"id": i // 2, "name": f"name {i // 2}", "_change_type": _KINDS[i % 4]} for i in range(13)
    ]
    return change_span(SCHEMA, [[rows[:2], rows[2:5]], [rows[5:7]], [rows[7:11], rows[11:]]])


def _list_records(encoder: Encoder, *batches: ChangeBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the records of batches, each with its key, value, headers and time."""
    for batch in batches:
        records = encoder.encode(batch).whole()
        count = records.num_records
        columns = [records.keys, records.values, *(value for _, value in records.headers)]
        columns += [records.timestamp_ms, records.partitions]
        names = tuple(name for name, _ in records.headers)
        for row in zip(*(_list_values(column, count) for column in columns), strict=True):
            yield names, *row


def _check_same(encoder: Encoder, *found: Iterator[tuple[Any, ...]]) -> None:
    """Check that the records are the same, and in the same order if the format keeps that of the
    rows."""
    one, other = ([*records] for records in found)
    if not encoder.keeps_order:
        one, other = sorted(one, key=repr), sorted(other, key=repr)
    assert one == other


def _list_values(column: Any, count: int) -> list[Any]:
    return column.to_pylist() if isinstance(column, pa.Array) else [column] * count


class FormatConformance:
    """Subclass it and provide the fixture ``make_encoder``. A format with a key gets the key
    ``id``."""

    @pytest.fixture
    def make_encoder(self) -> MakeEncoder:
        """Return a function that makes an encoder."""
        raise NotImplementedError

    def test_the_same_changes_are_the_same_bytes(self, make_encoder: MakeEncoder) -> None:
        """On every run: a consumer drops what comes again by comparing it."""
        encoder, batch = make_encoder(), _make_span()
        before = [*_list_records(encoder, batch)]
        assert before == [*_list_records(encoder, batch)]
        assert before == [*_list_records(make_encoder(), batch)]

    def test_no_change_is_left_out(self, make_encoder: MakeEncoder) -> None:
        """Each row has a record; there may be more, as tombstones."""
        batch = _make_span()
        assert make_encoder().encode(batch).num_records >= batch.num_rows

    def test_an_empty_batch_has_no_record(self, make_encoder: MakeEncoder) -> None:
        """It only moves the offset."""
        assert make_encoder().encode(empty_batch(SCHEMA, version=3)).num_records == 0

    def test_a_span_is_written_as_its_files_are(self, make_encoder: MakeEncoder) -> None:
        """A batch may have rows of several files and versions: each has its own version's time."""
        batch = _make_span()
        together, alone = make_encoder(), make_encoder()
        _check_same(alone, _list_records(together, batch), _list_records(alone, *batch.by_file()))

    def test_a_batch_may_be_cut_anywhere(self, make_encoder: MakeEncoder) -> None:
        """After a crash, a batch begins where the last one ended, which may be within a file."""
        batch = _make_span()
        parts = [batch.slice(first, end) for first, end in pairwise([0, 1, 4, 9, batch.num_rows])]
        whole, cut = make_encoder(), make_encoder()
        _check_same(whole, _list_records(whole, batch), _list_records(cut, *parts))

    def test_the_same_key_has_the_same_bytes(self, make_encoder: MakeEncoder) -> None:
        """Events of one key go to one partition, in order."""
        encoder = make_encoder()
        if not encoder.key_columns:
            return
        assert encoder.key_columns == ("id",)
        keys: dict[int, set[bytes]] = {}
        for number in (1, 2, 1):
            row = {"id": number, "name": "x"}
            records = encoder.encode(change_batch(SCHEMA, [row]))
            assert records.keys is not None
            keys.setdefault(number, set()).update(records.keys.to_pylist())
        assert [len(one) for one in keys.values()] == [1, 1]
        assert not keys[1] & keys[2]

    @pytest.mark.parametrize("column", TYPES.names)
    def test_a_value_of_each_type_is_written_or_refused(
        self, make_encoder: MakeEncoder, column: str
    ) -> None:
        """A value that the format does not have is an error of this project, and never another
        value. A text stays a line."""
        encoder = make_encoder()
        schema = pa.schema([("id", pa.int64()), TYPES.field(column)])
        batches = [
            change_batch(schema, [{"id": 1, column: value}]) for value in (VALUES[column], None)
        ]
        try:
            values = [encoder.encode(batch).whole_values() for batch in batches]
        except TailerError:
            return
        assert values[0] != values[1], "a value, and none"
        if encoder.is_text:
            lines = [line for each in values for line in each.to_pylist()]
            assert all(line is None or b"\n" not in line for line in lines)
            assert all(line is None or line.decode() for line in lines)
