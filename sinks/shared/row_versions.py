"""Versions of a copy's rows, by which a write that comes late changes nothing.

Each is the table's version, and within it what leaves a key before what comes to it. Above it is an
era, which begins whenever the feed's offset is set; below it is room for writes of other programs,
each of which adds one.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sinks.shared.merge import KeyOrder, find_coming
from tailer.changes import ChangeBatch

#: Of the 63 bits of a version: 15 for the era, 32 for the table's version, one for what comes.
_ERA_BITS, _VERSION_BITS, _COMES_BITS = 48, 16, 15
#: Of the number that has the order of a log's events: the place in the table's version.
_SEQ_BITS = 32


def find_last_version(era: int, version: int) -> int:
    """Return the last row version that belongs to a version of the table."""
    return (era << _ERA_BITS) + (version + 1 << _VERSION_BITS) - 1


def find_table_version(row_version: int, era: int) -> int:
    """Return the table's version that a row has; -1 for one of another era."""
    if row_version >> _ERA_BITS != era:
        return -1
    return row_version >> _VERSION_BITS & (1 << _ERA_BITS - _VERSION_BITS) - 1


def number_rows(batch: ChangeBatch, era: int) -> pa.Int64Array:
    """Return the version of each change's row. The batch has rows."""
    version = batch.by_part(lambda part: part.offset.version)
    start = pc.add(pc.multiply(version, 1 << _VERSION_BITS), era << _ERA_BITS)
    return pc.add(pc.multiply(find_coming(batch).cast(pa.int64()), 1 << _COMES_BITS), start)


def number_events(batch: ChangeBatch) -> pa.Int64Array:
    """Return the number of each event, which has their order. The batch has rows."""
    version = batch.by_part(lambda part: part.offset.version)
    return pc.add(pc.multiply(version, 1 << _SEQ_BITS), batch.row_indices())


def find_last_changes(batch: ChangeBatch, keys: pa.Table) -> pa.Int64Array:
    """Return the place of the last change of each key, in the order of the rows. Raises
    :class:`SinkRejected` if a key comes twice or leaves twice in a row."""
    turns = KeyOrder(batch, keys)
    turns.check_turns(batch)
    last = turns.order.filter(pc.invert(turns.followed))
    return last.take(pc.array_sort_indices(last))
