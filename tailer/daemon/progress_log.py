"""Log lines that report what feeds have delivered and how far they are behind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from tailer.errors import printable
from tailer.feed.progress import FeedProgress

#: At most this many feeds get their own line each time; the others share one.
FEEDS_MAX = 20
#: States of a feed that does not go on, which each report repeats, with so much of the reason.
_TROUBLED = ("failed", "blocked", "retrying")
_REASON_CHARACTERS = 300
#: States of a feed that is behind and catching up. For other states, another line gives the reason.
_ON_ITS_WAY = ("snapshot", "following")


@dataclass(slots=True)
class _ReportedCounts:
    """A feed's counts at the last report."""

    progress: FeedProgress
    events: int = 0
    versions: int = 0


class ProgressLog:
    """Reports what was delivered since the last report, and the totals at the end."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._known: dict[str, _ReportedCounts] = {}
        self._events = self._versions = 0
        self._feeds: set[str] = set()

    async def run_all(
        self,
        works: Iterable[Callable[[], Coroutine[Any, Any, None]]],
        feeds: Mapping[str, FeedProgress],
        seconds: float,
    ) -> None:
        """Run some works until each has come to its end, with a report of the feeds every
        ``seconds`` (0: none)."""

        async def reports() -> None:
            while True:
                await anyio.sleep(seconds)
                self.log_report(feeds, seconds)

        async with anyio.create_task_group() as reporting:
            if seconds:
                reporting.start_soon(reports)
            async with anyio.create_task_group() as tasks:
                for work in works:
                    tasks.start_soon(work)
            reporting.cancel_scope.cancel()

    def log_report(self, feeds: Mapping[str, FeedProgress], seconds: float) -> None:
        """Log a line for each feed that delivered something in these ``seconds``, or is behind, and
        one for all that are in trouble: the line that said so first may be hours old."""
        reports = []
        for name, progress in sorted(feeds.items()):
            events, versions = self._count_since(name, progress)
            behind = progress.lag_versions() and progress.state in _ON_ITS_WAY
            behind = behind or bool(progress.snapshots)
            if events or versions or behind:
                reports.append((name, progress, events, versions))
        for name, progress, events, versions in reports[:FEEDS_MAX]:
            self._logger.info(
                "feed %s delivered %s in %.0f s; %s",
                name, _format_counts(events, versions), seconds, _format_lag([progress]),
                extra={"feed": name, **_build_fields([progress], events, versions)},
            )  # fmt: skip
        if rest := reports[FEEDS_MAX:]:
            progresses = [progress for _, progress, _, _ in rest]
            events = sum(events for _, _, events, _ in rest)
            versions = sum(versions for _, _, _, versions in rest)
            self._logger.info(
                "%d more feeds delivered %s in %.0f s; together %s",
                len(rest), _format_counts(events, versions), seconds, _format_lag(progresses),
                extra={"feeds": len(rest), **_build_fields(progresses, events, versions)},
            )  # fmt: skip

        self._report_trouble(feeds)

    def _report_trouble(self, feeds: Mapping[str, FeedProgress]) -> None:
        troubled = [(n, p) for n, p in sorted(feeds.items()) if p.state in _TROUBLED]
        if not troubled:
            return
        shown = [
            f"{name} is {progress.state}: {printable(str(progress.error), _REASON_CHARACTERS)}"
            for name, progress in troubled[:FEEDS_MAX]
        ]
        more = len(troubled) - len(shown)
        self._logger.warning(
            "%d of %d feeds are in trouble; %s",
            len(troubled), len(feeds), "; ".join([*shown, *([f"and {more} more"] if more else [])]),
            extra={"event": "trouble", "troubled": [name for name, _ in troubled]},
        )  # fmt: skip

    def remove_feed(self, name: str, progress: FeedProgress) -> None:
        """Note that a feed no longer exists; what it has delivered still counts."""
        self._count_since(name, progress)
        self._known.pop(name, None)

    def log_end(self, feeds: Mapping[str, FeedProgress], why: str) -> None:
        """Log the last line of the process, with the totals."""
        for name, progress in feeds.items():
            self._count_since(name, progress)
        progresses = list(feeds.values())
        fields = {**_build_fields(progresses, self._events, self._versions), "event": "ended"}
        self._logger.info(
            "ended, %s: %d feeds delivered %s; %s",
            why, len(self._feeds), _format_counts(self._events, self._versions),
            _format_lag(progresses),
            extra={"feeds": len(self._feeds), **fields},
        )  # fmt: skip

    def _count_since(self, name: str, progress: FeedProgress) -> tuple[int, int]:
        """Return the events and whole versions since the last report. A restarted feed counts from
        zero."""
        counted = self._known.get(name)
        if counted is None or counted.progress is not progress:
            counted = self._known[name] = _ReportedCounts(progress)
        events = progress.events_delivered - counted.events
        versions = progress.versions_delivered - counted.versions
        counted.events, counted.versions = progress.events_delivered, progress.versions_delivered
        self._events += events
        self._versions += versions
        if events or versions:
            self._feeds.add(name)
        return events, versions


def _format_counts(events: int, versions: int) -> str:
    return f"{events} events of {versions} versions"


def _format_lag(feeds: list[FeedProgress]) -> str:
    """Return how far feeds are behind; of one alone, also how far its snapshot is."""
    snapshot = feeds[0].describe_snapshot() if len(feeds) == 1 else None
    if snapshot is not None:
        return format_snapshot(snapshot)
    unread = sum(feed.newest_known is None for feed in feeds)
    versions = sum(feed.lag_versions() for feed in feeds)
    if unread:
        of = "the table was" if len(feeds) == 1 else f"{unread} of their tables were"
        return f"{of} not read yet" + (
            f", others are {_format_total_lag(feeds)}" if versions else ""
        )
    return _format_total_lag(feeds) if versions else "behind by nothing"


def format_snapshot(snapshot: Mapping[str, float | None]) -> str:
    """Return how far a snapshot is (:meth:`FeedProgress.describe_snapshot`), for people."""
    left = snapshot["seconds_left"]
    rest = "" if left is None else f", {left:.0f} s left"
    return f"its snapshot is read to {snapshot['share']:.1%}{rest}"


def _format_total_lag(feeds: list[FeedProgress]) -> str:
    versions = sum(feed.lag_versions() for feed in feeds)
    seconds = max(feed.lag_seconds() for feed in feeds)
    size = sum(feed.lag_bytes() for feed in feeds)
    return f"behind by {versions} versions, {size} bytes, {seconds:.1f} s"


def _build_fields(feeds: list[FeedProgress], events: int, versions: int) -> dict[str, object]:
    fields: dict[str, object] = {
        "event": "progress",
        "events": events,
        "versions": versions,
        "lag_versions": sum(feed.lag_versions() for feed in feeds),
        "lag_seconds": round(max((feed.lag_seconds() for feed in feeds), default=0.0), 3),
        "lag_bytes": sum(feed.lag_bytes() for feed in feeds),
    }
    rows = [feed.lag_rows() for feed in feeds]
    if None not in rows:
        fields["lag_rows"] = sum(filter(None, rows))
    if len(feeds) == 1 and feeds[0].known_offset is not None:
        fields["version"] = feeds[0].known_offset.version
    if len(feeds) == 1 and (snapshot := feeds[0].describe_snapshot()) is not None:
        fields["snapshot_share"] = snapshot["share"]
        if snapshot["seconds_left"] is not None:
            fields["snapshot_seconds_left"] = snapshot["seconds_left"]
    return fields
