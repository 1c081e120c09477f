"""Files that grow on the local disk until they are published."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from sinks.formats.json import json_lines
from tailer.changes import COMMIT_VERSION

Format = Literal["parquet", "arrow", "jsonl"]
ENDINGS: dict[Format, str] = {"parquet": ".parquet", "arrow": ".arrow", "jsonl": ".jsonl"}
#: Rows are encoded when this many have come: the size of a row group.
_GROUP_ROWS = 128 * 1024


class _Encoder(Protocol):
    def __init__(self, file: Any, schema: pa.Schema) -> None: ...

    def write(self, rows: pa.Table) -> None: ...

    def close(self) -> None: ...


class _Parquet:
    def __init__(self, file: Any, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(file, schema, compression="zstd", compression_level=1)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=_GROUP_ROWS)

    def close(self) -> None:
        self._writer.close()


class _Arrow:
    def __init__(self, file: Any, schema: pa.Schema) -> None:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_file(file, schema, options=options)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows.combine_chunks(), max_chunksize=_GROUP_ROWS)

    def close(self) -> None:
        self._writer.close()


class _JsonLines:
    def __init__(self, file: Any, schema: pa.Schema) -> None:  # noqa: ARG002  # as the others
        self._file = file

    def write(self, rows: pa.Table) -> None:
        for batch in rows.to_batches():
            self._file.write(json_lines(batch.schema.names, batch.columns))

    def close(self) -> None:
        pass


_ENCODERS: dict[Format, type[_Encoder]] = {
    "parquet": _Parquet, "arrow": _Arrow, "jsonl": _JsonLines,
}  # fmt: skip


@dataclass
class GrowingFile:
    """One file that grows: its rows, and the versions that they are of. All methods block."""

    path: Path
    format: Format
    schema: pa.Schema
    num_rows: int = 0
    first_version: int = -1
    last_version: int = -1
    #: Bytes of the rows that are not encoded yet.
    waiting_bytes: int = 0
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _waiting_rows: int = 0

    def __post_init__(self) -> None:
        self._file = self.path.open("wb")
        self._encoder = _ENCODERS[self.format](self._file, self.schema)

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows of one schema."""
        versions = rows.column(COMMIT_VERSION)
        if not self.num_rows:
            self.first_version = versions[0].as_py()
        self.last_version = versions[-1].as_py()
        self.num_rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self.waiting_bytes += rows.nbytes
        if self._waiting_rows >= _GROUP_ROWS:
            self.encode_waiting()

    def encode_waiting(self) -> None:
        """Encode what waits."""
        if self._waiting:
            self._encoder.write(pa.Table.from_batches(self._waiting))
            self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0

    def find_size(self) -> int:
        """Return the size of the file so far; rows that wait count as they are in memory."""
        return self._file.tell() + self.waiting_bytes

    def finish(self) -> int:
        """End the file, sync it, and return its size."""
        self.encode_waiting()
        self._encoder.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self.path.stat().st_size

    def discard(self) -> None:
        """Remove the file."""
        self._waiting = []
        self._file.close()
        self.path.unlink(missing_ok=True)
