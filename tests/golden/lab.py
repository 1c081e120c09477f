"""The bench on which golden tables are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

# Every table of the suite starts with these columns unless its case is about the columns.
COLUMNS = "id BIGINT, name STRING, val DOUBLE, part INT"


class Lab:
    """One Delta table being made: SQL in which `{t}` is the table, appends, files taken away.

    `forgotten_later` are versions whose commits Spark needs for its answers, and which are taken
    from the table afterwards. `across_schemas` asks Spark for changes in the latest schema where
    it would refuse to read over a change of schema. `changes_from` is the first version whose
    changes are asked for.
    """

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.forgotten_later: set[int] = set()
        self.across_schemas = False
        self.changes_from = 0

    @property
    def log(self) -> Path:
        """The table's `_delta_log` folder."""
        return self.path / "_delta_log"

    def sql(self, text: str) -> DataFrame:
        """Run one statement; `{t}` stands for the table."""
        return self.spark.sql(text.replace("{t}", f"delta.`{self.path}`"))

    def create(
        self,
        columns: str = COLUMNS,
        *,
        partitioned: str = "",
        clustered: str = "",
        verb: str = "CREATE",
        **properties: str,
    ) -> None:
        """CREATE the table; a property's name loses its `delta.` and has `_` for each dot."""
        text = f"{verb} TABLE {{t}} ({columns}) USING delta"
        text += f" PARTITIONED BY ({partitioned})" if partitioned else ""
        text += f" CLUSTER BY ({clustered})" if clustered else ""
        if properties:
            text += f" TBLPROPERTIES ({property_list(properties)})"
        self.sql(text)

    def set(self, **properties: str) -> None:
        """ALTER TABLE SET TBLPROPERTIES, with names as in `create`."""
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({property_list(properties)})")

    def write(
        self,
        query: str,
        *,
        mode: str = "append",
        files: int = 1,
        options: Mapping[str, str] | None = None,
        partitioned: str = "",
    ) -> None:
        """Write the rows of `query` into the table, in as many tasks as `files` says."""
        frame = self.spark.sql(query).repartition(files)
        writer = frame.write.format("delta").mode(mode).options(**(options or {}))
        if partitioned:
            writer = writer.partitionBy(partitioned)
        writer.save(str(self.path))

    @contextmanager
    def conf(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Session settings for the statements inside; the Parquet writer sees them too."""
        before = {key: self.spark.conf.get(key, None) for key in settings}
        for key, value in settings.items():
            self.spark.conf.set(key, value)
        try:
            yield
        finally:
            for key, old in before.items():
                if old is None:
                    self.spark.conf.unset(key)
                else:
                    self.spark.conf.set(key, old)

    @property
    def jvm(self) -> Any:
        """The JVM's classes, for what has no SQL."""
        return self.spark._jvm

    def checkpoint(self) -> None:
        """Write a checkpoint of the latest version."""
        session: Any = self.spark._jsparkSession
        delta_log = self.jvm.org.apache.spark.sql.delta.DeltaLog
        delta_log.forTable(session, str(self.path)).checkpoint()

    def compact_log(self, first: int, last: int) -> None:
        """Write a `<first>.<last>.compacted.json`, with Delta Kernel: Spark only reads them."""
        kernel = self.jvm.io.delta.kernel
        context: Any = self.spark.sparkContext._jsc
        engine = kernel.defaults.engine.DefaultEngine.create(context.hadoopConfiguration())
        path = kernel.internal.fs.Path
        hook = kernel.internal.hook.LogCompactionHook
        hook(path(f"file:{self.path}"), path(f"file:{self.log}"), first, last, 0).threadSafeInvoke(
            engine
        )

    def forget(self, commits_before: int, *, checkpoints_before: int = 0) -> None:
        """Take away old log files, as log cleanup does after the retention time."""
        for path in sorted(self.log.iterdir()):
            number = path.name.split(".")[0]
            if not number.isdigit():
                continue
            checkpoint = ".checkpoint." in path.name
            limit = checkpoints_before if checkpoint else commits_before
            if int(number) < limit:
                path.unlink()


def property_list(properties: Mapping[str, str]) -> str:
    """`enableChangeDataFeed="true"` as SQL; `checkpoint_writeStatsAsJson` has a dot in its name."""
    return ", ".join(f"'delta.{k.replace('_', '.')}' = '{v}'" for k, v in properties.items())
