"""A table that is followed by a program or a terminal: a feed that keeps no offset."""

from __future__ import annotations

import random
from collections.abc import Callable

from tailer.api.options import ReadOptions
from tailer.changes import Offset
from tailer.errors import TailerError
from tailer.feed.progress import FeedProgress
from tailer.feed.run import Feed
from tailer.log.table import TableLog
from tailer.offsets.memory import MemoryOffsetStore
from tailer.sink import Sink


def make_feed(
    log: TableLog,
    first: Offset,
    last: int | None,
    options: ReadOptions,
    sink: Sink,
    progress: FeedProgress,
    say: Callable[[str], None],
) -> Feed:
    """Return the feed from an offset to a version, or without end. ``say`` is told what it waits
    for, once per cause."""

    async def start(_: TableLog) -> Offset:
        return first

    return Feed(
        name=progress.feed,
        log=log,
        sink=sink,
        offsets=MemoryOffsetStore(),
        start=start,
        progress=progress,
        on_retry=_report_once(say),
        jitter=random.random,
        options=options.feed_options(bounded=False),
        last=last,
    )


def _report_once(say: Callable[[str], None]) -> Callable[[TailerError], None]:
    said = ""

    def tell(error: TailerError) -> None:
        nonlocal said
        if str(error) != said:
            said = str(error)
            say(f"{said}; trying again")

    return tell
