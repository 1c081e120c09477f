"""A feed's offset as a JSON document with a checksum, for any kind of storage."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from tailer.errors import OffsetError

FORMAT = 1


#: Most bytes of a file's name on any usual file system.
_NAME_BYTES_MAX = 255
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def make_document_name(feed: str, ending: str = ".offset.json") -> str:
    """Return the name of a feed's document, without its ending; it is unique for each feed.

    A name that would be too long ends with a digest of the feed's name, after a ``~``, which no
    other name contains.
    """
    raw = feed.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    most = _NAME_BYTES_MAX - len(ending)
    if len(name) <= most:
        return name
    digest = sha256(raw).hexdigest()
    return f"{name[: most - len(digest) - 1]}~{digest}"


def encode_document(document: dict[str, Any]) -> bytes:
    """Return the document with its checksum, as one line."""
    return json.dumps({**document, "checksum": _compute_checksum(document)}).encode() + b"\n"


def decode_document(text: bytes, feed: str, path: str) -> dict[str, Any]:
    """Parse the document, and drop its checksum.

    Raises :class:`OffsetError` if it is damaged, or another feed's.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        checksum = document.pop("checksum")
        epoch, known = document["epoch"], document["format"] == FORMAT
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise make_damaged_error(feed, path, "it is not what was written") from None
    if checksum != _compute_checksum(document) or not isinstance(epoch, int) or not known:
        raise make_damaged_error(feed, path, "its checksum does not fit")
    if document.get("feed") != feed:
        raise make_damaged_error(feed, path, f"it belongs to feed {document.get('feed')!r}")
    return document


def make_damaged_error(feed: str, path: str, what: str) -> OffsetError:
    """Return the error for a damaged document."""
    return OffsetError(
        f"the offset file of feed {feed!r} is damaged: {what}",
        path=path,
        hint="restore it, or set it with `tailer offsets set`",
    )


def _compute_checksum(document: dict[str, Any]) -> str:
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
