"""From a commit to the files whose rows changed: the protocol's change rules, as change files.

"Reader Requirements for AddCDCFile", and what it leaves between the lines:

* A version that has cdc actions is read from them alone, whatever the properties say now.
* Otherwise the adds and removes with dataChange=true are inserts and deletes; one path removed and
  added with two deletion vectors is the difference of the two, both ways.
* Changes are relative to the files of the version before: a remove of a logical file that is not
  there, and an add of one that is, change nothing. Those files are passed in (``ineffective``,
  digests of :func:`tailer.delta.digests.file_digest`), because the commit alone does not say.
* Rows that leave belong to the schema and partitioning before the commit, rows that come to those
  after it.
* Order within a version: rows that leave before rows that come, so that a key that moves is deleted
  before it is inserted. Within a cdc file the writer's own order is kept where an update's two
  images are side by side (:mod:`tailer.decode.row_order`); only where the cdc files of a version
  lie in several partitions can an update's images be in two files, and then each file is read
  twice, first for the rows that leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from msgspec import Struct, structs

from tailer.changes import COMING_KINDS, LEAVING_KINDS, ChangeFile, ChangeType, Offset
from tailer.delta.actions import AddCDCFile, AddFile, DeletionVectorDescriptor, RemoveFile
from tailer.delta.commit import Commit, FileAction
from tailer.delta.digests import file_digest
from tailer.delta.features import row_tracking_enabled
from tailer.delta.paths import parse_location
from tailer.delta.snapshot import TableState, find_file_key
from tailer.errors import CorruptLog, TableError

ChangeSource = Literal["auto", "cdf", "derived"]

#: The adds of the version before that removes refer to, by location and deletion vector.
Completions: TypeAlias = Mapping[tuple[str, str], AddFile]


def _build_change_file(
    commit: Commit,
    action: AddFile | RemoveFile | AddCDCFile,
    state: TableState,
    change_type: ChangeType | None,
    **more: Any,
) -> ChangeFile:
    """Return the change file for an action's file; ``more`` are further fields of ChangeFile."""
    if not isinstance(action, AddCDCFile):
        more["without"] = action.deletion_vector
        more["num_records"] = action.num_records
        if commit.header.adds and commit.header.removes:  # used only when files are compared
            more["bounds"] = action.bounds
        elif isinstance(action.stats, str):  # and these only when they are not
            more["stats"] = action.stats
        more["base_row_id"] = action.base_row_id
        more["default_row_commit_version"] = action.default_row_commit_version
    return ChangeFile(
        path=action.path,
        location=parse_location(action.path),
        version=commit.version,
        timestamp_ms=commit.timestamp_ms,
        table_id=commit.after.table_id,
        state=state,
        partition_values=action.partition_values or {},
        change_type=change_type,
        origin="cdf" if change_type is None else "files",
        size=action.size,
        **more,
    )


def choose_source(commit: Commit, source: ChangeSource) -> Literal["cdf", "derived"]:
    """Return how this version's changes are found, under ``auto`` too.

    Raises :class:`TableError` if ``cdf`` is configured and the version has none.
    """
    has_cdf = commit.after.cdf or commit.header.cdcs > 0
    if source == "auto":
        return "cdf" if has_cdf else "derived"
    if source == "cdf" and not has_cdf and commit.header.data_changes:
        raise TableError(
            "the change data feed was not enabled, so this version has no change data",
            version=commit.version,
            hint="use change source auto or derived, or start at a later version",
        )
    return source


def needs_data_files(commit: Commit, source: ChangeSource) -> bool:
    """Return whether this version's changes are the rows of files that it adds and removes: it has
    no cdc files, or they are not to be used. They need not be compared for that, so this is also
    true of versions whose source is ``cdf`` (:func:`choose_source`)."""
    header = commit.header
    return header.data_changes > 0 and (not header.cdcs or source == "derived")


def plan_changes(
    commit: Commit,
    completions: Completions | None = None,
    ineffective: AbstractSet[bytes] = frozenset(),
) -> Iterator[ChangeFile]:
    """Return the change files of one version by the protocol's rules, in the order of its events.

    ``completions`` maps keys to the adds of snapshot v-1 from which removes take their missing
    fields (:func:`find_incomplete_removes`).
    """
    try:
        if commit.header.cdcs:
            yield from _plan_cdc_files(commit)
        elif commit.header.data_changes:
            yield from _plan_file_changes(commit, completions or {}, ineffective)
    except TableError as e:
        raise e.at(version=commit.version, path=commit.name) from None


def _plan_cdc_files(commit: Commit) -> Iterator[ChangeFile]:
    apart = commit.header.cdc_partitions > 1
    for kinds in (LEAVING_KINDS, COMING_KINDS) if apart else (None,):
        for action in commit.file_actions():
            if isinstance(action, AddCDCFile):
                yield _build_change_file(commit, action, commit.after, None, kinds=kinds)


#: For each file that is removed and added: the deletion vector before, and the one after.
_VectorChanges = Mapping[
    str, tuple[DeletionVectorDescriptor | None, DeletionVectorDescriptor | None]
]


def _list_effective(commit: Commit, ineffective: AbstractSet[bytes]) -> Iterator[FileAction]:
    """Yield the file actions that are not ineffective."""
    for action in commit.file_actions():
        if (
            not ineffective
            or isinstance(action, AddCDCFile)
            or file_digest(action) not in ineffective
        ):
            yield action


def _find_vector_changes(
    commit: Commit, ineffective: AbstractSet[bytes], *, data_changes_only: bool = True
) -> _VectorChanges:
    """Return the files that are removed and added, by location; with dataChange=true, or all."""
    if not commit.header.added_again:
        return {}
    old: dict[str, DeletionVectorDescriptor | None] = {}
    new: dict[str, DeletionVectorDescriptor | None] = {}
    for action in _list_effective(commit, ineffective):
        if isinstance(action, AddCDCFile) or (data_changes_only and not action.data_change):
            continue
        if commit.is_added_again(action.path):
            side = new if isinstance(action, AddFile) else old
            side[parse_location(action.path)] = action.deletion_vector
    return {where: (old[where], new[where]) for where in old.keys() & new.keys()}


def _plan_file_changes(
    commit: Commit,
    completions: Completions,
    ineffective: AbstractSet[bytes],
    *,
    data_changes_only: bool = True,
) -> Iterator[ChangeFile]:
    vectors = _find_vector_changes(commit, ineffective, data_changes_only=data_changes_only)
    if commit.header.removes:
        for action in _list_effective(commit, ineffective):
            if isinstance(action, RemoveFile) and (action.data_change or not data_changes_only):
                yield from _plan_leaving(commit, action, vectors, completions)
    if commit.header.adds:
        for action in _list_effective(commit, ineffective):
            if isinstance(action, AddFile) and (action.data_change or not data_changes_only):
                yield from _plan_coming(commit, action, vectors)


def _plan_leaving(
    commit: Commit,
    remove: RemoveFile,
    vectors: _VectorChanges,
    completions: Completions,
) -> Iterator[ChangeFile]:
    if commit.before is None:
        raise CorruptLog("the table's first version removes a file")
    both = vectors.get(parse_location(remove.path))
    remove = _complete_remove(remove, commit.before, completions)
    if both is None:
        yield _build_change_file(commit, remove, commit.before, "delete")
    elif both[1] is not None:
        yield _build_change_file(commit, remove, commit.before, "delete", only=both[1])


def _plan_coming(commit: Commit, add: AddFile, vectors: _VectorChanges) -> Iterator[ChangeFile]:
    both = vectors.get(parse_location(add.path))
    if both is None:
        yield _build_change_file(commit, add, commit.after, "insert")
    elif both[0] is not None:
        yield _build_change_file(commit, add, commit.after, "insert", only=both[0])


class Rewrite(Struct, frozen=True):
    """All logical files that leave and come in one version, whatever their dataChange flags.

    The difference between their rows is what really changed.
    """

    leaving: list[ChangeFile]
    coming: list[ChangeFile]

    @property
    def needs_diff(self) -> bool:
        """Return whether rows may both leave and come. Otherwise all of them are changes."""
        return bool(self.leaving and self.coming)


def plan_rewritten_files(
    commit: Commit,
    completions: Completions | None = None,
    ineffective: AbstractSet[bytes] = frozenset(),
) -> Iterator[ChangeFile]:
    """Yield the files of a version whose changes are derived, whatever their dataChange flags:
    those that leave, then those that come; none if the version only rearranges.

    The arguments are those of :func:`plan_changes`.
    """
    if commit.header.cdcs and not commit.header.adds + commit.header.removes:
        raise TableError(
            "this version has change data but none of the data files that it changed, so nothing "
            "can be derived from it",
            version=commit.version,
            hint="use change source auto or cdf",
        )
    if not commit.header.data_changes:
        return
    try:
        yield from _plan_file_changes(
            commit, completions or {}, ineffective, data_changes_only=False
        )
    except TableError as e:
        raise e.at(version=commit.version, path=commit.name) from None


def plan_rewrite(
    commit: Commit,
    completions: Completions | None = None,
    ineffective: AbstractSet[bytes] = frozenset(),
) -> Rewrite:
    """Return the files of :func:`plan_rewritten_files`, side by side."""
    rewrite = Rewrite([], [])
    for file in plan_rewritten_files(commit, completions, ineffective):
        (rewrite.leaving if file.change_type == "delete" else rewrite.coming).append(file)
    return rewrite


def row_ids_hold(commit: Commit, rewrite: Rewrite) -> bool:
    """Return whether rows of this version can be identified by their ids: tracking was enabled
    before and after, the writer says that it kept the ids, and every file has a base ("Row
    Tracking")."""
    before, info = commit.before, commit.header.commit_info
    if before is None or info is None or not info.row_tracking_preserved:
        return False
    states = (before, commit.after)
    if not all(row_tracking_enabled(s.protocol, s.metadata) for s in states):
        return False
    return all(_has_row_ids(f) for f in (*rewrite.leaving, *rewrite.coming))


def _has_row_ids(file: ChangeFile) -> bool:
    """Return whether the log gives the base of default row ids and commit versions."""
    return file.base_row_id is not None and file.default_row_commit_version is not None


def _is_incomplete(remove: RemoveFile, before: TableState) -> bool:
    """Return whether a remove lacks what is needed to read its rows: partition values to fill in,
    or the base of row ids. Its deletion vector is part of its key, and never missing."""
    names = {before.physical_name(f) for f in before.partition_fields()}
    if names and not names <= (remove.partition_values or {}).keys():
        return True
    return row_tracking_enabled(before.protocol, before.metadata) and (
        remove.base_row_id is None or remove.default_row_commit_version is None
    )


def find_incomplete_removes(
    commit: Commit, ineffective: AbstractSet[bytes] = frozenset(), *, derived: bool = False
) -> set[tuple[str, str]]:
    """Return the keys of removes that lack what only the add that they remove contains.

    Empty for a version that is read from its cdc files.
    """
    before = commit.before
    if before is None or not commit.header.removes or (commit.header.cdcs and not derived):
        return set()
    return {
        find_file_key(action)
        for action in _list_effective(commit, ineffective)
        if isinstance(action, RemoveFile)
        and (derived or action.data_change)
        and _is_incomplete(action, before)
    }


def _complete_remove(
    remove: RemoveFile, before: TableState, completions: Completions
) -> RemoveFile:
    if not _is_incomplete(remove, before):
        return remove
    add = completions.get(find_file_key(remove))
    if add is None:
        if not before.partition_fields():
            return remove
        raise CorruptLog(
            "a remove lacks its partition values, and the file that it removes is not in the "
            "version before",
            path=remove.path,
        )
    names = ("size", "stats", "stats_parsed", "base_row_id", "default_row_commit_version")
    lacking = {n: getattr(add, n) for n in names if getattr(remove, n) is None}
    return structs.replace(remove, partition_values=add.partition_values, **lacking)


#: What the files of a snapshot are sorted by.
FileOrder: TypeAlias = Callable[[AddFile], Any]

by_path: FileOrder = attrgetter("path")


def _sort_by_time(add: AddFile) -> tuple[float, str]:
    time = add.modification_time
    return time if isinstance(time, int | float) else 0, add.path


def choose_snapshot_order(first: Offset) -> FileOrder:
    """Return the order of a snapshot's files that is read from an offset on: that of their paths,
    or Spark's if a query of Spark had begun it."""
    return _sort_by_time if first.delivered_files else by_path


def plan_snapshot(add: AddFile, version: int, timestamp_ms: int, state: TableState) -> ChangeFile:
    """Return the change file of one file of the initial snapshot: its live rows, as inserts."""
    return ChangeFile(
        path=add.path,
        location=parse_location(add.path),
        version=version,
        timestamp_ms=timestamp_ms,
        table_id=state.table_id,
        state=state,
        partition_values=add.partition_values,
        change_type="insert",
        origin="snapshot",
        size=add.size,
        without=add.deletion_vector,
        num_records=add.num_records,
        stats=add.stats if isinstance(add.stats, str) else None,
        base_row_id=add.base_row_id,
        default_row_commit_version=add.default_row_commit_version,
    )
