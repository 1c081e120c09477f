"""Listing of the folders in a folder on S3, to look up tables by pattern."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from tailer.errors import ConfigError
from tailer.store.s3.client import Call
from tailer.store.s3.errors import S3Answer
from tailer.store.s3.listing import list_pages
from tailer.store.s3.options import S3Options, parse_s3_address
from tailer.store.s3.store import SharedClients
from tailer.store.traffic import Traffic

__all__ = ["list_folders"]


async def list_folders(address: str, options: Mapping[str, Any]) -> list[str]:
    """Return the names of the folders (common prefixes) right below an address, sorted.

    Raises :class:`ConfigError` for an invalid address or option, and the errors of a listing.
    """
    place = parse_s3_address(address)
    if place is None:
        raise ConfigError(f"{address!r} is not an S3 address like s3://bucket/key")
    bucket, key = place
    prefix = f"{key}/" if key else ""
    names: set[str] = set()
    async with SharedClients.lent(S3Options.from_options(options)) as client:

        async def request(call: Call) -> S3Answer:
            return await client.request(call, Traffic())

        async with aclosing(list_pages(client, request, bucket, prefix)) as pages:
            async for page in pages:
                found = (text for text in page.prefixes if text != prefix)
                names.update(text.removeprefix(prefix).rstrip("/") for text in found)
    return sorted(names)
