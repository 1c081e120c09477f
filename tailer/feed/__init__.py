"""One table to one sink, exactly, from an offset on: start reading here.

    store -> log -> plan -> fetch -> decode -> write -> save offset

Two tasks, joined by a pipe that holds one batch:

    reader                                             publisher
    follow      commits, as the log grows              publish    write a batch to the sink,
      commit    a run of them: notices, files                       then save its next offset
      run_reader  its files: fetch, decode, batches
    snapshots   the rows of a whole version            progress   what the feed reports of itself

Who pushes: the reader's functions get an ``emit`` and await it with each batch or notice. At most
two batches are alive: one being written and one ready. Who pulls: rows are decoded only when
run_reader asks for the next chunk of them, in a worker thread; everything else here only awaits.
After a failure nothing in memory is used again: the feed starts from its saved offset.

| module | what it decides |
| --- | --- |
| run | a feed's life: start, retry, end |
| read | the order of snapshot, skipped versions, commits and re-snapshots |
| commit | where a run of commits ends, and the files of each |
| rows/run_reader | the batches of a run's files, with their offsets; it pulls all that follows |
| rows/lanes | two groups of files decoded at the same time |
| rows/chunks, rows/decoding | what one step in a worker thread does: files to rows |
| rows/fetch | a file's bytes and its deletion vectors; which files are opened ahead of their turn |
| rows/counting | how many changes a file has, and the file that an offset lies in |
| reading | what all runs of a feed have in common |
| derive, pairing | changes of a rewrite; an update's two images as one row |
| snapshots | rows of a whole version, and reading them again while changes continue |
| selection, policy, options | what is published, and what happens when the table changes |
| orders | what the operator wants: pause, skip, accept a schema, read again |
| pipe, publish | the hand-over, the write and the saved offset |
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailer.feed.options import FeedOptions
    from tailer.feed.read import read_changes, read_items
    from tailer.feed.run import Feed, run_feed

__all__ = ["Feed", "FeedOptions", "read_changes", "read_items", "run_feed"]

_MODULES = {
    "Feed": "run",
    "FeedOptions": "options",
    "read_changes": "read",
    "read_items": "read",
    "run_feed": "run",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use, because a Spark executor imports `fetch` alone."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
