"""Digests that stand for logical files: a commit can have a million of them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from tailer.delta.actions import AddFile, RemoveFile
from tailer.delta.snapshot import find_file_key

#: The length in bytes of a digest.
KEY_BYTES = 16


def make_digest(text: str) -> bytes:
    """Return the digest of a logical file's key, given as one text."""
    return blake2b(text.encode(), digest_size=KEY_BYTES).digest()


def file_digest(action: AddFile | RemoveFile) -> bytes:
    """Return the digest of an action's logical file: of its
    :func:`tailer.delta.snapshot.find_file_key`."""
    where, vector = find_file_key(action)
    return make_digest(f"{where}\x00{vector}" if vector else where)


def split_digests(digests: bytes) -> Iterator[bytes]:
    """Yield each of concatenated digests."""
    return (digests[at : at + KEY_BYTES] for at in range(0, len(digests), KEY_BYTES))
