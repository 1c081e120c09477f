"""`tailer snapshot`: a table's state at a version, or its rows."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tailer.cli.read import output_kind
from tailer.cli.table import on_table
from tailer.delta.add_fields import WITH_STATISTICS
from tailer.delta.features import cdf_enabled
from tailer.delta.snapshot import Snapshot
from tailer.log.checksums import find_checksum_errors
from tailer.log.table import TableLog
from tailer.log.times import last_version


@on_table
async def snapshot(arguments: argparse.Namespace, log: TableLog) -> int:
    """Print the description, or write the rows; return the exit status."""
    at = arguments.at
    found = await log.load_snapshot(None if at is None else await last_version(log, at))
    if arguments.output:
        from tailer.cli.rows import write_rows  # on demand: a description needs none of it

        await write_rows(arguments, output_kind(arguments.output), log, found)
    else:
        print(json.dumps(await _describe_snapshot(log, found), indent=2))
    return 0


async def _describe_snapshot(log: TableLog, snapshot: Snapshot) -> dict[str, Any]:
    files = size = 0
    records: int | None = 0  # unknown if one of the files has no statistics
    async for add in log.live_files(snapshot, WITH_STATISTICS):
        files, size = files + 1, size + add.size
        deleted = add.deletion_vector.cardinality if add.deletion_vector else 0
        if records is not None:
            records = None if add.num_records is None else records + add.num_records - deleted
    state = snapshot.state
    protocol, table = state.protocol, state.metadata
    return {
        "version": snapshot.version,
        "table_id": table.id,
        "name": table.name,
        "files": files,
        "bytes": size,
        "rows": records,
        "change_data_feed": cdf_enabled(protocol, table),
        "min_reader_version": protocol.min_reader_version,
        "min_writer_version": protocol.min_writer_version,
        "reader_features": sorted(protocol.reader_features or ()),
        "writer_features": sorted(protocol.writer_features or ()),
        "partition_columns": list(table.partition_columns),
        "properties": table.configuration,
        "schema": json.loads(table.schema_string),
        "checksum_errors": await find_checksum_errors(log, snapshot),
    }
