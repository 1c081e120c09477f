"""What a feed does to a SQL database, tried for `tailer check`, with nothing left behind.

A setting of the server may refuse a statement that only a later batch sends. So all statements of a
feed are sent, by what sends them for a feed, to tables that :meth:`Database.rehearsal` undoes.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from sinks.shared.copy_sink import TableForm
from sinks.shared.history import HistoryMerge
from sinks.shared.merge import PHYSICAL, Merge
from sinks.sql.database import CLAIMS, Claim
from sinks.sql.table_transactions import TableTransaction
from sinks.sql.table_writer import TableWriter
from tailer.changes import Offset

#: The columns of a small table before and after each kind of step, by the names in the files.
_BEFORE = {"id": ("id", pa.int64()), "a": ("a", pa.int32()), "b": ("b", pa.string())}
_AFTER = {"id": ("id", pa.int64()), "a": ("c", pa.int64()), "d": ("d", pa.string())}


def rehearse_feed(writer: TableWriter, columns: pa.Schema) -> None:
    """Raise what refuses a statement of a feed. ``columns`` are those that its table is made with.
    The connection is closed."""
    database, target = writer.database, writer.target
    claim = database.find_claim(target) if database.has_table(CLAIMS) else None
    key, updates = writer.form.primary_key, writer.form.history is not None
    database.try_rights(target, key, create=writer.create, evolve=writer.evolve, updates=updates)
    with database.rehearsal():
        if database.has_table(target):
            _touch_table(writer, key, claim.columns if claim and claim.columns else columns)
            return
        if not writer.create and database.makes_in_rehearsal:
            return
        scratch = replace(writer, target=f"{CLAIMS}_check", create=True, evolve=True)
        _make_and_change_table(
            scratch,
            _build_physical_schema(
                {name: (name, columns.field(name).type) for name in columns.names}
            ),
        )
        if writer.evolve:
            form = TableForm("mirror", ("id",))
            small = replace(scratch, target=f"{CLAIMS}_check_2", form=form)
            claimed = small.claim()
            for schema in map(_build_physical_schema, (_BEFORE, _AFTER)):
                claimed = small.run(
                    TableTransaction(claimed, _advance_claim(claimed, schema), schema)
                )


def _touch_table(writer: TableWriter, key: tuple[str, ...], columns: pa.Schema) -> None:
    """Send what changes no row to the feed's own table."""
    database, target = writer.database, writer.target
    own_key, names = writer.form.key, writer.form.history
    with database.transaction():
        if names is not None:
            names.check_kept(columns.names, f"{database.location}, table {target!r}")
            ends = columns.empty_table().select(
                [*writer.form.key, names.valid_to, names.to_version]
            )
            with database.stage_rows(ends) as staged:
                database.end_rows(target, staged, own_key, names)
        if key:
            with database.stage_rows(columns.empty_table().select(list(key))) as keys:
                database.delete_rows(target, keys, key)
        database.append(target, columns.empty_table())


def _make_and_change_table(writer: TableWriter, schema: pa.Schema) -> None:
    """Make a table, and add, replace and delete a row of it; a log only gets one."""
    row = pa.table([_make_value(field, writer.form.primary_key) for field in schema], schema=schema)
    claimed = writer.claim()
    if writer.form.is_log:
        (batch,) = row.to_batches()
        writer.run(TableTransaction(claimed, _advance_claim(claimed, schema), schema, batch))
        return
    for merge in _plan_merges(writer, row):
        after = replace(_advance_claim(claimed, schema), rows=claimed.rows + merge.growth)
        claimed = writer.run(TableTransaction(claimed, after, schema, merge=merge))


def _plan_merges(writer: TableWriter, row: pa.Table) -> list[Merge | HistoryMerge]:
    """Return what adds, replaces and removes a row."""
    keys = row.select(list(writer.form.key))
    none, no_keys = row.slice(0, 0), keys.slice(0, 0)
    if writer.form.history is None:
        return [
            Merge(no_keys, keys, row, no_keys),
            Merge(keys, no_keys, row, no_keys),
            Merge(keys, keys, none, keys),
        ]
    names, version = writer.form.history, pa.array([1])
    ends = keys.append_column(names.valid_to, row[names.valid_to])
    ends = ends.append_column(names.to_version, version)
    at = row.schema.get_field_index(names.from_version)
    return [
        HistoryMerge(ends.slice(0, 0), keys, row),
        HistoryMerge(ends, no_keys, row.set_column(at, names.from_version, version)),
        HistoryMerge(ends.slice(0, 0), no_keys, none),
    ]


def _advance_claim(claim: Claim, schema: pa.Schema) -> Claim:
    version = 0 if claim.offset is None else claim.offset.version + 1
    return replace(claim, offset=Offset(version), columns=schema)


def _build_physical_schema(columns: dict[str, tuple[str, pa.DataType]]) -> pa.Schema:
    """Return columns, by the names that they have in the files: see :data:`PHYSICAL`."""
    return pa.schema(
        pa.field(name, kind, metadata={PHYSICAL: physical})
        for physical, (name, kind) in columns.items()
    )


def _make_value(field: pa.Field, key: tuple[str, ...]) -> pa.Array:
    """Return a column of one row: null, or in the key what zeros are, such as an empty text."""
    if field.name not in key:
        return pa.nulls(1, field.type)
    zeros = [pa.py_buffer(bytes(64))] * (field.type.num_buffers - 1)
    return pa.Array.from_buffers(field.type, 1, [None, *zeros])
