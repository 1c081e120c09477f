"""Delta tables for tests, written action by action with pyarrow alone.

A :class:`TableBuilder` writes real data files, cdc files, deletion vectors, commits, checksums,
compactions and checkpoints of every kind. Actions are the log's own JSON objects, so that a test
can change or leave out whatever it is about before it commits them::

    table = TableBuilder(tmp_path, pa.schema([("id", pa.int64())]), cdf=True)
    table.create()
    first = table.add([{"id": 1}, {"id": 2}])
    table.commit(first)
    table.commit(*table.delete_rows(first, [0]), table.cdc([{"id": 1, "_change_type": "delete"}]))

It lies in a folder, or in any :class:`~tailer.testing.table_files.TableFiles`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.testing.actions import (
    Action,
    add_action,
    cdc_action,
    deletion_vector_bytes,
    delta_schema,
    inline_vector,
    metadata_action,
    remove_action,
    vector_file,
    z85_encode,
)
from tailer.testing.log_builder import LogBuilder
from tailer.testing.table_files import TableFiles

__all__ = ["Action", "TableBuilder", "deletion_vector_bytes", "delta_schema", "z85_encode"]

Row = Mapping[str, Any]


class TableBuilder(LogBuilder):
    """Writes one table. ``folder`` is the table's root, created if necessary, or other files.

    ``schema`` holds all columns, also those of ``partition_by``, which are left out of the files.
    With ``cdf`` the table has the change data feed on; ``properties`` are further entries of the
    configuration. The builder never overwrites a commit: a version that exists is an error.
    """

    def __init__(
        self,
        folder: Path | TableFiles,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        cdf: bool = False,
        properties: Mapping[str, str] | None = None,
        table_id: str | None = None,
    ) -> None:
        super().__init__(folder)
        self.schema = schema
        self.partition_by = tuple(partition_by)
        self.properties = {
            **({"delta.enableChangeDataFeed": "true"} if cdf else {}),
            **(properties or {}),
        }
        self.table_id = table_id or str(self.new_id())

    # What steers

    def protocol(self, reader: int = 1, writer: int = 4, **features: Sequence[str]) -> Action:
        """Return a protocol action; ``readerFeatures`` and ``writerFeatures`` are keyword
        arguments."""
        lists = {name: list(values) for name, values in features.items()}
        return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, **lists}}

    def metadata(self, **fields: Any) -> Action:
        """Return a metaData action of the builder's schema; ``fields`` replace or add some."""
        schema, properties = self.schema, self.properties
        return metadata_action(self.table_id, schema, self.partition_by, properties, **fields)

    def create(self, *actions: Action, timestamp_ms: int | None = None) -> int:
        """Commit version 0: protocol, metaData and further actions."""
        if not any("protocol" in action for action in actions):
            actions = (self.protocol(), *actions)
        return self.commit(*actions, self.metadata(), version=0, timestamp_ms=timestamp_ms)

    # Files

    def add(
        self,
        rows: Sequence[Row],
        *,
        partition: Mapping[str, str | None] | None = None,
        path: str | None = None,
        row_group_size: int | None = None,
        **fields: Any,
    ) -> Action:
        """Write a data file, and return its add action.

        ``partition`` has the partition values as the log spells them, ``path`` the file's decoded
        path; ``fields`` replace or add some of the action's.
        """
        where = path or f"part-{self.new_id()}.parquet"
        size = self.write_rows(where, rows, self._file_schema(), row_group_size=row_group_size)
        return add_action(where, size, len(rows), partition, **fields)

    def insert(self, rows: Sequence[Row], **options: Any) -> int:
        """Commit one new data file; ``options`` as of :meth:`add`. Returns the version."""
        return self.commit(self.add(rows, **options))

    def remove(self, add: Action, **fields: Any) -> Action:
        """Return the remove action for the file of an add; ``fields`` replace or add some of it."""
        return remove_action(add, **fields)

    def cdc(
        self,
        rows: Sequence[Row],
        *,
        partition: Mapping[str, str | None] | None = None,
        path: str | None = None,
        **fields: Any,
    ) -> Action:
        """Write a cdc file, and return its cdc action; each row has its ``_change_type``."""
        where = path or f"_change_data/cdc-{self.new_id()}.parquet"
        schema = self._file_schema().append(pa.field("_change_type", pa.string()))
        return cdc_action(where, self.write_rows(where, rows, schema), partition, **fields)

    def _file_schema(self) -> pa.Schema:
        return pa.schema([f for f in self.schema if f.name not in self.partition_by])

    def write_rows(
        self,
        path: str,
        rows: Sequence[Row],
        schema: pa.Schema,
        *,
        numbers: Mapping[str, Sequence[int | None]] | None = None,
        kinds: Sequence[str] = (),
        **form: Any,
    ) -> int:
        """Write rows by the names of ``schema`` into a Parquet file; return its size in bytes.

        ``numbers`` are columns of row ids and row commit versions, left out where they hold
        nothing; ``kinds`` the types of a cdc file's changes. ``form`` goes to
        :meth:`encode_rows`.
        """
        more: dict[str, Sequence[Any]] = {"_change_type": kinds} if kinds else {}
        for name, column in (numbers or {}).items():
            if any(number is not None for number in column):
                more[name] = column
                schema = schema.append(pa.field(name, pa.int64()))
        if kinds:
            schema = schema.append(pa.field("_change_type", pa.string()))
        complete: list[Row] = [
            {**row, **{name: column[i] for name, column in more.items()}}
            for i, row in enumerate(rows)
        ]
        data = self.encode_rows(complete, schema, **form)
        self.store.put(path, data)
        return len(data)

    def encode_rows(self, rows: Sequence[Row], schema: pa.Schema, **form: Any) -> bytes:
        """Return rows as a Parquet file; ``form`` are options of pyarrow's writer."""
        out = io.BytesIO()
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
        pq.write_table(table, out, **form)
        return out.getvalue()

    # Deletion vectors

    def delete_rows(
        self, add: Action, rows: Iterable[int], storage: str = "u"
    ) -> tuple[Action, Action]:
        """Return the remove and the add that leave a file with these row positions deleted (all
        that are deleted after it, not only the new ones). ``storage``: as in :meth:`vector`."""
        after = {**add["add"], "deletionVector": self.vector(rows, storage)}
        return self.remove(add), {"add": after}

    def vector(self, rows: Iterable[int], storage: str = "u") -> dict[str, Any]:
        """Return a deletion vector's descriptor; ``u`` and ``p`` write a file too, ``i`` is
        inline."""
        return inline_vector(rows) if storage == "i" else self.vectors([rows], storage)[0]

    def vectors(
        self,
        several: Iterable[Iterable[int]],
        storage: str = "u",
        prefix: str = "",
        *,
        run: bool = False,
    ) -> list[dict[str, Any]]:
        """Return descriptors of several deletion vectors that lie in one file, one after the other.

        ``prefix`` is the folder that the file lies in: a random one for storage ``u``. With
        ``run`` their bitmaps may have runs.
        """
        name = self.new_id()
        file = f"deletion_vector_{name}.bin"
        location = f"{prefix}/{file}" if prefix else file
        data, places = vector_file(several, run=run)
        self.store.put(location, data)
        text = prefix + z85_encode(name.bytes) if storage == "u" else self.store.uri(location)
        return [{"storageType": storage, "pathOrInlineDv": text, **place} for place in places]
