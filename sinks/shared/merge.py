"""What one batch does to a copy of a table, the same for every database.

A copy has one row per key. :func:`fold_batch` folds a batch, which may be a span with several
changes of one key, to the keys whose rows leave the copy and the rows that it then gets;
:func:`find_steps` says how its columns become those of another version. Both are columnar, and
neither knows a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changes import CHANGE_TYPE, COMING_KINDS, COMMIT_VERSION, ChangeBatch
from tailer.errors import RowsRefused, SinkRejected, TargetRefused
from tailer.sink import fold_case

#: The metadata of a field that has the column's name in the table's files, which no rename changes.
PHYSICAL = b"delta-tailer.physical"

#: That of a log's event ids, whatever the column is called.
_EVENT_ID = "delta-tailer.event_id"

#: The names of columns between two others.
_BETWEEN = "_delta_tailer_"
_COMING = pa.array(COMING_KINDS)


@dataclass(frozen=True, slots=True)
class Merge:
    """Tables, none of which has a key twice: ``present`` are keys that the copy has, whose rows
    leave it; ``absent`` are keys that it does not have; ``rows`` are what it gets after that.
    ``passing`` are those of ``absent`` that ``rows`` do not have: keys that came and left.

    ``unchecked``: rows are read again while the copy is there, and replace those of their keys, if
    it has any; ``present`` are then all keys.
    """

    present: pa.Table
    absent: pa.Table
    rows: pa.Table
    passing: pa.Table
    unchecked: bool = False

    @property
    def growth(self) -> int:
        """By how many rows the copy grows, if it has the keys that it should."""
        return int(self.rows.num_rows - self.present.num_rows)


def fold_batch(
    batch: ChangeBatch, rows: pa.RecordBatch, key: Sequence[str], *, unchecked: bool = False
) -> Merge:
    """Fold a batch to the last change of each key. ``rows`` are its rows as the copy has them, with
    the columns of ``key``.

    Raises :class:`SinkRejected` for a key that is null or that several rows of a version have.
    """
    check_key(batch, rows, key)
    table, keys = pa.table(rows), pa.table(rows).select(list(key))
    comes = find_coming(batch)
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in key])
    same = _equals_previous(keys, order)
    if not pc.any(same).as_py():  # one change of each key, as in most batches
        present = keys if unchecked else _filter_rows(keys, pc.invert(comes))
        absent = keys.slice(0, 0) if unchecked else _filter_rows(keys, comes)
        return Merge(present, absent, _filter_rows(table, comes), keys.slice(0, 0), unchecked)
    turns = KeyOrder(batch, keys)
    if not unchecked:
        turns.check_turns(batch)
    order, comes, first, last = turns.order, turns.comes, turns.first, pc.invert(turns.followed)
    stays = order.filter(pc.and_(last, comes))
    latest = table.take(stays.take(pc.array_sort_indices(stays)))
    if unchecked:
        none = keys.slice(0, 0)
        return Merge(keys.take(order.filter(last)), none, latest, none, unchecked=True)
    firsts, came, stayed = order.filter(first), comes.filter(first), comes.filter(last)
    present, absent = firsts.filter(pc.invert(came)), firsts.filter(came)
    passing = firsts.filter(pc.and_not(came, stayed))
    return Merge(keys.take(present), keys.take(absent), latest, keys.take(passing))


class KeyOrder:
    """The changes of a batch in the order of their keys, then by version, and what leaves before
    what comes: a version may move a key to another row before it takes it from the first.

    ``order`` are the places of the rows in this order, and ``comes``, ``first`` and ``followed``
    say of each whether it comes, is the first of its key, and is not the last one.
    """

    def __init__(self, batch: ChangeBatch, keys: pa.Table) -> None:
        self._keys = keys
        named = {f"k{i}": column for i, column in enumerate(keys.columns)}
        comes = find_coming(batch)
        turns = pa.table({**named, "version": batch.rows.column(COMMIT_VERSION), "comes": comes})
        by = [(name, "ascending") for name in turns.schema.names]
        self.order = pc.sort_indices(turns, sort_keys=by)
        self.comes = comes.take(self.order)
        self._same = _equals_previous(keys, self.order)
        self.first = pa.concat_arrays([pa.array([True]), pc.invert(self._same)])
        self.followed = pa.concat_arrays([self._same, pa.array([False])])

    def check_turns(self, batch: ChangeBatch) -> None:
        """Raise :class:`SinkRejected` if a key comes twice or leaves twice in a row."""
        count = len(self._same)
        comes = self.comes
        twice = pc.and_(self._same, pc.equal(comes.slice(1), comes.slice(0, count)))
        place = pc.index(twice, value=True).as_py()
        if place < 0:
            return
        at = self.order[place + 1].as_py()
        values = self._keys.slice(at, 1).to_pylist()[0]
        does = "come" if comes[place].as_py() else "leave"
        raise SinkRejected(
            f"{_format_version(batch, at)}: two rows with the key {values} {does}, so the key "
            "columns do not identify a row; choose others, or mirror by row id"
        )


def find_coming(batch: ChangeBatch) -> pa.BooleanArray:
    """Return for each change whether its row comes: it is none that was there before."""
    return pc.is_in(batch.rows.column(CHANGE_TYPE), value_set=_COMING)


def _filter_rows(table: pa.Table, mask: pa.BooleanArray) -> pa.Table:
    return table if pc.all(mask).as_py() else table.filter(mask)


def check_key(batch: ChangeBatch, rows: pa.RecordBatch, key: Sequence[str]) -> None:
    """Raise :class:`SinkRejected` for columns that can't be a key, and for a key that is null."""
    for name in key:
        if name not in rows.schema.names:
            listed = ", ".join(rows.schema.names)
            raise TargetRefused(f"the key column {name!r} is not among the columns: {listed}")
        column = rows.column(name)
        if pa.types.is_nested(column.type) or pa.types.is_floating(column.type):
            raise TargetRefused(
                f"the key column {name!r} is of type {column.type}, whose values are not compared "
                "the same everywhere; choose other key columns"
            )
    for name in key:
        if rows.column(name).null_count:
            at = pc.index(pc.is_null(rows.column(name)), value=True).as_py()
            raise RowsRefused(
                f"{_format_version(batch, at)}: the key column {name!r} is null; choose key "
                "columns without nulls, or exclude these rows with `where`"
            )


def _equals_previous(keys: pa.Table, order: pa.Array) -> pa.BooleanArray:
    """Return for each row but the first one, in this order, if it has the key of the one before."""
    count = len(order) - 1
    same = None
    for column in keys.columns:
        ordered = column.combine_chunks().take(order)
        equal = pc.equal(ordered.slice(1), ordered.slice(0, count))
        same = equal if same is None else pc.and_(same, equal)
    assert same is not None, "a key has columns"
    return same


def _format_version(batch: ChangeBatch, row: int) -> str:
    return f"version {batch.rows.column(COMMIT_VERSION)[row].as_py()}"


@dataclass(frozen=True, slots=True)
class ColumnStep:
    """One change of a copy's columns: ``column`` is its name before the step, and ``field`` what
    it is after it; ``old`` is what a column was whose type changes."""

    kind: Literal["add", "drop", "rename", "retype"]
    column: str
    field: pa.Field
    old: pa.Field | None = None


def with_physical_names(
    batch: ChangeBatch,
    schema: pa.Schema,
    event_id: str | None = None,
    own: Mapping[str, str] = MappingProxyType({}),
) -> pa.Schema:
    """Return the schema with the :data:`PHYSICAL` name of each column, and no other metadata.
    ``event_id`` is the column of a log that has ours, which no column of the table is, and ``own``
    are other columns of ours with such names."""
    physical = {field.name: batch.state.physical_name(field) for field in batch.state.schema}
    if event_id is not None:
        physical[event_id] = _EVENT_ID
    physical |= own
    fields = [
        pa.field(f.name, f.type, metadata={PHYSICAL: physical.get(f.name, f.name)}) for f in schema
    ]
    return pa.schema(fields)


def physical_name(field: pa.Field) -> str:
    """Return the name of a column in the table's files, of :func:`with_physical_names`."""
    return str((field.metadata or {})[PHYSICAL].decode())


def find_steps(
    old: pa.Schema, new: pa.Schema, *, keep: bool, folded: bool = False
) -> list[ColumnStep]:
    """Return the steps from the columns of a copy to those of a version, both of
    :func:`with_physical_names`. With ``keep``, columns that the version lacks stay, and a column of
    another name is another column: see :func:`match_columns`. ``folded``: two names that differ in
    case alone are one.

    Raises :class:`SinkRejected` for a change of a type that would change values.
    """
    pairs = match_columns(old, new, keep=keep, folded=folded)
    pairs_kept = [(field, to) for field, to in pairs if field is not None]
    steps = []
    if not keep:
        names = {field.name for field, _ in pairs_kept}
        steps += [ColumnStep("drop", f.name, f) for f in old if f.name not in names]
    renamed = [(f.name, to) for f, to in pairs_kept if f.name != to.name]
    steps += _plan_renames(renamed, [*old.names, *new.names], old.names, folded=folded)
    steps += [ColumnStep("retype", to.name, to, f) for f, to in pairs_kept if _changes_type(f, to)]
    return steps + [ColumnStep("add", to.name, to) for field, to in pairs if field is None]


def match_columns(
    old: pa.Schema, new: pa.Schema, *, keep: bool, folded: bool = False
) -> list[tuple[pa.Field | None, pa.Field]]:
    """Return each column of a version with the one that it was before, if it was there.

    In a mirror they have the same physical name. In a log (``keep``) they have the same name; but
    where a name has become that of a column of another type, as two columns that swap their names
    have, columns are those of the same physical names, and the log's are renamed. Of two such
    columns the first counts. A log's event ids stay what they are under any name.
    """
    by_physical: dict[str, pa.Field] = {}
    for field in old:
        by_physical.setdefault(physical_name(field), field)
    moved = [(by_physical.get(physical_name(to)), to) for to in new]
    if not keep:
        return moved
    fold = fold_case if folded else str
    ids = by_physical.get(_EVENT_ID)
    by_name = {fold(f.name): f for f in old if ids is None or f.name != ids.name}
    pairs = [
        (ids if physical_name(to) == _EVENT_ID else by_name.get(fold(to.name)), to) for to in new
    ]
    if all(field is None or _widens(field.type, to.type) for field, to in pairs):
        return pairs
    left = {fold(f.name) for f in old} - {fold(f.name) for f, _ in moved if f is not None}
    # A name that a column of the log would keep can't be another's: its type is refused.
    return pairs if any(fold(to.name) in left for to in new) else moved


def merge_columns(old: pa.Schema, new: pa.Schema, *, folded: bool = False) -> pa.Schema:
    """Return the columns of a log after a version: its own, then those that only the log has."""
    pairs = match_columns(old, new, keep=True, folded=folded)
    names = {field.name for field, _ in pairs if field is not None}
    return pa.schema([*new, *(field for field in old if field.name not in names)])


def _plan_renames(
    pairs: Sequence[tuple[str, pa.Field]],
    names: Sequence[str],
    taken: Sequence[str],
    *,
    folded: bool,
) -> list[ColumnStep]:
    """Return the renames. A name that a column still has, another one or the same in other case, is
    reached over a third one, which is not among ``names``."""
    fold = fold_case if folded else str
    steps, rest, taken_names = [], [], {fold(name) for name in taken}
    for number, (name, to) in enumerate(pairs):
        if fold(to.name) in taken_names:
            between = to.with_name(unused_name(f"{_BETWEEN}{number}", names))
            steps.append(ColumnStep("rename", name, between))
            rest.append(ColumnStep("rename", between.name, to))
        else:
            steps.append(ColumnStep("rename", name, to))
    return steps + rest


def is_between(name: str) -> bool:
    """Return whether a column has the name that it has in the middle of a rename."""
    return name.startswith(_BETWEEN)


def unused_name(wanted: str, names: Iterable[str]) -> str:
    """Return a name for a column of our own that none of these has, not even in other case."""
    taken = {name.lower() for name in names}
    candidate, number = wanted, 2
    while candidate.lower() in taken:
        candidate, number = f"{wanted}_{number}", number + 1
    return candidate


def respell_names(names: Sequence[str], had: Iterable[str]) -> list[str]:
    """Return the names as a table has them that takes names for one which differ in case alone."""
    spelling = {fold_case(name): name for name in had}
    return [spelling.get(fold_case(name), name) for name in names]


def rename_fields(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return a schema with other names, and all else that it says of its fields."""
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


def _changes_type(old: pa.Field, new: pa.Field) -> bool:
    if old.type == new.type:
        return False
    # With column mapping, a nested field of the same name may be another one.
    mapped = any(physical_name(field) != field.name for field in (old, new))
    if not _widens(old.type, new.type) or (mapped and pa.types.is_nested(new.type)):
        raise TargetRefused(
            f"the column {new.name!r} was of type {old.type} and is now of type {new.type}, which "
            "would change its values; `tailer offsets reset` creates the copy again"
        )
    return True


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether every value of a type is the same value of the other one."""
    if old == new:
        return True
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return all(
            (at := new.get_field_index(old.field(i).name)) >= 0
            and _widens(old.field(i).type, new.field(at).type)
            for i in range(old.num_fields)
        )
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _widens(old.value_type, new.value_type)
    if pa.types.is_map(old) and pa.types.is_map(new):
        return _widens(old.key_type, new.key_type) and _widens(old.item_type, new.item_type)
    if pa.types.is_integer(old):
        return _holds_integers(old.bit_width, new)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        whole = new.precision - new.scale >= old.precision - old.scale
        return bool(new.scale >= old.scale and whole)
    if pa.types.is_float32(old):
        return bool(pa.types.is_float64(new))
    return bool(pa.types.is_date(old) and pa.types.is_timestamp(new) and new.tz is None)


def _holds_integers(bits: int, new: pa.DataType) -> bool:
    if pa.types.is_integer(new):
        return bool(new.bit_width > bits)
    if pa.types.is_decimal(new):
        return bool(new.precision - new.scale >= {8: 3, 16: 5, 32: 10, 64: 19}[bits])
    return bool(pa.types.is_float64(new) and bits <= 32)
