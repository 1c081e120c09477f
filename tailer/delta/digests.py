"""Digests that stand for logical files: a commit can have a million of them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from tailer.delta.actions import AddFile, RemoveFile
from tailer.delta.snapshot import file_key

#: The length in bytes of a digest.
KEY_BYTES = 16


def digest(text: str) -> bytes:
    """Return the digest of a logical file's key, given as one text."""
    return blake2b(text.encode(), digest_size=KEY_BYTES).digest()


def file_digest(action: AddFile | RemoveFile) -> bytes:
    """Return the digest of an action's logical file (:func:`tailer.delta.snapshot.file_key`)."""
    where, vector = file_key(action)
    return digest(f"{where}\x00{vector}" if vector else where)


def split(digests: bytes) -> Iterator[bytes]:
    """Yield each of concatenated digests."""
    return (digests[at : at + KEY_BYTES] for at in range(0, len(digests), KEY_BYTES))
