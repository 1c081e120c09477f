"""Which bytes of a data file a decoder will read, for a file that fetches them ahead."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from tailer.delta.footer import column_ranges

__all__ = ["announce"]

#: A longer footer takes too long to be read here.
_FOOTER_BYTES_MAX = 1024 * 1024


def announce(source: pa.NativeFile, columns: Sequence[str], groups: Sequence[int]) -> None:
    """Let a remote file fetch these columns of these row groups, which are read from now on.

    Such a file has a method ``will_read``, which takes ranges of bytes by row group, ascending.
    Nothing depends on it: bytes that were not announced are fetched when they are read.
    """
    will_read = getattr(source, "will_read", None)
    if will_read is None:
        return
    end = int(source.size()) - 8
    size = int.from_bytes(source.read_at(4, max(0, end)), "little")
    if not 0 < size <= min(end, _FOOTER_BYTES_MAX):
        return
    with suppress(ValueError, IndexError):  # damaged: pyarrow says how
        ranges = column_ranges(source.read_at(size, end - size), columns)
        will_read([ranges[group] for group in groups])
