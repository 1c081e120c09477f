"""What an attack is: a table that is made to hurt, and what a feed of it has to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailer.testing.table import Action, TableBuilder

MIB = 1024 * 1024
SCHEMA = pa.schema([("id", pa.int64())])


@dataclass(frozen=True)
class Attack:
    """``make`` writes the table into a folder. Its feed ends with an error that has one of the
    words ``refused``, or it delivers so many ``rows``. ``options`` are the feed's."""

    make: Callable[[Path], object]
    refused: Sequence[str] = ()
    rows: int | None = None
    options: dict[str, Any] | None = None


def ids_table(folder: Path, schema: pa.Schema = SCHEMA, **metadata: Any) -> TableBuilder:
    """Begin a table, of one column if no other schema is given."""
    table = TableBuilder(folder, schema)
    table.commit(table.protocol(), table.metadata(**metadata), version=0)
    return table


def raw_commit(table: TableBuilder, lines: Sequence[bytes | Action]) -> None:
    """Commit lines as they are."""
    data = b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
    )
    table.commit_path(table.version + 1).write_bytes(data)
