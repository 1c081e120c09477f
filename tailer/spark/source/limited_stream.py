"""The stream of Spark 4.2 and later: read limits, Trigger.AvailableNow, and the lag in progress.

This is a separate module, because older Sparks lack what it imports.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tailer.spark.error_sentence import one_sentence
from tailer.spark.options import SourceOptions
from tailer.spark.source.planning import BatchBudget
from tailer.spark.source.reader import ChangeStreamReader


class LimitedStreamReader(ChangeStreamReader, SupportsTriggerAvailableNow):
    """A stream in batches of at most ``maxFilesPerTrigger`` files and ``maxBytesPerTrigger``."""

    @one_sentence
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch: the start itself if nothing is new."""
        return self.run(self.end_of_batch, start, budget_of(limit, self.options))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the query's limit of files, 1000 as in Delta's own source, and of bytes."""
        return ReadMaxFiles(self.options.max_files)

    @one_sentence
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave commits from now on to another run."""
        self.end_at_newest()

    @one_sentence
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the end of the log, for the query's progress."""
        return self.newest_offset()


def budget_of(limit: ReadLimit, options: SourceOptions) -> BatchBudget:
    """Return what Spark's limit admits. Except for "everything", it also respects the query's own
    limits of bytes and versions."""
    if isinstance(limit, ReadAllAvailable):
        return BatchBudget()
    budget = BatchBudget(bytes=options.max_bytes, versions=options.max_versions)
    match limit:
        case ReadMaxFiles():
            budget.files = limit.max_files
        case ReadMaxBytes():
            budget.bytes = limit.max_bytes
        case ReadMaxRows():
            budget.rows = limit.max_rows
    return budget
