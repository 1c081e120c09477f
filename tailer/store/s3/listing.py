"""Listings: the pages of ListObjectsV2, and the walk over all of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from tailer.errors import TransientError
from tailer.network.http_answers import Rounds, natural, not_too_many
from tailer.store.s3.client import Call, S3Client
from tailer.store.s3.errors import S3Answer, Unfit, refusal

__all__ = ["ListedObject", "Page", "list_pages", "parse_page"]

#: A page has 1000 keys of at most 1024 bytes, each of which takes three characters.
_PAGE_BYTES_MAX = 8 * 1024 * 1024
#: Pages in succession that bring nothing new. Those of a folder full of delete markers are empty.
_IDLE_PAGES_MAX = 1000
#: How a server says that it does not know a parameter.
_NOT_IMPLEMENTED = 501


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One object of a page: ``mtime_ms`` in whole seconds, as GET and HEAD give it."""

    key: str
    size: int
    mtime_ms: int
    etag: str


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its objects, its common prefixes (the folders), and ``following``, the token of the
    next page; None after the last."""

    objects: list[ListedObject]
    prefixes: list[str]
    following: str | None


async def list_pages(
    client: S3Client,
    request: Callable[[Call], Awaitable[S3Answer]],
    bucket: str,
    prefix: str,
    start_after: str = "",
) -> AsyncGenerator[Page, None]:
    """Yield the pages of what lies right below a prefix, of keys after ``start_after``.

    Pages may have other keys too: not every server knows start-after. One that refuses it is listed
    without it from then on. Raises :class:`TransientError` for pages that lead round in a circle.
    """
    query = {"list-type": "2", "prefix": prefix, "delimiter": "/", "encoding-type": "url"}
    if start_after and bucket not in client.lists_from_the_start:
        query["start-after"] = start_after
    rounds, last, listed = Rounds(_IDLE_PAGES_MAX), None, 0
    while True:
        taken: list[Page] = []

        def check(answer: S3Answer, taken: list[Page] = taken) -> None:
            if answer.status == 200:
                taken[:] = [parse_page(answer.body)]

        call = Call(
            "list", "GET", bucket, query=query, check=check, bytes_max=_PAGE_BYTES_MAX,
            handled=(_NOT_IMPLEMENTED,) if "start-after" in query else (),
        )  # fmt: skip
        answer = await request(call)
        if answer.status == _NOT_IMPLEMENTED and query.pop("start-after", None) is not None:
            client.lists_from_the_start.add(bucket)
            continue
        if answer.status != 200:
            raise refusal(answer, "list", bucket, prefix)
        page = taken[0]
        yield page
        if page.following is None:
            return
        news = page.objects, page.prefixes
        if rounds.closed_by(page.following, empty=not any(news) or news == last):
            raise TransientError(
                f"s3://{bucket}/{prefix}: the pages of the server's listing form a loop; check the "
                "server, and any proxy between it and this machine"
            )
        last = news
        listed += len(page.objects)
        not_too_many(listed, f"the listing of s3://{bucket}/{prefix}")
        query["continuation-token"] = page.following


def parse_page(body: bytes) -> Page:
    """Parse the page of an answer.

    Raises :class:`Unfit` if it is not a listing, or not a whole one.
    """
    try:
        # As text: another encoding that it may name is not looked for.
        text = body.decode("utf-8-sig")
        if "<!DOCTYPE" in text:  # a listing has none, and its entities could grow
            raise Unfit("a document type in a listing")
        root = ET.fromstring(text)  # noqa: S314 - see above
        if _local(root.tag) != "ListBucketResult":
            raise Unfit(f"a {_local(root.tag)} in place of a listing")
        space = root.tag.partition("}")[0] + "}" if "}" in root.tag else ""
        encoded = (root.findtext(f"{space}EncodingType") or "").strip() == "url"
        truncated = (root.findtext(f"{space}IsTruncated") or "").strip().lower() == "true"
        following = root.findtext(f"{space}NextContinuationToken") if truncated else None
        if truncated and not following:
            raise Unfit("a cut listing without a token for the rest")
        objects = list(_objects(root, space, encoded=encoded))
        return Page(objects, list(_prefixes(root, space, encoded=encoded)), following)
    except (ET.ParseError, TypeError, ValueError) as e:
        raise Unfit(f"it is no listing ({e})") from None


def _objects(root: ET.Element, space: str, *, encoded: bool) -> Iterator[ListedObject]:
    for element in root.iterfind(f"{space}Contents"):
        size = natural(element.findtext(f"{space}Size") or "")
        if size is None:
            raise ValueError("an object without a size")
        yield ListedObject(
            _plain(element.findtext(f"{space}Key"), encoded=encoded),
            size,
            _mtime_ms(element.findtext(f"{space}LastModified") or ""),
            element.findtext(f"{space}ETag") or "",
        )


def _prefixes(root: ET.Element, space: str, *, encoded: bool) -> Iterator[str]:
    for element in root.iterfind(f"{space}CommonPrefixes"):
        yield _plain(element.findtext(f"{space}Prefix"), encoded=encoded)


def _plain(text: str | None, *, encoded: bool) -> str:
    return unquote_plus(text or "") if encoded else text or ""


def _mtime_ms(text: str) -> int:
    """Return a time in whole seconds, as other calls give it: one commit has one time."""
    changed = dt.datetime.fromisoformat(text)
    if changed.tzinfo is None:
        changed = changed.replace(tzinfo=dt.UTC)
    seconds = (changed - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(seconds=1)
    if seconds < 0:
        raise ValueError(f"a time before 1970, {text}")
    return seconds * 1000


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
