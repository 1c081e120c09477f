"""A query's progress in that of its feed: how far the table is ahead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from tailer.feed.progress import FeedProgress

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

__all__ = ["ProgressListener"]


class ProgressListener(StreamingQueryListener):
    """Passes the table's newest version to each feed's progress; ``feeds`` is by query name.

    The feeds themselves report what was delivered, batch by batch, as in the daemon.
    """

    def __init__(self, feeds: Mapping[str, FeedProgress]) -> None:
        self.feeds = feeds

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's names
        """Do nothing: nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Note the end of the log, which is in every progress."""
        progress = self.feeds.get(event.progress.name or "")
        if progress is None:
            return
        for source in event.progress.sources:
            if source.latestOffset:
                progress.newest(int(json.loads(source.latestOffset)["version"]) - 1)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: there is nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing: the pipeline sees the end itself."""
