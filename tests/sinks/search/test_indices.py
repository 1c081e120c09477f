"""The search sink beyond the public suites: indices that change under it, copies that are read
back and repaired, a log, and answers that say nothing."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from sinks.search.sink import SearchSink
from tailer.errors import ConfigError, TargetRefused, TransientError
from tailer.testing.batches import change_span
from tests.sinks.search.conftest import new
from tests.support.search_engine import SearchEngine
from tests.support.sinks import NAMED, named, rows, write

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_attempt")]


# Indices


async def test_an_index_with_documents_is_no_place_for_a_copy(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    search_engine.call("PUT", f"/{options['index']}/_doc/1?refresh=true", {"id": 1})
    with pytest.raises(TargetRefused, match="it has documents already, and a copy begins empty"):
        await new(options).open("orders")


async def test_an_index_of_its_user_keeps_its_mappings(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    """Under an alias, also behind a reset, which empties it."""
    made = f"{options['index']}-2026"
    mappings = {"properties": {"name": {"type": "keyword"}}}
    search_engine.call("PUT", f"/{made}", {"mappings": mappings, "aliases": {options["index"]: {}}})
    await write(new(options), named())
    await new(options).set_offset("orders", None)
    assert search_engine.documents(made) == {}
    assert await new(options).look("orders") is None
    await write(new(options), named())
    _, found = search_engine.call("GET", f"/{made}/_mapping")
    assert found[made]["mappings"]["properties"]["name"] == {"type": "keyword"}
    assert set(search_engine.documents(made)) == {"0", "1"}


async def test_an_index_of_its_user_is_emptied_as_often_as_it_is_asked_for(
    search_engine: SearchEngine, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted just now has versions, which new documents must win over."""
    index = options["index"]
    search_engine.call("PUT", f"/{index}", {})
    await write(new(options), named(count=5))
    sink = new(options)
    assert isinstance(sink, SearchSink)

    async def end(*_: Any) -> bool:
        raise TransientError("killed")

    monkeypatch.setattr(sink, "_write_repair", end)
    with pytest.raises(TransientError, match="killed"):
        await sink.set_offset("orders", None)
    with pytest.raises(TargetRefused, match="has documents already"):
        await new(options).open("orders")
    for _ in range(2):
        await new(options).set_offset("orders", None)
    assert search_engine.documents(index) == {}
    await write(new(options), named(count=5))
    assert len(search_engine.documents(index)) == 5


async def test_documents_that_no_search_finds_yet_are_there(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    index = options["index"]
    search_engine.call("PUT", f"/{index}", {"settings": {"index.refresh_interval": "-1"}})
    search_engine.call("PUT", f"/{index}/_doc/1", {"id": 1})
    with pytest.raises(TargetRefused, match="has documents already"):
        await new(options).open("orders")


async def test_a_request_that_comes_twice_is_no_other_process(
    options: dict[str, Any], search_engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients and proxies send a PUT again whose connection was cut."""
    sink = new(options)
    assert isinstance(sink, SearchSink)
    send = sink.client.send

    async def send_twice(method: str, *more: Any, **query: Any) -> tuple[int, bytes]:
        if method == "PUT":
            await send(method, *more, **query)
        return await send(method, *more, **query)

    monkeypatch.setattr(sink.client, "send", send_twice)
    await sink.open("orders")
    await sink.write(named())
    await sink.write(named(5, version=2))
    await sink.aclose()
    assert len(search_engine.documents(options["index"])) == 4


async def test_a_machine_that_slept_asks_whether_it_is_late(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock that stands still meanwhile would not tell."""
    old = new(options)
    assert isinstance(old, SearchSink)
    await old.open("orders")
    await old.write(named())
    await write(new(options), rows((0, "name 0"), kind="delete", version=2))
    call, clock, paths = old.client.call, time.clock_gettime, []

    async def note(method: str, path: str, *more: Any, **query: Any) -> Any:
        paths.append(path)
        return await call(method, path, *more, **query)

    monkeypatch.setattr(old.client, "call", note)
    monkeypatch.setattr(time, "clock_gettime", lambda kind: clock(kind) + 60)
    with pytest.raises(ConfigError, match="another process writes the index"):
        await old.write(named())
    await old.aclose()
    assert not any(path.endswith("_bulk") for path in paths)


async def test_each_attempt_asks_whether_it_is_late(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.messages.retry.ATTEMPTS", 3)
    old = new(options)
    assert isinstance(old, SearchSink)
    await write(old, named())
    await old.open("orders")
    call, bulks = old.client.call, 0

    async def fail_late(method: str, path: str, *more: Any, **query: Any) -> Any:
        nonlocal bulks
        if path.endswith("_bulk"):
            bulks += 1
            await write(new(options), rows((0, "name 0"), kind="delete", version=2))
            old._confirmed_at -= 60
            raise TransientError("no answer")
        return await call(method, path, *more, **query)

    monkeypatch.setattr(old.client, "call", fail_late)
    with pytest.raises(ConfigError, match="another process writes the index"):
        await old.write(rows((0, "late"), kind="update_postimage", version=2))
    assert bulks == 1
    await old.aclose()


async def test_an_index_that_is_removed_under_a_feed(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    """An engine makes it again for the next request: what is lost is not passed by."""
    sink, first = new(options), named()
    await sink.open("orders")
    await sink.write(first)
    search_engine.call("DELETE", f"/{options['index']}")
    with pytest.raises(TargetRefused, match=r"is missing|was deleted and made again"):
        await sink.write(named(5, version=2))
    await sink.aclose()
    with pytest.raises(TargetRefused, match="start over with `tailer offsets reset`"):
        await new(options).open("orders")
    await new(options).set_offset("orders", None)
    assert await new(options).look("orders") is None


async def test_indices_have_one_feed(options: dict[str, Any]) -> None:
    await write(new(options), named())
    with pytest.raises(ConfigError, match="is written by the feed 'orders' as a mirror"):
        await new(options).open("others")
    log = {name: value for name, value in options.items() if name != "key"}
    with pytest.raises(ConfigError, match="is written by the feed 'orders' as a mirror"):
        await new(log, mode="log").open("orders")


@pytest.mark.parametrize("name", ["Orders", "a b", "-a", "a/b", "a,b", "a*", ".a", ""])
async def test_names_that_no_index_can_have(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match="option 'index' of sink 'search'"):
        await new(options, index=name).open("orders")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"key": []}, "name the columns that identify a row"),
        ({"mode": "log"}, "a log has none"),
        ({"url": "ftp://a"}, "http:// or https:// URL"),
    ],
)
def test_options_are_checked(options: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        new(options, **more)


async def test_a_rehearsal_leaves_nothing(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    await new(options).rehearse("orders", NAMED)
    _, indices = search_engine.call("GET", "/_cat/indices?format=json")
    assert not any(row["index"].startswith(options["index"]) for row in indices)
    assert await new(options).look("orders") is None


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
    options: dict[str, Any], search_engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed has stopped between its documents and their offset."""
    monkeypatch.setattr("sinks.search.copy._SETTLE_S", 0.1)
    first = named()
    await write(new(options), first)
    second = rows((0, "new"), kind="update_postimage", version=2)
    sink = new(options)
    assert isinstance(sink, SearchSink)

    async def end(_: Any) -> None:
        raise TransientError("killed")

    await sink.open("orders")
    monkeypatch.setattr(sink, "_save_offset", end)
    with pytest.raises(TransientError, match="killed"):
        await sink.write(second)
    await sink.aclose()
    with new(options).read_mirror("orders") as copy:
        assert copy.offset == first.next_offset
        held = pa.Table.from_batches(list(copy.rows(NAMED)))
    assert sorted(held["name"].to_pylist()) == ['"name 1"', '"new"']
    with new(options).repair_mirror("orders") as mirror:
        mirror.replace(rows((0, "name 0")))
    assert search_engine.documents(options["index"])["0"]["name"] == "name 0"
    await write(new(options), second)
    assert search_engine.documents(options["index"])["0"]["name"] == "new"


async def test_documents_of_others_are_removed_by_a_repair(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    await write(new(options), named())
    search_engine.call(
        "PUT", f"/{options['index']}/_doc/stray?refresh=true", {"id": 1, "name": "x"}
    )
    with new(options).repair_mirror("orders") as mirror:
        mirror.replace(rows((1, "name 1")))
    assert search_engine.documents(options["index"]) == {
        "0": {"id": 0, "name": "name 0"}, "1": {"id": 1, "name": "name 1"},
    }  # fmt: skip


async def test_a_document_with_a_version_of_somebody_else_is_named(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    await write(new(options), named())
    path = f"/{options['index']}/_doc/1?version={2**62}&version_type=external"
    search_engine.call("PUT", path, {"id": 1, "name": "x"})
    with (
        new(options).repair_mirror("orders") as mirror,
        pytest.raises(TargetRefused, match="have a later version than the feed's"),
    ):
        mirror.replace(rows((1, "name 1")))


async def test_a_log_has_the_order_of_the_events(
    search_engine: SearchEngine, options: dict[str, Any]
) -> None:
    log = {name: value for name, value in options.items() if name != "key"}
    batch = change_span(
        NAMED, [[[{"id": i, "name": "a"} for i in range(3)]], [[{"id": 9, "name": "b"}]]]
    )
    await write(new(log, mode="log"), batch)
    await new(log, mode="log").set_offset("orders", batch.offset)
    await write(new(log, mode="log"), batch)
    found = sorted(search_engine.documents(options["index"]).values(), key=lambda row: row["_seq"])
    assert [row["id"] for row in found] == [0, 1, 2, 9]
    assert found[0]["_event_id"] == batch.event_ids()[0].as_py()


@pytest.mark.parametrize(
    "said",
    [b"", b"[]", b"<html>", b"{}", b'{"items":[]}', b'{"items":[{"index":{}}]}', b"\xff", b"{"],
)
async def test_what_an_answer_lacks_is_a_passing_fault(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """Of somebody between the engine and us."""
    sink = new(options)
    assert isinstance(sink, SearchSink)

    async def lie(*_: Any, **__: Any) -> tuple[int, bytes]:
        return 200, said

    await sink.open("orders")
    await sink.write(named(count=1))
    monkeypatch.setattr(sink.client, "send", lie)
    with pytest.raises(TransientError):
        await sink.write(named(5, version=2))
    await sink.aclose()
    with pytest.raises(TransientError):
        await sink.open("orders")
    await sink.aclose()
