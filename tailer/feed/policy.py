"""What a feed does by itself when the table changes under it, and what only its operator decides.

The defaults stop: nothing is lost, skipped or read again unless the configuration says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tailer.changes import Notice, Offset
from tailer.delta.actions import LONG_MAX
from tailer.delta.schemadiff import schema_diff
from tailer.delta.snapshot import TableState
from tailer.errors import ConfigError, DataLoss, FileGone, SchemaChanged, TailerError
from tailer.feed.selection import Where, parse_where
from tailer.log.live import LiveFiles
from tailer.log.table import TableLog

__all__ = [
    "FeedPaused",
    "OnDataLoss",
    "OnReject",
    "OnSchemaChange",
    "Policies",
    "Requests",
    "ResnapshotRequest",
    "after_loss",
    "schema_notice",
    "skip_notice",
    "stop_for_schema",
]

#: So far ahead of the table's newest version can one be skipped: further is a slip of the pen.
SKIP_AHEAD_MAX = 1000

OnSchemaChange = Literal["continue", "pause", "fail"]
OnDataLoss = Literal["fail", "skip", "snapshot"]
OnReject = Literal["fail", "park"]


@dataclass(frozen=True, slots=True)
class Policies:
    """``ignore_deletes``: a version that only removes files gives no events.
    ``skip_change_commits``: a version that removes any file (an update, a delete, a merge, an
    overwrite) gives none; what it adds is passed over too."""

    on_schema_change: OnSchemaChange = "continue"
    on_data_loss: OnDataLoss = "fail"
    on_reject: OnReject = "fail"
    ignore_deletes: bool = False
    skip_change_commits: bool = False


@dataclass(frozen=True, slots=True)
class ResnapshotRequest:
    """Read the whole table again, or the partitions that ``where`` wants."""

    where: Where | None = None


@dataclass(slots=True)
class Requests:
    """What the operator has asked of a feed, and what it has found out by itself.

    ``paused`` by order, ``accepted`` are versions whose new schema was agreed to, ``skips``
    versions to pass over, ``lost`` the files (version, path) that are gone and were recorded;
    ``unsaved``: the last offset is not saved yet; ``live``: the table's files, kept over a retry;
    ``delivery`` what the sink's records are like, if it leaves that to the feed
    (:class:`tailer.sink.KnowsDelivery`).
    """

    paused: bool = False
    unsaved: bool = False
    accepted: set[int] = field(default_factory=set)
    skips: set[int] = field(default_factory=set)
    resnapshots: list[ResnapshotRequest] = field(default_factory=list)
    lost: set[tuple[int, str]] = field(default_factory=set)
    live: LiveFiles = field(default_factory=LiveFiles)
    delivery: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The operator's part of it, to be kept beside the offset; what is empty is left out."""
        orders = {
            "paused": self.paused,
            "accepted": sorted(self.accepted),
            "skips": sorted(self.skips),
            "resnapshots": [
                {"where": request.where.text if request.where else None}
                for request in self.resnapshots
            ],
        }
        return {name: value for name, value in orders.items() if value}

    def kept(self) -> dict[str, Any]:
        """All that is kept beside the offset: the operator's part, and what was delivered."""
        found = self.to_json()
        return {**found, "delivery": dict(self.delivery)} if self.delivery else found

    def recall(self, orders: Mapping[str, Any]) -> None:
        """Take over what was ordered of an earlier owner of the feed, before what was here."""
        self.paused = self.paused or bool(orders.get("paused"))
        self.accepted.update(orders.get("accepted", ()))
        self.skips.update(orders.get("skips", ()))
        wheres = [request.get("where") for request in orders.get("resnapshots", ())]
        self.delivery = orders.get("delivery") or self.delivery
        self.resnapshots[:0] = [ResnapshotRequest(parse_where(w) if w else None) for w in wheres]

    def check_skip(self, version: int, place: Offset | None, newest: int | None) -> None:
        """Raise :class:`ConfigError` for a version that can't come any more, or not in a long time:
        it would be skipped unseen. ``place`` is where the feed is, ``newest`` the table's newest
        version; None: not known."""
        why = None
        if place is not None and (version < place.version or place.snapshot):
            where = ", in its snapshot" if place.snapshot else ""
            why = f"the feed is at version {place.version}{where}"
        elif version > LONG_MAX:
            why = f"no version is greater than {LONG_MAX}"
        elif newest is not None and version > newest + SKIP_AHEAD_MAX:
            why = (
                f"the table's newest version is {newest}, and a skip reaches at most "
                f"{SKIP_AHEAD_MAX} versions ahead of it"
            )
        if why is not None:
            raise ConfigError(f"version {version} can't be skipped: {why}")

    def take_back_skip(self, version: int) -> None:
        """Forget the order to skip a version. Raises :class:`ConfigError` if there is none."""
        if version not in self.skips:
            known = ", ".join(map(str, sorted(self.skips))) or "none"
            raise ConfigError(
                f"version {version} is not going to be skipped; the versions that are: {known}"
            )
        self.skips.discard(version)

    def carried_out(self, notice: Notice) -> bool:
        """Whether a notice that was delivered says of an order that it is done; forgets it."""
        if notice.kind == "snapshot_end" and notice.details.get("reason") == "resnapshot":
            del self.resnapshots[:1]
        elif notice.kind == "skipped_version":
            self.skips.discard(notice.version)
        else:
            return False
        return True


class FeedPaused(TailerError):
    """The feed waits for its operator; its offset is behind all that was delivered."""

    family = "paused"

    def __init__(self, what: str, version: int) -> None:
        super().__init__(what)
        self.version = version


def schema_notice(
    before: TableState, after: TableState, at: Offset, timestamp_ms: int
) -> Notice | None:
    """The notice before the first row of a version with another schema; None if it has the same.

    Its details: columns ``added``, ``dropped``, ``renamed``, ``widened``, ``changed``
    (:mod:`tailer.delta.schemadiff`), the new schema's JSON, and the partition columns.
    """
    if before.metadata is after.metadata:
        return None
    diff = schema_diff(before.schema, after.schema)
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
    """Raise what ``fail`` and ``pause`` want of a schema that is new."""
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
            hint='accept it by a resume, or with on_schema_change = "continue"',
        )
    if policy == "pause":
        raise FeedPaused(f"version {notice.version}: {what}; waiting for a resume", notice.version)


async def after_loss(
    log: TableLog, at: Offset, loss: DataLoss, policy: OnDataLoss, requests: Requests
) -> Notice:
    """The loss record, whose next offset is where the policy goes on.

    ``skip`` passes over a lost file, or over versions up to the first that can be read again;
    ``snapshot`` starts anew with the newest version's rows. Raises the loss where neither helps.
    """
    if policy == "snapshot":
        newest = await log.latest_version()
        if at.snapshot and newest <= at.version:
            raise loss
        then = Offset(newest, snapshot=True, table_id=at.table_id)
        return _loss_notice(at, then, loss, policy, (at.version, newest))
    if isinstance(loss, FileGone) and loss.version == at.version:
        if (at.version, loss.file) in requests.lost:
            raise loss
        requests.lost.add((at.version, loss.file))
        # Where nobody knows how many changes are lost, the index may lie among them: what is left
        # of the version comes again from its start, with the same ids.
        then = replace(at, index=0) if at.index and loss.rows is None else at
        return _loss_notice(at, then, loss, policy, (at.version, at.version))
    if at.snapshot:
        raise loss
    readable = await log.readable_after(at.version)
    then = Offset(readable, table_id=at.table_id)
    return _loss_notice(at, then, loss, policy, (at.version, readable - 1))


def _loss_notice(
    at: Offset, then: Offset, loss: DataLoss, policy: str, versions: tuple[int, int]
) -> Notice:
    details = {
        "policy": policy,
        "reason": loss.what,
        "first_version": versions[0],
        "last_version": versions[1],
        "files": [loss.path] if loss.path else [],
    }
    return Notice("data_loss", at.version, at.timestamp_floor_ms or 0, at, then, details)


def skip_notice(at: Offset, timestamp_ms: int | None) -> Notice:
    """The record of a version that the operator had skipped."""
    then = at.next_version(timestamp_ms or at.timestamp_floor_ms or 0)
    then = replace(then, timestamp_floor_ms=timestamp_ms or at.timestamp_floor_ms)
    details = {"from_index": at.index}
    return Notice("skipped_version", at.version, timestamp_ms or 0, at, then, details)
