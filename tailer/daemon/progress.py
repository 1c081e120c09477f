"""Log lines that tell what feeds have delivered and how far they are behind."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from tailer.feed.metrics import FeedMetrics

__all__ = ["FEEDS_MAX", "Progress"]

#: So many feeds have a line of their own each time; the others share one.
FEEDS_MAX = 20
#: What a feed does while it is behind and on its way. Of others another line has said why.
_ON_ITS_WAY = ("snapshot", "following")


@dataclass(slots=True)
class _Known:
    """A feed's counts, as they were told last."""

    metrics: FeedMetrics
    events: int = 0
    versions: int = 0


class Progress:
    """Tells what was delivered since it was asked last, and at the end what was in all."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._known: dict[str, _Known] = {}
        self._events = self._versions = 0
        self._feeds: set[str] = set()

    def report(self, feeds: Mapping[str, FeedMetrics], seconds: float) -> None:
        """A line for each feed that delivered something in these ``seconds``, or is behind."""
        told = []
        for name, metrics in sorted(feeds.items()):
            events, versions = self._since(name, metrics)
            behind = metrics.lag_versions() and metrics.state in _ON_ITS_WAY
            if events or versions or behind:
                told.append((name, metrics, events, versions))
        for name, metrics, events, versions in told[:FEEDS_MAX]:
            self._logger.info(
                "feed %s delivered %s in %.0f s; %s",
                name, _counted(events, versions), seconds, _behind([metrics]),
                extra={"feed": name, **_fields([metrics], events, versions)},
            )  # fmt: skip
        if rest := told[FEEDS_MAX:]:
            others = [metrics for _, metrics, _, _ in rest]
            events = sum(events for _, _, events, _ in rest)
            versions = sum(versions for _, _, _, versions in rest)
            self._logger.info(
                "%d more feeds delivered %s in %.0f s; together %s",
                len(rest), _counted(events, versions), seconds, _behind(others),
                extra={"feeds": len(rest), **_fields(others, events, versions)},
            )  # fmt: skip

    def gone(self, name: str, metrics: FeedMetrics) -> None:
        """A feed is no more; what it has delivered counts."""
        self._since(name, metrics)
        self._known.pop(name, None)

    def end(self, feeds: Mapping[str, FeedMetrics], why: str) -> None:
        """The one line at the end of the process."""
        for name, metrics in feeds.items():
            self._since(name, metrics)
        found = list(feeds.values())
        fields = {**_fields(found, self._events, self._versions), "event": "ended"}
        self._logger.info(
            "ended, %s: %d feeds delivered %s; %s",
            why, len(self._feeds), _counted(self._events, self._versions), _behind(found),
            extra={"feeds": len(self._feeds), **fields},
        )  # fmt: skip

    def _since(self, name: str, metrics: FeedMetrics) -> tuple[int, int]:
        """The events and whole versions since the last time. A feed that was restarted counts from
        the beginning."""
        known = self._known.get(name)
        if known is None or known.metrics is not metrics:
            known = self._known[name] = _Known(metrics)
        events = metrics.events_delivered - known.events
        versions = metrics.versions_delivered - known.versions
        known.events, known.versions = metrics.events_delivered, metrics.versions_delivered
        self._events += events
        self._versions += versions
        if events or versions:
            self._feeds.add(name)
        return events, versions


def _counted(events: int, versions: int) -> str:
    return f"{events} events of {versions} versions"


def _behind(feeds: list[FeedMetrics]) -> str:
    versions = int(sum(feed.lag_versions() for feed in feeds))
    if not versions:
        return "behind by nothing"
    seconds = max(feed.lag_seconds() for feed in feeds)
    size = int(sum(feed.lag_bytes() for feed in feeds))
    return f"behind by {versions} versions, {size} bytes, {seconds:.1f} s"


def _fields(feeds: list[FeedMetrics], events: int, versions: int) -> dict[str, object]:
    found: dict[str, object] = {
        "event": "progress",
        "events": events,
        "versions": versions,
        "lag_versions": int(sum(feed.lag_versions() for feed in feeds)),
        "lag_seconds": round(max((feed.lag_seconds() for feed in feeds), default=0.0), 3),
        "lag_bytes": int(sum(feed.lag_bytes() for feed in feeds)),
    }
    if len(feeds) == 1 and feeds[0].offset is not None:
        found["version"] = feeds[0].offset.version
    return found
