"""`tailer offsets import` from checkpoints of Spark's own Delta streams, which stopped at many
places: what Spark's sink had committed and what the feed sends are together each change once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TypeAlias

import orjson
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tailer.spark.source import TailerSource
from tailer.testing.table import TableBuilder
from tests.spark.test_pipeline import configured, lines, saved
from tests.support.programs import run_tailer

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
#: Change type, id and name of an event.
Event: TypeAlias = tuple[str, int, str]
CDF = {"readChangeFeed": "true"}
INSERTS = 'operations = ["insert"]'


def rows(*numbers: int, name: str = "") -> list[dict[str, Any]]:
    return [{"id": n, "name": name or f"row {n}"} for n in numbers]


def inserts(numbers: Iterable[int]) -> Counter[Event]:
    return Counter(("insert", n, f"row {n}") for n in numbers)


def files(table: TableBuilder, *numbers: int, time: int) -> list[dict[str, Any]]:
    """Adds of one row each. Their paths and their times have opposite orders."""
    return [
        table.add(rows(n), path=f"{999 - n}.parquet", modificationTime=time + at)
        for at, n in enumerate(numbers)
    ]


def built(folder: Path) -> TableBuilder:
    """A table whose versions have 0, 3, 1, 3 and 2 files, of the rows 1 to 9."""
    table = TableBuilder(folder, SCHEMA, cdf=True)
    table.create()
    for numbers in ((1, 2, 3), (4,), (5, 6, 7), (8, 9)):
        # Later versions have older files: the snapshot has them in another order than the log.
        table.commit(*files(table, *numbers, time=1000 - 10 * numbers[0]))
    return table


class Stream:
    """A query of Spark's own source. Its sink keeps the rows of each batch that it has taken."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.checkpoint = folder / "checkpoint"
        self._taken: dict[int, Counter[Event]] = {}

    def read(self, *tables: Path, **options: Any) -> DataFrame:
        frames = [
            self._spark.readStream.format("delta").options(**options).load(str(table))
            for table in tables
        ]
        first, *others = frames
        for frame in others:
            first = first.unionByName(frame)
        return first

    def run(self, frame: DataFrame, fails_at: int = -1) -> None:
        """Read what is there; or fail before the sink takes anything of a batch."""

        def take(batch: DataFrame, number: int) -> None:
            if number == fails_at:
                raise RuntimeError("the sink fails")
            self._taken[number] = Counter(
                (row.asDict().get("_change_type", "insert"), row.id, row.name)
                for row in batch.collect()
            )

        writer = frame.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        if fails_at < 0:
            assert query.awaitTermination(200)
        else:
            with pytest.raises(PySparkException, match="the sink fails"):
                query.awaitTermination(200)

    def uncommit(self) -> None:
        """Take away the last commit, as if the driver had been killed before it."""
        number = max(self._committed)
        for file in (str(number), f".{number}.crc"):
            (self.checkpoint / "commits" / file).unlink()

    @property
    def _committed(self) -> set[int]:
        commits = self.checkpoint / "commits"
        return {int(file.name) for file in commits.iterdir() if file.name.isdigit()}

    @property
    def sent(self) -> Counter[Event]:
        """The rows of the batches that are committed."""
        found = (self._taken[number] for number in self._committed)
        return sum(found, Counter())


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


class Feed:
    """A feed of a table that takes over from a stream."""

    def __init__(self, folder: Path, table: Path, more: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.config = configured(folder / "feed", {"name": "f", "table": table, "more": more})

    def take_over(self, stream: Stream, *more: str) -> str:
        """Import the stream's place; return what was said."""
        done = self.command("import", "--checkpoint", stream.checkpoint, *more)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def refused(self, stream: Stream, *more: str) -> str:
        done = self.command("import", "--checkpoint", stream.checkpoint, *more)
        assert done.returncode
        assert saved(self.config, "f") is None
        return done.stderr

    def command(self, action: str, *more: str | Path) -> CompletedProcess[str]:
        return run_tailer("offsets", action, self.config, "f", *more)

    @property
    def sent(self) -> Counter[Event]:
        """What the feed sends until it has read all."""
        done = run_tailer("run", self.config, "--once")
        assert done.returncode == 0, done.stderr
        found = map(orjson.loads, lines(self.config, "f"))
        return Counter(
            (event["_change_type"], event["id"], event["name"]) for event in found if "id" in event
        )


def changed_later(table: TableBuilder) -> None:
    """Rows that come after the stream has ended."""
    table.commit(*files(table, 10, 11, time=1))


#: Options of the stream; the batch that fails, or -1; what the feed continues with.
STAGES: Mapping[str, tuple[dict[str, Any], int, str]] = {
    "in the initial snapshot": (
        {"maxFilesPerTrigger": 1}, 4, "the initial snapshot of version 4, after the 4 files"
    ),
    "after the snapshot's first file": ({"maxFilesPerTrigger": 1}, 1, "after the 1 files"),
    "before the snapshot's last file": ({"maxFilesPerTrigger": 1}, 8, "after the 8 files"),
    "at the snapshot's end": ({"maxFilesPerTrigger": 1}, -1, "version 5"),
    "at the snapshot's end, in one batch": ({}, -1, "version 5"),
    "between versions": ({"maxFilesPerTrigger": 1, "startingVersion": 0}, 4, "version 3"),
    "in a version of several files": (
        {"maxFilesPerTrigger": 1, "startingVersion": 0}, 5, "version 3, after the 1 files"
    ),
    "later in it": ({"maxFilesPerTrigger": 2, "startingVersion": 2}, 2, "version 4, index 0"),
    "at the end": ({"startingVersion": 0}, -1, "version 5"),
    "of some versions": ({"maxFilesPerTrigger": 1, "startingVersion": 4}, 1, "after the 1 files"),
}  # fmt: skip
#: The rows that a stream does not read because it starts behind them.
BEFORE = {0: 0, 2: 3, 4: 7}


QUICK = ("in the initial snapshot", "in a version of several files")


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Parameters, of which all but some are slow."""
    slow = pytest.mark.slow
    return [case if case in quick else pytest.param(case, marks=slow) for case in cases]


@pytest.mark.parametrize("change_feed", [False, True], ids=["plain", "change feed"])
@pytest.mark.parametrize("stage", slow_but(QUICK, STAGES))
def test_every_row_is_sent_once(
    stream: Stream, tmp_path: Path, stage: str, *, change_feed: bool
) -> None:
    options, fails_at, place = STAGES[stage]
    table = built(tmp_path / "table")
    stream.run(stream.read(table.folder, **options, **(CDF if change_feed else {})), fails_at)
    changed_later(table)
    feed = Feed(tmp_path, table.folder)
    said = feed.take_over(stream, *(["--read-change-feed"] if change_feed else []))
    first = BEFORE[options.get("startingVersion", 0)] + 1
    assert stream.sent
    assert stream.sent + feed.sent == inserts(range(first, 12)), said
    assert place.removesuffix(", index 0") in said
    assert ("has no commit" in said) == (fails_at >= 0)
    assert ("unless you set operations" in said) == (not change_feed)


def test_a_batch_that_was_sent_but_not_committed_is_sent_again(
    stream: Stream, tmp_path: Path
) -> None:
    table = built(tmp_path / "table")
    stream.run(stream.read(table.folder, maxFilesPerTrigger=1, startingVersion=0))
    stream.uncommit()
    feed = Feed(tmp_path, table.folder, INSERTS)
    said = feed.take_over(stream)
    assert "has no commit, so its changes are sent again" in said
    assert stream.sent == inserts(range(1, 9))
    assert feed.sent == inserts([9])


def test_before_the_first_batch_the_feed_is_told_where_to_begin(
    stream: Stream, tmp_path: Path
) -> None:
    table = built(tmp_path / "table")
    stream.run(stream.read(table.folder), fails_at=0)
    changed_later(table)
    feed = Feed(tmp_path, table.folder)
    assert "has no committed batch; give the checkpointLocation" in feed.refused(stream)
    assert feed.command("set", "--from", "snapshot").returncode == 0
    assert feed.sent == inserts(range(1, 12))


def overwritten(folder: Path) -> TableBuilder:
    """A table whose version 2 replaces the rows 1 and 2 by 3, 4 and 5."""
    table = TableBuilder(folder, SCHEMA, cdf=True)
    table.create()
    one, two = files(table, 1, 2, time=0)
    table.commit(one, two)
    three, four, five = files(table, 3, 4, 5, time=10)
    table.commit(three, table.remove(one), four, table.remove(two), five)
    table.commit(*files(table, 6, time=20))
    return table


OVERWRITTEN = inserts(range(1, 7)) + Counter(("delete", n, f"row {n}") for n in (1, 2))


@pytest.mark.parametrize("fails_at", slow_but([4], [3, 4, 5]))
def test_an_overwrite_continues_after_the_files_that_were_sent(
    stream: Stream, tmp_path: Path, fails_at: int
) -> None:
    table = overwritten(tmp_path / "table")
    stream.run(stream.read(table.folder, maxFilesPerTrigger=1, startingVersion=0, **CDF), fails_at)
    feed = Feed(tmp_path, table.folder)
    assert "say --read-change-feed" in feed.refused(stream)
    said = feed.take_over(stream, "--read-change-feed")
    assert f"version 2, after the {fails_at - 2} files" in said
    assert stream.sent + feed.sent == OVERWRITTEN


def test_the_rest_of_an_overwrite_is_not_guessed(stream: Stream, tmp_path: Path) -> None:
    table = overwritten(tmp_path / "table")
    options = {"maxFilesPerTrigger": 1, "startingVersion": 0, "ignoreChanges": "true"}
    stream.run(stream.read(table.folder, **options), fails_at=4)
    feed = Feed(tmp_path, table.folder)
    assert "as a run with Trigger.AvailableNow does, and import again" in feed.refused(stream)
    stream.run(stream.read(table.folder, **options))
    assert "continues with version 4" in feed.take_over(stream)
    derived = Feed(tmp_path / "other", table.folder, 'change_source = "derived"')
    assert "continues with version 4" in derived.take_over(stream)


@pytest.mark.slow
def test_a_derived_feed_does_not_take_over_within_an_overwrite(
    stream: Stream, tmp_path: Path
) -> None:
    table = overwritten(tmp_path / "table")
    stream.run(stream.read(table.folder, maxFilesPerTrigger=1, startingVersion=0, **CDF), 3)
    feed = Feed(tmp_path, table.folder, 'change_source = "derived"')
    assert "is not in the other files alone" in feed.refused(stream, "--read-change-feed")


#: Run by Spark's SQL on a table with deletion vectors and a change feed.
CHANGES = (
    "INSERT INTO {} SELECT id, 'new' FROM range(1, 9, 1, 2)",
    "DELETE FROM {} WHERE id % 4 = 0",
    "UPDATE {} SET name = 'old' WHERE id % 2 = 1",
    "INSERT INTO {} VALUES (20, 'new')",
    (
        "MERGE INTO {} t USING (SELECT explode(array(20, 21)) AS id) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, 'merged')"
    ),
)


def changed(spark: SparkSession, table: Path, statements: Iterable[str]) -> None:
    for statement in statements:
        spark.sql(statement.format(f"delta.`{table}`"))


def made(spark: SparkSession, table: Path) -> None:
    properties = ("delta.enableChangeDataFeed", "delta.enableDeletionVectors")
    given = ", ".join(f"{name} = true" for name in properties)
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, name STRING) USING delta TBLPROPERTIES ({given})"
    )


@pytest.mark.parametrize("fails_at", slow_but([4], [1, 2, 3, 4, -1]))
def test_deletes_and_updates_with_deletion_vectors(
    spark: SparkSession, stream: Stream, tmp_path: Path, fails_at: int
) -> None:
    table = tmp_path / "table"
    made(spark, table)
    changed(spark, table, CHANGES[:4])
    stream.run(stream.read(table, maxFilesPerTrigger=1, startingVersion=0, **CDF), fails_at)
    changed(spark, table, CHANGES[4:])
    feed = Feed(tmp_path, table)
    said = feed.take_over(stream, "--read-change-feed")
    reader = spark.read.format("delta").options(startingVersion=0, **CDF)
    everything = Counter(
        (row["_change_type"], row.id, row["name"]) for row in reader.load(str(table)).collect()
    )
    assert stream.sent + feed.sent == everything, said


@pytest.mark.slow
def test_a_stream_that_skips_changes(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    table = tmp_path / "table"
    made(spark, table)
    changed(spark, table, CHANGES[:3])
    frame = stream.read(table, startingVersion=0, skipChangeCommits="true", maxFilesPerTrigger=1)
    stream.run(frame)
    changed(spark, table, CHANGES[3:])
    feed = Feed(tmp_path, table, INSERTS)
    said = feed.take_over(stream)
    assert "inserts of versions that skipChangeCommits passes over" in said
    new = Counter({("insert", n, "new"): 1 for n in (*range(1, 9), 20)})
    assert stream.sent + feed.sent == new + Counter({("insert", 21, "merged"): 1})


def test_the_source_is_chosen_by_the_tables_id(stream: Stream, tmp_path: Path) -> None:
    one, other = built(tmp_path / "one"), overwritten(tmp_path / "other")
    stream.run(stream.read(other.folder, one.folder, maxFilesPerTrigger=1), fails_at=2)
    changed_later(one)
    for name, table, end in (("one", one, 11), ("other", other, 6)):
        feed = Feed(tmp_path / name, table.folder)
        feed.take_over(stream)
        assert max(event[1] for event in feed.sent) == end
    feed = Feed(tmp_path, built(tmp_path / "third").folder)
    assert "and the table there is" in feed.refused(stream)


@pytest.mark.slow
def test_two_places_in_one_table_are_refused(stream: Stream, tmp_path: Path) -> None:
    table = built(tmp_path / "table")
    one = stream.read(table.folder, maxFilesPerTrigger=1)
    both = one.unionByName(stream.read(table.folder, maxFilesPerTrigger=2))
    stream.run(both, fails_at=3)
    feed = Feed(tmp_path, table.folder)
    assert "2 times, up to other places; choose the feed's start" in feed.refused(stream)
    stream.run(both)
    assert "continues with version 5" in feed.take_over(stream)


def test_a_table_that_was_made_again_is_refused(stream: Stream, tmp_path: Path) -> None:
    table = built(tmp_path / "table")
    stream.run(stream.read(table.folder))
    shutil.rmtree(table.folder)
    again = built(tmp_path / "table")
    feed = Feed(tmp_path, again.folder)
    said = feed.refused(stream)
    assert f"reads table {table.table_id}, and the table there is {again.table_id}" in said


def test_an_offset_that_the_feed_has_is_kept(stream: Stream, tmp_path: Path) -> None:
    table = built(tmp_path / "table")
    stream.run(stream.read(table.folder))
    feed = Feed(tmp_path, table.folder)
    feed.take_over(stream)
    kept = saved(feed.config, "f")
    again = feed.command("import", "--checkpoint", stream.checkpoint)
    assert again.returncode == 2
    assert "run `tailer offsets reset" in again.stderr
    assert saved(feed.config, "f") == kept
    assert feed.command("reset").returncode == 0
    feed.take_over(stream)
    assert saved(feed.config, "f") == kept


@pytest.mark.parametrize("stage", slow_but(QUICK[:1], QUICK))
def test_a_query_of_our_source_continues_from_there_too(
    spark: SparkSession, stream: Stream, tmp_path: Path, stage: str
) -> None:
    options, fails_at, _ = STAGES[stage]
    table = built(tmp_path / "table")
    stream.run(stream.read(table.folder, **options), fails_at)
    changed_later(table)
    feed = Feed(tmp_path, table.folder)
    feed.take_over(stream)
    exported = feed.command("export").stdout.strip()
    spark.dataSource.register(TailerSource)
    reader = spark.readStream.format("tailer").option("startingOffset", exported)
    other = Stream(spark, tmp_path / "other")
    other.run(reader.option("maxFilesPerTrigger", 1).load(str(table.folder)), fails_at=2)
    assert feed.command("reset").returncode == 0
    feed.take_over(other)  # and back, in the middle of what is left
    assert stream.sent + other.sent + feed.sent == inserts(range(1, 12))
