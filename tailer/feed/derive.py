"""Deriving a version's changes: the async edge of :mod:`tailer.compare.diff`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import structs

from tailer.changes import ChangeFile, Origin, check_key
from tailer.compare.comparison import Comparison
from tailer.compare.diff import build_changed_files, compare_by_row_ids, compare_by_value
from tailer.compare.proofs import find_identical_files, find_separate_files
from tailer.decode.options import DiffOptions
from tailer.decode.rows import DecodeOptions, OpenFile
from tailer.delta.commit import Commit
from tailer.errors import CorruptRow
from tailer.feed.rows.comparing import compare_files
from tailer.plan.rules import Rewrite, row_ids_hold
from tailer.store import Store


class _Changes(NamedTuple):
    """Change files, and how many updates with equal values were dropped."""

    files: list[ChangeFile]
    noops: int


async def derive_changes(
    store: Store,
    commit: Commit,
    rewrite: Rewrite,
    decode: DecodeOptions,
    options: DiffOptions,
    key: tuple[str, ...],
    noops: Callable[[int], None],
) -> list[ChangeFile]:
    """Plan the change files of a version that rewrites files: only the rows that really changed.

    ``noops`` is called with the number of rows that were rewritten as updates with equal values.
    Raises :class:`TableError` for a key column that the version does not have.
    """
    if not rewrite.needs_diff:
        return [*rewrite.leaving, *rewrite.coming]
    check_key(key, commit.after.schema.names, commit.version)

    def changes(open_file: OpenFile) -> _Changes:
        return _find_changes(commit, rewrite, open_file, decode, options, key)

    files, dropped = await compare_files(store, changes, decode.on_read)
    noops(dropped)
    return files


def _find_changes(
    commit: Commit,
    rewrite: Rewrite,
    open_file: OpenFile,
    decode: DecodeOptions,
    options: DiffOptions,
    key: tuple[str, ...],
) -> _Changes:
    after = commit.after
    if row_ids_hold(commit, rewrite):
        whole = Comparison(rewrite.leaving, rewrite.coming, after, open_file, decode, options)
        found = compare_by_row_ids(whole)
        if found is not None:
            return _Changes(build_changed_files(rewrite, found, "row_ids"), found.noops)
        if options.bucket is not None and options.bucket.number:
            return _Changes([], 0)
    before = commit.before or after
    # Files that share no row may still hold two images of one key.
    apart = (set[int](), set[int]()) if key else find_separate_files(rewrite, before, after)
    rest = _leave_out_files(rewrite, apart)
    rest = _leave_out_files(rest, find_identical_files(rest, before, after, open_file))
    changed = [*rest.leaving, *rest.coming]
    origin: Origin = "cancel_out"
    if rest.needs_diff:
        sides = Comparison(rest.leaving, rest.coming, after, open_file, decode, options)
        try:
            changed = build_changed_files(rest, compare_by_value(sides, key), origin)
        except CorruptRow:
            if commit.before == after:
                raise
            # The removed rows can't even be read in the new schema, so none of them is equal.
            origin = "files"
    files = _merge_in_order(rewrite, apart, changed)
    return _Changes([structs.replace(file, origin=origin) for file in files], 0)


def _leave_out_files(rewrite: Rewrite, numbers: tuple[set[int], set[int]]) -> Rewrite:
    leaving, coming = (
        [file for number, file in enumerate(side) if number not in gone]
        for side, gone in zip((rewrite.leaving, rewrite.coming), numbers, strict=True)
    )
    return Rewrite(leaving, coming)


def _merge_in_order(
    rewrite: Rewrite, whole: tuple[set[int], set[int]], changed: list[ChangeFile]
) -> list[ChangeFile]:
    """Merge the changed files with those that are changes as a whole, in the rewrite's order."""
    of_place = {(f.change_type, f.path, f.without): f for f in changed}
    found = []
    for side, numbers in zip((rewrite.leaving, rewrite.coming), whole, strict=True):
        for number, file in enumerate(side):
            place = file.change_type, file.path, file.without
            if number in numbers:
                found.append(file)
            elif place in of_place:
                found.append(of_place[place])
    return found
