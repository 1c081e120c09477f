"""Whether an answer is what was asked for: which bytes of how many, and of which state.

A range that is short, another one, or of another state of the object is :class:`Unfit`.
"""

from __future__ import annotations

from collections.abc import Callable

from tailer.network.http_answers import byte_range, http_date, natural, packing, strong_etag
from tailer.store import FileStatus
from tailer.store.s3.errors import S3Answer, Unfit

__all__ = ["check_status", "cut_range", "etag_of", "range_check", "status_of", "tag_of"]


def tag_of(etag: str, mtime_ms: int) -> str:
    """Return a tag that changes with the object: rewriting the same bytes keeps the ETag."""
    return f"{etag} {mtime_ms}"


def etag_of(status: FileStatus) -> str:
    """Return the ETag in a status, as the server gave it; empty if it gave none."""
    return status.tag.rpartition(" ")[0]


def status_of(answer: S3Answer, location: str) -> FileStatus:
    """Return the status of the whole object, from the headers of a GET or HEAD.

    Raises :class:`Unfit` if they lack it.
    """
    headers = answer.headers
    changed = http_date(headers.get("last-modified", ""))
    if changed is None:
        raise Unfit("its headers are not an object's (no Last-Modified)")
    if answer.status == 206:
        span = byte_range(headers.get("content-range", ""))
        size = None if span is None else span.total
    else:
        size = natural(headers.get("content-length", ""))
    if size is None:
        raise Unfit("its headers are not an object's (no size)")
    name = location.rpartition("/")[2]
    return FileStatus(name, size, changed * 1000, tag_of(headers.get("etag", ""), changed * 1000))


def check_status(answer: S3Answer) -> None:
    """Check that an answer has an object's status."""
    if answer.status == 200:
        status_of(answer, "")


def range_check(
    start: int, end: int | None, opened: FileStatus | None
) -> Callable[[S3Answer], None]:
    """Return a check of an answer against the requested range, and the state that was opened.

    A negative start counts from the object's end.
    """

    def check(answer: S3Answer) -> None:
        if answer.status not in (200, 206):
            return
        status = status_of(answer, "")
        size = status.size
        if opened is not None and not _is_same(status, opened):
            raise Unfit("it is of another state of the object")
        first = max(0, size + start) if start < 0 else start
        last = size if end is None else min(end, size)
        if answer.status == 200:
            if answer.size != size:
                raise Unfit(f"{answer.size} bytes of {size}{_packed(answer)}")
            return
        span = byte_range(answer.headers["content-range"])
        if span is None or (span.start, span.end) != (first, last):
            raise Unfit(
                f"{answer.headers['content-range']!r}, and {first}-{last - 1} was requested"
            )
        if answer.size != last - first:
            raise Unfit(f"{answer.size} bytes of {last - first}{_packed(answer)}")

    return check


def _is_same(status: FileStatus, opened: FileStatus) -> bool:
    """Return whether two answers are of one state of an object.

    An ETag names a state. A weak one and a time, which has whole seconds, say less: both count.
    """
    if status.size != opened.size:
        return False
    if strong_etag(etag_of(opened)) is not None:
        return etag_of(status) == etag_of(opened)
    return status.tag == opened.tag


def _packed(answer: S3Answer) -> str:
    """Return what explains a body of another length."""
    said = packing(answer.headers.get("content-encoding"))
    return f", packed by {said}, which was not requested" if said else ""


def cut_range(answer: S3Answer, start: int, end: int | None) -> bytes | None:
    """Return the requested range, also from an answer with the whole object."""
    if answer.status == 206:
        return answer.body
    if start < 0:
        return answer.body[start:]
    return answer.body[start:end] if start < len(answer.body) else None
