"""The feeds of a soak: their tables, their configuration, and the writer of all tables."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import deltalake
import duckdb

from tests.torture.places import local_place
from tests.torture.recipe import Recipe
from tests.torture.round import plain
from tests.torture.writers.delta_rs import DeltaRsWriter

#: Of twenty feeds, so many have each sink.
MIX = {"jsonl": 6, "files": 3, "http": 3, "sqlite": 3, "delta": 2, "duckdb": 2, "kafka": 1}
#: What a writer does not do by itself here: the soak removes what is old.
NOT_DONE = ("vacuum", "clean_log", "restore")
#: Tables, and so their copies, are soon as large as they get.
ROWS_MAX = 300
#: How long a table keeps commits and files behind; no feed may stand still for longer.
LOG_KEPT, FILES_KEPT_HOURS = "interval 15 minutes", 1


@dataclass(frozen=True)
class Surroundings:
    """What the configuration names besides the folder; without a broker, no feed has Kafka."""

    folder: Path
    port: int
    token: str
    hook: str
    kafka: str | None


def sinks_of(count: int, *, kafka: bool) -> list[str]:
    """The sink of each feed, so mixed that a few feeds have most kinds."""
    left = Counter({sink: n for sink, n in MIX.items() if kafka or sink != "kafka"})
    order = list[str]()
    while left:
        for sink in list(left):
            order.append(sink)
            left[sink] -= 1
            left += Counter()  # drops those that are used up
    return list(islice(cycle(order), count))


def configuration(around: Surroundings, sinks: Sequence[str], guests: Sequence[int] = ()) -> str:
    """The daemon's file; ``guests`` are further feeds, which come and go by a reload."""
    daemon = f'[daemon]\nhttp = "127.0.0.1:{around.port}"\ntoken = {json.dumps(around.token)}\n'
    parts = [daemon]
    parts += [_feed(f"t{n}", n, _sink(sink, n, around)) for n, sink in enumerate(sinks)]
    for guest in guests:
        path = f'type = "jsonl"\npath = "out/guests/{guest}.jsonl"'
        parts.append(_feed(f"guest-{guest}", guest % len(sinks), path, start="latest"))
    return "\n".join(parts)


def _feed(name: str, table: int, sink: str, start: str = "snapshot") -> str:
    return (
        f'[feeds.{name}]\ntable = "tables/{table}/table"\nfrom = "{start}"\nretry_max_s = 5\n'
        f"[feeds.{name}.sink]\n{sink}\n"
    )


def _sink(kind: str, number: int, around: Surroundings) -> str:
    match kind:
        case "jsonl":
            return f'type = "jsonl"\npath = "out/jsonl/{number}.jsonl"'
        case "files":
            return f'type = "files"\npath = "out/files/{number}"\nroll_s = 60'
        case "http":
            return f'type = "http"\nurl = "{around.hook}/{number}"'
        case "kafka":
            lines = {"bootstrap_servers": around.kafka, "topic": f"t{number}", "key": ["id"]}
            return "\n".join(
                ['type = "kafka"', *(f"{k} = {json.dumps(v)}" for k, v in lines.items())]
            )
    ending = "" if kind == "delta" else f".{kind}"
    return f'type = "{kind}"\npath = "out/{kind}/{number}{ending}"\nkey = ["id"]'


class TableWriters(threading.Thread):
    """Commits to one table after the other, some much more often, ``rate`` times a second; keeps
    checkpoints, and cleans up logs and files that nothing needs."""

    def __init__(self, folder: Path, count: int, seed: int, rate: float) -> None:
        super().__init__(daemon=True)
        self.chance = random.Random(seed)
        self.rate = rate
        self.commits = 0
        self.ending = threading.Event()
        self.error: BaseException | None = None
        self.tables = [self._made(folder / str(n), seed + n, n) for n in range(count)]
        self._weights = [1 / (1 + n % 20) for n in range(count)]

    @staticmethod
    def _made(folder: Path, seed: int, number: int) -> DeltaRsWriter:
        recipe = Recipe(seed, "local", "", "", "deltalake", number % 2 == 0, number % 3 == 0, ())
        folder.mkdir(parents=True)
        writer = DeltaRsWriter(recipe, local_place(folder), without=NOT_DONE)
        writer.rows_max = ROWS_MAX
        kept = {"delta.logRetentionDuration": LOG_KEPT, "delta.enableExpiredLogCleanup": "true"}
        writer.table.alter.set_table_properties(kept)
        return writer

    def run(self) -> None:
        try:
            due = time.monotonic()
            while not self.ending.wait(max(0.0, due - time.monotonic())):
                self._commit(self.chance.choices(self.tables, self._weights)[0])
                # A machine that stood still is no reason to catch up in a burst.
                due = max(due + 1 / self.rate, time.monotonic())
        except BaseException as e:  # noqa: BLE001 - the soak raises it
            self.error = e

    def _commit(self, writer: DeltaRsWriter) -> None:
        writer.commit()
        writer.table.update_incremental()
        self.commits += 1
        if self.commits % 10 == 0:
            table = self.chance.choice(self.tables).table
            table.create_checkpoint()
            table.cleanup_metadata()
            table.vacuum(FILES_KEPT_HOURS, dry_run=False, enforce_retention_duration=False)
            table.update_incremental()

    def finish(self) -> None:
        """Write no more; raises what kept it from writing."""
        self.ending.set()
        self.join()
        if self.error is not None:
            raise self.error


def copies_differ(folder: Path, sinks: Sequence[str], writers: TableWriters) -> Iterator[str]:
    """The feeds whose copy is not their table, at the end."""
    for number, sink in enumerate(sinks):
        if sink in _READERS:
            copy = _READERS[sink](folder / "out" / sink, number)
            if plain(copy) != plain(writers.tables[number].rows()):
                yield f"t{number} ({sink})"


def _sqlite(folder: Path, number: int) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(folder / f"{number}.sqlite")) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM t{number}")]


def _duckdb(folder: Path, number: int) -> list[dict[str, Any]]:
    with duckdb.connect(folder / f"{number}.duckdb") as connection:
        rows: list[dict[str, Any]] = connection.sql(f"FROM t{number}").to_arrow_table().to_pylist()
        return rows


def _delta(folder: Path, number: int) -> list[dict[str, Any]]:
    table = deltalake.DeltaTable(folder / str(number))
    rows: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
    return rows


_READERS = {"sqlite": _sqlite, "duckdb": _duckdb, "delta": _delta}
