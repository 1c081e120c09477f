"""Checkpoints in Parquet: rows back into actions, in batches ("Checkpoint Schema")."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailer.delta.actions import Action, AddFile, DeletionVectorDescriptor
from tailer.delta.bounded import BoundedColumns
from tailer.delta.damaged_bytes import library_reason
from tailer.delta.parquet_columns import ColumnPath, ParquetColumns
from tailer.delta.parsing import build_action
from tailer.delta.row_groups import RowGroups
from tailer.errors import CorruptLog, TableError, may_heal, out_of_reach

_STEERING = ("protocol", "metaData", "txn", "domainMetadata", "sidecar", "checkpointMetadata")
_KEY_FIELDS = ("id", "path", "appId", "domain", "minReaderVersion", "version")
_COLUMNS = frozenset({*_STEERING, "add", "remove"})
#: Fields of an add that are texts or maps of texts.
_TEXTS, _MAPS = ("path", "stats"), ("partitionValues", "tags")
_BATCH_ROWS = 8_192
#: Most bytes of a batch: the texts of its rows become objects of Python.
_BATCH_BYTES = 8 * 1024 * 1024
#: As objects of Python, rows take many times the memory of a batch.
_PIECE_ROWS = 512


def read_checkpoint_actions(name: str, source: pa.NativeFile) -> Iterator[Action]:
    """Yield the actions of one checkpoint file, except those of data files.

    Raises :class:`CorruptLog`, naming the file.
    """
    with _name_errors(name):
        parquet = _open_parquet(source)
        for group, columns in _find_columns_with_values(parquet):
            parquet.row_groups.announce(columns, [group])
            for batch in _read_batches(parquet, group, columns):
                for field, column in zip(batch.schema, batch.columns, strict=True):
                    yield from _read_column_actions(field.name, column)


def _find_columns_with_values(parquet: BoundedColumns) -> list[tuple[int, list[str]]]:
    """Return the row groups in which steering columns have a value, with these columns: most
    groups have files alone.

    One field of each is read for that. The statistics of a damaged footer would abort the process.
    """
    kinds = {f.name: f.type for f in parquet.parquet.schema if f.name in _STEERING}
    keys = {name: _find_key_field(kind) for name, kind in kinds.items()}
    fields: list[ColumnPath] = [(name, key) if key else name for name, key in keys.items()]
    groups = range(parquet.parquet.num_row_groups)
    parquet.row_groups.announce(fields, groups)
    with_values = []
    for group in groups:
        found = set()
        for batch in _read_batches(parquet, group, fields):
            for field, column in zip(batch.schema, batch.columns, strict=True):
                if _find_key_values(column).null_count < len(column):
                    found.add(field.name)
        if found:
            with_values.append((group, [name for name in keys if name in found]))
    return with_values


def _read_batches(
    parquet: BoundedColumns, group: int, columns: Sequence[ColumnPath], *, threads: bool = False
) -> Iterator[pa.RecordBatch]:
    # For a few actions, threads would cost more than they save, and memory.
    if not columns:
        return iter(())
    return parquet.read_batches(_BATCH_ROWS, group, columns, varying=columns, threads=threads)


def read_add_batches(
    name: str, source: pa.NativeFile, fields: Sequence[str], *, required: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the adds of one checkpoint or sidecar file, as batches of one column, ``add``.

    Only these ``fields`` of the action are read. A snapshot does not need the tombstones beside the
    adds. Each batch is checked as a whole, so that :func:`build_adds` can convert it. Raises
    :class:`CorruptLog`, naming the file; also for a file with an unknown column in place of its
    adds, if they are ``required``.
    """
    columns = [("add", *field.split(".")) for field in fields]
    with _name_errors(name):
        parquet = _open_parquet(source)
        if "add" not in (names := parquet.parquet.schema.names):
            # "Any missing column should be treated as null." But a footer has no checksum, so the
            # column may be there under a damaged name.
            strange = [name for name in names if name not in _COLUMNS] if required else []
            if strange:
                raise CorruptLog(
                    f"the checkpoint has no add column but one named {strange[0]!r}, so its files "
                    "are not known"
                )
            return
        groups = range(parquet.parquet.num_row_groups)
        parquet.row_groups.announce(columns, groups)
        for group in groups:
            for batch in _read_batches(parquet, group, columns, threads=True):
                for column in batch.columns:
                    rows = _select_present_rows(column)
                    _check_adds(rows)
                    yield pa.RecordBatch.from_arrays([rows], names=["add"])


def build_adds(batch: pa.RecordBatch) -> Iterator[AddFile]:
    """Yield the adds of a batch as actions.

    Columns become lists, and lists actions: a dictionary for each row would take many times as
    long.
    """
    columns = _list_columns(batch.column(0))
    fields = [(name, of(columns[key])) for key, name, of in _ADD_FIELDS if key in columns]
    names = [name for name, _ in fields]
    for values in zip(*(column for _, column in fields), strict=True):
        yield AddFile(**dict(zip(names, values, strict=True)))


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.StructArray]:
    rows = batch.column(0)
    for at in range(0, len(rows), _PIECE_ROWS):
        yield rows.slice(at, _PIECE_ROWS)


def _list_columns(rows: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip(rows.type.names, rows.flatten(), strict=True))


def _convert_values(column: pa.Array) -> list[Any]:
    return column.to_pylist()  # type: ignore[no-any-return]  # one for each row


def _convert_maps(column: pa.Array) -> list[dict[str, str | None] | None]:
    if not pa.types.is_map(column.type):
        return [None] * len(column)
    keys, items = column.keys.to_pylist(), column.items.to_pylist()
    places = zip(column.is_valid().to_pylist(), pairwise(column.offsets.to_pylist()), strict=True)
    return [
        dict(zip(keys[at:end], items[at:end], strict=True)) if valid else None
        for valid, (at, end) in places
    ]


def _convert_vectors(column: pa.Array) -> list[DeletionVectorDescriptor | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    columns = _list_columns(column)
    names = ("storageType", "pathOrInlineDv", "sizeInBytes", "cardinality", "offset")
    absent = [None] * len(column)
    lists = (columns[n].to_pylist() if n in columns else absent for n in names)
    # Some writers write a struct of nulls instead of a null.
    return [
        None if kind is None else DeletionVectorDescriptor(kind, path, size, cardinality, offset)
        for kind, path, size, cardinality, offset in zip(*lists, strict=True)
    ]


_ADD_FIELDS: list[tuple[str, str, Callable[[pa.Array], list[Any]]]] = [
    ("path", "path", _convert_values),
    ("size", "size", _convert_values),
    ("dataChange", "data_change", _convert_values),
    ("partitionValues", "partition_values", _convert_maps),
    ("deletionVector", "deletion_vector", _convert_vectors),
    ("baseRowId", "base_row_id", _convert_values),
    ("defaultRowCommitVersion", "default_row_commit_version", _convert_values),
    ("modificationTime", "modification_time", _convert_values),
    ("stats", "stats", _convert_values),
    ("stats_parsed", "stats_parsed", _convert_values),
]
#: What is no plain column of an add.
_NESTED: dict[str, Callable[[pa.Array], list[Any]]] = {
    "partitionValues": _convert_maps,
    "tags": _convert_maps,
    "deletionVector": _convert_vectors,
}


def add_objects(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the adds of a batch as JSON objects, as a commit would have them.

    If the checkpoint has statistics only as a struct, ``stats`` is their record count.
    """
    for rows in _split_batch(batch):
        columns = _list_columns(rows)
        lists = [_NESTED.get(name, _convert_values)(column) for name, column in columns.items()]
        for values in zip(*lists, strict=True):
            yield _build_json_object(dict(zip(columns, values, strict=True)))


@contextmanager
def _name_errors(name: str) -> Iterator[None]:
    """Convert pyarrow's errors about a file to errors that name it."""
    try:
        yield
    except TableError as e:
        raise e.at(path=name) from None
    except (pa.ArrowException, OSError, ValueError) as e:
        if may_heal(e):  # a disk that is out of reach is not damage
            raise out_of_reach(f"{name}: the checkpoint can't be read", e) from None
        raise CorruptLog(f"the checkpoint can't be read {library_reason(e)}", path=name) from None


def _check_adds(rows: pa.Array) -> None:
    """Raise :class:`CorruptLog` for adds that are not valid actions."""
    rows.validate(full=True)  # checks also that texts are Unicode
    _check_fields("add", rows, _ADD_KINDS, ("path", "size", "dataChange"))
    at = rows.type.get_field_index("deletionVector") if pa.types.is_struct(rows.type) else -1
    if at >= 0 and not pa.types.is_null(rows.type.field(at).type):
        vectors = pc.struct_field(rows, "deletionVector")
        if not pa.types.is_struct(vectors.type):
            raise CorruptLog("the deletionVector action is not an object")
        if vectors.type.get_field_index("storageType") >= 0:
            known = pc.struct_field(vectors, "storageType").is_valid()
            vectors = vectors.filter(pc.and_(known, vectors.is_valid()))
            needed = ("storageType", "pathOrInlineDv", "sizeInBytes", "cardinality")
            _check_fields("deletionVector", vectors, _VECTOR_KINDS, needed)


_TEXT, _INTEGER, _FLAG = (
    lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
    pa.types.is_integer,
    pa.types.is_boolean,
)
_ADD_KINDS = {
    "path": _TEXT,
    "partitionValues": pa.types.is_map,
    "size": _INTEGER,
    "modificationTime": _INTEGER,
    "dataChange": _FLAG,
    "baseRowId": _INTEGER,
    "defaultRowCommitVersion": _INTEGER,
}
_VECTOR_KINDS = {
    "storageType": _TEXT,
    "pathOrInlineDv": _TEXT,
    "offset": _INTEGER,
    "sizeInBytes": _INTEGER,
    "cardinality": _INTEGER,
}


def _check_fields(
    action: str,
    rows: pa.Array,
    kinds: Mapping[str, Callable[[pa.DataType], bool]],
    needed: Sequence[str],
) -> None:
    if not len(rows):
        return
    if not pa.types.is_struct(rows.type):
        raise CorruptLog(f"the {action} action is not an object")
    fields = {name: i for i, name in enumerate(rows.type.names)}
    columns = rows.flatten()
    for name in needed:
        if name not in fields or columns[fields[name]].null_count:
            raise CorruptLog(f"the {action} action lacks its {name}")
    for name, at in fields.items():
        found = columns[at].type
        if name in kinds and not (pa.types.is_null(found) or kinds[name](found)):
            raise CorruptLog(f"{name} of the {action} action is a {found}")


def _build_json_object(values: dict[str, Any]) -> dict[str, Any]:
    parsed = values.pop("stats_parsed", None)
    if values.get("stats") is None and isinstance(parsed, dict):
        records = parsed.get("numRecords")
        if isinstance(records, int):
            values["stats"] = f'{{"numRecords":{records}}}'
    dv = values.get("deletionVector")
    if dv is not None:
        found = msgspec.to_builtins(dv)
        values["deletionVector"] = {k: v for k, v in found.items() if v is not None}
    return {k: v for k, v in values.items() if v is not None}


def _open_parquet(source: pa.NativeFile) -> BoundedColumns:
    parquet = ParquetColumns(source)
    return BoundedColumns(parquet, RowGroups(parquet, source), _BATCH_BYTES)


def _read_column_actions(kind: str, column: pa.Array) -> Iterator[Action]:
    # Not filtered: few rows have a value, and pyarrow.compute takes as long to load as pyarrow.
    if _find_key_values(column).null_count == len(column):
        return
    key = _find_key_field(column.type)
    for row in column.to_pylist(maps_as_pydicts="lossy"):
        if row is not None and (key is None or row[key] is not None):
            action = build_action(kind, row)
            if action is not None:
                yield action


def _select_present_rows(column: pa.Array) -> pa.Array:
    plain = _to_plain_adds(column)
    return plain.filter(_find_present(plain))


def _to_plain_adds(column: pa.Array) -> pa.Array:
    """Return the adds with texts as this type: some writers leave dictionaries, or no annotation
    of texts."""
    if not pa.types.is_struct(column.type):
        return column
    names = column.type.names
    fields = [column.field(i) for i in range(len(names))]
    plain = [_to_plain_field(name, field) for name, field in zip(names, fields, strict=True)]
    if all(new is old for new, old in zip(plain, fields, strict=True)):
        return column
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(plain, names=names, mask=mask)


def _to_plain_field(name: str, field: pa.Array) -> pa.Array:
    types = pa.types
    if types.is_dictionary(field.type):
        field = field.dictionary_decode()
    if name in _TEXTS and (types.is_binary(field.type) or types.is_large_binary(field.type)):
        return field.cast(pa.string())
    if name in _MAPS and types.is_map(field.type) and types.is_binary(field.type.key_type):
        return field.cast(pa.map_(pa.string(), pa.string()))
    return field


def _find_present(column: pa.Array) -> pa.Array:
    """Return which rows have this action."""
    key = _find_key_field(column.type)
    if key is None:
        return column.is_valid()
    return pc.and_(column.is_valid(), pc.struct_field(column, key).is_valid())


def _find_key_values(column: pa.Array) -> pa.Array:
    key = _find_key_field(column.type)
    return column.field(key) if key else column


def _find_key_field(kind: pa.DataType) -> str | None:
    """Return a field that every action of this column has; None if the column has no such field.

    Some writers write a struct of nulls instead of a null.
    """
    if not pa.types.is_struct(kind):
        return None
    return next((name for name in _KEY_FIELDS if name in kind.names), None)
