"""Decodes files, each in a process of its own, and tells how much memory it took: FILE ...

Prints a line for each: its name, its rows, its largest batch and the process's peak, in bytes; or
the error.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.changes import ChangeFile
from tailer.decode.rows import DecodeOptions, Skip, decode_file
from tailer.decode.vectors import ALL_ROWS
from tailer.errors import TableError
from tests.support.feeds import state


def decoded(path: Path) -> str:
    """Decode a file with the default bounds."""
    source = pa.memory_map(str(path))
    schema = pq.read_schema(source)
    plain = pa.schema([pa.field(f.name, f.type) for f in schema])
    file = ChangeFile("a", "a", 5, 1, "t", state(plain), {}, "insert", "files")
    rows = largest = 0
    try:
        for found in decode_file(source, file, ALL_ROWS, DecodeOptions(), Skip()):
            rows += found.batch.num_rows
            largest = max(largest, found.batch.nbytes if found.batch.num_rows > 1 else 0)
    except TableError as e:
        return str(e)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return f"{rows} {largest} {peak}"


def main() -> None:
    """Decode the files, each in a child."""
    for name in sys.argv[1:]:
        sys.stdout.flush()
        if os.fork() == 0:
            print(f"{Path(name).stem}: {decoded(Path(name))}", flush=True)
            os._exit(0)
        _, status = os.wait()
        if status:
            print(f"{Path(name).stem}: ended by {status}")


if __name__ == "__main__":
    main()
