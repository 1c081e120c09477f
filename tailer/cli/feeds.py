"""Find a feed by the name of its offset."""

from __future__ import annotations

from tailer.config.feeds import Config, FeedConfig
from tailer.daemon.assembly import list_feed_configs
from tailer.errors import ConfigError


async def find_feed(config: Config, name: str) -> FeedConfig:
    """Return a feed, also one of a pattern. Raises :class:`ConfigError` for one that is not
    configured."""
    feeds = await list_feed_configs(config)
    if name not in feeds:
        known = ", ".join(sorted(feeds)) or "none"
        raise ConfigError(f"{config.path} has no feed {name!r}; it has {known}")
    return feeds[name]
