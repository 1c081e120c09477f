"""What reads the tables of a configuration's feeds: this process, or others that it asks."""

from __future__ import annotations

from tailer.config.feeds import Config, FeedConfig
from tailer.feed.read import ReadFunction, read_in_process


class Readers:
    """Makes what reads each feed's table. This one reads in this process."""

    async def complete_config(self, config: Config) -> Config:
        """Return a configuration with what the readers know of the tables' storage."""
        return config

    def make_read_function(self, feed: FeedConfig) -> ReadFunction:  # noqa: ARG002  # others ask which
        """Return what reads the table of a feed."""
        return read_in_process
