"""Columns that their operator has made: whether they keep what the Delta table's may have.

A narrower type may refuse a value, which the database says of the row. Or it rounds, cuts or pads
it, and says nothing: that is tried here, with values of each type, in temporary tables.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pyarrow as pa

from sinks.sql.database import Database
from tailer.errors import SinkRejected, TargetRefused


def check_kept(database: Database, target: str, columns: Iterable[pa.Field]) -> None:
    """Raise :class:`TargetRefused` for a column of a table that keeps another value than it is
    given. ``columns`` have the types of :meth:`Database.to_database_type`."""
    for field in columns:
        for value in _list_values(field.type):
            if not _keeps_value(database, target, field, pa.array([value], field.type)):
                raise TargetRefused(
                    f"{database.location}: the column {field.name!r} of the table {target!r} can't "
                    f"keep {value!r}, as the Delta table's type {field.type} does; make it "
                    f"{database.format_type(field.type)}, or let the sink create the table"
                )


def _keeps_value(database: Database, target: str, field: pa.Field, column: pa.Array) -> bool:
    """Return whether a column keeps a value as it is, if it takes it."""
    name, schema = database.quote_name(field.name), pa.schema([field])
    scratch, is_taken = database.quote_name(f"_delta_tailer_{uuid4().hex}"), False
    try:
        with database.transaction():
            database.execute(
                f"CREATE TEMPORARY TABLE {scratch} {database.scratch} AS SELECT {name} "
                f"FROM {database.quote_table(target)} WHERE 1 = 0"
            )
            database.insert_rows(scratch, pa.table([column], schema=schema))
            is_taken = True
            rows = database.read_rows(f"SELECT {name} FROM {scratch}", schema)
            found = [value for batch in list(rows) for value in batch.column(0).to_pylist()]
            database.execute(f"DROP TABLE {scratch}")
    except SinkRejected:  # it is not even of the type, if it was taken
        return not is_taken
    return bool(found == database.make_comparable(column, field.type).to_pylist())


def _list_values(data_type: pa.DataType) -> list[Any]:
    """Return values of a type that a narrower one changes."""
    types = pa.types
    if types.is_decimal(data_type):
        digits = ((1,), (9,) * data_type.precision)
        return [Decimal((0, each, -data_type.scale)) for each in digits]
    if types.is_integer(data_type):
        return [2 ** {64: 53, 32: 24}.get(data_type.bit_width, 6) + 1]
    if types.is_floating(data_type):
        return [1 / 3]
    if types.is_timestamp(data_type):
        return [dt.datetime(2001, 2, 3, 4, 5, 6, 1, dt.UTC if data_type.tz else None)]
    if types.is_date(data_type):
        return [dt.date(2000, 2, 29)]
    if types.is_boolean(data_type):
        return [True]
    if types.is_string(data_type):
        return ["", " ", "00"]
    return [b"", b" ", b"\0"] if types.is_binary(data_type) else []
