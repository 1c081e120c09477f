"""A table's columns as ClickHouse has them: names, types, values, and how columns change."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sinks.shared.merge import ColumnStep
from sinks.sql.names import NameRules
from sinks.sql.text import ValueRefused, canonical_json, is_json, json_text, with_json

NAMES = NameRules(
    "ClickHouse",
    reserved=frozenset({"_row_exists", "_block_number", "_block_offset"}),
)
#: Settings of a table whose rows are on disk when they are answered: by default they are not.
DURABLE = "SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"
#: 1900-01-01 and 2300-01-01, in days since 1970: what every release holds exactly.
_FIRST_DAY, _END_DAY = -25_567, 120_530
_DAY_US = 86_400_000_000


def quote_name(name: str) -> str:
    """Return a name as an identifier, in one line."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`").replace("\n", "\\n") + "`"


def quote_text(text: str) -> str:
    """Return a text as a literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def hold_column(column: pa.Array) -> pa.Array:
    """Return a column as the table has it: nested values and variants are JSON text. Raises
    :class:`ValueRefused` for a date or a timestamp that not every release holds."""
    column = with_json(column)
    if is_json(column.type):
        return json_text(column)
    _check_range(column)
    return column


def hold_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of a column of which :func:`hold_column` makes what the table has. A nested
    one stays what it is: its text changes with it."""
    return with_json(pa.array([], data_type)).type


def read_column(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return a column that was read in the form of :func:`make_comparable`. Raises what Arrow does
    for one of another type."""
    held = hold_type(data_type)
    if pa.types.is_binary(column.type) and (is_json(held) or pa.types.is_string(held)):
        column = column.view(pa.string())
    if is_json(held):
        return canonical_json(column, held)
    return column if column.type == held else column.cast(held)


def make_comparable(column: pa.Array) -> pa.Array:
    """Return a column of the Delta table in a form that equal values share."""
    column = with_json(column)
    return canonical_json(json_text(column), column.type) if is_json(column.type) else column


def _check_range(column: pa.Array) -> None:
    if pa.types.is_timestamp(column.type):
        numbers, per_day = column.cast(pa.timestamp("us", column.type.tz)), _DAY_US
    elif pa.types.is_date(column.type):
        numbers, per_day = column.cast(pa.int32()), 1
    else:
        return
    numbers = numbers.cast(pa.int64())
    within = pc.and_(
        pc.greater_equal(numbers, _FIRST_DAY * per_day), pc.less(numbers, _END_DAY * per_day)
    )
    row = pc.index(within, value=False).as_py()
    if row >= 0:
        raise ValueRefused("a time beyond the years 1900 to 2299", row)


def format_column(field: pa.Field, required: Collection[str]) -> str:
    """Return the definition of a column; those that are ``required`` have no nulls."""
    return f"{quote_name(field.name)} {format_type(field, required)}"


def format_type(field: pa.Field, required: Collection[str]) -> str:
    """Return the type of a column, as the server writes it."""
    name = _name_type(field.type)
    return name if field.name in required else f"Nullable({name})"


def _name_type(data_type: pa.DataType) -> str:
    types = pa.types
    if types.is_decimal(data_type):
        return f"Decimal({data_type.precision}, {data_type.scale})"
    if types.is_timestamp(data_type):
        # Of a time without a zone, too: in the server's own zone it would be shown as another one.
        return "DateTime64(6, 'UTC')"
    if types.is_integer(data_type):
        sign = "" if types.is_signed_integer(data_type) else "U"
        return f"{sign}Int{data_type.bit_width}"
    if types.is_floating(data_type):
        return f"Float{data_type.bit_width}"
    if types.is_boolean(data_type):
        return "Bool"
    return "Date32" if types.is_date(data_type) else "String"


def format_step(step: ColumnStep, required: Collection[str]) -> str | None:
    """Return what ALTER TABLE does for a step, again and again; None if it needs nothing."""
    name = quote_name(step.column)
    if step.kind == "drop":
        return f"DROP COLUMN IF EXISTS {name}"
    if step.kind == "rename":
        return f"RENAME COLUMN IF EXISTS {name} TO {quote_name(step.field.name)}"
    if step.kind == "add":
        return f"ADD COLUMN IF NOT EXISTS {format_column(step.field, required)}"
    if step.old is not None and _name_type(step.old.type) == _name_type(step.field.type):
        return None
    return f"MODIFY COLUMN {format_column(step.field, required)}"


def apply_step(columns: Sequence[pa.Field], step: ColumnStep) -> list[pa.Field]:
    """Return the columns after a step."""
    if step.kind == "add":
        return [*columns, step.field]
    if step.kind == "drop":
        return [field for field in columns if field.name != step.column]
    return [_change_field(field, step) if field.name == step.column else field for field in columns]


def _change_field(field: pa.Field, step: ColumnStep) -> pa.Field:
    if step.kind == "rename":
        return field.with_name(step.field.name)
    return field.with_type(step.field.type)
