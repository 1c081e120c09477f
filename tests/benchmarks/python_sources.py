"""What any Python data source costs on Spark: the base lines of ``bench_spark``.

``empty`` has no row, so that its query is Spark's own start and end. ``ready`` hands out as many
rows of the same schema as the table has changes, from one batch that is made beforehand: what Spark
costs when a source costs nothing. Neither imports this project where a query runs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

__all__ = ["EmptySource", "ReadySource", "packed"]

BATCH_ROWS = 65_536
TASKS = 2


def packed(rows: pa.RecordBatch) -> str:
    """A batch as an option's text."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return base64.b64encode(sink.getvalue()).decode()


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
            (batch,) = pa.ipc.open_stream(base64.b64decode(self.batch))
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
    """``format("ready")``: so many ``rows``, from one ``batch`` (see :func:`packed`)."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "ready"

    def _rows(self) -> int:
        return int(self.options["rows"])
