"""Planning ahead: the order files of a checkpoint from one start to the next. No Spark is started:
the files that it keeps in a checkpoint are written here as it writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.cli.spark import checkpoint_offset
from tailer.errors import OffsetError
from tailer.spark.error_sentence import TailerSourceError
from tailer.spark.frames.order_files import OrderFiles
from tailer.spark.frames.plan_ahead import PlanAhead
from tailer.spark.mapped_tasks import Decoder, Task
from tailer.spark.source import TailerSource
from tailer.spark.source.limited_stream import LimitedStreamReader
from tailer.testing.table import TableBuilder

SCHEMA = pa.schema([("id", pa.int64())])


class Checkpoint:
    """A query's checkpoint, as far as Spark has come with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = OrderFiles(folder)

    def begin(self, batch: int, *files: int, ending: str = "") -> None:
        """Spark has given these files to a batch."""
        entries = [
            {"path": f"file://{self.files.folder}/{n:018}.txt", "timestamp": 1, "batchId": batch}
            for n in files
        ]
        self._write(f"sources/0/{batch}{ending}", "v1", *entries)

    def commit(self, batch: int) -> None:
        """Spark has done a batch."""
        self._write(f"offsets/{batch}", "v1", {"batchWatermarkMs": 0}, {"logOffset": batch})
        self._write(f"commits/{batch}", "v1", {"nextBatchWatermarkMs": 0})

    def _write(self, name: str, version: str, *lines: dict[str, Any]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([version, *(json.dumps(line) for line in lines)]))

    def rows(self, plan: PlanAhead, first: int = 0) -> list[list[int]]:
        """The ids of the rows of each file from the first one on."""
        decoder = Decoder(plan.reader.options, plan.reader.arrow_schema)
        found = []
        for number in self.files.numbers()[first:]:
            text = (self.files.folder / f"{number:018}.txt").read_text()
            tasks = [Task.from_text(line) for line in text.splitlines()[1:]]
            batches = [batch for task in tasks for batch in decoder.rows(task)]
            found.append(sorted(row["id"] for batch in batches for row in batch.to_pylist()))
        return found


_PLANS: list[PlanAhead] = []


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """End the threads of all readers."""
    yield
    while _PLANS:
        _PLANS.pop().reader.stop()


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    built = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    built.create()
    for number in (1, 2, 3):
        built.insert([{"id": number}])
    return built


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")


def planned(table: TableBuilder, checkpoint: Checkpoint, **options: Any) -> PlanAhead:
    """All that the table has, planned by a new process."""
    texts = {name: str(value) for name, value in options.items()}
    source = TailerSource({"path": str(table.folder), "startingVersion": "1", **texts})
    reader = source.stream_reader(LimitedStreamReader, source.schema())
    assert isinstance(reader, LimitedStreamReader)
    plan = PlanAhead(reader, checkpoint.folder)
    _PLANS.append(plan)
    plan.begin()
    return plan


def times(checkpoint: Checkpoint) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in checkpoint.files.folder.iterdir()}


def test_what_the_table_has_is_planned_ahead_one_file_for_each_batch(
    table: TableBuilder, checkpoint: Checkpoint
) -> None:
    plan = planned(table, checkpoint, maxVersionsPerTrigger=1)
    assert checkpoint.rows(plan) == [[1], [2], [3]]
    found = times(checkpoint)
    milliseconds = [found[name] // 1_000_000 for name in sorted(found)]
    assert milliseconds == sorted({*milliseconds}), "Spark takes files by their times"
    heads = [checkpoint.files.head(number) for number in checkpoint.files.numbers()]
    assert [head.start for head in heads[1:]] == [head.end for head in heads[:-1]]
    assert list(checkpoint.files.folder.parent.iterdir()) == [checkpoint.files.folder]


def test_files_of_a_former_start_are_not_planned_twice(
    table: TableBuilder, checkpoint: Checkpoint
) -> None:
    planned(table, checkpoint, maxVersionsPerTrigger=1)
    before = times(checkpoint)
    table.insert([{"id": 4}])
    plan = planned(table, checkpoint, maxVersionsPerTrigger=1)
    assert {name: times(checkpoint)[name] for name in before} == before
    assert checkpoint.rows(plan) == [[1], [2], [3], [4]]


def test_other_options_replace_what_spark_has_not_begun(
    table: TableBuilder, checkpoint: Checkpoint
) -> None:
    planned(table, checkpoint, maxVersionsPerTrigger=1)
    checkpoint.begin(0, 0)
    before = times(checkpoint)
    plan = planned(table, checkpoint, minPartitions=1)
    assert checkpoint.rows(plan) == [[1], [2, 3]]
    assert checkpoint.files.head(0).made_by == checkpoint.files.head(1).made_by
    name = f"{0:018}.txt"
    assert times(checkpoint)[name] == before[name]


def test_a_begun_batch_has_the_same_changes_in_a_new_schema(
    table: TableBuilder, checkpoint: Checkpoint
) -> None:
    planned(table, checkpoint, maxVersionsPerTrigger=2)
    checkpoint.begin(0, 0)
    table.schema = pa.schema([*SCHEMA, ("size", pa.int32())])
    table.commit(table.metadata(), table.add([{"id": 4, "size": 5}]))
    plan = planned(table, checkpoint, maxVersionsPerTrigger=2)
    assert plan.reader.arrow_schema.names[:2] == ["id", "size"]
    assert checkpoint.rows(plan) == [[1, 2], [3, 4]]


def test_an_error_waits_behind_what_is_to_be_read_and_is_gone_at_the_next_start(
    table: TableBuilder, checkpoint: Checkpoint
) -> None:
    plan = planned(table, checkpoint, maxVersionsPerTrigger=2)
    assert checkpoint.rows(plan) == [[1, 2], [3]]
    table.schema = pa.schema([*SCHEMA, ("size", pa.int32())])
    table.commit(table.metadata(), table.add([{"id": 4, "size": 5}]))
    plan.begin()
    assert checkpoint.rows(plan) == [[1, 2], [3], []]
    error = checkpoint.files.head(2).error
    assert error is not None
    assert "it adds size; restart the query" in error
    for number in range(3):
        checkpoint.begin(number, number)
    checkpoint.commit(1)
    plan = planned(table, checkpoint, maxVersionsPerTrigger=2)
    assert checkpoint.rows(plan, 2) == [[], [4]]
    assert checkpoint.files.head(2).error is None


def test_an_error_with_nothing_before_it_is_raised(
    table: TableBuilder, checkpoint: Checkpoint
) -> None:
    with pytest.raises(TailerSourceError, match="the starting version is 9, and the newest is 3"):
        planned(table, checkpoint, startingVersion=9)
    assert checkpoint.files.numbers() == []


def test_a_bug_ends_a_running_query_by_name(
    table: TableBuilder, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(table, checkpoint, maxVersionsPerTrigger=2)

    def broken(*_: Any) -> None:
        raise RuntimeError("no such case")

    monkeypatch.setattr(plan.reader, "latestOffset", broken)
    with pytest.raises(RuntimeError, match="no such case"):
        plan.begin()
    plan.plan_more()
    error = checkpoint.files.head(2).error
    assert error is not None
    assert "unexpected error RuntimeError: no such case" in error
    assert "this is a bug" in error


def test_a_second_process_is_refused(table: TableBuilder, checkpoint: Checkpoint) -> None:
    one = planned(table, checkpoint)
    other = planned(table, checkpoint)
    table.insert([{"id": 4}])
    one.begin()
    other._number -= 1  # it has looked before the first one wrote
    with pytest.raises(OffsetError, match="another process plans for this checkpoint"):
        other._plan_next(-1)


def test_what_a_killed_process_has_left_is_removed(
    table: TableBuilder, checkpoint: Checkpoint
) -> None:
    checkpoint.files.prepare()
    left = checkpoint.files.folder.parent / "new-1-0"
    left.write_text('{"number": 0')
    plan = planned(table, checkpoint)
    assert not left.exists()
    assert checkpoint.rows(plan) == [[1, 2, 3]]


def test_orders_that_are_gone_are_an_error(table: TableBuilder, checkpoint: Checkpoint) -> None:
    planned(table, checkpoint)
    checkpoint.begin(0, 0)
    checkpoint.files.remove(0)
    with pytest.raises(TailerSourceError, match=r"\[offset\].*the work orders.*are missing"):
        planned(table, checkpoint)


def test_a_checkpoint_of_another_source_is_refused(
    table: TableBuilder, checkpoint: Checkpoint
) -> None:
    checkpoint._write("offsets/0", "v1", {"batchWatermarkMs": 0}, Offset(3).to_json())
    checkpoint._write("commits/0", "v1", {"nextBatchWatermarkMs": 0})
    with pytest.raises(TailerSourceError, match="not one of a stream of work orders"):
        planned(table, checkpoint)


@pytest.mark.parametrize("compact", ["", ".compact"], ids=["list", "compacted"])
def test_orders_of_batches_committed_long_ago_are_removed(
    compact: str, table: TableBuilder, checkpoint: Checkpoint
) -> None:
    for number in range(4, 106):
        table.insert([{"id": number}])
    planned(table, checkpoint, maxVersionsPerTrigger=1)
    last = len(checkpoint.files.numbers()) - 1
    checkpoint.begin(last, last, ending=compact)
    checkpoint.commit(last)
    assert checkpoint_offset(checkpoint.folder) == Offset.from_json(checkpoint.files.head(last).end)
    assert checkpoint_offset(checkpoint.folder).version == 106
    checkpoint.files.clean()
    assert checkpoint.files.numbers() == list(range(last - 100, last + 1))
