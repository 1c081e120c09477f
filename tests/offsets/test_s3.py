"""What the offset store on S3 holds beyond the suite of all: leases, and their loss."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from tailer.changes import ChangeBatch, Offset
from tailer.errors import ConfigError, OffsetError, TableError, TransientError
from tailer.offsets import OffsetStore
from tailer.offsets.document import encode_document
from tailer.offsets.leased import LeasedOffsetStore
from tailer.offsets.local import LocalOffsetStore
from tailer.offsets.owner import is_dead, this_process
from tailer.storage import open_offset_store
from tailer.store.local import LocalStore
from tailer.testing.table import TableBuilder
from tests.s3.fixture import Bucket
from tests.s3.front import Fault, run_front
from tests.s3.objects import Objects
from tests.s3.tables import Collected, deliver
from tests.support.feeds import position_of
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.anyio

LEASE_S = 1.5
# As long as this no process is kept from renewing, however busy the machine is.
LASTING_S = 6.0
KEY = "state/orders.offset.json"


def offsets_of(
    bucket: Bucket, *, standby: bool = True, lease_s: float = LEASE_S
) -> LeasedOffsetStore:
    found = open_offset_store(
        bucket.address("state"), "orders", bucket.options, standby=standby, lease_s=lease_s
    )
    assert isinstance(found, LeasedOffsetStore)
    return found


@pytest.fixture
async def objects(bucket: Bucket) -> AsyncIterator[Objects]:
    async with Objects(bucket) as objects:
        yield objects


async def document(objects: Objects) -> dict[str, object]:
    found: dict[str, object] = json.loads(await objects.get(KEY))
    return found


def waits_for(store: OffsetStore) -> str | None:
    return store.waiting_for


async def stop_renewing(offsets: LeasedOffsetStore) -> None:
    """What a paused process does not do."""
    assert offsets._renewal is not None
    offsets._renewal.cancel()
    await asyncio.wait([offsets._renewal])


async def test_an_idle_owner_keeps_its_lease(bucket: Bucket, objects: Objects) -> None:
    owner, other = (offsets_of(bucket, lease_s=LASTING_S) for _ in range(2))
    await owner.acquire()
    await owner.save(Offset(3))
    with anyio.move_on_after(LASTING_S * 1.5) as scope:
        await other.acquire()
    assert scope.cancelled_caught, "it waits, as long as the owner lives"
    assert (await document(objects))["sequence"] > 4  # type: ignore[operator]  # it renewed
    await owner.check()
    await owner.save(Offset(4))
    await owner.release()


async def test_a_standby_says_whom_it_waits_for_and_is_next(bucket: Bucket) -> None:
    owner, standby = (offsets_of(bucket, lease_s=LASTING_S) for _ in range(2))
    await owner.acquire()
    await owner.save(Offset(3))
    assert waits_for(standby) is None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(standby.acquire)
        with anyio.fail_after(150):
            await eventually_async(lambda: waits_for(standby), why="it waits")
            assert f"process {os.getpid()} on " in str(waits_for(standby))
            await owner.release()
    assert waits_for(standby) is None
    assert await standby.load() == Offset(3)
    assert standby.epoch == owner.epoch + 1
    await standby.release()


async def test_a_lapsed_lease_is_taken_over_and_its_owner_writes_no_more(bucket: Bucket) -> None:
    owner, standby = offsets_of(bucket), offsets_of(bucket)
    await owner.acquire()
    await owner.save(Offset(3))
    await stop_renewing(owner)
    with anyio.fail_after(150):
        await standby.acquire()
    await standby.save(Offset(5))
    sentence = rf"process {os.getpid()} on .* has taken feed 'orders' over, with epoch 2"
    with pytest.raises(OffsetError, match=sentence):
        await owner.check()
    with pytest.raises(OffsetError, match="has taken"):
        await owner.save(Offset(4))
    await owner.release()
    assert await standby.load() == Offset(5), "the older one's release changed nothing"
    await standby.release()


async def test_an_owner_that_tries_again_does_not_go_on_from_anothers_offset(
    bucket: Bucket,
) -> None:
    """It trusts its lease, but the other one did not wait for its end: the server's clock was
    set."""
    owner, thief = offsets_of(bucket, lease_s=60), offsets_of(bucket, lease_s=0.01)
    await owner.acquire()
    await owner.save(Offset(3))
    assert await owner.load() == Offset(3)
    seen = await thief._object.get()
    thief._held = await thief._claim_object(seen)
    await owner.check()
    for _ in range(2):
        with pytest.raises(OffsetError, match="has taken feed 'orders' over, with epoch 2"):
            await owner.load()
    with pytest.raises(OffsetError, match="has taken"):
        await owner.check()
    await owner.release()


async def test_a_lapsed_lease_that_nobody_took_is_good_again(bucket: Bucket) -> None:
    owner = offsets_of(bucket)
    await owner.acquire()
    await stop_renewing(owner)
    await anyio.sleep(LEASE_S)
    await owner.check()
    await owner.save(Offset(4))
    await owner.release()


async def test_a_feed_that_lost_its_lease_writes_nothing_more(
    bucket: Bucket, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path / "orders", pa.schema([("id", pa.int64())]))
    table.create()
    for number in range(1, 4):
        table.insert([{"id": number}])
    owner, thief = offsets_of(bucket, lease_s=LEASE_S), offsets_of(bucket)

    async def pause(batch: ChangeBatch) -> None:
        """In the middle of version 2 the process is paused for long, and another one comes."""
        if batch.version == 2:
            await stop_renewing(owner)
            await thief.acquire()

    sink = Collected(before_write=pause)
    with pytest.raises(OffsetError, match="has taken feed 'orders' over"):
        await deliver(LocalStore(str(table.folder)), Offset(1), 3, sink=sink, offsets=owner)
    assert [row["id"] for row in sink.events.values()] == [1, 2], "the one in hand, none after it"
    assert position_of(await thief.load()) == (2, 0)
    await thief.release()


async def test_the_lease_of_a_dead_process_is_not_waited_for(bucket: Bucket) -> None:
    program = """
import os, sys, anyio
from tailer.changes import Offset
from tailer.storage import open_offset_store
async def main():
    options = {"endpoint_url": sys.argv[2], "region": sys.argv[3]}
    store = open_offset_store(sys.argv[1], "orders", options, lease_s=60)
    await store.acquire()
    await store.save(Offset(7))
    os.kill(os.getpid(), 9)
anyio.run(main)
"""
    arguments = [bucket.address("state"), bucket.url, str(bucket.options["region"])]
    ended = await anyio.run_process([sys.executable, "-c", program, *arguments], check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    heir = offsets_of(bucket, standby=False)  # it would refuse, rather than wait for a minute
    await heir.acquire()
    assert (await heir.load(), heir.epoch) == (Offset(7), 2)
    await heir.release()


def test_a_process_is_told_from_its_namesakes() -> None:
    here = this_process()
    assert not is_dead(here)
    assert is_dead({**here, "started": here["started"] - 1}), "its number was given away again"
    assert not is_dead({**here, "machine": "another", "pid": 1}), "that can't be known from here"
    assert not is_dead({"host": "x", "pid": 1})
    with subprocess.Popen(["sleep", "60"]) as process:
        started = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        other = {**here, "pid": process.pid, "started": started}
        assert not is_dead(other)
        process.send_signal(signal.SIGSTOP)
        assert not is_dead(other), "it may go on"
        process.kill()
    assert is_dead(other)


async def test_who_comes_in_a_storm_waits_for_its_end(bucket: Bucket) -> None:
    with run_front(bucket) as front:
        front.fail(Fault("503", "get", 10_000))
        late = offsets_of(front.bucket)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late.acquire)
            await eventually_async(lambda: waits_for(late), why="it waits")
            assert "503" in str(waits_for(late))
            front.heal()
        await late.save(Offset(1))
        await late.release()


ALWAYS = 10**6


async def test_a_claim_that_is_always_refused_is_said_and_not_repeated_for_ever(
    bucket: Bucket,
) -> None:
    with run_front(bucket) as front:
        front.fail(Fault("refused", "put", ALWAYS))
        with pytest.raises(TransientError, match="refused 5 writes of the offset in succession"):
            await offsets_of(front.bucket).acquire()
        assert front.requests["put"] == 5


async def test_a_server_with_another_etag_in_each_answer_is_said(bucket: Bucket) -> None:
    first = offsets_of(bucket)
    await first.acquire()
    await first.release()
    with run_front(bucket) as front:
        front.fail(Fault("any etag", "get", ALWAYS))
        with pytest.raises(TransientError, match="refused 5 writes of the offset in succession"):
            await offsets_of(front.bucket).acquire()
        assert front.requests["put"] == 5


async def test_a_write_that_is_always_refused_is_said_and_not_repeated_for_ever(
    bucket: Bucket,
) -> None:
    with run_front(bucket) as front:
        owner = offsets_of(front.bucket, lease_s=60)
        await owner.acquire()
        await stop_renewing(owner)
        before = front.requests["put"]
        front.fail(Fault("refused", "put", ALWAYS))
        with pytest.raises(TransientError, match="and nobody did; check endpoint_url"):
            await owner.save(Offset(1))
        assert front.requests["put"] - before == 5
        front.heal()
        await owner.save(Offset(2))
        assert await owner.load() == Offset(2)
        await owner.release()


async def test_a_server_that_knows_no_writes_is_refused_at_once(bucket: Bucket) -> None:
    """It says "not found" to all, as another service at the endpoint does."""
    with run_front(bucket) as front:
        front.fail(Fault("not found", "put", ALWAYS))
        with pytest.raises(TableError, match=r"refused put with 404 .*check the address,"):
            await offsets_of(front.bucket).acquire()
        assert front.requests["put"] == 1


@pytest.mark.parametrize(
    ("kind", "words"),
    [("weak etag", 'W/"[^"]+".*, does not name its state'), ("no etag", "comes without an ETag")],
)
async def test_an_etag_that_names_no_state_is_refused(
    bucket: Bucket, kind: str, words: str
) -> None:
    first = offsets_of(bucket)
    await first.acquire()
    await first.save(Offset(3))
    await first.release()
    with run_front(bucket) as front:
        front.fail(Fault(kind, "get", ALWAYS))
        late = offsets_of(front.bucket)
        with pytest.raises(OffsetError, match=f"{words}.* two daemons can't be kept apart; keep"):
            await late.acquire()
        assert front.requests["put"] == 0
        assert await late.load() == Offset(3), "it can be read"


async def test_a_write_whose_answer_has_no_etag_is_looked_up(bucket: Bucket) -> None:
    with run_front(bucket) as front:
        front.fail(Fault("no etag", "put", ALWAYS))
        owner = offsets_of(front.bucket, lease_s=60)
        await owner.acquire()
        before = front.requests["put"]
        for version in range(3):
            await owner.save(Offset(version))
        assert front.requests["put"] - before == 3
        assert await owner.load() == Offset(2)
        await owner.release()
        front.ignore_conditions = True
        with pytest.raises(OffsetError, match="ignores If-Match"):
            await offsets_of(front.bucket).acquire()


async def test_what_is_there_as_it_was_sent_is_taken_for_written(
    bucket: Bucket, objects: Objects
) -> None:
    with run_front(bucket) as front:
        owner = offsets_of(front.bucket, lease_s=60)
        await owner.acquire()
        await stop_renewing(owner)
        before = (await document(objects))["sequence"]
        front.fail(Fault("lost", "put", 1))  # the repeated request meets what the first one wrote
        await owner.save(Offset(7))
        assert (await document(objects))["sequence"] == before + 1  # type: ignore[operator]
        # One of before, with the same content, says nothing of when this one arrived.
        front.fail(Fault("lost", "put", ALWAYS))
        with pytest.raises(TransientError):
            await owner.save(Offset(8))
        front.heal()
        renewed = owner._renewed_at
        await owner.save(Offset(8))
        # The failed one wrote, then one was refused, and one after a look was not.
        assert (await document(objects))["sequence"] == before + 4  # type: ignore[operator]
        assert owner._renewed_at > renewed
        await owner.release()


async def test_a_damaged_document_is_said_and_not_overwritten_by_a_guess(
    bucket: Bucket, objects: Objects
) -> None:
    await objects.put(KEY, b'{"offset": ')
    owner = offsets_of(bucket)
    await owner.acquire()
    for _ in range(2):
        with pytest.raises(OffsetError, match=r"s3://.*damaged.*tailer offsets set"):
            await owner.load()
        await owner.release()
        await owner.acquire()
    await owner.save(Offset(4))
    assert await owner.load() == Offset(4)
    await owner.release()


async def test_a_document_that_was_removed_stops_its_owner(
    bucket: Bucket, objects: Objects
) -> None:
    owner = offsets_of(bucket)
    await owner.acquire()
    await owner.save(Offset(4))
    await objects.delete(KEY)
    with pytest.raises(OffsetError, match="the offset of feed 'orders' was removed"):
        await owner.save(Offset(5))
    await owner.release()


async def test_the_epoch_grows_with_every_owner_and_outlives_a_reset(bucket: Bucket) -> None:
    for epoch in range(1, 4):
        owner = offsets_of(bucket)
        await owner.acquire()
        assert owner.epoch == epoch
        await owner.clear()
        await owner.release()


async def test_no_secret_is_in_the_document(bucket: Bucket, objects: Objects) -> None:
    owner = offsets_of(bucket)
    await owner.acquire()
    await owner.save(Offset(1))
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in json.dumps(await document(objects))
    await owner.release()


#: As the first release writes it, while a process holds the lease. Never change it: a later release
#: must read it.
HELD = {
    "format": 1, "feed": "orders",
    "owner": {
        "id": "1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d", "host": "node-1", "pid": 4711,
        "run": "5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e", "machine": "a boot pid:[1] time:[2]",
        "started": 12345,
    },
    "lease_s": 1.0, "epoch": 1, "sequence": 3,
    "offset": {
        "format": 1, "table_id": "kept", "version": 3, "index": 4, "snapshot": False,
        "timestamp_floor_ms": 1700000002000, "plan": "7c45662334b3",
    },
    "orders": {"skips": [9]},
}  # fmt: skip


@pytest.mark.parametrize("owned", [True, False])
async def test_a_lease_of_the_first_release_is_taken_over_with_offset_and_orders(
    bucket: Bucket, objects: Objects, *, owned: bool
) -> None:
    """Its owner is no process of this machine: a lease that is held runs out."""
    kept = {name: value for name, value in HELD.items() if owned or name != "owner"}
    await objects.put(KEY, encode_document(kept))
    store = offsets_of(bucket)
    await store.acquire()
    place = Offset(3, 4, False, "kept", 1_700_000_002_000, "7c45662334b3")
    assert await store.load() == place
    assert await store.load_orders() == {"skips": [9]}
    assert store.epoch == 2
    await store.save(place)
    after = await document(objects)
    await store.release()
    assert set(after) == {*HELD, "checksum"}
    assert json.dumps(after["offset"]) == json.dumps(HELD["offset"])


async def test_stores_are_opened_by_their_address(bucket: Bucket, tmp_path: Path) -> None:
    store = open_offset_store(bucket.address("state"), "orders", bucket.options, lease_s=60.0)
    assert isinstance(store, LeasedOffsetStore)
    assert store.path == bucket.address(KEY)
    local = open_offset_store(tmp_path, "orders", lease_s=60.0)
    assert isinstance(local, LocalOffsetStore)
    with pytest.raises(ConfigError, match="no store for 'http://host/state'"):
        open_offset_store("http://host/state", "orders", lease_s=60.0)


async def test_a_local_standby_waits_for_the_lock(tmp_path: Path) -> None:
    owner = LocalOffsetStore(tmp_path, "orders")
    standby = LocalOffsetStore(tmp_path, "orders", standby=True)
    await owner.acquire()
    await owner.save(Offset(3))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(standby.acquire)
        await eventually_async(lambda: waits_for(standby), why="it waits")
        await owner.release()
    assert await standby.load() == Offset(3)
    with anyio.move_on_after(0.1) as scope:
        await owner.check()
        await LocalOffsetStore(tmp_path, "orders", standby=True).acquire()
    assert scope.cancelled_caught, "waiting can be cancelled"
    await standby.release()
