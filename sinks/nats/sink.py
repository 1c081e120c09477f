"""The NATS sink: a stream of events, or a copy of a table in a key-value bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sinks.formats.json_formats import FORMAT
from sinks.messages.tls import CA_FILE
from sinks.nats.mirror import NatsMirror
from sinks.nats.stream import NatsStream
from sinks.shared.options import CREDENTIALS, make_timeout
from tailer.secrets.urls import Url, UrlError, parse_url
from tailer.settings import REQUIRED, Setting


def _parse_servers(texts: Sequence[str]) -> list[Url]:
    urls = [parse_url(text, ("nats", "tls")) for text in texts]
    if not urls:
        raise UrlError("it is empty")
    if len({(url.user, url.password) for url in urls}) > 1:
        raise UrlError("the URLs have different users or passwords")
    return urls


SETTINGS: dict[str, Setting] = {
    "servers": Setting(
        "texts", REQUIRED, "Servers to connect to: `nats://user:password@host:port`, or `tls://`.",
        form="a list of nats:// or tls:// URLs", parse=_parse_servers, secret=True,
    ),
    **CREDENTIALS,
    "stream": Setting("text", "{feed}", "The stream; `{feed}` is replaced by the feed's name."),
    "subject": Setting("text", "{feed}", "Subject of the messages; `{feed}` is replaced by the "
        "feed's name, any other name in braces by that column's value in each row."),
    "mode": Setting("text", "log", "Write the change events to a stream, or keep a copy of the "
        "table in a key-value bucket, an entry of JSON a key.", choices=("log", "mirror")),
    "bucket": Setting("text", "{feed}", "Of a copy: the bucket of its rows; `{feed}` is replaced "
        "by the feed's name.", advanced=True),
    "create": Setting("flag", True, "Create the stream and the buckets if they are missing.",
        advanced=True),
    "credentials_file": Setting("text", "", "File with the account's JWT and seed.", advanced=True),
    "ca_file": CA_FILE,
    "timeout_s": make_timeout(30),
    "format": FORMAT,
}  # fmt: skip


class NatsSink(NatsStream):
    """Events as messages of a JetStream stream, or a copy of a table, exactly once."""

    settings = SETTINGS

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> NatsStream:
        """Create the sink. Options: :data:`SETTINGS` and those of the format."""
        return (NatsMirror if options["mode"] == "mirror" else cls)(options, folder)
