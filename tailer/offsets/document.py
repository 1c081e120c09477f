"""A feed's offset as a JSON document with a checksum, wherever it is kept."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

from tailer.errors import OffsetError

__all__ = [
    "FORMAT",
    "damaged",
    "document_name",
    "from_bytes",
    "is_anothers",
    "older_name",
    "to_bytes",
]

FORMAT = 1


#: Of a document's name without its ending: with it, no file system's 255 bytes are exceeded.
_NAME_BYTES_MAX = 255 - len(".offset.json")
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def document_name(feed: str) -> str:
    """The name of a feed's document, without an ending: no two feeds have the same.

    A name that would be too long ends with a digest of the feed's, behind a ``~`` that no other
    has.
    """
    raw = feed.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(name) <= _NAME_BYTES_MAX:
        return name
    digest = sha256(raw).hexdigest()
    return f"{name[: _NAME_BYTES_MAX - len(digest) - 1]}~{digest}"


def older_name(feed: str) -> str | None:
    """The name that versions up to 0.1 gave the document, where it is another; two feeds could
    have the same."""
    older = re.sub(r"[^A-Za-z0-9._-]", lambda m: f"%{ord(m[0]):02X}", feed)
    return older if older != document_name(feed) else None


def is_anothers(text: bytes, feed: str) -> bool:
    """Whether a document is whole and another feed's. What is damaged may well be this one's."""
    try:
        document: dict[str, Any] = json.loads(text)
        checksum = document.pop("checksum")
        return bool(checksum == _checksum(document) and document["feed"] != feed)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return False


def to_bytes(document: dict[str, Any]) -> bytes:
    """The document with its checksum, as one line."""
    return json.dumps({**document, "checksum": _checksum(document)}).encode() + b"\n"


def from_bytes(text: bytes, feed: str, path: str) -> dict[str, Any]:
    """The document, less its checksum. Raises :class:`OffsetError` if it is not what was written,
    or another feed's."""
    try:
        document: dict[str, Any] = json.loads(text)
        checksum = document.pop("checksum")
        epoch, known = document["epoch"], document["format"] == FORMAT
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise damaged(feed, path, "it is not what was written") from None
    if checksum != _checksum(document) or not isinstance(epoch, int) or not known:
        raise damaged(feed, path, "its checksum does not fit")
    if document.get("feed") != feed:
        raise damaged(feed, path, f"it belongs to feed {document.get('feed')!r}")
    return document


def damaged(feed: str, path: str, what: str) -> OffsetError:
    """The error of a document that can't be believed."""
    return OffsetError(
        f"the offset file of feed {feed!r} is damaged: {what}",
        path=path,
        hint="restore it, or set it with `tailer offsets set`",
    )


def _checksum(document: dict[str, Any]) -> str:
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
