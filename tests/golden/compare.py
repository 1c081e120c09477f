"""Row-for-row comparison of Arrow tables, and the replay of changes over snapshots.

A table is taken as a multiset of rows in which equal values have one form: NaN is NaN, -0.0 is
0.0, a map has no order, a struct's fields are known by name, a timestamp is whole microseconds
since the epoch whatever unit its reader chose, and so no calendar limits it. Only pyarrow is
needed, and nothing of the code under test.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
COMING = frozenset({"insert", "update_postimage"})
LEAVING = frozenset({"delete", "update_preimage"})
ROWS_SHOWN_MAX = 4
VALUE_CHARACTERS_MAX = 60

Row = tuple[Hashable, ...]
Bag = Counter[Row]


def read_folder(folder: Path) -> pa.Table:
    """All Parquet files of a folder as one table, each read alone (no Hive columns from names)."""
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise FileNotFoundError(f"no Parquet file in {folder}")
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files])


def is_variant(kind: pa.DataType) -> bool:
    """Whether a column is Spark's layout of a variant: a struct of metadata and value."""
    return pa.types.is_struct(kind) and {f.name for f in kind} >= {"metadata", "value"}


def _scalar(kind: pa.DataType) -> Callable[[object], Hashable]:
    """How one value of a flat type becomes its canonical form."""
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_decimal(kind):
        return lambda value: ("decimal", value)
    if pa.types.is_boolean(kind):
        return lambda value: ("boolean", value)
    return lambda value: value


def _float(value: object) -> Hashable:
    assert isinstance(value, float)
    return "NaN" if math.isnan(value) else value + 0.0


def _flat(array: pa.Array) -> list[Hashable]:
    kind = array.type
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
    elif pa.types.is_date(kind):
        array = array.cast(pa.date32()).cast(pa.int32())
    form = _scalar(kind)
    return [None if value is None else form(value) for value in array.to_pylist()]


def canonical(array: pa.Array | pa.ChunkedArray) -> list[Hashable]:
    """The values of an array, each in its one hashable form; null is None."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in canonical(chunk)]
    kind = array.type
    if pa.types.is_dictionary(kind):
        return canonical(array.dictionary_decode())
    present: list[bool] = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        names = sorted(field.name for field in kind)
        fields = [canonical(array.field(kind.get_field_index(name))) for name in names]
        whole: list[Hashable] = [
            tuple(zip(names, (field[i] for field in fields), strict=True))
            for i in range(len(array))
        ]
    elif pa.types.is_map(kind):
        keys, items = canonical(array.keys), canonical(array.items)
        pairs = list(zip(keys, items, strict=True))
        whole = [frozenset(Counter(pairs[a:b]).items()) for a, b in _spans(array)]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = canonical(array.values)
        whole = [("list", *values[a:b]) for a, b in _spans(array)]
    else:
        return _flat(array)
    return [value if here else None for value, here in zip(whole, present, strict=True)]


def _spans(array: pa.Array) -> Iterable[tuple[int, int]]:
    offsets: list[int] = array.offsets.to_pylist()
    return itertools.pairwise(offsets)


def bag(table: pa.Table, names: Sequence[str], kinds: frozenset[str] | None = None) -> Bag:
    """The rows as a multiset of the named columns; `kinds` keeps the rows of those change types.

    `_commit_timestamp` is taken in milliseconds, all that Delta keeps of it.
    """
    columns = []
    for name in names:
        values = canonical(table.column(name))
        if name == "_commit_timestamp":
            values = [v // 1000 if isinstance(v, int) else v for v in values]
        columns.append(values)
    rows = list(zip(*columns, strict=True)) if columns else [()] * table.num_rows
    if kinds is None:
        return Counter(rows)
    types = table.column("_change_type").to_pylist()
    return Counter(row for row, kind in zip(rows, types, strict=True) if kind in kinds)


def logical(kind: pa.DataType) -> str:
    """A type's name without what readers choose freely: offset width, time unit, child names."""
    if pa.types.is_dictionary(kind):
        return logical(kind.value_type)
    if pa.types.is_struct(kind):
        return "struct<" + ", ".join(sorted(f"{f.name}: {logical(f.type)}" for f in kind)) + ">"
    if pa.types.is_map(kind):
        return f"map<{logical(kind.key_type)}, {logical(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{logical(kind.value_type)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return str(kind).removeprefix("large_")


def schema_difference(want: pa.Schema, got: pa.Schema) -> list[str]:
    """What differs in names, order and logical types; variants are known by name alone."""
    if want.names != got.names:
        return [f"columns: expected {want.names}, got {got.names}"]
    return [
        f"column {name}: expected {logical(a)}, got {logical(b)}"
        for name, a, b in zip(want.names, want.types, got.types, strict=True)
        if not is_variant(a) and logical(a) != logical(b)
    ]


def comparable(schema: pa.Schema) -> list[str]:
    """The columns whose values can be compared: all but variants, which have many encodings."""
    return [field.name for field in schema if not is_variant(field.type)]


def difference(want: pa.Table, got: pa.Table) -> list[str]:
    """What differs between two tables, as lines to print; empty when they hold the same rows."""
    lines = schema_difference(want.schema, got.schema)
    if lines and want.schema.names != got.schema.names:
        return lines
    names = comparable(want.schema)
    return lines + bag_difference(names, bag(want, names), bag(got, names))


def bag_difference(names: Sequence[str], want: Bag, got: Bag) -> list[str]:
    """Rows missing and rows too many, a few of each in full."""
    lines = []
    for title, rows in (("missing", want - got), ("unexpected", got - want)):
        if rows:
            lines.append(f"{rows.total()} rows {title}:")
            lines += [f"  {n} x {_show(names, row)}" for row, n in _some(rows)]
            if len(rows) > ROWS_SHOWN_MAX:
                lines.append(f"  and {len(rows) - ROWS_SHOWN_MAX} more")
    return lines


def _some(rows: Bag) -> list[tuple[Row, int]]:
    return sorted(rows.items(), key=repr)[:ROWS_SHOWN_MAX]


def _show(names: Sequence[str], row: Row) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in zip(names, row, strict=True))


def _short(value: Hashable) -> str:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Decimal | bool):
        value = value[1]
    text = repr(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else text[: VALUE_CHARACTERS_MAX - 1] + "…"


def replayable(before: pa.Table, after: pa.Table) -> bool:
    """Whether rows of two versions can stand side by side: the same columns, of the same types."""
    return bool(before.schema.remove_metadata().equals(after.schema.remove_metadata()))


def replay(before: pa.Table, changes: pa.Table, after: pa.Table) -> list[str]:
    """What is wrong when one version's changes are applied to the snapshot before it.

    Each row that leaves must be there, and what is left plus the rows that come must be the
    snapshot after it. The answer is empty when both hold.
    """
    names = comparable(after.schema)
    missing = [name for name in names if name not in changes.column_names]
    if missing:
        return [f"columns {missing} are not in the changes"]
    old, new = bag(before, names), bag(after, names)
    coming, leaving = bag(changes, names, COMING), bag(changes, names, LEAVING)
    lines = []
    # Within a version an updated row may be deleted again, so what comes may leave too.
    if absent := leaving - (old + coming):
        lines.append(f"{absent.total()} rows leave that were never there:")
        lines += [f"  {n} x {_show(names, row)}" for row, n in _some(absent)]
    reached = Counter(old)
    reached.update(coming)
    reached.subtract(leaving)
    return lines + bag_difference(names, new, +reached)


def unchanged(changes: pa.Table, names: Sequence[str]) -> list[str]:
    """Rows that both leave and come in one version: a rewritten row is no change."""
    both = bag(changes, names, COMING) & bag(changes, names, LEAVING)
    if not both:
        return []
    shown = [f"  {n} x {_show(names, row)}" for row, n in _some(both)]
    return [f"{both.total()} unchanged rows both leave and come:", *shown]
