"""What the test of remote tables runs as a driver: tables in batch and as a stream, with all that
Spark tells.

    python -m tests.spark.s3_program SETTINGS.json READS.json FOLDER

READS has the options of each read by its name. FOLDER/NAME gets the rows of both, the plans as
Spark explains them, and the stream's checkpoint; FOLDER/told what the session's REST pages say. A
read with a change source has no stream. One whose name begins with ``refused`` must fail, and its
message is kept.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from urllib.request import urlopen

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tailer.spark.source import TailerSource

PLANS = ("simple", "extended", "codegen", "cost", "formatted")


def explained(frame: DataFrame) -> str:
    """A frame's plans, in each form that Spark has."""
    told = frame.sparkSession._jvm.PythonSQLUtils.explainString  # type: ignore[union-attr]
    return "\n".join(told(frame._jdf.queryExecution(), mode) for mode in PLANS)


def batch(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    """The changes, and what was to be done for them."""
    frame = spark.read.format("tailer").options(**options).load()
    frame.write.parquet(str(folder / "batch"))
    (folder / "batch_plans").write_text(f"{explained(frame)}\n{frame._jdf.queryExecution()}")


def stream(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    """The same, in batches of two files."""
    frame = spark.readStream.format("tailer").options(**options, maxFilesPerTrigger="2").load()
    (folder / "frame_plans").write_text(str(frame._jdf.queryExecution()))
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "stream"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    told = [query._jsq.explainInternal(True), *(str(p.json) for p in query.recentProgress)]
    (folder / "stream_plans").write_text("\n".join(told))


def pages(spark: SparkSession) -> str:
    """What the session's pages are made of."""
    context = spark.sparkContext
    base = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    found = []
    for page in ("sql?details=true&planDescription=true&length=100", "environment", "stages"):
        with urlopen(f"{base}/{page}") as answer:  # noqa: S310 - the session's own
            found.append(answer.read().decode())
    return "\n".join(found)


def read(spark: SparkSession, name: str, options: dict[str, str], folder: Path) -> bool:
    """One of the reads; False where it has to be done again."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        batch(spark, options, folder)
        if "changeSource" not in options:
            stream(spark, options, folder)
        assert not name.startswith("refused")
    except PySparkException as e:
        # Spark waits ten seconds for a Python process, no more; a busy machine may need them.
        if "failed to connect back" in str(e):
            return False
        if not name.startswith("refused"):
            raise
        (folder / "message").write_text(str(e))
    return True


def main(settings: str, reads: str, folder: str) -> None:
    """Run them all, and keep what is told."""
    builder = SparkSession.builder.appName("tailer on remote tables")
    for name, value in json.loads(Path(settings).read_text()).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(TailerSource)
    for name, options in json.loads(Path(reads).read_text()).items():
        while not read(spark, name, options, Path(folder, name)):
            pass
    Path(folder, "told").write_text(pages(spark))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
