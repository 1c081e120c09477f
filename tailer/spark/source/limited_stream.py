"""The stream of Spark 4.2 and later: read limits, Trigger.AvailableNow, and the lag in progress.

This is a separate module, because older Sparks lack what it imports.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from tailer.changes import Offset
from tailer.spark.error_sentence import one_sentence
from tailer.spark.source.planning import Planner
from tailer.spark.source.reader import ChangeStreamReader, budget_of, no_lower


class LimitedStreamReader(ChangeStreamReader, SupportsTriggerAvailableNow):
    """A stream in batches of at most ``maxFilesPerTrigger`` files and ``maxBytesPerTrigger``."""

    @one_sentence
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch: the start itself if nothing is new."""
        return self.run(self._latest, start, limit)

    async def _latest(
        self, planner: Planner, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        if "start" in start:
            return (await self.pin(planner, start["start"])).to_json()
        at = Offset.from_json(start)
        if self.is_new:
            await self.check_table(planner, at)
        last = await self.end_of_log(planner, at)
        if last < at.version:
            await self.check_table(planner, at)
            return start
        budget = budget_of(limit, self.options)
        found = await planner.advance(at, last, budget, self.query_schema(planner))
        return no_lower(start, found, at)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the query's limit of files, 1000 as in Delta's own source, and of bytes."""
        return ReadMaxFiles(self.options.max_files)

    @one_sentence
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave commits from now on to another run."""
        self._until = self.run(Planner.newest)

    def follow(self) -> None:
        """Take commits from now on too: the end of :meth:`prepareForTriggerAvailableNow`."""
        self._until = None

    @one_sentence
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the end of the log, for the query's progress: as :meth:`latestOffset` has just
        found it, because Spark asks for it after each call, or by looking now."""
        newest, self._newest = self._newest, None
        if newest is None:
            newest = self.run(Planner.newest)
        return Offset(newest + 1).to_json()
