"""``make demo``: a real Delta table, a writer at work on it, and `tailer tail` following it.

It ends by itself, with a summary and the lines to try next on one's own table.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import IO, Any

import pyarrow as pa

_COLORS = {"insert": 32, "update_preimage": 90, "update_postimage": 33, "delete": 31}
_SIGNS = {"insert": "+", "update_preimage": "<", "update_postimage": ">", "delete": "-"}
_META = ("_change_type", "_commit_version", "_commit_timestamp")
_FRUIT = ("apples", "pears", "plums", "cherries", "quinces", "figs")


def _orders(first: int, count: int, **more: list[str]) -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table(
        {
            "order_id": pa.array(ids, pa.int64()),
            "item": pa.array([_FRUIT[i % len(_FRUIT)] for i in ids], pa.string()),
            "quantity": pa.array([1 + i % 9 for i in ids], pa.int32()),
            **more,
        }
    )


def _write(table: str, pause_s: float) -> None:
    """Make the versions 1 to 7 of the table, one after the other."""
    from deltalake import DeltaTable, write_deltalake

    def append(data: pa.Table, **options: Any) -> None:
        write_deltalake(table, data, mode="append", **options)

    def merge() -> None:
        source = _orders(5, 4)
        matched = DeltaTable(table).merge(
            source, "t.order_id = s.order_id", source_alias="s", target_alias="t"
        )
        matched.when_matched_update({"quantity": "s.quantity + 10"}).when_not_matched_insert(
            {name: f"s.{name}" for name in source.column_names}
        ).execute()

    steps = (
        lambda: append(_orders(1, 4)),
        lambda: DeltaTable(table).update({"quantity": "quantity * 2"}, predicate="order_id <= 2"),
        lambda: append(_orders(5, 2)),
        lambda: DeltaTable(table).delete("item = 'plums'"),
        lambda: append(_orders(7, 2, note=["gift", "urgent"]), schema_mode="merge"),
        merge,
        lambda: DeltaTable(table).update({"note": "'paid'"}, predicate="note is not null"),
    )
    for step in steps:
        time.sleep(pause_s)
        step()


def _create(table: str) -> None:
    from deltalake import DeltaTable, Schema

    DeltaTable.create(
        table,
        Schema.from_arrow(_orders(0, 0).schema),
        configuration={"delta.enableChangeDataFeed": "true"},
    )


def _show(event: dict[str, Any], *, color: bool) -> str:
    kind, version = event["_change_type"], event["_commit_version"]
    row = "  ".join(f"{k}={json.dumps(v)}" for k, v in event.items() if k not in _META)
    line = f"v{version}  {_SIGNS[kind]} {kind:<16}  {row}"
    return f"\033[{_COLORS[kind]}m{line}\033[0m" if color else line


def _follow(lines: IO[str], last: int, *, color: bool) -> tuple[Counter[str], dict[int, float]]:
    """Print the events until version ``last`` is there; return counts by kind, seconds by
    version."""
    counts: Counter[str] = Counter()
    latency_s: dict[int, float] = {}
    for text in lines:
        event = json.loads(text)
        version = event["_commit_version"]
        if version not in latency_s:
            committed = dt.datetime.fromisoformat(event["_commit_timestamp"])
            latency_s[version] = max(0.0, time.time() - committed.timestamp())
        counts[event["_change_type"]] += 1
        print(_show(event, color=color), flush=True)
        if version == last and counts["update_postimage"] == counts["update_preimage"]:
            break
    return counts, latency_s


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    arguments = argparse.ArgumentParser(prog="demo", description=__doc__)
    arguments.add_argument("--pause", type=float, default=0.8, help="seconds between commits")
    options = arguments.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="tailer-demo-"))
    try:
        return _demo(str(folder / "orders"), options.pause)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _demo(table: str, pause_s: float) -> int:
    _create(table)
    print(f"A Delta table is at {table}; a writer begins to change it.")
    print(f"$ tailer tail {table} --from 1\n")
    # The same program and option that a user would type, as a separate process.
    tail = subprocess.Popen(
        [sys.executable, "-m", "tailer", "tail", table, "--from", "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    failures: list[BaseException] = []

    def write() -> None:
        try:
            _write(table, pause_s)
        except Exception as e:  # noqa: BLE001  # handed on to the main thread
            failures.append(e)
            tail.terminate()  # ends the wait for events below

    writer = threading.Thread(target=write)
    try:
        writer.start()
        if tail.stdout is None:
            raise AssertionError("the pipe was asked for")
        counts, latency_s = _follow(tail.stdout, 7, color=sys.stdout.isatty())
    finally:
        writer.join()
        tail.send_signal(signal.SIGINT)
        status = tail.wait()
    if failures:
        raise failures[0]
    kinds = ", ".join(f"{n} {kind}" for kind, n in counts.items())
    print(
        f"\n{len(latency_s)} versions, {counts.total()} events ({kinds}).\n"
        f"From commit to event: median {median(latency_s.values()) * 1000:.0f} ms, "
        f"longest {max(latency_s.values()) * 1000:.0f} ms. tail ended with status {status}.\n\n"
        "Now on a table of your own:\n"
        "  .venv/bin/tailer history /path/to/table\n"
        "  .venv/bin/tailer tail /path/to/table --from earliest\n"
        "  .venv/bin/tailer read /path/to/table --from 0 --output changes.parquet\n"
        "  .venv/bin/tailer run CONFIG.toml      # a daemon that remembers where it was; see README"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
