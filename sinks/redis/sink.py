"""The Redis sink: a stream of events, or a copy of a table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sinks.formats.json_formats import FORMAT
from sinks.redis.mirror import RedisMirror
from sinks.redis.stream import RedisStream
from sinks.shared.options import CREDENTIALS, find_url, make_timeout
from tailer.secrets.urls import parse_url
from tailer.settings import REQUIRED, Setting

SETTINGS: dict[str, Setting] = {
    "url": Setting(
        "text", REQUIRED, "The server: `redis://user:password@host:port/database`, `rediss://` "
        "for TLS, or `unix://path`; `?ssl_ca_certs=FILE` and others are options of redis-py.",
        form="a redis://, rediss:// or unix:// URL", secret=True,
        parse=partial(parse_url, schemes=("redis", "rediss", "unix"), needs_host=False),
    ),
    **CREDENTIALS,
    "stream": Setting(
        "text", "{feed}", "The stream's key; `{feed}` is replaced by the feed's name, any other "
        "name in braces by that column's value in each row; `{{tag}}` is a hash tag.",
    ),
    "mode": Setting(
        "text", "log", "Write the change events to a stream, or keep a copy of the table, a string "
        "of JSON a key.", choices=("log", "mirror"),
    ),
    "prefix": Setting(
        "text", "{feed}:", "Of a copy: what the keys of its rows begin with; `{feed}` is replaced "
        "by the feed's name.", advanced=True,
    ),
    "timeout_s": make_timeout(30),
    "format": FORMAT,
}  # fmt: skip


class RedisSink(RedisStream):
    """Events as entries of a Redis stream, or a copy of a table, exactly once."""

    settings = SETTINGS

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> RedisStream:  # noqa: ARG003  # no paths
        """Create the sink. Options: :data:`SETTINGS` and those of the format."""
        made = RedisMirror if options["mode"] == "mirror" else cls
        return made(find_url("redis", options), options)
