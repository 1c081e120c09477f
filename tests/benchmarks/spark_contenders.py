"""The contenders on Spark: Delta's own readChangeFeed, this project's three ways, and two sources
that do nothing.

All run in one warm session. ``ready`` hands out as many rows as the table has changes without
reading any, and ``empty`` none: Spark's own share of a Python source.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.benchmarks.python_sources import EmptySource, ReadySource, keep
from tests.benchmarks.tables import STARTING_VERSION, BenchTable, bench_folder
from tests.support.components import start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PEER, SOURCE, FRAMES, STREAMS = "readChangeFeed", "format(tailer)", "changes()", "foreach_batch()"
#: A stream's time, in turn: its start to its first batch, which is where Spark starts a source's
#: own process; finding and planning the batch; the batch; Spark's two logs; the end.
PHASES = ("process", "plan", "batch", "logs", "end")

Run = Callable[[], None]
Work = Callable[["DataFrame"], "DataFrame"]


def registered(python: str) -> SparkSession:
    """A new session that knows all contenders."""
    spark = start_spark(bench_folder() / "spark", python, small=False)
    from tailer.spark.source import TailerSource

    for source in (TailerSource, ReadySource, EmptySource):
        spark.dataSource.register(source)
    return spark


def batch_runs(spark: SparkSession, name: str, table: Path, work: Work) -> dict[str, Run]:
    """Return the runs of batches, which must have the same number of rows. A source of ours plans
    as it is made or run."""
    from tailer.spark import changes

    def by_format(name: str) -> DataFrame:
        reader = spark.read.format(name).option("readChangeFeed", "true")
        return reader.option("startingVersion", STARTING_VERSION).load(str(table))

    frames: dict[str, Callable[[], DataFrame]] = {
        PEER: lambda: by_format("delta"),
        FRAMES: lambda: changes(spark, str(table), startingVersion=STARTING_VERSION),
        SOURCE: lambda: by_format("tailer"),
    }
    counts = {kind: work(frame()).count() for kind, frame in frames.items()}
    if len({*counts.values()}) != 1:
        sys.exit(f"{name}: not the same rows: {counts}")

    def run(kind: str) -> None:
        work(frames[kind]()).write.format("noop").mode("overwrite").save()

    return {kind: partial(run, kind) for kind in frames}


class Streams:
    """The runs of streams of one table to noop, as `AvailableNow` from a new checkpoint, each from
    its start to its end."""

    def __init__(self, spark: SparkSession, table: Path, folder: Path) -> None:
        self.spark = spark
        self.table = table
        self.folder = folder
        self.phases: dict[str, list[list[float]]] = {}
        self.writers: dict[str, Callable[[Path], DataStreamWriter]] = {
            PEER: partial(self._by_format, "delta", {}),
            STREAMS: self._foreach_batch,
            SOURCE: partial(self._by_format, "tailer", {}),
        }

    def with_own_share(self, table: BenchTable) -> Streams:
        """Let ``ready`` and ``empty`` run too; ``ready`` has rows like the table's first."""
        from tailer.spark.source import TailerSource

        source = TailerSource({"path": str(self.table), "startingVersion": str(STARTING_VERSION)})
        reader = source.reader(source.schema())
        rows: Any = next(iter(reader.read(reader.partitions()[0])))
        batch, columns = self.folder / "ready.arrow", self.spark.read.format("tailer")
        keep(rows, batch)
        schema = columns.option("startingVersion", STARTING_VERSION).load(str(self.table)).schema
        options = {"rows": str(table.rows), "batch": str(batch), "columns": schema.json()}
        for kind in ("ready", "empty"):
            self.writers[kind] = partial(self._by_format, kind, options)
        return self

    def runs(self) -> dict[str, Run]:
        """Return them by their contender."""
        return {kind: partial(self._run, kind) for kind in self.writers}

    def print_phases(self, rounds: int) -> None:
        """Print the medians of each contender's last so many streams, phase by phase."""
        for kind, found in self.phases.items():
            medians = (median(phase) for phase in zip(*found[-max(rounds, 1) :], strict=True))
            text = ", ".join(f"{n} {s:.2f}" for n, s in zip(PHASES, medians, strict=True))
            print(f"{'':10} {kind:24} {text} s", flush=True)

    def _by_format(self, name: str, options: Mapping[str, str], at: Path) -> DataStreamWriter:
        reader = self.spark.readStream.format(name).option("readChangeFeed", "true")
        frame = reader.option("startingVersion", STARTING_VERSION).options(**options)
        writer = frame.load(str(self.table)).writeStream.format("noop")
        return writer.option("checkpointLocation", str(at))

    def _foreach_batch(self, at: Path) -> DataStreamWriter:
        from tailer.spark import foreach_batch

        writer: DataStreamWriter = foreach_batch(
            self.spark, str(self.table), str(at), _to_noop, startingVersion=STARTING_VERSION
        )
        return writer

    def _run(self, kind: str) -> None:
        checkpoint, began = Path(tempfile.mkdtemp(dir=self.folder)), time.time()
        query = self.writers[kind](checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        self.phases.setdefault(kind, []).append(_phases(query, began))


def _to_noop(frame: DataFrame, _: int) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _phases(query: Any, began: float) -> list[float]:
    """The seconds of a query's :data:`PHASES`, by its progress; the first batch is all of it."""
    ended, progress = time.time(), query.recentProgress[0]
    spent: dict[str, float] = {name: ms / 1000 for name, ms in progress.durationMs.items()}
    trigger = datetime.fromisoformat(progress.timestamp).timestamp()

    def of(*names: str) -> float:
        return sum(spent.get(name, 0.0) for name in names)

    known = [
        trigger - began,
        of("latestOffset", "getBatch", "queryPlanning"),
        of("addBatch"),
        of("walCommit", "commitOffsets"),
    ]
    return [*known, ended - began - sum(known)]
