"""Which buckets can have a copy, what others do there, and what is noticed."""

from __future__ import annotations

import re
from typing import Any

import anyio
import nats
import pytest
from nats.js.api import DiscardPolicy, KeyValueConfig, RetentionPolicy, StreamConfig, StreamSource
from nats.js.errors import NotFoundError

from tailer.changes import Offset
from tailer.errors import ConfigError, RowsRefused, SinkRejected, TargetRefused, TransientError
from tailer.testing.batches import change_batch, empty_batch
from tests.sinks.nats_mirror.conftest import found, new, read_ids
from tests.support.brokers import Nats
from tests.support.message_targets import nats_entries
from tests.support.sinks import NAMED, named, rows, write

pytestmark = pytest.mark.anyio


async def test_others_entries_interrupt_the_feed_and_stay(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    sink = new(options)
    await sink.open("orders")
    await sink.write(named())
    entries = await client.key_value(bucket)
    await entries.put("of-others", b"text")
    with pytest.raises(TransientError, match="somebody else publishes to the stream"):
        await sink.write(named(2, version=2))
    assert await sink.open("orders") == named().next_offset
    await sink.write(named(2, version=2))
    await sink.aclose()
    assert read_ids(new(options)) == ["0", "1", "2", "3"]
    assert set(nats_entries(nats_server, bucket)) == {"0", "1", "2", "3", "of-others"}


async def test_a_copy_begins_in_an_empty_bucket(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    entries = await client.create_key_value(KeyValueConfig(bucket, direct=True))
    await entries.put("7", b"{}")
    for _ in range(2):
        with pytest.raises(TargetRefused, match="and a copy begins empty; empty it, or name"):
            await new(options).open("orders")
    with pytest.raises(TargetRefused, match="and a copy begins empty; empty it, or name"):
        await new(options).set_offset("orders", None)
    assert set(nats_entries(nats_server, bucket)) == {"7"}
    await client.purge_stream(f"KV_{bucket}")
    await write(new(options), named())
    assert set(found(nats_server, bucket)) == {"0", "1"}


@pytest.mark.parametrize("before", ["claim", "reset"])
async def test_what_others_write_before_a_copy_begins_stays(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any], before: str
) -> None:
    sink = new(options)
    await sink.open("orders")
    await sink.aclose()
    if before == "reset":
        await sink.set_offset("orders", None)
    await (await client.key_value(bucket)).put("of-others", b"text")
    for _ in range(2):
        with pytest.raises(TargetRefused, match=r"begins empty; empty it \(`tailer offsets reset`"):
            await new(options).open("orders")
    assert set(nats_entries(nats_server, bucket)) == {"of-others"}


async def test_a_copy_whose_rows_have_all_gone_may_have_no_message(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    """Markers may be removed."""
    await write(new(options), named())
    sink = new(options)
    await sink.open("orders")
    await sink.write(rows((0, "name 0"), (1, "name 1"), kind="delete", version=2))
    await (await client.key_value(bucket)).purge_deletes(olderthan=-1)
    assert (await client.stream_info(f"KV_{bucket}")).state.messages == 0
    await sink.write(empty_batch(NAMED, version=3))
    await sink.write(named(7, version=4))
    await sink.write(rows((7, "name 7"), (8, "name 8"), kind="delete", version=5))
    await sink.aclose()
    await (await client.key_value(bucket)).purge_deletes(olderthan=-1)
    await write(new(options), named(9, version=6))
    assert set(found(nats_server, bucket)) == {"9", "10"}


async def test_rows_that_come_again_are_not_counted_twice(
    client: Any, bucket: str, options: dict[str, Any]
) -> None:
    """After the offset was set back, and the row was removed from the copy."""
    await write(new(options), named(), rows((2, "name 2"), version=2))
    await new(options).set_offset("orders", named().next_offset)
    await new(options).set_offset("orders", named().next_offset)
    await write(new(options), rows((2, "name 2"), version=2))
    gone = [(number, f"name {number}") for number in range(3)]
    await write(new(options), change_batch(NAMED, [
        {"id": number, "name": name, "_change_type": "delete"} for number, name in gone
    ], version=3, last=True))  # fmt: skip
    await (await client.key_value(bucket)).purge_deletes(olderthan=-1)
    await write(new(options), named(version=4))


async def test_a_bucket_that_was_emptied_and_has_others_entries_is_noticed(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    await write(new(options), named())
    await client.purge_stream(f"KV_{bucket}")
    await (await client.key_value(bucket)).put("of-others", b"text")
    with pytest.raises(TargetRefused, match=r"\(there are 1 at most, for 2 rows\); `tailer verify"):
        await new(options).open("orders")

    def repair() -> None:
        with new(options).repair_mirror("orders") as mirror:
            mirror.replace(named())

    await anyio.to_thread.run_sync(repair)
    await write(new(options), named(2, version=2))
    assert set(nats_entries(nats_server, bucket)) == {"0", "1", "2", "3", "of-others"}


async def test_a_bucket_that_was_emptied_or_made_again_is_noticed(
    client: Any, bucket: str, options: dict[str, Any]
) -> None:
    sink = new(options)
    await sink.open("orders")
    await sink.write(named())
    await client.purge_stream(f"KV_{bucket}")
    with pytest.raises(TransientError, match="it has lost entries; the feed restarts"):
        await sink.write(rows((1, "name 1"), kind="delete", version=2))
    with pytest.raises(TargetRefused, match=r"has lost entries \(there are 0 at most"):
        await sink.open("orders")
    await sink.aclose()
    await client.delete_key_value(bucket)
    with pytest.raises(ConfigError, match="is missing, and the feed has written to it"):
        await new(options).open("orders")
    await client.create_key_value(KeyValueConfig(bucket, direct=True))
    with pytest.raises(ConfigError, match="was made again since the feed wrote it"):
        await new(options).open("orders")
    await new(options).set_offset("orders", None)
    await write(new(options), named())


async def test_a_copy_without_rows_is_not_an_emptied_one(options: dict[str, Any]) -> None:
    offset = empty_batch(NAMED, version=1).next_offset
    for _ in range(2):
        await write(new(options), empty_batch(NAMED, version=1))
    assert await new(options).look("orders") == offset
    await write(new(options), named(version=2))
    await new(options).set_offset("orders", None)
    assert await new(options).look("orders") is None
    assert await write(new(options), named()) is None


async def test_an_offset_is_set_where_there_is_a_copy(options: dict[str, Any]) -> None:
    with pytest.raises(TargetRefused, match="is no copy yet, and a copy can't start at version 5"):
        await new(options).set_offset("orders", Offset(5))
    await write(new(options), named())
    await new(options).set_offset("orders", Offset(5))
    assert await write(new(options), named(5, version=5)) == Offset(5)


@pytest.mark.parametrize(
    ("odd", "remedy"),
    [
        ({"max_age": 60.0}, "one feed; set max_age to 0"),
        ({"allow_direct": False}, "one feed; set allow_direct to true"),
        ({"max_msgs": 3}, "one feed; set discard to new, or neither max_msgs nor max_bytes"),
        ({"max_bytes": 10_000}, "one feed; set discard to new, or neither"),
        ({"retention": RetentionPolicy.INTEREST}, "one feed; set retention to limits"),
        ({"sources": [StreamSource("others")]}, "one feed; let it have no sources"),
        ({"mirror": StreamSource("others")}, "one feed; let it be no mirror"),
    ],
    ids=str,
)
async def test_a_bucket_that_can_have_no_copy_is_refused(
    client: Any, bucket: str, options: dict[str, Any], odd: dict[str, Any], remedy: str
) -> None:
    config = StreamConfig(
        f"KV_{bucket}", subjects=None if "mirror" in odd else [f"$KV.{bucket}.>"],
        allow_direct=True, discard=DiscardPolicy.OLD, max_msgs_per_subject=1,
    )  # fmt: skip
    await client.add_stream(config.evolve(**odd))
    with pytest.raises(ConfigError, match=remedy):
        await new(options).open("orders")


async def test_a_bucket_that_is_full_is_emptied_by_a_reset(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    config = StreamConfig(
        f"KV_{bucket}", subjects=[f"$KV.{bucket}.>"], allow_direct=True, max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW, max_msgs=3,
    )  # fmt: skip
    await client.add_stream(config)
    with pytest.raises(TransientError, match="maximum messages exceeded"):
        await write(new(options), named(count=4))
    await new(options).set_offset("orders", None)
    assert nats_entries(nats_server, bucket) == {}
    await write(new(options), named())
    assert set(found(nats_server, bucket)) == {"0", "1"}


async def test_a_row_that_the_bucket_does_not_take_is_refused_before_others_are_sent(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    await client.create_key_value(KeyValueConfig(bucket, direct=True, max_value_size=2000))
    sink = new(options)
    await sink.open("orders")
    await sink.write(named())
    batch = rows((2, "name 2"), (3, "x" * 5000), version=2)
    with pytest.raises(RowsRefused, match=r"at most 1488 can .* or max_msg_size of the stream"):
        await sink.write(batch)
    assert set(found(nats_server, bucket)) == {"0", "1"}
    await sink.write(batch.slice(0, 1))
    await sink.aclose()
    assert set(found(nats_server, bucket)) == {"0", "1", "2"}


async def test_a_server_that_could_not_look_has_not_said_that_a_key_is_missing(
    client: Any, bucket: str, options: dict[str, Any], nats_server: Nats
) -> None:
    """As one of a cluster without a leader. The one that stores the entries is asked."""
    sink = new(options)
    await sink.open("orders")
    await sink.write(named())
    config = (await client.stream_info(f"KV_{bucket}")).config
    await client.update_stream(config.evolve(allow_direct=False))  # and others answer
    connection = await nats.connect(nats_server.url())

    async def answer(request: Any) -> None:
        await connection.publish(request.reply, b"", headers={"Status": "503"})

    await connection.subscribe(f"$JS.API.DIRECT.GET.KV_{bucket}.>", cb=answer)
    await connection.flush()
    with pytest.raises(SinkRejected, match="the key '1' comes, and is there"):
        await sink.write(named(1, version=2))
    await sink.aclose()
    await connection.close()


async def test_a_bucket_of_another_feed_is_said_to_be_so(options: dict[str, Any]) -> None:
    await write(new(options), named())
    with pytest.raises(ConfigError, match=r"by the feed 'orders'; name another .* option 'bucket'"):
        await new(options).open("others")


async def test_entries_that_are_no_text_are_left_alone(
    client: Any, nats_server: Nats, bucket: str, options: dict[str, Any]
) -> None:
    await write(new(options), named())
    entries = await client.key_value(bucket)
    await entries.put("of-others", b'{"id":"\xff","name":""}')
    await entries.put("7", b'{"id":7,"name":"\xff"}')
    assert await anyio.to_thread.run_sync(read_ids, new(options)) == ["0", "1"]
    assert set(nats_entries(nats_server, bucket)) == {"0", "1", "7", "of-others"}


@pytest.mark.parametrize("bad", ["delta-tailer", "a.b", "a b", "", "{x}"])
async def test_a_bucket_has_a_name_that_nats_takes(options: dict[str, Any], bad: str) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(repr(bad))} can't be a bucket, which has"):
        await new(options, bucket=bad).open("orders")


async def test_looking_at_a_copy_makes_nothing(
    client: Any, bucket: str, options: dict[str, Any]
) -> None:
    assert await new(options).look("orders") is None
    with new(options).read_mirror("orders") as copy:
        assert copy.offset is None
    with pytest.raises(NotFoundError):
        await client.stream_info(f"KV_{bucket}")
