"""Checkpoints in Parquet: rows back into actions, in batches ("Checkpoint Schema")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailer.delta.actions import Action, action_of
from tailer.delta.footer import pruned_footer
from tailer.delta.views import without_views
from tailer.errors import CorruptLog, TableError, TailerError, may_heal, out_of_reach

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["checkpoint_actions", "checkpoint_adds"]

_STEERING = ("protocol", "metaData", "txn", "domainMetadata", "sidecar", "checkpointMetadata")
# Of an add, all but its statistics, tags and parsed partition values: those are most of the bytes.
_ADD = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "dataChange",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
)
_BATCH_ROWS = 8_192
_FOOTER_BYTES_MAX = 8 * 1024 * 1024


def checkpoint_actions(
    name: str, source: pa.NativeFile, *, files: bool, statistics: bool = False
) -> Iterator[Action]:
    """The actions of one checkpoint or sidecar file: its adds, or everything else.

    ``files`` chooses the adds (a snapshot has no use for the tombstones beside them), and
    ``statistics`` reads their record counts too. Raises :class:`CorruptLog`, naming the file.
    """
    columns = [*_STEERING]
    if files:
        columns = [f"add.{field}" for field in _ADD]
        columns += ["add.stats", "add.stats_parsed.numRecords"] if statistics else []
    try:
        with _open(source, columns) as parquet:
            for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                yield from _batch_actions(batch)
    except TableError as e:
        raise e.at(path=name) from None
    except (pa.ArrowException, OSError, ValueError) as e:
        raise _unreadable(name, e) from None


def checkpoint_adds(name: str, source: pa.NativeFile) -> Iterator[dict[str, Any]]:
    """The adds of one checkpoint or sidecar file as JSON objects, as a commit would have them.

    With statistics and tags, for whoever hands actions on. Where the checkpoint has statistics
    only as a struct, ``stats`` is their record count. Raises :class:`CorruptLog`, naming the file.
    """
    columns = [f"add.{field}" for field in _ADD]
    columns += ["add.tags", "add.clusteringProvider", "add.stats", "add.stats_parsed.numRecords"]
    try:
        with _open(source, columns) as parquet:
            for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                for column in batch.columns:
                    plain = without_views(column)
                    for values in plain.filter(_present(plain)).to_pylist():
                        yield _json_object(_without_nulls(values))
    except (pa.ArrowException, OSError, ValueError) as e:
        raise _unreadable(name, e) from None


def _unreadable(name: str, e: Exception) -> TailerError:
    if may_heal(e):  # a disk that is away is no damage
        return out_of_reach(f"{name}: the checkpoint can't be read", e)
    reason = next(iter(str(e).splitlines()), "no reason given")
    return CorruptLog(f"the checkpoint can't be read ({reason})", path=name)


def _json_object(values: dict[str, Any]) -> dict[str, Any]:
    parsed = values.pop("stats_parsed", None)
    if values.get("stats") is None and isinstance(parsed, dict):
        records = parsed.get("numRecords")
        if isinstance(records, int):
            values["stats"] = f'{{"numRecords":{records}}}'
    for key in ("partitionValues", "tags"):
        if isinstance(values.get(key), list):
            values[key] = dict(values[key])
    dv = values.get("deletionVector")
    if isinstance(dv, dict):
        values["deletionVector"] = {k: v for k, v in dv.items() if v is not None}
    return {k: v for k, v in values.items() if v is not None}


def _open(source: pa.NativeFile, columns: Sequence[str]) -> pq.ParquetFile:
    """The Parquet file; if pyarrow refuses it as a whole, without the columns that we don't need.

    One of those may well be why: a group without a field, or a type that pyarrow does not know.
    """
    import pyarrow.parquet as pq  # many a log has no checkpoint

    try:
        return pq.ParquetFile(source, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as refusal:
        try:
            end = source.size() - 8
            size = int.from_bytes(source.read_at(4, max(0, end)), "little")
            if not 0 < size <= min(end, _FOOTER_BYTES_MAX):
                raise ValueError("no footer")
            pruned = pruned_footer(source.read_at(size, end - size), columns)
            metadata = pq.read_metadata(pa.BufferReader(pruned))
            return pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
        except (pa.ArrowException, OSError, ValueError):
            raise refusal from None


def _batch_actions(batch: pa.RecordBatch) -> Iterator[Action]:
    for field, column in zip(batch.schema, batch.columns, strict=True):
        plain = without_views(column)
        present = plain.filter(_present(plain))
        for values in present.to_pylist():
            action = action_of(field.name, _without_nulls(values))
            if action is not None:
                yield action


def _present(column: pa.Array) -> pa.Array:
    """Which rows have this action. Some writers write a struct of nulls instead of a null."""
    valid = column.is_valid()
    first = {"metaData": "id", "add": "path", "txn": "appId", "sidecar": "path"}
    names = {column.type.field(i).name for i in range(column.type.num_fields)}
    for key in (*first.values(), "domain", "minReaderVersion", "version"):
        if key in names:
            import pyarrow.compute as pc

            return pc.and_(valid, pc.struct_field(column, key).is_valid())
    return valid


def _without_nulls(values: Any) -> Any:
    dv = values.get("deletionVector") if isinstance(values, dict) else None
    if isinstance(dv, dict) and dv.get("storageType") is None:
        values["deletionVector"] = None
    return values
