"""An action that its writer repeats is one, wherever it stands; two that differ are refused."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.delta.add_fields import WITH_STATISTICS
from tailer.delta.commit import read_header
from tailer.errors import CorruptLog
from tailer.testing.checkpoint_files import write_checkpoint
from tests.support.feeds import commit_of, log_lines, refusal, state, table_log

ID = "80a083e8-7026-4e79-81be-64bd76c43a11"
EMPTY = '{"type":"struct","fields":[]}'
COLUMNS = '{"type":"struct","fields":[{"name":"p","type":"long","nullable":true,"metadata":{}}]}'
VECTOR = {"storageType": "p", "pathOrInlineDv": "v", "sizeInBytes": 40, "cardinality": 1}
FILE = {
    "size": (10, 11),
    "dataChange": (True, False),
    "partitionValues": ({"p": "1"}, {"p": "2"}),
    "deletionVector": (VECTOR, VECTOR | {"cardinality": 2}),
    "baseRowId": (0, 10),
    "defaultRowCommitVersion": (1, 2),
}
#: Two values of each field that is read.
FIELDS: Mapping[str, Mapping[str, tuple[Any, Any]]] = {
    "protocol": {
        "minReaderVersion": (3, 2),
        "minWriterVersion": (7, 6),
        "readerFeatures": (["deletionVectors"], []),
        "writerFeatures": (["deletionVectors"], ["deletionVectors", "rowTracking"]),
    },
    "metaData": {
        "id": ("a", "b"),
        "name": ("x", None),
        "description": ("x", "y"),
        "format": ({"provider": "parquet", "options": {}}, {"provider": "orc", "options": {}}),
        "schemaString": (COLUMNS, EMPTY),
        "partitionColumns": (["p"], []),
        "configuration": ({"k": "1"}, {"k": "2"}),
        "createdTime": (5, 7),
    },
    "add": {**FILE, "stats": ('{"numRecords":5}', '{"numRecords":6}'),
            "modificationTime": (1, 2), "tags": ({"k": "1"}, {"k": "2"})},
    "remove": {**FILE, "deletionTimestamp": (3, 4), "extendedFileMetadata": (True, False)},
}  # fmt: skip
#: Fields on which no row depends.
SILENT = {"id", "createdTime", "modificationTime", "tags", "extendedFileMetadata"}
KINDS = {
    "commit": [*FIELDS],
    "compaction": [*FIELDS],
    "checkpoint": ["protocol", "metaData", "add"],
    "JSON checkpoint": ["protocol", "metaData", "add"],
}


def action(kind: str, **changed: Any) -> dict[str, Any]:
    values = {"path": "part"} if kind in ("add", "remove") else {}
    return {kind: values | {name: both[0] for name, both in FIELDS[kind].items()} | changed}


def put(folder: Path, where: str, actions: list[dict[str, Any]]) -> None:
    """A log whose actions are all in one place."""
    shutil.rmtree(folder, ignore_errors=True)
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    name = f"{1:020d}"
    if where == "checkpoint":
        write_checkpoint(log / f"{name}.checkpoint.parquet", [actions[:3], actions[3:]])
        return
    files = {
        "commit": f"{1:020d}.json",
        "compaction": f"{0:020d}.{1:020d}.compacted.json",
        "JSON checkpoint": f"{name}.checkpoint.{ID}.json",
    }
    (log / files[where]).write_bytes(b"".join(log_lines(*actions)))
    if where in ("commit", "compaction"):  # which both need another commit
        other = 0 if where == "commit" else 2
        (log / f"{other:020d}.json").write_text('{"commitInfo":{}}\n')


def read(folder: Path) -> list[Any]:
    """Everything that the snapshot holds."""

    async def everything() -> list[Any]:
        log = table_log(folder)
        snapshot = await log.load_snapshot()
        async with aclosing(log.live_files(snapshot, WITH_STATISTICS)) as files:
            return [snapshot.state, *[add async for add in files]]

    return anyio.run(everything)


@st.composite
def repeats(draw: st.DrawFn, kind: str) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
    """A field or "", and the actions of a version with one that is repeated, with another value of
    that field, and without it."""
    field = draw(st.sampled_from(["", *FIELDS[kind]]))
    again = action(kind, **({field: FIELDS[kind][field][1]} if field else {}))
    others = [action(k) for k in ("protocol", "metaData") if k != kind]
    others += [action("add", path=f"f{i}") for i in range(draw(st.sampled_from([1, 70, 300])))]
    at = draw(st.integers(0, len(others)))
    once = [*others[:at], action(kind), *others[at:]]
    later = draw(st.integers(at + 1, len(once)))
    return field, [*once[:later], again, *once[later:]], once


@pytest.mark.parametrize(
    ("where", "kind"), [(where, kind) for where, kinds in KINDS.items() for kind in kinds]
)
@given(st.data())
def test_repeated_actions_are_one_or_refused(where: str, kind: str, data: st.DataObject) -> None:
    field, repeated, once = data.draw(repeats(kind))
    if where.endswith("checkpoint") and field == "description":
        return  # this writer's have no such column
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        put(folder, where, once)
        expected = read(folder)
        put(folder, where, repeated)
        if field and field not in SILENT:
            message = refusal(lambda: read(folder), CorruptLog)
            assert f"two {kind}" in message or f"one file is {kind}" in message
            assert f"differ in {field}" in message
            return
        found = read(folder)
        if kind == "metaData" and field:  # the last one counts, as for Spark
            metadata = found[0].metadata
            assert (metadata.id, metadata.created_time) in {("b", 5), ("a", 7)}
            expected[0] = found[0]
        assert len(found) == len(expected)
        assert found == expected


@given(st.data())
@pytest.mark.parametrize("kind", [*FIELDS])
def test_a_commits_changes_have_what_is_repeated_once(kind: str, data: st.DataObject) -> None:
    field, repeated, once = data.draw(repeats(kind))
    if field and field not in SILENT:
        for digests in (True, False):
            read_twice = lambda d=digests: read_header("n", lambda: log_lines(*repeated), digests=d)  # noqa: E731
            assert f"differ in {field}" in refusal(read_twice, CorruptLog)
        return
    commit, expected = commit_of(*repeated, before=state()), commit_of(*once, before=state())
    for name in ("adds", "removes", "data_changes", "file_bytes", "protocol"):
        assert getattr(commit.header, name) == getattr(expected.header, name)
    for _ in range(2):
        assert [*commit.file_actions()] == [*expected.file_actions()]
