"""What the log proves about a rewrite before any row of it is read, and what equal bytes prove.

Two rows in different partitions are not equal, nor are two whose integers can't be the same by the
statistics. A file that can't share a row with any file of the other side is all changes. If the
files of a partition were only renamed, nothing changed there.

Statistics are hints, so only those that can't mislead are used: bounds of integers. Strings are
truncated, and so are timestamps; bounds are wide where there is a deletion vector, but are still
bounds; no bounds include NaN; and ``nullCount`` proves that there is no null only where it is 0.
Wrong statistics would make a copied row a delete and an insert, never lose one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import product
from typing import TYPE_CHECKING

import pyarrow as pa

from tailer.changes import ChangeFile
from tailer.delta.partitions import parse_partition_value
from tailer.delta.schema import PrimitiveType
from tailer.delta.snapshot import TableState
from tailer.errors import TableError
from tailer.plan.rules import Rewrite

if TYPE_CHECKING:
    from tailer.decode.rows import OpenFile

#: The numbers of files that leave, and of files that come.
Numbers = tuple[set[int], set[int]]

_INTEGERS = ("byte", "short", "integer", "long")
#: For these types, one value has one spelling, or its spellings are recognized as equal here.
_SPELLED_ONCE = (*_INTEGERS, "string", "date", "boolean")
_COMPARISONS_MAX = 100_000
_CHUNK_BYTES = 1024 * 1024


def find_separate_files(rewrite: Rewrite, before: TableState, after: TableState) -> Numbers:
    """Return the files that share no row with any file of the other side."""
    if not _has_same_layout(before, after):
        return set(), set()
    sides = (rewrite.leaving, rewrite.coming)
    names = tuple(after.schema.names)
    left, came = (_group_by_partition(files, names) for files in sides)
    apart: Numbers = (set(), set())
    for key in left.keys() | came.keys():
        ours, theirs = left.get(key, []), came.get(key, [])
        if not ours or not theirs or len(ours) * len(theirs) > _COMPARISONS_MAX:
            apart[0].update([] if theirs else ours)
            apart[1].update([] if ours else theirs)
            continue
        meeting: Numbers = (set(), set())
        integers = _list_integer_columns(after, names)
        for one, other in product(ours, theirs):
            if not _are_disjoint(rewrite.leaving[one], rewrite.coming[other], integers):
                meeting[0].add(one)
                meeting[1].add(other)
        apart[0].update(set(ours) - meeting[0])
        apart[1].update(set(theirs) - meeting[1])
    return apart


def group_independent_files(
    rewrite: Rewrite, state: TableState, key: tuple[str, ...] = ()
) -> list[Numbers]:
    """Group the files so that no row that leaves in one group equals one that comes in another, or
    has its key: comparing the groups separately gives the same result as comparing everything.

    For a rewrite that has one schema and mapping before and after, those of ``state``.
    """
    names = key or tuple(state.schema.names)
    left, came = (_group_by_partition(files, names) for files in (rewrite.leaving, rewrite.coming))
    integers = _list_integer_columns(state, names)
    divisions: list[Numbers] = []
    for partition in left.keys() | came.keys():
        ours, theirs = left.get(partition, []), came.get(partition, [])
        if len(ours) * len(theirs) > _COMPARISONS_MAX:
            divisions.append((set(ours), set(theirs)))
            continue
        groups: list[Numbers] = [(set(), {number}) for number in theirs]
        for one in ours:
            met: Numbers = ({one}, set())
            untouched = []
            for group in groups:
                if all(
                    _are_disjoint(rewrite.leaving[one], rewrite.coming[other], integers)
                    for other in group[1]
                ):
                    untouched.append(group)
                else:
                    met = met[0] | group[0], met[1] | group[1]
            groups = [*untouched, met]
        divisions += groups
    return sorted(divisions, key=lambda group: [sorted(side) for side in group])


def find_identical_files(
    rewrite: Rewrite, before: TableState, after: TableState, open_file: OpenFile
) -> Numbers:
    """Return the files of all partitions whose files on both sides are the same, byte for byte.

    All of a partition's files or none: among equal rows, the first ones stay, wherever they are.
    """
    same: Numbers = (set(), set())
    if not _has_same_layout(before, after):
        return same
    names = tuple(after.schema.names)
    left, came = (_group_by_partition(files, names) for files in (rewrite.leaving, rewrite.coming))
    for key in left.keys() & came.keys():
        ours = [rewrite.leaving[n] for n in left[key]]
        theirs = [rewrite.coming[n] for n in came[key]]
        if _have_same_bytes(ours, theirs, open_file):
            same[0].update(left[key])
            same[1].update(came[key])
    return same


def _has_same_layout(before: TableState, after: TableState) -> bool:
    """Return whether files and partition values are read in the same way on both sides."""
    return (
        before.schema == after.schema
        and before.mapping == after.mapping
        and before.metadata.partition_columns == after.metadata.partition_columns
    )


def _have_same_bytes(
    ours: Sequence[ChangeFile], theirs: Sequence[ChangeFile], open_file: OpenFile
) -> bool:
    sizes = [sorted(f.size or 0 for f in files) for files in (ours, theirs)]
    partial = any(f.only or f.without for f in (*ours, *theirs))
    if sizes[0] != sizes[1] or partial:
        return False
    # Most files of equal size already differ at their end, where the statistics are.
    for end in (True, False):
        digests = [
            # Files of many partitions may be here together; the files lack their partition values.
            sorted(
                (
                    sorted(map(str, f.partition_values.items())),
                    _hash_file(f, open_file, only_end=end),
                )
                for f in files
            )
            for files in (ours, theirs)
        ]
        if digests[0] != digests[1]:
            return False
    return True


def _hash_file(file: ChangeFile, open_file: OpenFile, *, only_end: bool) -> bytes:
    source, _ = open_file(file)
    digest = blake2b(digest_size=32)
    with source:
        size = int(source.size())
        source.seek(max(0, size - _CHUNK_BYTES) if only_end else 0)
        while data := source.read(_CHUNK_BYTES):
            digest.update(data)
    return digest.digest()


def _group_by_partition(
    files: Sequence[ChangeFile], names: tuple[str, ...]
) -> dict[tuple[object, ...], list[int]]:
    """Return the numbers of the files by what distinguishes their partitions in these columns."""
    numbers: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, file in enumerate(files):
        numbers[_find_partition_key(file, names)].append(number)
    return numbers


def _find_partition_key(file: ChangeFile, names: tuple[str, ...]) -> tuple[object, ...]:
    """Return what distinguishes a file's partition; fewer values where spellings are ambiguous."""
    key = list[tuple[str, object]]()
    for field in file.state.partition_fields():
        if field.name not in names:
            continue
        if isinstance(field.type, PrimitiveType) and field.type.name in _SPELLED_ONCE:
            text = file.partition_values.get(file.state.physical_name(field))
            try:
                value = parse_partition_value(text, field.type)
            except TableError:  # decoding reports this, with the file's name
                value = pa.scalar(None)
            # Dates can have years that Python does not support.
            plain = value.value if pa.types.is_date(value.type) else value.as_py()
            key.append((field.name, plain))
    return tuple(key)


def _list_integer_columns(state: TableState, names: tuple[str, ...]) -> set[str]:
    """Return the physical names of those of these columns that are integers."""
    return {
        state.physical_name(f)
        for f in state.schema
        if f.name in names and isinstance(f.type, PrimitiveType) and f.type.name in _INTEGERS
    }


def _are_disjoint(one: ChangeFile, other: ChangeFile, integers: set[str]) -> bool:
    """Return whether one column's bounds exclude a common row; both sides may hold nulls there."""
    theirs = {bounds.column: bounds for bounds in other.bounds}
    for ours in one.bounds:
        theirs_bounds = theirs.get(ours.column)
        if theirs_bounds is None or ours.column not in integers:
            continue
        apart = ours.high < theirs_bounds.low or theirs_bounds.high < ours.low
        if apart and (ours.no_nulls or theirs_bounds.no_nulls):
            return True
    return False
