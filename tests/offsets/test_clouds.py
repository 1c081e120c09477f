"""State on S3's, Azure's and Google's storage: one owner, whatever the server says."""

from __future__ import annotations

import anyio
import pytest

from tailer.changes import Offset
from tailer.errors import OffsetError, OffsetHeld, TransientError
from tailer.offsets import OffsetStore
from tailer.storage import open_offset_store
from tests.clouds.servers import CloudServer, Container
from tests.s3.front import Fault, run_front

pytestmark = pytest.mark.anyio


def offsets_of(container: Container, *, standby: bool = False, lease_s: float = 60) -> OffsetStore:
    state = container.address("state")
    return open_offset_store(state, "orders", container.options, lease_s=lease_s, standby=standby)


async def test_of_many_at_once_one_is_the_owner(container: Container) -> None:
    owners: list[OffsetStore] = []
    refused = 0

    async def claim() -> None:
        nonlocal refused
        one = offsets_of(container)
        try:
            await one.acquire()
        except OffsetHeld:
            refused += 1
        else:
            owners.append(one)

    async with anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(claim)
    assert (len(owners), refused) == (1, 11)
    await owners[0].release()


@pytest.mark.parametrize("kind", ["lost", "reset", "500", "503"])
async def test_a_write_whose_answer_is_lost_is_known_again(container: Container, kind: str) -> None:
    """It was done, and the next one is on condition of it."""
    with run_front(container) as front:
        owner = offsets_of(front.bucket)
        front.fail(Fault(kind, "put", 1))
        await owner.acquire()
        for version in range(3):
            front.fail(Fault(kind, "put", 1))
            await owner.save(Offset(version))
        assert front.met[kind] == 4
        await owner.release()
    assert await offsets_of(container).load() == Offset(2)


async def test_a_storm_makes_the_owner_wait_and_not_stop(container: Container) -> None:
    with run_front(container) as front:
        owner = offsets_of(front.bucket)
        await owner.acquire()
        front.fail(Fault("503", "put", 10_000))
        with pytest.raises(TransientError, match="503"):
            await owner.save(Offset(1))
        front.heal()
        await owner.save(Offset(2))
        assert await owner.load() == Offset(2)
        await owner.release()


async def test_a_server_without_conditions_is_refused(azurite: CloudServer) -> None:
    with run_front(azurite.container()) as front:
        front.ignore_conditions = True
        with pytest.raises(OffsetError, match="ignores If-Match"):
            await offsets_of(front.bucket).acquire()
