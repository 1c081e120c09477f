"""`tailer verify CONFIG FEED --repair`: a copy that somebody has changed is the table again."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from sinks.postgres.sink import PostgresSink
from tailer.changes import ChangeBatch, Offset
from tailer.cli.main import main
from tailer.errors import TailerError
from tailer.sink import MirrorRepair, Sink
from tailer.testing.conformance.sink import TYPES, VALUES
from tests.support.copies import Copy, make_copy_of
from tests.support.extent import rest_slow
from tests.support.iceberg import Lake
from tests.support.programs import run_tailer, started
from tests.support.sql_targets import SQL_SINKS, sql_target
from tests.support.waiting import eventually

Capture = pytest.CaptureFixture[str]
SCHEMA = pa.schema([("id", pa.int64()), *TYPES])
FULL = {**VALUES, "string": "größe \n ''", "map": [("a", 1), ("", None)]}
EMPTY = dict.fromkeys(VALUES)
NUMBERS = pa.schema([("id", pa.int64()), ("n", pa.int64())])
TIMES = ["1969-12-31T23:59:59.999999", "2026-01-01T00:00:00", "0001-01-01T00:00:00"]
#: Values of each type that a key may have, the least and the greatest among them.
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    **{
        str(whole): (whole, [-(2 ** (whole.bit_width - 1)), 0, 2 ** (whole.bit_width - 1) - 1])
        for whole in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    "decimal": (pa.decimal128(38, 2), ["1.00", "12345678901234567890.12", "-0.01"]),
    "string": (pa.string(), ["a", "größe", "\\x61", "a'b\"c", "A", ""]),
    "binary": (pa.binary(), [b"a", b"\x00\xff", b"\\x61", b""]),
    "date": (pa.date32(), ["1969-12-31", "2026-01-01", "0001-01-01"]),
    "timestamp": (pa.timestamp("us", "UTC"), [f"{at}Z" for at in TIMES]),
    "timestamp_ntz": (pa.timestamp("us"), TIMES),
}


@dataclass(frozen=True, slots=True)
class Damaged(Copy):
    """A copy, and what changes it behind its feed's back."""

    delete: Callable[[str], object]
    update: Callable[[str, str, str], object]


def damaged(kind: str, folder: Path, request: pytest.FixtureRequest, schema: pa.Schema) -> Damaged:
    """A table, created, with a copy by its first column."""
    key = [schema.names[0]]
    delete: Callable[[str], object]
    update: Callable[[str, str, str], object]
    if kind == "delta":
        options = f'type = "delta"\npath = "copy"\nkey = {json.dumps(key)}'
        opened = partial(deltalake.DeltaTable, folder / "copy")
        delete = lambda where: opened().delete(where)  # noqa: E731
        update = lambda column, value, where: opened().update({column: value}, predicate=where)  # noqa: E731
    elif kind == "iceberg":
        lake = Lake(folder / "lake")
        options = lake.toml(key=key)
        delete = lambda where: lake.table().delete(where)  # noqa: E731
        update = lake.update
    else:
        target = sql_target(kind, folder, request)
        options, name = target.toml(key=key), f"{target.prefix}orders"
        delete = lambda where: target.query(f"DELETE FROM {name} WHERE {where}")  # noqa: E731
        update = lambda column, value, where: target.query(  # noqa: E731
            f"UPDATE {name} SET {column} = {value} WHERE {where}"
        )
    copy = make_copy_of(folder, options, schema)
    copy.table.create()
    return Damaged(copy.config, copy.table, delete, update)


@pytest.fixture(params=[*SQL_SINKS, "delta", "iceberg"])
def make_copy(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[pa.Schema], Damaged]:
    return partial(damaged, str(request.param), tmp_path, request)


def test_the_rows_that_differ_are_written_and_no_others(
    make_copy: Callable[[pa.Schema], Damaged], capsys: Capture
) -> None:
    copy = make_copy(SCHEMA)
    copy.table.insert([{"id": n, **(FULL if n % 2 else EMPTY)} for n in range(1, 8)])
    copy.deliver(1)
    copy.delete("id = 1")
    copy.update("string", "'another'", "id = 2")
    copy.update("id", "70", "id = 3")
    assert copy.verify("--repair", "--dry-run") == 1
    assert "3 rows to write, 1 keys to remove; nothing was written" in capsys.readouterr().out
    assert copy.verify() == 1
    capsys.readouterr()
    assert copy.verify("--repair") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "version 1, 6 rows in the mirror: 3 rows missing, 2 rows too many"
    assert said[-2:] == [
        "repaired: 3 rows written, 1 keys removed, in 2 transactions",
        "version 1, 7 rows in the mirror: exact",
    ]
    assert copy.verify("--repair") == 0
    assert capsys.readouterr().out == "version 1, 7 rows in the mirror: exact\n", "nothing is left"


def test_a_feed_that_stopped_at_a_row_that_the_copy_lacks_continues(
    make_copy: Callable[[pa.Schema], Damaged], capsys: Capture
) -> None:
    copy = make_copy(NUMBERS)
    old = copy.table.add([{"id": n, "n": 0} for n in range(3)])
    copy.table.commit(old)
    copy.deliver(1)
    copy.delete("id = 1")
    image = {"id": 1, "n": 0, "_change_type": "update_preimage"}
    after = {"id": 1, "n": 5, "_change_type": "update_postimage"}
    new = copy.table.add([{"id": n, "n": 5 if n == 1 else 0} for n in range(3)])
    copy.table.commit(copy.table.remove(old), new, copy.table.cdc([image, after]))
    with pytest.raises(TailerError, match="--repair"):
        copy.deliver(2)
    assert copy.verify("--repair") == 0, capsys.readouterr()
    copy.deliver(2)
    assert copy.verify() == 0, capsys.readouterr()


class Overtaken:
    """A mirror's repair, in which the feed writes its next version before each first write."""

    def __init__(self, inner: MirrorRepair, writes: Iterator[Callable[[], None]]) -> None:
        self.inner = inner
        self.writes = writes

    @property
    def offset(self) -> Offset | None:
        return self.inner.offset

    def reload(self) -> bool:
        return self.inner.reload()

    def replace(self, batch: ChangeBatch) -> None:
        next(self.writes)()
        self.inner.replace(batch)

    def remove(self, keys: pa.Table) -> None:
        next(self.writes)()
        self.inner.remove(keys)


@pytest.mark.parametrize("kind", SQL_SINKS)
def test_what_the_feed_writes_meanwhile_is_not_set_back(
    kind: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not of Delta: its feed does not write to a copy that somebody has changed."""
    copy = damaged(kind, tmp_path, request, NUMBERS)
    table = copy.table
    files = {n: table.add([{"id": n, "n": 0}]) for n in range(6)}
    table.commit(*files.values())
    copy.deliver(1)
    copy.update("n", "-1", "id <= 2")
    copy.update("id", "40", "id = 4")
    for key in (0, 1):
        kinds = ("update_preimage", "update_postimage")
        images = [{"id": key, "n": n, "_change_type": kind} for n, kind in enumerate(kinds)]
        changed = table.add([{"id": key, "n": 1}])
        table.commit(table.remove(files[key]), changed, table.cdc(images))
    table.insert([{"id": 40, "n": 1}])  # a key that the copy has already
    written = iter([lambda: copy.deliver(2), lambda: copy.deliver(3), *[lambda: None] * 9])
    sink = copy.make_sink()
    whole = type(sink).repair_mirror

    @contextmanager
    def overtaken(self: Sink, feed: str) -> Iterator[Overtaken]:
        with whole(self, feed) as inner:
            yield Overtaken(inner, written)

    monkeypatch.setattr(type(sink), "repair_mirror", overtaken)
    copy.verify("--repair")
    assert "repaired: 2 rows written, 1 keys removed" in capsys.readouterr().out
    monkeypatch.undo()
    copy.deliver(4)
    with sink.read_mirror("orders") as mirror:
        rows = [row for batch in mirror.rows(NUMBERS) for row in batch.to_pylist()]
    found = {row["id"]: row["n"] for row in rows}
    assert found == {0: 1, 1: 1, 2: 0, 3: 0, 4: 0, 5: 0, 40: 1}
    assert len(rows) == len(found)


def test_a_copy_is_taken_back_to_a_version_and_follows_again(
    make_copy: Callable[[pa.Schema], Damaged], capsys: Capture
) -> None:
    copy = make_copy(NUMBERS)
    table = copy.table
    files = {n: table.add([{"id": n, "n": 0}]) for n in range(5)}
    table.commit(*files.values())
    for key in (0, 1):
        kinds = ("update_preimage", "update_postimage")
        images = [{"id": key, "n": n, "_change_type": kind} for n, kind in enumerate(kinds)]
        changed = table.add([{"id": key, "n": 1}])
        table.commit(table.remove(files[key]), changed, table.cdc(images))
    table.insert([{"id": 9, "n": 9}])
    copy.deliver(4)
    table.insert([{"id": 10, "n": 9}])
    assert copy.rewind("5") == 2
    assert "has not passed version 5" in capsys.readouterr().err
    assert copy.rewind("1") == 0, capsys.readouterr()
    assert "version 1: 2 rows written, 1 keys removed" in capsys.readouterr().out
    assert copy.verify() == 0
    assert capsys.readouterr().out == "version 1, 5 rows in the mirror: exact\n"
    copy.deliver(5)
    assert copy.verify() == 0
    assert "version 5, 7 rows" in capsys.readouterr().out
    table.commit(*(table.remove(each) for each in table.reconciled(5) if "add" in each))
    copy.deliver(6)
    assert copy.verify() == 0, "nobody has emptied it but the feed"
    assert "version 6, 0 rows" in capsys.readouterr().out
    assert copy.rewind("5") == 0
    assert copy.rewind("0") == 0
    assert copy.verify() == 0, "a version without rows is one, too"
    copy.deliver(6)


def test_a_copy_is_not_taken_back_where_it_can_not_be(tmp_path: Path, capsys: Capture) -> None:
    """Nothing is written, and the offset stays."""
    options = 'type = "sqlite"\npath = "copy.sqlite"\nkey = ["id"]'
    copy = make_copy_of(tmp_path, options, NUMBERS)
    table = copy.table
    table.create()
    add = table.add([{"id": 1, "n": 1}])
    table.commit(add)
    table.commit(table.remove(add), table.cdc([{"id": 1, "n": 1, "_change_type": "delete"}]))
    table.schema = pa.schema([*NUMBERS, ("more", pa.string())])
    table.commit(table.metadata())
    copy.deliver(3)
    assert copy.rewind("2") == 2
    assert "the table has other columns now than in version 2" in capsys.readouterr().err
    (table.folder / add["add"]["path"]).unlink()
    assert copy.rewind("1") != 0
    capsys.readouterr()
    assert copy.verify() == 0
    assert capsys.readouterr().out == "version 3, 0 rows in the mirror: exact\n"


def test_events_come_again_with_the_same_ids_after_a_rewind(tmp_path: Path) -> None:
    options = 'type = "jsonl"\npath = "out.jsonl"\nids = "event"'
    copy = make_copy_of(tmp_path, options, NUMBERS, 'from = "earliest"')
    table, run = copy.table, ["run", "--once", str(copy.config)]
    table.create(timestamp_ms=1_000)
    for n in range(3):
        table.commit(table.add([{"id": n, "n": n}]), timestamp_ms=2_000 + n)
    assert main(run) == 0
    table.insert([{"id": 3, "n": 3}])
    assert copy.rewind("4") == 2, "it has not passed it"
    assert copy.rewind("1") == 0
    assert main(run) == 0
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["id"] for event in events] == [0, 1, 2, 1, 2, 3]
    assert lines[1:3] == lines[3:5]


def test_a_connection_that_is_cut_ends_a_repair_that_can_be_run_again(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = sql_target("postgres", tmp_path, request)
    copy = make_copy_of(tmp_path, target.toml(key=["id"]), NUMBERS)
    table = copy.table
    table.create()
    table.insert([{"id": n, "n": 0} for n in range(6)])
    copy.deliver(1)
    target.query(f"UPDATE {target.prefix}orders SET n = 1")

    def cut() -> None:
        target.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    whole = PostgresSink.repair_mirror

    @contextmanager
    def overtaken(self: PostgresSink, feed: str) -> Iterator[Overtaken]:
        with whole(self, feed) as inner:
            yield Overtaken(inner, iter([cut]))

    monkeypatch.setattr(PostgresSink, "repair_mirror", overtaken)
    assert copy.verify("--repair") == 1
    assert "PostgreSQL" in capsys.readouterr().err
    monkeypatch.undo()
    assert copy.verify("--repair") == 0, capsys.readouterr()


@pytest.mark.parametrize("seed", rest_slow(range(8), 0))
def test_a_repair_that_is_killed_leaves_a_copy_that_can_be_repaired(
    tmp_path: Path, request: pytest.FixtureRequest, seed: int
) -> None:
    """Each transaction is whole: a key has its old row, or the table's."""
    chance = random.Random(seed)
    target = sql_target("postgres", tmp_path, request)
    copy = make_copy_of(tmp_path, target.toml(key=["id"]), NUMBERS)
    table = copy.table
    table.create()
    table.commit(
        *(table.add([{"id": p * 60_000 + n, "n": 1} for n in range(60_000)]) for p in range(3))
    )
    copy.deliver(1)
    name = f"{target.prefix}orders"
    target.query(f"UPDATE {name} SET n = -1")
    for _ in range(3):
        with started("verify", str(copy.config), "orders", "--repair") as program:
            time.sleep(chance.uniform(0.5, 3.0))
            program.process.kill()
        odd = target.query(f"SELECT count(*) FROM {name} WHERE n NOT IN (1, -1)")
        assert odd == [(0,)]
        assert target.query(f"SELECT count(*) FROM {name}") == [(180_000,)]
    assert copy.verify("--repair") == 0
    assert target.query(f"SELECT count(*), min(n) FROM {name}") == [(180_000, 1)]


@pytest.mark.parametrize("name", rest_slow(KEYS, "string", "binary", "timestamp", "int8"))
def test_keys_of_all_types_are_found_again(
    make_copy: Callable[[pa.Schema], Damaged], capsys: Capture, name: str
) -> None:
    """A key that the table does not have is removed by the value that the copy has."""
    data_type, values = KEYS[name]
    keys = pa.array(values).cast(data_type).to_pylist()
    copy = make_copy(pa.schema([("k", data_type), ("n", pa.int64())]))
    copy.table.insert([{"k": keys[0], "n": 0}])
    copy.table.insert([{"k": key, "n": n} for n, key in enumerate(keys[1:], 1)])
    copy.deliver(2)
    copy.move_back(2)
    assert copy.verify("--repair") == 0, capsys.readouterr()
    removed = len(keys) - 1
    assert f"repaired: 0 rows written, {removed} keys removed" in capsys.readouterr().out
    copy.deliver(2)
    copy.update("n", "9", "n >= 0")
    assert copy.verify("--repair") == 0, capsys.readouterr()
    written = capsys.readouterr().out
    assert f"repaired: {len(keys)} rows written, 0 keys removed" in written


def test_a_copy_is_repaired_while_its_feed_runs(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Nothing is lost, doubled or set back, and the feed does not stop."""
    target = sql_target("postgres", tmp_path, request)
    copy = make_copy_of(tmp_path, target.toml(key=["id"]), NUMBERS, cdf=False)
    table, config = copy.table, copy.config
    table.create()
    table.insert([{"id": n, "n": 0} for n in range(2000)])

    def version() -> str:
        done = run_tailer("verify", str(config), "orders")
        return done.stdout + done.stderr

    name = f"{target.prefix}orders"
    with started("run", str(config)) as program:
        eventually(lambda: "version 1" in version(), why=lambda: f"{version()} {program}")
        for turn in range(1, 5):
            target.query(f"DELETE FROM {name} WHERE id % 7 = {turn}")
            target.query(f"UPDATE {name} SET n = -1 WHERE id % 5 = {turn}")
            table.insert([{"id": 10_000 * turn + n, "n": turn} for n in range(100)])
            done = run_tailer("verify", str(config), "orders", "--repair")
            assert "repaired: " in done.stdout, done
        eventually(lambda: version().endswith("exact\n"), why=lambda: f"{version()} {program}")
        assert program.stop() == 0
    assert target.query(f"SELECT count(*), min(n) FROM {name}") == [(2400, 0)]


def test_a_table_or_a_log_is_not_repaired(tmp_path: Path) -> None:
    done = run_tailer("verify", "tailer.toml", "orders", "--dry-run")
    assert done.returncode == 2
    assert "--dry-run" in done.stderr
    done = run_tailer("verify", str(tmp_path), "--repair")
    assert done.returncode == 2
    assert "--repair needs a feed: `tailer verify CONFIG FEED --repair`" in done.stderr
    config = tmp_path / "tailer.toml"
    config.write_text(
        '[feeds.orders]\ntable = "orders"\n[feeds.orders.sink]\ntype = "jsonl"\npath = "-"\n'
    )
    done = run_tailer("verify", str(config), "orders", "--repair")
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("stored", "data_type", "shown"),
    [
        (pa.array([4_000_000, 5], pa.int32()), pa.date32(), "12921-08-18"),
        (pa.array([3 * 10**17, 5]), pa.timestamp("us", "UTC"), "11476-08-15 05:20:00.000000Z"),
    ],
)
def test_a_key_beyond_the_years_of_python_is_shown_and_set_right(
    stored: pa.Array, data_type: pa.DataType, shown: str, tmp_path: Path,
    request: pytest.FixtureRequest, capsys: Capture,
) -> None:  # fmt: skip
    target = sql_target("duckdb", tmp_path, request)
    schema = pa.schema([("id", data_type), ("n", pa.int64())])
    copy = make_copy_of(tmp_path, target.toml(key=["id"], table="orders"), schema)
    copy.table.create()
    copy.table.insert([{"id": key, "n": 1} for key in stored.cast(data_type)])
    copy.deliver(1)
    target.query("UPDATE orders SET n = 2")
    assert copy.verify() == 1
    assert shown in capsys.readouterr().out
    copy.verify("--repair")
    assert copy.verify() == 0
