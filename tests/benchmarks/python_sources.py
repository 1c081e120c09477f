"""What any Python data source costs on Spark: the base lines of ``bench_spark``.

``empty`` has no row, so that its query is Spark's own start and end. ``ready`` hands out as many
rows of the same schema as the table has changes, from one batch in a file that is made beforehand:
what Spark costs when a source costs nothing. Neither imports this project where a query runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

BATCH_ROWS = 65_536
TASKS = 2


def keep(rows: pa.RecordBatch, path: Path) -> None:
    """Write a batch where tasks find it: an option's text would travel with every plan."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_batch(rows)


class _Task(InputPartition):
    def __init__(self, rows: int) -> None:
        self.rows = rows


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: int, batch: str, schema: Any) -> None:
        self.count = rows
        self.batch = batch
        self.schema = schema

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's names
        return {"at": 0}

    def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:  # noqa: ARG002, N802
        return {"at": 1}

    def getDefaultReadLimit(self) -> ReadAllAvailable:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        if start == end:
            return []
        share = self.count // TASKS
        return [_Task(share), _Task(self.count - share)] if self.count else [_Task(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Task)
        left = partition.rows
        if left:
            with pa.OSFile(self.batch) as file:
                (batch,) = pa.ipc.open_stream(file)
            while left:
                yield batch.slice(0, min(left, batch.num_rows))
                left -= min(left, batch.num_rows)


class EmptySource(DataSource):
    """``format("empty")``: one batch with one task and no row."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "empty"

    def schema(self) -> StructType:
        """As the option ``columns`` says, in JSON."""
        return StructType.fromJson(json.loads(self.options["columns"]))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """The stream of one batch."""
        return _Reader(self._rows(), self.options["batch"], schema)

    def _rows(self) -> int:
        return 0


class ReadySource(EmptySource):
    """``format("ready")``: so many ``rows``, from the file ``batch`` (see :func:`keep`)."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "ready"

    def _rows(self) -> int:
        return int(self.options["rows"])
