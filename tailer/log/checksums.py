"""Version checksum files (``.crc``), compared with the log that they are about."""

from __future__ import annotations

from msgspec import Struct

from tailer.delta.checksum import VersionChecksum
from tailer.delta.snapshot import Snapshot
from tailer.log.table import TableLog


class Sums(Struct, frozen=True):
    """The number of live files of a snapshot, and their size in bytes."""

    files: int
    size_bytes: int


async def find_snapshot_sums(log: TableLog, snapshot: Snapshot) -> Sums:
    """Return a snapshot's sums.

    They come from the version's checksum file if it describes this very snapshot, which saves
    reading the list of files; else they are counted.
    """
    checksum = await log.read_checksum(snapshot.version)
    if checksum is not None and not await _find_contradictions(log, snapshot, checksum):
        return Sums(checksum.num_files, checksum.table_size_bytes)
    return await _count_live_files(log, snapshot)


async def find_checksum_errors(log: TableLog, snapshot: Snapshot) -> tuple[str, ...] | None:
    """Return the fields of the version's checksum file that contradict the log, by name.

    None without a readable checksum file. Counts the live files.
    """
    checksum = await log.read_checksum(snapshot.version)
    if checksum is None:
        return None
    wrong = await _find_contradictions(log, snapshot, checksum)
    found = await _count_live_files(log, snapshot)
    if found.files != checksum.num_files:
        wrong.append("numFiles")
    if found.size_bytes != checksum.table_size_bytes:
        wrong.append("tableSizeBytes")
    return tuple(wrong)


async def _find_contradictions(
    log: TableLog, snapshot: Snapshot, checksum: VersionChecksum
) -> list[str]:
    """Return the contradictions that can be found without reading the snapshot's list of files."""
    state, wrong = snapshot.state, []
    if checksum.protocol != state.protocol:
        wrong.append("protocol")
    if checksum.metadata != state.metadata:
        wrong.append("metadata")
    if checksum.transaction_id is not None:
        try:
            info = (await log.read_commit(snapshot.version, state, None)).header.commit_info
        except FileNotFoundError:  # cleaned up after a checkpoint
            return wrong
        known = info.fields.get("txnId") if info else None
        if known is not None and known != checksum.transaction_id:
            wrong.append("txnId")
    return wrong


async def _count_live_files(log: TableLog, snapshot: Snapshot) -> Sums:
    files = size = 0
    async for add in log.live_files(snapshot):
        files, size = files + 1, size + add.size
    return Sums(files, size)
