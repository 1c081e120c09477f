"""Column mapping that was removed from a table: which columns the files from before it hold."""

from __future__ import annotations

from tailer.delta.features import supports
from tailer.delta.snapshot import Snapshot, TableState
from tailer.log import DeltaLog

__all__ = ["last_mapped"]


async def last_mapped(log: DeltaLog, first: int, end: Snapshot) -> TableState | None:
    """The last state with column mapping, where it was removed between ``first`` and ``end``.

    Only that state tells which columns the files from before it hold. None where the end has a
    mapping, or never had one in the range.
    """
    state = end.state
    named = "delta.columnMapping.mode" in state.metadata.configuration
    if state.mapping != "none" or not (named or supports(state.protocol, "columnMapping")):
        return None
    low, high = max(0, first - 1), end.version
    found = await log.state_before(low + 1)
    if found is None or found.mapping == "none":
        return None
    while high - low > 1:
        middle = (low + high) // 2
        state = (await log.snapshot(middle)).state
        if state.mapping == "none":
            high = middle
        else:
            low, found = middle, state
    return found
