"""The ClickHouse sink beyond the public suites: columns and tables that change under it, copies
that are read back and repaired, and answers that say nothing."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from msgspec import structs

from sinks.clickhouse.sink import ClickHouseSink
from tailer.changes import ChangeBatch
from tailer.errors import ConfigError, TargetRefused, TransientError
from tailer.testing.batches import change_batch
from tests.sinks.clickhouse.conftest import held, log_of, names_of, new, read_back
from tests.support.clickhouse import PASSWORD, USER, ClickHouse
from tests.support.components import free_port
from tests.support.sinks import NAMED, named, rows, write
from tests.support.web_front import WebFront, running_front

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_attempt")]


async def stop_before_the_offset(sink: ClickHouseSink, batch: ChangeBatch, patch: Any) -> None:
    """Write a batch's rows as a process does that is killed before it stores their offset."""

    async def end(*_: Any, **__: Any) -> None:
        raise TransientError("killed")

    await sink.open("orders")
    patch.setattr(sink, "_save_offset", end)
    with pytest.raises(TransientError, match="killed"):
        await sink.write(batch)
    await sink.aclose()


# Columns


def with_columns(version: int, found: list[dict[str, Any]], **columns: Any) -> ChangeBatch:
    schema = pa.schema({"id": pa.int64(), **columns})
    return change_batch(schema, found, version=version, last=True)


async def test_columns_that_come_and_go(clickhouse: ClickHouse, options: dict[str, Any]) -> None:
    log = {**log_of(options), "table": f"{options['table']}_log"}
    batches = [
        with_columns(1, [{"id": 1, "a": 1, "d": dt.date(2020, 1, 1)}], a=pa.int32(), d=pa.date32()),
        with_columns(2, [{"id": 2, "a": 2**40, "d": None}], a=pa.int64(), d=pa.timestamp("us")),
        with_columns(3, [{"id": 3, "n": "new"}], n=pa.string()),
    ]
    for batch in batches:
        await write(new(options), batch)
        await write(new(log), batch)
        if batch.version == 2:
            times = [row["d"] for row in held(clickhouse, options)]
            assert times == [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), None]
    assert held(clickhouse, options) == [
        {"id": 1, "n": None}, {"id": 2, "n": None}, {"id": 3, "n": "new"},
    ]  # fmt: skip
    found = clickhouse.rows(f"SELECT id, a, n FROM lake.{log['table']} FINAL ORDER BY _seq")
    assert [tuple(row.values()) for row in found] == [
        (1, 1, None),
        (2, 2**40, None),
        (3, None, "new"),
    ]


def renamed(batch: ChangeBatch, **physical: str) -> ChangeBatch:
    """A batch of a table whose columns have these names in its files."""
    state = batch.state

    class Mapped:
        schema = state.schema

        def physical_name(self, field: Any) -> str:
            return str(physical.get(field.name, field.name))

    return structs.replace(batch, state=Mapped())


@pytest.mark.parametrize("killed_behind", range(5))
async def test_columns_that_swap_their_names_also_if_that_is_interrupted(
    clickhouse: ClickHouse, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
    killed_behind: int,
) -> None:  # fmt: skip
    texts = {"a": pa.string(), "b": pa.string()}
    first = with_columns(1, [{"id": 1, "a": "of a", "b": "of b"}], **texts)
    await write(new(options), renamed(first, a="p", b="q"))
    second = renamed(with_columns(2, [{"id": 2, "a": "x", "b": "y"}], **texts), a="q", b="p")
    sink = new(options)
    await sink.open("orders")
    run, altered = sink.client.run, 0

    async def run_some(statement: str) -> bytes:
        nonlocal altered
        found = await run(statement)
        if statement.startswith("ALTER"):
            altered += 1
            if altered == killed_behind:
                raise TransientError("killed")
        return found

    monkeypatch.setattr(sink.client, "run", run_some)
    if killed_behind:
        with pytest.raises(TransientError, match="killed"):
            await sink.write(second)
        await sink.aclose()
        await write(new(options), second)
    else:
        await sink.write(second)
        await sink.aclose()
        assert altered == 4
    assert held(clickhouse, options) == [
        {"id": 1, "a": "of b", "b": "of a"}, {"id": 2, "a": "x", "b": "y"},
    ]  # fmt: skip


async def test_what_can_not_be_altered_is_refused(options: dict[str, Any]) -> None:
    schema = pa.schema([("id", pa.int32()), ("name", pa.string())])
    await write(new(options), change_batch(schema, [{"id": 1, "name": "a"}], last=True))
    same = change_batch(schema, [{"id": 2, "name": "b"}], version=2, last=True)
    for batch, more in (
        (rows((2, "b"), version=2), {}),
        (renamed(with_columns(2, [{"no": 1, "id": 2}], no=pa.int32()), no="id", id="new"),
            {"key": ["no"]}),
        (same, {"key": ["name"]}),
        (same, {"own_prefix": "x_"}),
    ):  # fmt: skip
        sink = new(options, **more)
        await sink.open("orders")
        with pytest.raises(TargetRefused, match="`tailer offsets reset`"):
            await sink.write(batch)
        await sink.aclose()


# Tables


async def test_a_table_of_somebody_else_is_no_place_for_a_copy(
    clickhouse: ClickHouse, options: dict[str, Any]
) -> None:
    clickhouse.query(
        f"CREATE TABLE lake.{options['table']} (id Int64) ENGINE = MergeTree ORDER BY id"
    )
    with pytest.raises(TargetRefused, match="is there already, and the sink makes its own"):
        await new(options).open("orders")
    await new(options).set_offset("orders", None)
    assert clickhouse.rows(f"SELECT * FROM lake.{options['table']}") == []


async def test_a_table_that_a_killed_process_has_made_is_made_again(
    clickhouse: ClickHouse, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = new(options)
    await sink.open("orders")

    async def end(*_: Any, **__: Any) -> None:
        raise TransientError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(sink._progress, "save", end)
        with pytest.raises(TransientError, match="killed"):
            await sink.write(with_columns(1, [{"id": 1}], a=pa.int32()))
    await sink.aclose()
    await write(new(options), named())
    assert set(names_of(clickhouse, options)) == {0, 1}


async def test_a_reset_drops_the_table_and_what_follows_is_newer(
    clickhouse: ClickHouse, options: dict[str, Any]
) -> None:
    await write(new(options), named(count=3))
    with pytest.raises(ConfigError, match="is written by the feed 'orders' as a mirror"):
        await new(options).set_offset("others", None)
    [before] = {row["_version"] for row in held(clickhouse, options, ours=True)}
    await new(options).set_offset("orders", None)
    exists = f"EXISTS TABLE lake.{options['table']}"
    assert clickhouse.query(exists).strip() == b"0"
    assert await new(options).look("orders") is None
    sink = new(options)
    await write(sink, named(), feed="others")
    assert sink.lacks_beginning
    assert min(row["_version"] for row in held(clickhouse, options, ours=True)) > before


async def test_tables_have_one_feed_and_one_mode(options: dict[str, Any]) -> None:
    await write(new(options), named())
    for sink, feed in ((new(options), "others"), (new(log_of(options)), "orders")):
        with pytest.raises(ConfigError, match="is written by the feed 'orders' as a mirror"):
            await sink.open(feed)


async def test_a_rehearsal_leaves_nothing(clickhouse: ClickHouse, options: dict[str, Any]) -> None:
    database = clickhouse.database()
    await new(options, database=database).rehearse("orders", NAMED)
    await new(log_of(options), database=database).rehearse("orders", NAMED)
    assert clickhouse.rows(f"SELECT name FROM system.tables WHERE database = '{database}'") == []
    with pytest.raises(TargetRefused, match="UNKNOWN_DATABASE"):
        await new(options, database="nowhere").rehearse("orders", NAMED)


@pytest.mark.parametrize(
    ("more", "said"),
    [({"key": []}, "name the columns"), ({"mode": "log"}, "a log has none"),
     ({"url": "ftp://a"}, "http:// or https:// URL")],
)  # fmt: skip
def test_options_are_checked(options: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        new(options, **more)


async def test_a_user_has_a_password(options: dict[str, Any]) -> None:
    assert await new(options, user=USER, password=PASSWORD).look("orders") is None
    for login in ({"user": USER, "password": "wr0ng-w0rd"}, {"user": "nobody"}):
        with pytest.raises(ConfigError, match="check the user, the password") as e:
            await new(options, **login).look("orders")
        assert "wr0ng" not in str(e.value)


# Copies that are read back


@pytest.mark.parametrize("kind", ["insert", "delete"])
async def test_a_copy_is_not_compared_while_it_is_written(
    options: dict[str, Any], kind: str
) -> None:
    await write(new(options), named())
    with new(options).read_mirror("orders") as copy:
        await write(new(options), rows((1 if kind == "delete" else 7, "a"), kind=kind, version=2))
        with pytest.raises(TransientError, match="verify it again"):
            list(copy.rows(NAMED))


async def test_a_version_that_is_half_written_is_repaired_and_written_again(
    clickhouse: ClickHouse, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.clickhouse.copy._SETTLE_S", 0.1)
    first, second = named(), rows((0, "new"), kind="update_postimage", version=2)
    await write(new(options), first)
    await stop_before_the_offset(new(options), second, monkeypatch)
    assert read_back(new(options), NAMED)["name"].to_pylist() == ["new", "name 1"]
    with new(options).repair_mirror("orders") as mirror:
        mirror.replace(rows((0, "name 0")))
        mirror.remove(pa.table({"id": pa.array([1])}))
    assert names_of(clickhouse, options) == {0: "name 0"}
    await write(new(options), second)
    assert names_of(clickhouse, options) == {0: "new"}


async def test_a_row_with_a_version_of_somebody_else_is_named(
    clickhouse: ClickHouse, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.clickhouse.copy._SETTLE_S", 0.1)
    await write(new(options), named())
    clickhouse.query(f"INSERT INTO lake.{options['table']} VALUES (1, 'x', {2**63}, 0)")
    with (
        new(options).repair_mirror("orders") as mirror,
        pytest.raises(TargetRefused, match="have a later version than the feed's"),
    ):
        mirror.replace(rows((1, "name 1")))


# Answers


@pytest.mark.parametrize("tear", [0, 1, 8, 100, 400, 10_000])
async def test_an_answer_that_ends_with_an_error_is_not_whole(
    clickhouse: ClickHouse, options: dict[str, Any], tear: int
) -> None:
    await write(new(options), named(count=50))
    with (
        new(options).read_mirror("orders") as copy,
        clickhouse.failing(of="SELECT `id`", name="MEMORY_LIMIT_EXCEEDED", code=241, tear=tear),
        pytest.raises(TransientError, match="an answer that is not whole"),
    ):
        list(copy.rows(NAMED))


async def test_an_answer_that_is_lost_costs_nothing(
    clickhouse: ClickHouse, options: dict[str, Any]
) -> None:
    log = log_of(options)
    sink, batches = new(log), [named(), named(5, version=2)]
    await sink.open("orders")
    for place, statement in enumerate(("INSERT INTO `lake`.`t", "INSERT INTO `lake`.`delta")):
        with clickhouse.failing(of=statement, drop=True), pytest.raises(TransientError):
            await sink.write(batches[place])
        await sink.write(batches[place])
    await sink.aclose()
    found = clickhouse.rows(f"SELECT id FROM lake.{options['table']} FINAL ORDER BY _seq")
    assert [row["id"] for row in found] == [0, 1, 5, 6]


class Liar(WebFront):
    """Somebody between the server and us."""

    def __init__(self, said: tuple[int, bytes]) -> None:
        self.port = free_port()
        self.said = said

    async def answer(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002
        return web.Response(status=self.said[0], body=self.said[1])


@pytest.mark.parametrize("said", [(200, b""), (200, b"<html>"), (502, b"bad"), (500, b"\xff")])
async def test_what_is_not_clickhouse_s_is_a_passing_fault(
    options: dict[str, Any], said: tuple[int, bytes]
) -> None:
    with running_front(Liar(said)) as liar:
        for given in (options, log_of(options)):
            with pytest.raises(TransientError):
                await new({**given, "url": liar.url}).open("orders")


async def test_a_table_of_somebody_else_is_not_dropped(
    clickhouse: ClickHouse, options: dict[str, Any]
) -> None:
    """Also one that was made while the feed waited for its first rows."""
    sink = new(options)
    await sink.open("orders")
    table = f"lake.{options['table']}"
    clickhouse.query(f"CREATE TABLE {table} (x Int32) ENGINE = MergeTree ORDER BY x")
    clickhouse.query(f"INSERT INTO {table} VALUES (1)")
    with pytest.raises(TargetRefused, match="is there already, and the sink makes its own"):
        await sink.write(named())
    await sink.aclose()
    assert clickhouse.rows(f"SELECT * FROM {table}") == [{"x": 1}]


@pytest.mark.parametrize("mode", ["mirror", "log"])
@pytest.mark.parametrize(
    "change", ["DROP COLUMN name", "MODIFY COLUMN amount Nullable(Int8)", "RENAME COLUMN name TO x"]
)
async def test_columns_that_others_have_changed_are_noticed(
    clickhouse: ClickHouse, options: dict[str, Any], mode: str, change: str
) -> None:
    """Also while the feed runs: ClickHouse would keep -24 for 1000 in a column of Int8."""
    options = options if mode == "mirror" else log_of(options)
    columns = {"name": pa.string(), "amount": pa.int64()}
    row = {"id": 1, "name": "a", "amount": 5}
    sink = new(options)
    await sink.open("orders")
    await sink.write(with_columns(1, [row], **columns))
    clickhouse.query(f"ALTER TABLE lake.{options['table']} {change}")
    then = with_columns(2, [{**row, "id": 2, "amount": 1000}], **columns)
    for _ in ("running", "opened again"):
        with pytest.raises(TargetRefused, match="is missing or of another type: somebody else has"):
            await sink.write(then)
        await sink.open("orders")
    await sink.aclose()


@pytest.mark.parametrize("kind", ["VIEW", "MATERIALIZED VIEW"])
async def test_a_view_in_the_place_of_the_table_is_noticed(
    clickhouse: ClickHouse, options: dict[str, Any], kind: str
) -> None:
    sink, table = new(options), f"lake.{options['table']}"
    await sink.open("orders")
    await sink.write(named())
    clickhouse.query(f"RENAME TABLE {table} TO {table}_real")
    to = f" TO {table}_real" if kind == "MATERIALIZED VIEW" else ""
    clickhouse.query(f"CREATE {kind} {table}{to} AS SELECT * FROM {table}_real")
    with pytest.raises(TargetRefused, match="was dropped and made again since the feed wrote"):
        await sink.write(named(5, version=2))
    await sink.aclose()


async def test_what_is_sent_late_is_not_in_a_copy_that_was_made_again(
    clickhouse: ClickHouse, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = new(options)
    await write(old, named())
    await old.open("orders")
    send = old.client.insert_rows

    async def wait(*more: Any) -> None:
        await new(options).set_offset("orders", None)
        await write(new(options), named())
        await send(*more)

    monkeypatch.setattr(old.client, "insert_rows", wait)
    with pytest.raises(ConfigError, match=r"the table was made again .* another one writes it"):
        await old.write(rows((99, "late"), version=2))
    await old.aclose()
    assert set(names_of(clickhouse, options)) == {0, 1}


@pytest.mark.parametrize(
    "setting",
    ["output_format_json_quote_64bit_integers = 1", "final = 1", "limit = 1",
     "aggregate_functions_null_for_empty = 1", "data_type_default_nullable = 1"],
)  # fmt: skip
async def test_settings_of_a_profile_change_nothing(
    clickhouse: ClickHouse, options: dict[str, Any], setting: str
) -> None:
    """The front's session has them until a query sets them back."""
    clickhouse.query("DROP TABLE IF EXISTS lake.delta_tailer_offsets")
    clickhouse.query(f"SET {setting}")
    await write(new(options), named(count=3))
    clickhouse.query(f"SET {setting}")
    assert read_back(new(options), NAMED).num_rows == 3
