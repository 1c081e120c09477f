"""Which bytes of a data file a decoder will read, for a file that fetches them ahead."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from tailer.delta.footer import column_ranges
from tailer.delta.parquet_columns import footer_bytes

__all__ = ["announce_columns"]

#: A longer footer takes too long to be read here.
_FOOTER_BYTES_MAX = 1024 * 1024


def announce_columns(source: pa.NativeFile, columns: Sequence[str], groups: Sequence[int]) -> None:
    """Let a remote file fetch these columns of these row groups, which are read from now on.

    Such a file has a method ``will_read``, which takes ranges of bytes by row group, ascending.
    Nothing depends on it: bytes that were not announced are fetched when they are read.
    """
    will_read = getattr(source, "will_read", None)
    if will_read is None:
        return
    footer = footer_bytes(source, _FOOTER_BYTES_MAX)
    if footer is None:
        return
    with suppress(ValueError, IndexError):  # damaged: pyarrow says how
        ranges = column_ranges(footer, columns)
        will_read([ranges[group] for group in groups])
