"""What a feed does by itself when the table changes under it, and what only its operator decides.

The defaults stop: nothing is lost, skipped or read again unless the configuration says so.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, structs

from tailer.changes import ChangeFile, Notice, Offset
from tailer.delta.schemadiff import compare_schemas
from tailer.delta.snapshot import TableState
from tailer.errors import DataLoss, FileGone, SchemaChanged, TailerError
from tailer.feed.texts import OnInvalidText
from tailer.log.table import TableLog

OnSchemaChange = Literal["continue", "pause", "fail"]
OnDataLoss = Literal["fail", "skip", "snapshot"]
OnReject = Literal["fail", "park"]


class Policies(Struct, frozen=True):
    """What to do when the table, a sink or a text is not as it should be."""

    on_schema_change: OnSchemaChange = "continue"
    on_data_loss: OnDataLoss = "fail"
    on_reject: OnReject = "fail"
    park_bytes_max: int = 1024**3
    on_invalid_text: OnInvalidText = "replace"


class LostFiles:
    """The files that are recorded as lost: they are skipped. Kept over a retry, once the notice of
    their loss is delivered."""

    def __init__(self) -> None:
        self._files: set[tuple[int, str]] = set()
        # Those whose notices are not delivered yet, by what the notices say.
        self._unconfirmed: dict[tuple[int, str | None], list[str]] = {}

    def __contains__(self, file: object) -> bool:
        return isinstance(file, ChangeFile) and (file.version, file.path) in self._files

    def has_version(self, version: int) -> bool:
        """Return whether a file of the version is recorded."""
        return any(of == version for of, _ in self._files)

    def record_loss(self, version: int, loss: FileGone) -> None:
        """Skip the file from now on. Raises the loss if the file was skipped already."""
        if (version, loss.file) in self._files:
            raise loss
        self._files.add((version, loss.file))
        self._unconfirmed.setdefault((version, loss.path), []).append(loss.file)

    def confirm_notice(self, notice: Notice) -> None:
        """Note that a notice is delivered: the file whose loss it tells stays recorded."""
        if notice.kind == "data_loss":
            files = notice.details["files"]
            unconfirmed = self._unconfirmed.get((notice.version, files[0] if files else None))
            if unconfirmed:
                unconfirmed.pop(0)

    def forget_unconfirmed(self) -> None:
        """Forget the files whose notices were not delivered: they are found and announced again."""
        for (version, _), files in self._unconfirmed.items():
            self._files.difference_update((version, file) for file in files)
        self._unconfirmed.clear()


class FeedPaused(TailerError):
    """The feed waits for its operator; its offset is after everything that was delivered."""

    family = "paused"

    def __init__(self, what: str, version: int) -> None:
        super().__init__(what)
        self.version = version


def build_schema_notice(
    before: TableState, after: TableState, at: Offset, timestamp_ms: int
) -> Notice | None:
    """Return the notice before the first row of a version with another schema; None if it has
    the same.

    Its details: columns ``added``, ``dropped``, ``renamed``, ``widened``, ``changed``
    (:mod:`tailer.delta.schemadiff`), the new schema's JSON, and the partition columns.
    """
    if before.metadata is after.metadata:
        return None
    diff = compare_schemas(before.schema, after.schema)
    partitions = [list(s.metadata.partition_columns) for s in (before, after)]
    if not diff and partitions[0] == partitions[1]:
        return None
    details = {
        **diff.to_json(),
        "partition_columns": partitions[1],
        "schema": after.metadata.schema_string,
    }
    return Notice("schema_change", at.version, timestamp_ms, at, at, details)


def stop_for_schema(notice: Notice, policy: OnSchemaChange) -> None:
    """Raise the error that ``fail`` or ``pause`` requires for a new schema."""
    changes = "; ".join(
        f"{kind} {', '.join(str(c) if isinstance(c, str) else ' -> '.join(c) for c in found)}"
        for kind in ("added", "dropped", "renamed", "widened", "changed")
        if (found := notice.details[kind])
    )
    what = f"the schema changes ({changes or 'its partition columns'})"
    if policy == "fail":
        raise SchemaChanged(
            what,
            version=notice.version,
            hint='accept it with a resume, or with on_schema_change = "continue"',
        )
    if policy == "pause":
        raise FeedPaused(f"version {notice.version}: {what}; waiting for a resume", notice.version)


async def continue_after_loss(
    log: TableLog, at: Offset, loss: DataLoss, policy: OnDataLoss, lost: LostFiles
) -> Notice:
    """Return the loss notice; its next offset is where the policy continues.

    ``skip`` skips a lost file, or versions up to the first one that can be read again;
    ``snapshot`` starts again with the newest version's rows. Raises the loss if neither helps.
    """
    if policy == "snapshot":
        newest = await log.latest_version()
        if at.snapshot and newest <= at.version:
            raise loss
        then = Offset(newest, snapshot=True, table_id=at.table_id)
        return _build_loss_notice(at, then, loss, policy, (at.version, newest))
    if isinstance(loss, FileGone) and loss.version == at.version:
        lost.record_loss(at.version, loss)
        # If the number of lost changes is unknown, the index may lie among them: what remains of
        # the version is delivered again from its start, with the same ids.
        then = structs.replace(at, index=0) if at.index and loss.rows is None else at
        return _build_loss_notice(at, then, loss, policy, (at.version, at.version))
    if at.snapshot:
        raise loss
    readable = await log.readable_after(at.version)
    then = Offset(readable, table_id=at.table_id)
    return _build_loss_notice(at, then, loss, policy, (at.version, readable - 1))


def _build_loss_notice(
    at: Offset, then: Offset, loss: DataLoss, policy: str, versions: tuple[int, int]
) -> Notice:
    details = {
        "policy": policy,
        "reason": loss.what,
        "first_version": versions[0],
        "last_version": versions[1],
        "files": [loss.path] if loss.path else [],
        "rows": loss.rows if isinstance(loss, FileGone) else None,
    }
    return Notice("data_loss", at.version, at.timestamp_floor_ms or 0, at, then, details)


def build_skip_notice(at: Offset, timestamp_ms: int | None) -> Notice:
    """Return the notice of a version that the operator had skipped."""
    then = at.next_version(timestamp_ms or at.timestamp_floor_ms or 0)
    then = structs.replace(then, timestamp_floor_ms=timestamp_ms or at.timestamp_floor_ms)
    details = {"from_index": at.index}
    return Notice("skipped_version", at.version, timestamp_ms or 0, at, then, details)
