"""`tailer read`: the changes of a range of versions, into a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from tailer.api.ranges import find_range, prefetch_range
from tailer.cli.table import on_table
from tailer.errors import ConfigError
from tailer.log.listed import list_once
from tailer.log.table import TableLog
from tailer.process.threads import load_module

SUFFIXES = (".arrow", ".parquet", ".jsonl")


@on_table
async def read(arguments: argparse.Namespace, log: TableLog) -> int:
    """Write the changes; return the exit status."""
    kind = output_kind(arguments.output)
    async with load_module("tailer.cli.rows"):
        log = await list_once(log)
        versions = await find_range(log, arguments.start, arguments.end)
        await prefetch_range(log, versions)
    from tailer.cli.rows import write_changes

    await write_changes(arguments, kind, log, versions)
    return 0


def output_kind(output: str) -> str:
    """Return ``arrow``, ``parquet`` or ``jsonl`` (also for "-"). Raises :class:`ConfigError` for
    another kind."""
    suffix = Path(output).suffix
    if output != "-" and suffix not in SUFFIXES:
        raise ConfigError(f"--output {output!r} must end in {', '.join(SUFFIXES)}, or be -")
    return "jsonl" if output == "-" else suffix[1:]
