"""An update that changes the key: a delete and a create, each with a header of the other key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sinks.formats.load import load_encoder
from tailer.sink.encoder import Encoder
from tailer.testing.table import TableBuilder
from tests.feed.test_pair import POST, PRE, cdf_table, image, paired
from tests.sinks.formats import MemoryRegistry

NEW, OLD = "__debezium.newkey", "__debezium.oldkey"


def update(old: int | None, new: int | None) -> list[dict[str, Any]]:
    return [image(PRE, old, "a"), image(POST, new, "b")]


def sent(
    table: TableBuilder, encoder: Encoder, rows: int = 100
) -> list[tuple[bytes, bool, dict[str, bytes]]]:
    """Key, whether it is a tombstone, and Debezium's headers of each record."""
    found = []
    for batch in paired(table, 1, key=encoder.key_columns, rows=rows):
        records = encoder.encode(batch)
        if not records.num_records:
            continue
        assert records.keys is not None
        values = {
            name: value.cast(pa.binary()).to_pylist()
            for name, value in records.whole_headers()
            if name in (NEW, OLD) and isinstance(value, pa.Array)
        }
        gone = records.whole_values().is_null().to_pylist()
        for i, key in enumerate(records.keys.to_pylist()):
            headers = {name: one[i] for name, one in values.items() if one[i] is not None}
            found.append((key, gone[i], headers))
    return found


def debezium(**options: Any) -> Encoder:
    return load_encoder("debezium", {"key": ["id"], "name": "feed", **options})


def test_both_events_of_a_strict_file_name_the_other_key(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    updates = [(1, 1), (2, 20), (3, 4), (4, 5), (6, None)]
    table.commit(table.cdc([row for old, new in updates for row in update(old, new)]))
    for rows in (1, 2, 3, 100):
        assert sent(table, debezium(tombstones=True), rows) == [
            (b'{"id":1}', False, {}),
            (b'{"id":2}', False, {NEW: b'{"id":20}'}),
            (b'{"id":2}', True, {NEW: b'{"id":20}'}),
            (b'{"id":20}', False, {OLD: b'{"id":2}'}),
            # 4 is left and reached: its images are one update, and who has it now nobody says.
            (b'{"id":3}', False, {}),
            (b'{"id":3}', True, {}),
            (b'{"id":4}', False, {}),
            (b'{"id":5}', False, {}),
            (b'{"id":6}', False, {NEW: b'{"id":null}'}),
            (b'{"id":6}', True, {NEW: b'{"id":null}'}),
            (b'{"id":null}', False, {OLD: b'{"id":6}'}),
        ]


def test_what_is_between_updates_does_not_matter(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    insert, delete = image("insert", 9, "x"), image("delete", 8, "x")
    table.commit(table.cdc([insert, *update(1, 2), delete, insert, *update(3, 3), *update(5, 6)]))
    for rows in (1, 2, 3, 100):
        assert sent(table, debezium(), rows) == [
            (b'{"id":9}', False, {}),
            (b'{"id":1}', False, {NEW: b'{"id":2}'}),
            (b'{"id":2}', False, {OLD: b'{"id":1}'}),
            (b'{"id":8}', False, {}),
            (b'{"id":9}', False, {}),
            (b'{"id":3}', False, {}),
            (b'{"id":5}', False, {NEW: b'{"id":6}'}),
            (b'{"id":6}', False, {OLD: b'{"id":5}'}),
        ]


@pytest.mark.parametrize(
    "images",
    [
        [image(PRE, 1, "a"), image(PRE, 2, "a"), image(POST, 3, "b"), image(POST, 4, "b")],
        [*update(1, 1), *update(1, 1)],
        [*update(1, 2), image(PRE, 3, "a")],
        [*update(1, 2), image(PRE, 3, "a"), image("insert", 9, "x"), image(POST, 4, "b")],
        [image(POST, 2, "b"), image(PRE, 1, "a")],
    ],
    ids=["in blocks", "a key twice", "an image alone", "apart", "the other way round"],
)
def test_nobody_guesses_at_another_key(tmp_path: Path, images: list[dict[str, Any]]) -> None:
    table = cdf_table(tmp_path)
    table.commit(table.cdc(images))
    assert all(headers == {} for _, _, headers in sent(table, debezium()))


def test_the_other_key_is_written_as_the_records_own(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    table.commit(table.cdc(update(1, 2)))
    (old, _, of_old), (new, _, of_new) = sent(table, debezium(schema=True))
    assert (of_old, of_new) == ({NEW: new}, {OLD: old})
    assert json.loads(new)["payload"] == {"id": 2}
    avro = load_encoder(
        "avro",
        {"key": ["id"], "name": "feed", "topic": "t", "envelope": "debezium"},
        MemoryRegistry(),
    )
    (old, _, of_old), (new, _, of_new) = sent(table, avro)
    assert (of_old, of_new) == ({NEW: new}, {OLD: old})
    assert new[:5] == old[:5] == b"\x00\x00\x00\x00\x01"
