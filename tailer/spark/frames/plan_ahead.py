"""Planning ahead of a stream: the driver writes each batch's work before Spark asks for it.

The planner is the source's own stream reader, driven here instead of by Spark. A checkpoint's files
lead from one state to the next:

| file, at a start | written ahead | begun by Spark, not committed | committed |
| --- | --- | --- | --- |
| planned as now | kept | kept | kept for a while |
| by other options, or another schema | removed, planned again | range planned again | the same |
| an error | removed, planned again | range (no rows) without the error | |

So a batch that has begun comes again with the same changes, whatever happens in between.
"""

from __future__ import annotations

import json
import logging
import threading
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailer import __version__
from tailer.errors import OffsetError, unexpected
from tailer.spark.error_sentence import TailerSourceError, one_sentence
from tailer.spark.frames.order_files import OrderFiles, OrderHead
from tailer.spark.mapped_tasks import Task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailer.spark.source.driver import TaskPartition
    from tailer.spark.source.limited_stream import LimitedStreamReader

_POLL_S = 0.5
#: Batches that are planned before the query has begun them, once it runs.
_AHEAD_MAX = 16


class PlanAhead:
    """Writes the orders of one query, from one thread at a time."""

    def __init__(self, reader: LimitedStreamReader, checkpoint: Path) -> None:
        self.reader = reader
        self.files = OrderFiles(checkpoint)
        self._made_by = _made_by(reader)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed = False
        self._number = -1
        self._at: dict[str, Any] = {}

    @one_sentence
    def begin(self) -> None:
        """Go on behind the files that are there, and plan all that the table has."""
        self.files.prepare()
        try:
            begun, committed = self.files.begun(), self.files.committed()
            self._settle(begun, committed)
            self.reader.prepareForTriggerAvailableNow()  # a busy writer does not keep it here
            while self._plan_next(begun):
                pass
            self.reader.follow()
        except BaseException:
            self.reader.stop()
            raise

    def _settle(self, begun: int, committed: int) -> None:
        numbers = self.files.numbers()
        if not numbers and begun >= 0:
            raise OffsetError(
                "the work orders of this checkpoint are missing",
                path=str(self.files.folder),
                hint="start with a new checkpoint, and with startingOffset to continue at a place",
            )
        ahead = [number for number in numbers if number > begun]
        stale = [number for number in ahead if self._is_stale(self.files.head(number))]
        for number in reversed([number for number in ahead if stale and number >= stale[0]]):
            self.files.remove(number)  # the last one first: what stays has no gap
        for number in (n for n in numbers if committed < n <= begun):
            head = self.files.head(number)
            if self._is_stale(head):
                self.files.replace(self._head(number, head.start, head.end), self._tasks(head))
        left = self.files.numbers()
        self._number = left[-1] + 1 if left else 0
        self._at = self.files.head(left[-1]).end if left else self.reader.initialOffset()

    def _is_stale(self, head: OrderHead) -> bool:
        return head.made_by != self._made_by or head.error is not None

    def _head(
        self, number: int, start: dict[str, Any], end: dict[str, Any], error: str | None = None
    ) -> OrderHead:
        return OrderHead(number=number, start=start, end=end, made_by=self._made_by, error=error)

    def _tasks(self, head: OrderHead) -> list[str]:
        parts: Any = self.reader.partitions(head.start, head.end)
        found: list[TaskPartition] = list(parts)
        return [Task.of(part, self.reader.target).to_text() for part in found]

    def _plan_next(self, begun: int, *, running: bool = False) -> bool:
        """Write the next file; return False if nothing is new, or the query must end.

        An error waits for its turn behind the batches that are still to be read.
        """
        if self._failed:
            return False
        try:
            end = self.reader.latestOffset(self._at, self.reader.getDefaultReadLimit())
            if end == self._at:
                return False
            head = self._head(self._number, self._at, end)
            tasks = self._tasks(head)
        except OSError:
            raise
        except Exception as e:
            known = isinstance(e, TailerSourceError)
            if not running and not (known and self._number - 1 > begun):
                raise
            if not known:
                logging.getLogger("tailer.spark").exception("planning ahead of a stream")
            text = str(e if known else unexpected(e))
            head = self._head(self._number, self._at, self._at, text)
            tasks, self._failed = [], True
        if not self.files.create(head, tasks):
            raise OffsetError(
                "another process plans for this checkpoint",
                path=str(self.files.folder),
                hint="stop it, or give each query a checkpoint folder for itself",
            )
        self._number, self._at = self._number + 1, head.end
        return True

    # While the query runs

    def follow(self, spark: SparkSession) -> None:
        """Plan on in a thread, while a query runs from the checkpoint."""
        self._thread = threading.Thread(
            target=self._follow, args=(spark,), name="tailer-plan-ahead", daemon=True
        )
        self._thread.start()

    def _follow(self, spark: SparkSession) -> None:
        with suppress(OffsetError):  # another process plans, and Spark refuses one of the queries
            while (
                not self._ended.wait(_POLL_S) and (running := self._is_running(spark)) is not None
            ):
                with suppress(OSError):  # Spark was about to replace its list
                    if running:
                        self.plan_more()
        self.reader.stop()

    def plan_more(self) -> None:
        """Plan what is new for a running query, up to so many batches ahead of it."""
        begun = self.files.begun()
        while self._number - 1 - begun < _AHEAD_MAX and not self._ended.is_set():
            if not self._plan_next(begun, running=True):
                break
        self.files.clean()

    def _is_running(self, spark: SparkSession) -> bool | None:
        """Return whether a query runs from the checkpoint; None if the session has ended."""
        query = self.files.query_id()
        try:
            return query is not None and any(one.id == query for one in spark.streams.active)
        except Exception:  # noqa: BLE001  # as many kinds as there are ways to lose a JVM
            return None

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()


def _made_by(reader: LimitedStreamReader) -> str:
    """Return an id of what determines the tasks of a range of changes, and their division."""
    options = replace(reader.options, start=None, start_offset=None, store={})
    state = reader.target[0]
    told = (
        __version__,
        options,
        state.metadata.schema_string,
        state.mapping,
        str(reader.arrow_schema),
    )
    return blake2b(json.dumps([repr(part) for part in told]).encode(), digest_size=8).hexdigest()


_RUNNING: dict[Path, PlanAhead] = {}
_LOCK = threading.Lock()


def plan_ahead(spark: SparkSession, reader: LimitedStreamReader, checkpoint: Path) -> PlanAhead:
    """Plan all that the table has, and let a thread plan what follows. The last call for a
    checkpoint replaces those before."""
    with _LOCK:
        former = _RUNNING.pop(checkpoint, None)
        if former is not None:
            former.stop()
        made = PlanAhead(reader, checkpoint)
        made.begin()
        made.follow(spark)
        _RUNNING[checkpoint] = made
        return made
