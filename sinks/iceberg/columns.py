"""Changing the columns of an Iceberg table, and which tables of a user can have a feed's."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.table import Table, Transaction

from sinks.shared.target_table import ColumnChange
from tailer.errors import TargetRefused


def check_own_table(table: Table, address: str) -> None:
    """Raise :class:`TargetRefused` for a user's table that no feed can write."""
    version = table.metadata.format_version
    if version != 2:
        raise TargetRefused(f"{address} is of format version {version}; make it with version 2")
    required = [field.name for field in table.schema().fields if field.required]
    if required:
        raise TargetRefused(
            f"{address}: the column {required[0]!r} is required; make it optional, and no "
            "identifier, for columns of a Delta table may become null"
        )


def list_missing(schema: pa.Schema, transaction: Transaction) -> pa.Schema:
    """Return the columns of a schema that a table lacks."""
    there = {field.name for field in transaction.table_metadata.schema().fields}
    return pa.schema([field for field in schema if field.name not in there])


def change_schema(
    table: Table, transaction: Transaction, change: ColumnChange, address: str
) -> None:
    """Make the steps in a transaction, by the columns' ids. Raises :class:`TargetRefused` for what
    Iceberg can't do; nothing of it asks a catalog."""
    gone = [step.column for step in change.steps if step.kind == "drop"]
    used = sorted(_list_used_columns(table) & set(gone))
    if used:
        raise TargetRefused(
            f"{address}: the table drops the column {used[0]!r}, which the copy's partitions or "
            "order are made of; drop the copy, then `tailer offsets reset` creates it again"
        )
    try:
        for step in change.steps:
            if step.kind == "drop":
                with transaction.update_schema() as update:
                    update.delete_column((step.column,))
            elif step.kind == "rename":
                with transaction.update_schema() as update:
                    update.rename_column((step.column,), step.field.name)
        later = [step for step in change.steps if step.kind in ("retype", "add")]
        fields = [step.field.remove_metadata() for step in later]
        with transaction.update_schema() as update:
            update.union_by_name(pa.schema(fields))
    except Exception as e:
        names = ", ".join(repr(step.column) for step in change.steps)
        raise TargetRefused(
            f"{address}: Iceberg can't change the columns {names} so ({e}); drop the table, then "
            "`tailer offsets reset` creates it again"
        ) from e


def _list_used_columns(table: Table) -> set[str]:
    """Return the columns that partitions, orders and identifiers are made of."""
    schema = table.schema()
    ids = set(schema.identifier_field_ids)
    ids |= {field.source_id for spec in table.specs().values() for field in spec.fields}
    ids |= {field.source_id for order in table.sort_orders().values() for field in order.fields}
    whole = {field.name: {field.field_id} for field in schema.fields}
    for field in schema.fields:
        inner = schema.select(field.name)
        whole[field.name] |= set(inner.field_ids)
    return {name for name, inside in whole.items() if inside & ids}
