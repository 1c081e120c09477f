"""A feed's offset as a JSON document with a checksum, wherever it is kept."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

from tailer.errors import OffsetError

__all__ = ["FORMAT", "damaged", "document_name", "from_bytes", "to_bytes"]

FORMAT = 1


def document_name(feed: str) -> str:
    """The name of a feed's document, without an ending: no two feeds have the same."""
    return re.sub(r"[^A-Za-z0-9._-]", lambda m: f"%{ord(m[0]):02X}", feed)


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
        hint="restore it, or set it anew with `tailer offsets set`",
    )


def _checksum(document: dict[str, Any]) -> str:
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
