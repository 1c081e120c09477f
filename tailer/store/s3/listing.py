"""The pages of ListObjectsV2."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from tailer.store.s3.errors import Unfit

__all__ = ["ListedObject", "Page", "parse_page"]


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One object of a page: ``mtime_ms`` in whole seconds, as GET and HEAD give it."""

    key: str
    size: int
    mtime_ms: int
    etag: str


@dataclass(frozen=True, slots=True)
class Page:
    """One page; ``following`` is the token of the next one, None after the last."""

    objects: list[ListedObject]
    following: str | None


def parse_page(body: bytes) -> Page:
    """Parse the page of an answer.

    Raises :class:`Unfit` if it is not a listing, or not a whole one.
    """
    try:
        root = ET.fromstring(body)  # noqa: S314 - expat itself bounds what entities grow to
        if _local(root.tag) != "ListBucketResult":
            raise Unfit(f"a {_local(root.tag)} in place of a listing")
        space = root.tag.partition("}")[0] + "}" if "}" in root.tag else ""
        encoded = root.findtext(f"{space}EncodingType") == "url"
        truncated = root.findtext(f"{space}IsTruncated") == "true"
        following = root.findtext(f"{space}NextContinuationToken") if truncated else None
        if truncated and not following:
            raise Unfit("a cut listing without a token for the rest")
        return Page(list(_objects(root, space, encoded=encoded)), following)
    except (ET.ParseError, TypeError, ValueError) as e:
        raise Unfit(f"it is no listing ({e})") from None


def _objects(root: ET.Element, space: str, *, encoded: bool) -> Iterator[ListedObject]:
    for element in root.iterfind(f"{space}Contents"):
        key = element.findtext(f"{space}Key") or ""
        changed = dt.datetime.fromisoformat(element.findtext(f"{space}LastModified") or "")
        yield ListedObject(
            unquote_plus(key) if encoded else key,
            int(element.findtext(f"{space}Size") or ""),
            # Other calls give whole seconds: the same commit must not have two timestamps.
            int(changed.timestamp()) * 1000,
            element.findtext(f"{space}ETag") or "",
        )


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
