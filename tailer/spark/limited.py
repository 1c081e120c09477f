"""The stream of Spark 4.2 and later: read limits, Trigger.AvailableNow, and the lag in progress.

A module of its own, for older Sparks do not have what it imports.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from tailer.changes import Offset
from tailer.spark.failing import one_sentence
from tailer.spark.planning import Planner
from tailer.spark.stream import ChangeStreamReader, budget_of, no_lower

__all__ = ["LimitedStreamReader"]


class LimitedStreamReader(ChangeStreamReader, SupportsTriggerAvailableNow):
    """A stream in batches of at most ``maxFilesPerTrigger`` files and ``maxBytesPerTrigger``."""

    @one_sentence
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch: the start itself where there is nothing new."""
        return self.driver.run(self._latest, start, limit)

    async def _latest(
        self, planner: Planner, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        if "start" in start:
            return (await self.pin(planner, start["start"])).to_json()
        at = Offset.from_json(start)
        last = await self.end_of_log(planner, at)
        if last < at.version:
            return start
        budget = budget_of(limit, self.options)
        found = await planner.advance(at, last, budget, self.checked_target())
        return no_lower(start, found, at)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As many files as the query asks for, 1000 as in Delta's own source; its bytes too."""
        return ReadMaxFiles(self.options.max_files)

    @one_sentence
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is committed from now on is for another run."""
        self._until = self.driver.run(Planner.newest)

    @one_sentence
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The end of the log, for the query's progress: as the offset before has found it, after
        which Spark asks for it each time, or by looking now."""
        newest, self._newest = self._newest, None
        if newest is None:
            newest = self.driver.run(Planner.newest)
        return Offset(newest + 1).to_json()
