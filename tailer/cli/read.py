"""`tailer read`: the changes of a range of versions, into a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from tailer.cli.table import check_range, on_table
from tailer.delta.snapshot import Snapshot
from tailer.errors import ConfigError, TableError
from tailer.log.listed import ListedLog, list_once
from tailer.log.table import TableLog
from tailer.log.times import first_version, last_version
from tailer.process.threads import loading

SUFFIXES = (".arrow", ".parquet", ".jsonl")


@on_table
async def read(arguments: argparse.Namespace, log: TableLog) -> int:
    """Write the changes; return the exit status."""
    kind = output_kind(arguments.output)
    async with loading("tailer.cli.rows"):
        log = await list_once(log)
        first, snapshot = await _range(arguments, log)
        if isinstance(log, ListedLog):
            await log.prefetch_start(first)
    from tailer.cli.rows import write_changes

    await write_changes(arguments, kind, log, first, snapshot)
    return 0


def output_kind(output: str) -> str:
    """Return ``arrow``, ``parquet`` or ``jsonl`` (also for "-"). Raises :class:`ConfigError` for
    another kind."""
    suffix = Path(output).suffix
    if output != "-" and suffix not in SUFFIXES:
        raise ConfigError(f"--output {output!r} must end in {', '.join(SUFFIXES)}, or be -")
    return "jsonl" if output == "-" else suffix[1:]


async def _range(arguments: argparse.Namespace, log: TableLog) -> tuple[int, Snapshot]:
    """Return the first version of a bounded read, and the snapshot of the last; both inclusive."""
    first = await first_version(log, arguments.start)
    last = None if arguments.end is None else await last_version(log, arguments.end)
    try:
        end = await log.snapshot(last)
    except TableError:
        if last is not None:
            _check_newest(log, "ending", last, await log.latest_version())
        raise
    if first > end.version:
        _check_newest(log, "starting", first, await log.latest_version())
    check_range(first, end.version)
    return first, end


def _check_newest(log: TableLog, name: str, version: int, newest: int) -> None:
    """Raise :class:`TableError` if a version is later than the newest."""
    if version > newest:
        raise TableError(
            f"the {name} version is {version}, and the newest is {newest}",
            table=log.store.root,
            hint="ask for versions that exist",
        )
