"""One commit of a :class:`~tests.tables.writer.TableWriter`: what it is to do, and the attempt.

Commits are put-if-absent. Where another writer was faster, the transaction looks at what that one
did; if the two don't touch each other, it is done once more on top of it, with row ids and row
commit versions given anew ("Concurrency control" is left to writers by the protocol; these are
the rules of write-serialisable isolation).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tailer.testing.actions import Action
from tests.support.builders import VersatileBuilder
from tests.tables.model import Change, Column, DataFile, TableVersion

#: The commit files' modification times: version 0's, and the distance, in ms.
FIRST_MS, STEP_MS = 1_700_000_000_000, 1_000
_ICT = "delta.enableInCommitTimestamps"


class ConcurrentChange(Exception):
    """Another writer's commit touches what this transaction is about. Nothing was committed."""


@dataclass
class Draft:
    """A transaction before it has a version.

    ``base`` is the version that it read, the next four what the table is to be (base's, if not
    set), ``gone`` and ``come`` the logical files that leave and come, ``still`` the paths among
    them with dataChange=false. ``cdc`` are the changes in the cdc files whose actions are
    ``cdc_actions``; None: it has no cdc files.
    """

    base: TableVersion
    operation: str
    columns: tuple[Column, ...] = ()
    partition_by: tuple[str, ...] | None = None
    properties: dict[str, str] | None = None
    features: frozenset[str] | None = None
    gone: list[DataFile] = field(default_factory=list)
    come: list[DataFile] = field(default_factory=list)
    still: set[str] = field(default_factory=set)
    cdc: list[Change] | None = None
    cdc_actions: list[Action] = field(default_factory=list)
    preserved: bool = False

    def version_after(self, base: TableVersion) -> TableVersion:
        """The table after this transaction on top of ``base``."""
        number = base.version + 1
        partition_by = base.partition_by if self.partition_by is None else self.partition_by
        after = replace(
            base,
            version=number,
            columns=self.columns or base.columns,
            partition_by=partition_by,
            properties=base.properties if self.properties is None else self.properties,
            features=base.features if self.features is None else self.features,
            timestamp_ms=FIRST_MS + STEP_MS * number,
            operation=self.operation,
            cdc=None if self.cdc is None else tuple(self.cdc),
            still=frozenset(self.still),
            preserved=self.preserved,
        )
        files, mark = dict(base.files), base.high_water_mark
        for file in self.gone:
            del files[file.path]
        for file in self.come:
            placed = file
            if "rowTracking" in after.features and file.base_row_id is None:
                placed = replace(file, base_row_id=mark + 1, default_row_commit_version=number)
                mark += len(file.rows)
            files[file.path] = placed
        return replace(after, files=files, high_water_mark=mark)


def commit_draft(
    draft: Draft,
    builder: VersatileBuilder,
    versions: dict[int, TableVersion],
    rng: random.Random,
    *,
    lean_removes: bool,
) -> TableVersion:
    """Commit a transaction; at most once again on top of another writer's commit.

    ``versions`` are the versions of the table that its writers share. Raises
    :class:`ConcurrentChange` where the other commit does not let it, FileExistsError if the second
    attempt is too late as well.
    """
    base = draft.base
    for attempt in (1, 2):
        after = draft.version_after(base)
        actions, after = _actions(draft, base, after, rng, lean=lean_removes)
        try:
            builder.commit(*actions, version=after.version, timestamp_ms=after.timestamp_ms)
        except FileExistsError:
            if attempt == 2:
                raise
            base = _rebased(draft, versions[after.version])
        else:
            versions[after.version] = after
            return after
    raise AssertionError("a second attempt ends with its commit or an error")


def _rebased(draft: Draft, winner: TableVersion) -> TableVersion:
    """The winner as the new base. Raises :class:`ConcurrentChange`."""
    base = draft.base
    facts: Sequence[Callable[[TableVersion], Any]] = (
        lambda v: v.columns,
        lambda v: v.partition_by,
        lambda v: dict(v.properties),
        lambda v: v.features,
    )
    if any(fact(base) != fact(winner) for fact in facts):
        raise ConcurrentChange(f"version {winner.version} changed protocol or metadata")
    for file in draft.gone:
        if file.path not in winner.files or winner.files[file.path].key != file.key:
            raise ConcurrentChange(f"version {winner.version} removed {file.path}")
    return winner


def _actions(
    draft: Draft, base: TableVersion, after: TableVersion, rng: random.Random, *, lean: bool
) -> tuple[list[Action], TableVersion]:
    """The commit's actions, in any order; and the version, with its tombstones."""
    first = base.version < 0
    tombstones = dict(base.tombstones)
    actions: list[Action] = [*draft.cdc_actions]
    for file in draft.gone:
        changes = file.path not in draft.still
        removed = file.remove(data_change=changes, lean=lean and rng.random() < 0.5)
        tombstones[file.key] = removed
        actions.append(removed)
    for file in draft.come:
        placed = after.files[file.path]
        tombstones.pop(placed.key, None)
        actions.append(placed.add(data_change=file.path not in draft.still))
    if first or after.protocol() != base.protocol():
        actions.append(after.protocol())
    if first or after.metadata() != base.metadata():
        actions.append(after.metadata())
    domain = after.domain()
    if domain is not None and after.high_water_mark > base.high_water_mark:
        actions.append(domain)
    rng.shuffle(actions)
    info: dict[str, Any] = {"operation": draft.operation, "timestamp": after.timestamp_ms}
    if draft.preserved:
        info["tags"] = {"delta.rowTracking.preserved": "true"}
    if after.on(_ICT):
        info["inCommitTimestamp"] = after.timestamp_ms
    # Where commits carry their timestamp, commitInfo comes first ("In-Commit Timestamps").
    at = 0 if after.on(_ICT) else rng.randint(0, len(actions))
    actions.insert(at, {"commitInfo": info})
    return actions, replace(after, tombstones=tombstones)
