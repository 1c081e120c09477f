"""`tailer history`: a table's commits, newest first."""

from __future__ import annotations

import argparse
import json

from tailer.cli.table import on_table
from tailer.errors import printable
from tailer.log.history import read_history
from tailer.log.table import TableLog

#: The number of characters of a writer's value that are shown on a line.
_TEXT_MAX = 200


@on_table
async def history(arguments: argparse.Namespace, log: TableLog) -> int:
    """Print the commits; return the exit status."""
    entries = [entry async for entry in read_history(log)]
    for entry in entries[::-1][: arguments.limit]:
        when = entry.timestamp.isoformat(timespec="milliseconds")
        operation = printable(entry.operation, _TEXT_MAX)
        if arguments.json:
            # A commitInfo's own timestamp is the writer's clock, not the commit's.
            fields = {**entry.info, "version": entry.version, "timestamp": when}
            print(json.dumps(fields))
        else:
            counts = f"+{entry.adds} -{entry.removes} files, {entry.cdcs} cdc"
            print(f"{entry.version:>8}  {when}  {operation:<20} {counts}")
    return 0
