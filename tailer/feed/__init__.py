"""One table to one sink, exactly, from an offset on: start reading here.

    store -> log -> plan -> fetch -> decode -> write -> save offset

Two tasks, joined by a pipe, before which one batch waits:

    reader                                             publisher
    follow        commits, as the log grows            publish    write a batch to the sink,
      commit      a span of them: notices, files                  then save its next offset
        span_reader  its files: open, decode, batches
    snapshots     the rows of a whole version          progress   what the feed reports of itself

A **span** is one version or several consecutive ones, whose files are read together.

Who pushes: the reader's functions get an ``emit`` and await it with each batch or notice. One batch
is being written and one is ready; of a large span, further steps wait in the lanes, up to a bound.
Who pulls: one loop, in span_reader. It asks for a group of files, then for one step of their rows
after the other, in worker threads unless a step is quick, and nothing below it runs unasked. What
shapes, counts or compares many rows takes threads too. After a failure nothing in memory is used
again: the feed starts from its saved offset.

The way from a :class:`Feed` to its sink is read in nine files: run, read, commit,
rows/span_reader, rows/files, rows/decoding, rows/batches, publish, sink_calls. Three calls of it
are easily missed: read shapes the rows (:mod:`tailer.shape.shaper`) where it emits them; run lets
publisher and sink look at an item before it is in the pipe; and behind the pipe, fitting checks its
columns and copy_repairs keeps it back while a repair has the copy, before publish has it.

| module | what it decides |
| --- | --- |
| run | a feed's life: start, retry, end |
| read | the order of snapshot, skipped versions, commits and re-snapshots |
| commit | where a span of commits ends, and the files of each |
| rows/span | a span, its versions and files, as data |
| rows/span_reader | the one loop that pulls; where the worker thread begins |
| rows/files | which files are opened ahead of their turn, and which are decoded in one group |
| rows/decoding | a group of files to rows, step by step, without threads and offsets |
| rows/batches | rows to batches: the offset before and after each |
| rows/group_lanes | two groups decoded at the same time, their batches in order |
| rows/remote_groups | which groups of a large span are decoded elsewhere |
| rows/fetch | one file's bytes and its deletion vectors |
| rows/comparing | work that compares files, and the threads that meet there |
| rows/counting | how many changes a file has, and the file that an offset lies in |
| read_context | what all spans of a feed have in common |
| texts | what becomes of bytes that are no UTF-8 |
| derive, pairing | changes of a rewrite; an update's two images as one row |
| snapshots | rows of a whole version, and reading them again while changes continue |
| options, policy | how a feed reads, and what happens when the table changes |
| orders | what the operator wants: pause, skip, accept a schema, read again |
| pipe, publish | the hand-over, the write and the saved offset |
| fitting | whether the sinks can have the columns, before a row is written |
| sink_calls | what opens, writes and announces: a call that hangs, one that fails unexplained |
| parking, parked_file, parked_rows | refused rows: where they go, how many, and their return |
| copy_repairs | a resnapshot of a copy: it is compared with the table, and set right |
| progress | what the feed reports of itself |
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
    """Load a public name on first use: a Spark executor decodes, and needs no more than that."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
