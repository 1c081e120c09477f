"""Listing of the folders in a folder on S3, to look up tables by pattern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from tailer.errors import ConfigError
from tailer.store.s3.client import Call
from tailer.store.s3.errors import Answer, refusal
from tailer.store.s3.listing import parse_page
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
        raise ConfigError(f"{address!r} is no S3 address: s3://bucket/key is")
    bucket, key = place
    prefix = f"{key}/" if key else ""
    query = {"list-type": "2", "prefix": prefix, "delimiter": "/", "encoding-type": "url"}
    names: set[str] = set()
    async with SharedClients.lent(S3Options.from_options(options)) as client:
        while True:
            answer = await client.request(
                Call("list", "GET", bucket, query=query, check=_check_answer), Traffic()
            )
            if answer.status != 200:
                raise refusal(answer, "list", bucket, prefix)
            names.update(_folders(answer.body, prefix))
            following = parse_page(answer.body).following
            if following is None:
                return sorted(names)
            query["continuation-token"] = following


def _check_answer(answer: Answer) -> None:
    if answer.status == 200:
        parse_page(answer.body)


def _folders(body: bytes, prefix: str) -> list[str]:
    """Return the folders of a page that has passed the check."""
    root = ET.fromstring(body)  # noqa: S314 - expat itself bounds what entities grow to
    space = root.tag.partition("}")[0] + "}" if "}" in root.tag else ""
    encoded = root.findtext(f"{space}EncodingType") == "url"
    found = (e.findtext(f"{space}Prefix") or "" for e in root.iterfind(f"{space}CommonPrefixes"))
    plain = (unquote_plus(text) if encoded else text for text in found)
    return [text.removeprefix(prefix).rstrip("/") for text in plain if text != prefix]
