"""One feed of a remote table with its state there, as a program to be killed, paused and continued.

``python -m tests.support.feed_program TABLE STATE OUTPUT OPTIONS LEASE_S``, the options in JSON.
Ends with status 0 on SIGTERM, and with 1 and a sentence on standard error when the feed is refused.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import aclosing
from pathlib import Path

import anyio

from tailer.changes import Offset
from tailer.decode.rows import DecodeOptions
from tailer.errors import TailerError
from tailer.feed.options import FeedOptions, RetryOptions
from tailer.feed.progress import FeedProgress
from tailer.feed.run import Feed, run_feed
from tailer.log.follow import FollowOptions
from tailer.log.table import TableLog
from tailer.process.signals import find_signal_status, install_receiver, run_until_stopped
from tailer.sink import make_sink
from tailer.storage import open_offset_store, open_store

BATCH_ROWS = 20


async def _start(_: TableLog) -> Offset:
    return Offset(0)


async def main(*arguments: str) -> int:
    """Run the feed; returns the exit status."""
    table, state, output, given, lease = arguments
    options = json.loads(given)
    async with aclosing(open_store(table, options)) as store:
        feed = Feed(
            name="orders",
            log=TableLog(store),
            sink=make_sink("jsonl", {"path": output}, Path()),
            offsets=open_offset_store(state, "orders", options, lease_s=float(lease)),
            start=_start,
            progress=FeedProgress("orders", time.time),
            jitter=random.random,
            options=FeedOptions(
                decode=DecodeOptions(batch_rows_max=BATCH_ROWS),
                follow=FollowOptions(poll_min_s=0.05, poll_max_s=0.5),
                retry=RetryOptions(pause_min_s=0.05, pause_max_s=0.5),
            ),
        )
        try:
            stopped = await run_until_stopped(lambda: run_feed(feed))
            print(
                f"ended by {f'a signal: {find_signal_status()}' if stopped else 'itself'}",
                file=sys.stderr,
            )
            return int(not stopped)
        except TailerError as e:
            print(e, file=sys.stderr)
            return 1


if __name__ == "__main__":
    install_receiver()
    sys.exit(anyio.run(main, *sys.argv[1:]))
