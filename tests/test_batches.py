"""A batch with rows of several files and versions is what its parts are, row by row."""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tailer.changes import ChangeBatch, Offset, concat_batches
from tailer.testing.batches import change_batch

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
KINDS = st.sampled_from(["insert", "delete", "update_preimage", "update_postimage"])


@st.composite
def versions(draw: st.DrawFn) -> list[ChangeBatch]:
    """Several files' batches: of one version or more, and of one row or more each."""
    found: list[ChangeBatch] = []
    version, index = draw(st.integers(0, 5)), 0
    for number in range(draw(st.integers(1, 6))):
        another: bool = draw(st.booleans())
        if found and another:
            found[-1] = _ended(found[-1])
            version, index = version + draw(st.integers(1, 3)), 0
        rows = [
            {"id": i, "name": f"n{i}", "_change_type": draw(KINDS)}
            for i in range(draw(st.integers(1, 4)))
        ]
        path = f"part-{number}.parquet"
        stamp = 1_767_225_600_000 + version
        batch = change_batch(
            SCHEMA, rows, version=version, index=index, path=path, timestamp_ms=stamp
        )
        found.append(batch)
        index += len(rows)
    found[-1] = _ended(found[-1])
    return found


def _ended(batch: ChangeBatch) -> ChangeBatch:
    return structs.replace(batch, next_offset=batch.offset.next_version(batch.timestamp_ms))


def facts(batches: list[ChangeBatch]) -> list[tuple[Any, ...]]:
    """All that is known of each row."""
    found = []
    for batch in filter(attrgetter("num_rows"), batches):
        ids, places = batch.event_ids().to_pylist(), batch.row_indices().to_pylist()
        rows, positions = batch.rows.to_pylist(), batch.positions.to_pylist()
        paths = [part.file.path for part in batch.parts()]
        ends = [part.first for part in batch.parts()[1:]] + [batch.num_rows]
        files: list[str] = []
        for path, end in zip(paths, ends, strict=True):
            files += [path] * (end - len(files))
        found += list(zip(ids, places, map(str, rows), positions, files, strict=True))
    return found


@given(versions())
def test_a_run_is_its_files(batches: list[ChangeBatch]) -> None:
    run = concat_batches(batches)
    assert facts([run]) == facts(batches)
    assert (run.offset, run.next_offset) == (batches[0].offset, batches[-1].next_offset)
    apart = list(run.by_file())
    assert facts(apart) == facts(batches)
    assert [part.offset for part in apart] == [batch.offset for batch in batches]
    assert [part.timestamp_ms for part in apart] == [batch.timestamp_ms for batch in batches]
    assert apart[-1].next_offset == run.next_offset
    for before, after in pairwise(apart):
        assert before.next_offset == after.offset


@given(versions(), st.data())
def test_a_cut_run_has_the_rows_between(batches: list[ChangeBatch], data: st.DataObject) -> None:
    run = concat_batches(batches)
    first = data.draw(st.integers(0, run.num_rows))
    end = data.draw(st.integers(first, run.num_rows))
    cut = run.slice(first, end)
    assert facts([cut]) == facts([run])[first:end]
    if first < end:
        assert cut.next_offset == (
            run.next_offset if end == run.num_rows else run.slice(end, run.num_rows).offset
        )
        assert facts([cut.slice(1, cut.num_rows)]) == facts([run])[first + 1 : end]


@given(versions(), st.integers(0, 12), st.integers(0, 12))
def test_rows_before_an_offset(batches: list[ChangeBatch], version: int, index: int) -> None:
    run, at = concat_batches(batches), Offset(version, index)
    places = [
        (batch.version, place) for batch in batches for place in batch.row_indices().to_pylist()
    ]
    assert run.rows_before(at) == sum(place < at.position for place in places)
    for batch in batches:
        mine = [(batch.version, place) for place in batch.row_indices().to_pylist()]
        assert batch.rows_before(at) == sum(place < at.position for place in mine)
