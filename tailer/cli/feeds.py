"""Find a feed and its sink by the name of its offset."""

from __future__ import annotations

from tailer.config.feeds import Config, FeedConfig
from tailer.daemon.run import feed_configs
from tailer.errors import ConfigError

__all__ = ["named_sink"]


async def named_sink(config: Config, name: str) -> tuple[FeedConfig, str]:
    """Return the feed and the name of its sink. Each sink of a feed with several sinks is
    FEED/SINK. Raises :class:`ConfigError` for a feed that is not configured."""
    found = {
        f"{feed}/{sink}" if sink else feed: (one, sink)
        for feed, one in (await feed_configs(config)).items()
        for sink in one.sinks
    }
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigError(f"{config.path} has no feed {name!r}; it has {known}")
    return found[name]
