"""What the local offset file holds beyond the suite of all offset stores."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from tailer.changes import Offset
from tailer.errors import OffsetError, OffsetHeld, TransientError
from tailer.offsets.local import LocalOffsetStore

pytestmark = pytest.mark.anyio

OFFSET = Offset(7, 12, table_id="an-id", timestamp_floor_ms=1_767_225_600_123)


async def saved(folder: Path) -> LocalOffsetStore:
    offsets = LocalOffsetStore(folder, "orders")
    await offsets.acquire()
    await offsets.save(OFFSET)
    await offsets.release()
    return offsets


async def test_any_changed_byte_is_damage(tmp_path: Path) -> None:
    offsets = await saved(tmp_path)
    whole = offsets.path.read_bytes()
    document = json.loads(whole)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        offsets.path.write_bytes(damaged)
        try:
            same = json.loads(damaged) == document
        except ValueError:
            same = False
        if same:  # white space, which means nothing
            continue
        with pytest.raises(OffsetError, match="orders") as caught:
            await offsets.load()
        assert str(offsets.path) in str(caught.value)


@pytest.mark.parametrize("kept", [0, 1, 20, -2])
async def test_a_file_that_was_cut_is_damage(tmp_path: Path, kept: int) -> None:
    offsets = await saved(tmp_path)
    offsets.path.write_bytes(offsets.path.read_bytes()[:kept])
    with pytest.raises(OffsetError, match="damaged"):
        await offsets.load()


@pytest.mark.parametrize("text", ["[]", "null", "{}", '"x"', "12", '{"checksum": 1}', "[" * 5000])
async def test_a_file_of_something_else_is_damage(tmp_path: Path, text: str) -> None:
    offsets = await saved(tmp_path)
    offsets.path.write_text(text)
    await offsets.acquire()
    with pytest.raises(OffsetError, match="damaged"):
        await offsets.load()
    await offsets.save(OFFSET)
    assert await offsets.load() == OFFSET, "its owner may set it anew"
    await offsets.release()


async def test_a_mount_that_is_away_while_it_is_acquired_costs_no_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt reads the file, which the first one had locked and could not read."""
    offsets = await saved(tmp_path)
    await offsets.acquire()
    await offsets.save_orders({"paused": True})
    epoch = offsets.epoch
    await offsets.release()
    again = LocalOffsetStore(tmp_path, "orders")
    with monkeypatch.context() as patched:

        def stale(_: Path) -> bytes:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        patched.setattr(Path, "read_bytes", stale)
        with pytest.raises(TransientError, match="can't be read"):
            await again.acquire()
    other = LocalOffsetStore(tmp_path, "orders")
    await other.acquire()
    await other.release()
    await again.acquire()
    assert await again.load_orders() == {"paused": True}
    assert again.epoch == epoch + 1
    await again.save(OFFSET)
    await again.release()
    assert await again.load_orders() == {"paused": True}


async def test_orders_do_not_make_a_damaged_file_whole(tmp_path: Path) -> None:
    offsets = await saved(tmp_path)
    offsets.path.write_text("{}")
    await offsets.acquire()
    with pytest.raises(OffsetError, match="damaged"):
        await offsets.save_orders({"paused": True})
    await offsets.save(OFFSET)
    await offsets.save_orders({"paused": True})
    assert (await offsets.load(), await offsets.load_orders()) == (OFFSET, {"paused": True})
    await offsets.release()


async def test_the_file_of_another_feed_is_damage(tmp_path: Path) -> None:
    offsets = await saved(tmp_path)
    other = LocalOffsetStore(tmp_path, "customers")
    offsets.path.rename(other.path)
    with pytest.raises(OffsetError, match="belongs to feed 'orders'"):
        await other.load()


async def test_a_crash_while_saving_leaves_the_old_offset(tmp_path: Path) -> None:
    offsets = await saved(tmp_path)
    offsets.path.with_suffix(".tmp").write_bytes(b'{"half')
    assert await offsets.load() == OFFSET
    await offsets.acquire()
    await offsets.save(Offset(8))
    assert await offsets.load() == Offset(8)
    await offsets.release()


async def test_the_names_of_a_new_state_folder_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, sync = [], os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    offsets = await saved(tmp_path / "new" / "state")
    assert synced == [
        tmp_path, tmp_path / "new", offsets.path.with_suffix(".tmp"), offsets.path.parent,
    ]  # fmt: skip


async def test_every_owner_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        offsets = await saved(tmp_path)
        epochs.append(json.loads(offsets.path.read_bytes())["epoch"])
    assert epochs == [1, 2, 3]


async def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file is no folder")
    with pytest.raises(OffsetError, match="can't be kept there") as caught:
        await LocalOffsetStore(tmp_path / "state" / "deep", "orders").acquire()
    assert str(tmp_path / "state" / "deep") in str(caught.value)


async def test_a_disk_that_does_not_save_may_heal(tmp_path: Path) -> None:
    offsets = LocalOffsetStore(tmp_path, "orders")
    offsets.path.with_suffix(".tmp").mkdir()
    with pytest.raises(TransientError, match="orders"):
        await offsets.save(OFFSET)


HOLDER = """
import sys, anyio
from pathlib import Path
from tailer.offsets.local import LocalOffsetStore

async def hold():
    await LocalOffsetStore(Path(sys.argv[1]), "orders").acquire()
    print("held", flush=True)
    sys.stdin.read()

anyio.run(hold)
"""


def test_another_process_is_kept_out_until_the_owner_dies(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        offsets = LocalOffsetStore(tmp_path, "orders")
        with pytest.raises(OffsetHeld, match=rf"process {holder.pid} of user .* holds the offset"):
            anyio.run(offsets.acquire)
        os.kill(holder.pid, 9)  # it has no time to clean up
    anyio.run(offsets.acquire)
    anyio.run(offsets.release)


async def test_a_file_that_can_t_be_read_is_refused_by_name(tmp_path: Path) -> None:
    offsets = LocalOffsetStore(tmp_path, "orders")
    offsets.path.mkdir()
    await offsets.acquire()
    with pytest.raises(OffsetError, match="can't be read"):
        await offsets.load()
    with pytest.raises(TransientError, match="can't be removed"):
        await offsets.clear()
    await offsets.release()
    with pytest.raises(OffsetError, match="can't be read"):
        await offsets.load_orders()


async def test_a_save_that_waits_while_it_is_released_is_refused(tmp_path: Path) -> None:
    """By then, the next owner may have saved."""
    store = LocalOffsetStore(tmp_path, "f")
    await store.acquire()
    await store.save(Offset(1))

    async def save_late() -> None:
        with pytest.raises(TransientError, match="released before it was saved"):
            await store.save(Offset(9))

    async with anyio.create_task_group() as tasks, store._writing:
        tasks.start_soon(store.release)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(save_late)
        await anyio.wait_all_tasks_blocked()
    assert await LocalOffsetStore(tmp_path, "f").load() == Offset(1)


@pytest.mark.parametrize("mask", [0, 0o022])
async def test_state_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        await saved(tmp_path / "state")
    finally:
        os.umask(before)
    state = tmp_path / "state"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}
    assert modes == {"orders.offset.json": 0o600, "orders.offset.lock": 0o600}
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


async def test_state_of_an_earlier_version_becomes_private_when_it_is_acquired(
    tmp_path: Path,
) -> None:
    await saved(tmp_path)
    files = [*tmp_path.iterdir()]  # noqa: ASYNC240
    for path in files:
        path.chmod(0o666)
    again = LocalOffsetStore(tmp_path, "orders")
    await again.acquire()
    await again.release()
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


HOLD = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDONLY)
if sys.argv[2:]:
    os.setuid(int(sys.argv[2]))
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(lock: Path, *user: str) -> Iterator[int]:
    """Hold a lock in another process; give its number."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock), *user],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.stdin.close()


async def test_a_refusal_names_the_process_that_holds_the_offset(tmp_path: Path) -> None:
    offsets = await saved(tmp_path)
    with (
        holding(offsets.path.with_suffix(".lock")) as pid,
        pytest.raises(
            OffsetHeld, match=f"process {pid} of user .* holds the offset of feed 'orders'"
        ),
    ):
        await offsets.acquire()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")
@pytest.mark.parametrize("standby", [True, False])
async def test_a_stranger_who_holds_the_lock_is_not_stood_by_for(
    tmp_path: Path, *, standby: bool
) -> None:
    """Its process opened the file while its mode let it. The feed goes on when it has ended."""
    await saved(tmp_path)
    again = LocalOffsetStore(tmp_path, "orders", standby=standby)
    lock = again.path.with_suffix(".lock")
    lock.chmod(0o644)
    with holding(lock, "65534") as pid:
        with pytest.raises(TransientError, match=rf"process {pid} of user \S+ holds the lock"):
            await again.acquire()
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600, "no other one can open it"
    await again.acquire()
    assert await again.load() == OFFSET
    await again.release()
