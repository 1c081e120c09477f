"""What processes leave that are killed or paused, and that no other one is misled by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from nats.js.manager import JetStreamManager

from tailer.changes import ChangeBatch
from tailer.errors import ConfigError, RowsRefused, SinkRejected, TargetRefused, TransientError
from tailer.testing.batches import change_batch, change_span, empty_batch
from tests.sinks.nats_mirror.conftest import found, names, new
from tests.support.brokers import Nats
from tests.support.sinks import NAMED, named, rows, write

pytestmark = pytest.mark.anyio


def update(key: int, before: str, after: str, version: int) -> ChangeBatch:
    """A row that changes: all of a version."""
    images = [
        {"id": key, "name": before, "_change_type": "update_preimage"},
        {"id": key, "name": after, "_change_type": "update_postimage"},
    ]
    return change_batch(NAMED, images, version=version, last=True)


async def cut(*_: Any) -> None:
    raise TransientError("cut")


async def write_without_offset(options: dict[str, Any], batch: ChangeBatch) -> None:
    """Leave what a process leaves that is killed before it stores the offset."""
    sink = new(options)
    await sink.open("orders")
    sink._save_offset = cut  # type: ignore[attr-defined]
    with pytest.raises(TransientError, match="cut"):
        await sink.write(batch)
    await sink.aclose()


def pause_after_claim(sink: Any, work: Callable[[], Awaitable[object]]) -> None:
    """Have others work when this process has stored its claim, and nothing else yet."""
    save = sink._save_progress

    async def save_and_pause(progress: Any) -> None:
        await save(progress)
        sink._save_progress = save
        await work()

    sink._save_progress = save_and_pause


async def test_what_a_crash_has_left_is_sent_again(
    nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    """Also within the time in which a server drops messages whose ids it has seen."""
    await write(new(options), named(count=3))

    changes = [
        {"id": 0, "name": "later", "_change_type": "update_postimage"},
        {"id": 1, "name": "name 1", "_change_type": "delete"},
        {"id": 7, "name": "new"},
    ]
    before = {"id": 0, "name": "name 0", "_change_type": "update_preimage"}
    batch = change_batch(NAMED, [before, *changes], version=2, last=True)
    await write_without_offset(options, batch)
    assert names(nats_server, bucket) == {"0": "later", "2": "name 2", "7": "new"}
    assert await write(new(options), *batch.by_file()) == named(count=3).next_offset
    assert names(nats_server, bucket) == {"0": "later", "2": "name 2", "7": "new"}
    with pytest.raises(SinkRejected, match="the key '7' comes, and is there: the key columns"):
        await write(new(options), rows((7, "again"), version=3))
    with pytest.raises(SinkRejected, match=r"'1' leaves, and is not there: .*verify --repair"):
        await write(new(options), rows((1, "name 1"), kind="delete", version=3))


@pytest.mark.parametrize("first", [[(5, "new")], []], ids=["a row", "nothing"])
async def test_what_a_crash_has_left_comes_in_smaller_batches(
    nats_server: Nats, bucket: str, options: dict[str, Any], first: list[tuple[int, str]]
) -> None:
    """The offset after the first one of them is before what is there."""
    await write(new(options), named())
    of_first = [{"id": key, "name": name} for key, name in first]
    span = change_span(NAMED, [[of_first], [[{"id": 6, "name": "new"}]]], version=2)
    await write_without_offset(options, span)
    smaller = rows(*first, version=2) if first else empty_batch(NAMED, version=2)
    await write(new(options), smaller)
    await write(new(options), rows((6, "new"), version=3))
    assert set(found(nats_server, bucket)) == {"0", "1", "6", *(str(key) for key, _ in first)}
    with pytest.raises(SinkRejected, match="the key '6' comes, and is there"):
        await write(new(options), rows((6, "again"), version=4))


async def test_a_repair_that_is_killed_after_a_crash_stops_no_feed(
    nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    await write(new(options), named())
    row = {"id": 5, "name": "new"}
    images = [
        {"id": 0, "name": "name 0", "_change_type": "update_preimage"},
        {"id": 0, "name": "later", "_change_type": "update_postimage"},
    ]
    batch = change_batch(NAMED, [*images, row], version=2, last=True)
    await write_without_offset(options, batch)

    def repair() -> None:
        with new(options).repair_mirror("orders") as mirror:
            mirror.replace(rows((0, "name 0")))  # and not the row 5

    await anyio.to_thread.run_sync(repair)
    await write(new(options), batch)
    assert names(nats_server, bucket) == {"0": "later", "1": "name 1", "5": "new"}


async def test_a_beginning_that_was_cut_leaves_no_rows(
    nats_server: Nats, bucket: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next snapshot may be another version's."""
    sink = new(options)
    await sink.open("orders")
    assert sink.lacks_beginning
    monkeypatch.setattr(sink, "_save_offset", cut)
    with pytest.raises(TransientError, match="cut"):
        await sink.write(named(count=3))
    await sink.aclose()
    sink = new(options)
    assert await sink.open("orders") is None
    assert not sink.lacks_beginning
    await sink.write(named(5, version=2))
    await sink.aclose()
    assert set(found(nats_server, bucket)) == {"5", "6"}


async def test_an_older_process_that_was_paused_stores_nothing(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    older, newer = new(options), new(options)
    await older.open("orders")
    await older.write(named())
    assert await newer.open("orders") == named().next_offset
    with pytest.raises(ConfigError, match=r"another process writes the stream .* now; stop one"):
        await older.write(named(7, version=2))
    assert set(found(nats_server, bucket)) == {"0", "1"}
    await newer.aclose()
    await new(options).set_offset("orders", None)
    with pytest.raises((ConfigError, TransientError)):
        await older.write(named(7, version=2))
    await older.aclose()
    assert (await client.stream_info(f"KV_{bucket}")).state.messages == 0


async def test_a_process_that_was_paused_in_its_claim_stores_nothing(
    nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    """A newer one has claimed the copy and written it meanwhile."""
    await write(new(options), named())
    older, newer = new(options), new(options)

    async def write_newer() -> None:
        await newer.open("orders")
        await newer.write(update(0, "name 0", "second", 2))
        await newer.write(update(0, "second", "third", 3))

    pause_after_claim(older, write_newer)
    with pytest.raises(ConfigError, match=r"another process writes the stream .* now; stop one"):
        await older.open("orders")
    await newer.write(rows((9, "new"), version=4))
    await newer.aclose()
    await older.aclose()
    assert names(nats_server, bucket) == {"0": "third", "1": "name 1", "9": "new"}


@pytest.mark.parametrize("resets", [False, True], ids=["first claim", "reset"])
async def test_a_process_that_was_paused_removes_no_newer_rows(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any], *, resets: bool
) -> None:
    older = new(options)
    if resets:
        await write(new(options), named())

    async def write_newer() -> None:
        await client.purge_stream(f"KV_{bucket}")
        await write(new(options), named(count=3))

    pause_after_claim(older, write_newer)
    with pytest.raises(ConfigError, match=r"another process writes the stream .* now; stop one"):
        await (older.set_offset("orders", None) if resets else older.open("orders"))
    assert set(found(nats_server, bucket)) == {"0", "1", "2"}
    await write(new(options), named(3, version=2))


async def test_a_process_that_was_paused_behind_its_marker_removes_no_newer_rows(
    nats_server: Nats, bucket: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    older, purge = new(options), JetStreamManager.purge_stream

    async def pause_and_purge(manager: Any, name: str, seq: int | None = None) -> bool:
        monkeypatch.undo()
        await write(new(options), named(count=3))
        return await purge(manager, name, seq=seq)

    monkeypatch.setattr(JetStreamManager, "purge_stream", pause_and_purge)
    assert await older.open("orders") is None
    with pytest.raises(ConfigError, match=r"another process writes the stream .* now; stop one"):
        await older.write(named(count=5))
    await older.aclose()
    assert set(found(nats_server, bucket)) == {"0", "1", "2"}


async def test_what_an_older_process_stores_during_a_claim_is_before_its_marker(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    await write(new(options), named())
    older, newer = new(options), new(options)
    await older.open("orders")

    async def write_older() -> None:
        with pytest.raises(ConfigError, match="another process writes the stream"):
            await older.write(update(0, "name 0", "second", 2))

    pause_after_claim(newer, write_older)
    assert await newer.open("orders") == named().next_offset
    await newer.write(update(0, "name 0", "second", 2))
    await newer.aclose()
    await older.aclose()
    assert names(nats_server, bucket) == {"0": "second", "1": "name 1"}
    assert (await client.stream_info(f"KV_{bucket}")).state.messages == 3  # and the marker


async def test_a_reset_that_was_interrupted_is_seen(
    nats_server: Nats, bucket: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(new(options), named())

    async def end(*_: Any, **__: Any) -> None:
        raise TransientError("cut")

    sink = new(options)
    monkeypatch.setattr(sink, "_fence_bucket", end)
    with pytest.raises(TransientError, match="cut"):
        await sink.set_offset("orders", None)
    with pytest.raises(TargetRefused, match=r"begins empty; empty it \(`tailer offsets reset`"):
        await new(options).open("orders")
    await new(options).set_offset("orders", None)
    assert found(nats_server, bucket) == {}


async def test_a_batch_that_is_refused_in_the_middle_comes_in_halves(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    """The bucket has got a limit since the feed began."""
    sink = new(options)
    await sink.open("orders")
    await sink.write(named())
    config = (await client.stream_info(f"KV_{bucket}")).config
    await client.update_stream(config.evolve(max_msg_size=2000))
    batch = rows((2, "two"), (3, "three"), (4, "x" * 5000), version=2)
    with pytest.raises(RowsRefused, match="message size exceeds maximum"):
        await sink.write(batch)
    assert set(found(nats_server, bucket)) == {"0", "1", "2", "3"}
    await sink.write(batch.slice(0, 1))
    await sink.aclose()
    await write(new(options), batch.slice(1, 2))
    assert set(found(nats_server, bucket)) == {"0", "1", "2", "3"}
