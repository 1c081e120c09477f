"""Which bytes of a data file a decoder will read, for a file that fetches them ahead."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

import pyarrow as pa

from tailer.delta.row_groups import RowGroups

__all__ = ["announce_columns"]


def announce_columns(
    source: pa.NativeFile, row_groups: RowGroups, columns: Sequence[str], groups: Sequence[int]
) -> None:
    """Let a remote file fetch these columns of these row groups, which are read from now on.

    Such a file has a method ``will_read``, which takes ranges of bytes by row group, ascending.
    Nothing depends on it: bytes that were not announced are fetched when they are read.
    """
    will_read = getattr(source, "will_read", None)
    if will_read is None:
        return
    if any(row_groups[group] is None for group in groups):
        return
    ranges = [row_groups.ranges(group, columns) for group in groups]
    # Ranges that overlap are damage: the decoder says how.
    if all(left <= right for each in ranges for left, right in pairwise([0, *chain(*each)])):
        will_read(ranges)
