"""A stream of Spark's own Delta source, to be killed: ``take_over_program.py TABLE FOLDER``.

It reads one file at a time, and writes each batch's ids to ``FOLDER/batches/N.json``, as a whole.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.components import start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(table: str, folder: Path) -> None:
    """Read until the process is killed."""
    batches = folder / "batches"
    batches.mkdir(exist_ok=True)

    def take(batch: DataFrame, number: int) -> None:
        begun = batches / f"{number}.begun"
        begun.write_text(json.dumps(sorted(row.id for row in batch.select("id").collect())))
        begun.replace(batches / f"{number}.json")

    frame = start_spark(folder).readStream.format("delta").option("maxFilesPerTrigger", 1)
    writer = frame.load(table).writeStream.foreachBatch(take)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
