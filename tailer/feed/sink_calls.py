"""How a feed calls its sink: nothing that a call does is hidden, and nothing costs a row.

* A call that does not come back is named, in the log, in the status and by `/readyz`. It is not cut
  short: only the sink knows whether its server works or stands still. Sinks with a connection have
  time-outs of their own, after which the feed retries.
* A library's error that the sink does not explain is taken for passing: retried, with its traceback
  in the log. Python's own errors (a KeyError) are bugs, and end the feed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from tailer.changes import ChangeBatch, Notice, Offset
from tailer.errors import TailerError, TransientError, may_heal
from tailer.feed.parking import Parking
from tailer.feed.progress import FeedProgress, SlowSink
from tailer.sink import Sink, write_and_save

#: After this many seconds a call of a sink is named.
SLOW_S = 60.0


class UnexplainedError(TransientError):
    """An exception of a library that its sink did not translate. The cause has its traceback."""

    family = "internal"


class SinkCalls:
    """Calls one sink, with ``parking`` where its refused rows are parked. ``report`` is called
    for a call that does not come back."""

    def __init__(
        self,
        sink: Sink,
        parking: Parking | None,
        progress: FeedProgress,
        report: Callable[[TailerError], None],
    ) -> None:
        self.sink = sink
        self._parking = parking
        self._progress = progress
        self._report = report

    async def open(self, feed: str) -> Offset | None:
        with self._watch_call("its start"):
            return await self.sink.open(feed)

    @property
    def all_parked(self) -> bool:
        """Return whether the sink has taken no row of the last batch."""
        return self._parking is not None and self._parking.all_parked

    async def write(self, batch: ChangeBatch, save: Callable[[Offset], Awaitable[None]]) -> None:
        with self._watch_call("a write") as alive:

            async def save_alive(offset: Offset) -> None:
                alive()
                await save(offset)

            if batch.refused is not None:
                if self._parking is None:
                    raise batch.refused
                await self._parking.park_row(batch, batch.refused)
            elif self._parking is None:
                await write_and_save(self.sink, batch, save_alive)
            else:
                await self._parking.write(batch, save_alive)

    async def announce(self, notice: Notice) -> None:
        with self._watch_call("a notice"):
            await self.sink.announce(notice)

    async def aclose(self) -> None:
        with self._watch_call("its end"):
            await self.sink.aclose()

    @contextmanager
    def _watch_call(self, doing: str) -> Iterator[Callable[[], None]]:
        """Name the call around which this is when it does not come back; what it gives is called
        for each sign of life."""
        before = self._progress.state

        def tell() -> None:
            error = SlowSink(
                f"the sink has not returned from {doing} for {SLOW_S:g} s; check its target"
            )
            self._progress.note_slow_sink(error)
            self._report(error)

        call_later = asyncio.get_running_loop().call_later
        timer = call_later(SLOW_S, tell)

        def alive() -> None:
            nonlocal timer
            timer.cancel()
            self._progress.note_sink_return(before)
            timer = call_later(SLOW_S, tell)

        try:
            yield alive
        except TailerError:
            raise
        except Exception as e:
            if may_heal(e) or _is_bug(e):  # which have their own sentences
                raise
            raise UnexplainedError(
                f"the sink failed in {doing}, and does not say whether the error is temporary "
                f"({type(e).__name__}: {e}); the log has the traceback"
            ) from e
        finally:
            timer.cancel()
            self._progress.note_sink_return(before)


def _is_bug(e: Exception) -> bool:
    passing = isinstance(e, ConnectionError | TimeoutError | EOFError)
    return type(e).__module__ == "builtins" and not passing
