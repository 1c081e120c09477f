"""What a new configuration changes: which running feeds end, and which feeds start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailer.config.feeds import FeedConfig
from tailer.daemon.discovery import is_pattern


@dataclass(frozen=True, slots=True)
class FeedChanges:
    """Names of the feeds to end, and the feeds to start after that; a changed feed is in both.

    The feeds that a changed pattern has found end too: discovery starts those that it finds again.
    """

    ended: tuple[str, ...]
    started: Mapping[str, FeedConfig]

    def summarize(self, found: Sequence[str]) -> dict[str, list[str]]:
        """Return each feed under ``started``, ``stopped`` or ``restarted``; ``found`` were
        discovered."""
        started = [*self.started, *found]
        return {
            "started": [name for name in started if name not in self.ended],
            "stopped": [name for name in self.ended if name not in started],
            "restarted": [name for name in started if name in self.ended],
        }


def find_feed_changes(
    running: Mapping[str, FeedConfig], old: Mapping[str, FeedConfig], new: Mapping[str, FeedConfig]
) -> FeedChanges:
    """Return the changes from the ``running`` feeds of the configuration ``old`` to those of
    ``new``.

    Feeds that a pattern has found run as ``PATTERN/TABLE``; what is equal in both is unchanged.
    """
    tables = {name: feed for name, feed in new.items() if not is_pattern(feed.table)}
    patterns = {n for n, f in old.items() if is_pattern(f.table) and new.get(n) != f}
    ended = []
    for name, feed in running.items():
        pattern, slash, _ = name.partition("/")
        if pattern in patterns if slash else tables.get(name) != feed:
            ended.append(name)
    started = {n: f for n, f in tables.items() if n not in running or n in ended}
    return FeedChanges(tuple(ended), started)
