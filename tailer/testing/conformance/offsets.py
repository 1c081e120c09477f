"""What every offset store must hold (:class:`tailer.offsets.OffsetStore`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tailer.changes import Offset
from tailer.errors import OffsetError
from tailer.offsets import OffsetStore

__all__ = ["MakeOffsetStore", "OffsetStoreConformance", "PersistentOffsetStoreConformance"]

#: A new handle on the offset of the feed with that name, as another process would make it.
MakeOffsetStore = Callable[[str], OffsetStore]

OFFSETS = [
    Offset(0),
    Offset(7, 12, table_id="2f1c-id", timestamp_floor_ms=1_767_225_600_123),
    Offset(3, 5, snapshot=True, table_id="2f1c-id", delivered_files=9),
    Offset(2**62, 2**40, table_id="größe 'x'", timestamp_floor_ms=0),
    Offset(7, table_id="2f1c-id", timestamp_floor_ms=5, commit_id="93cd0b860dc2"),
]

ORDERS = {"paused": True, "skips": [12], "resnapshots": [{"where": "country = 'DE'"}]}
NAMES = ["orders", "Orders", "orders.eu", "orders/eu", "orders%2Feu", "größe 数", "..", "a b"]


@pytest.mark.anyio
class OffsetStoreConformance:
    """What holds for one handle, even if the offset ends with it.

    Subclass it and provide the fixture ``make_offsets``.
    """

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Return the event loop's name: asyncio."""
        return "asyncio"

    @pytest.fixture
    def make_offsets(self) -> MakeOffsetStore:
        """Return a function that makes handles; nothing is saved yet for any feed."""
        raise NotImplementedError

    async def test_nothing_is_saved_at_first(self, make_offsets: MakeOffsetStore) -> None:
        offsets = make_offsets("orders")
        assert await offsets.load() is None
        await offsets.acquire()
        assert await offsets.load() is None
        await offsets.release()

    @pytest.mark.parametrize("offset", OFFSETS, ids=str)
    async def test_an_offset_is_loaded_as_it_was_saved(
        self, make_offsets: MakeOffsetStore, offset: Offset
    ) -> None:
        offsets = make_offsets("orders")
        await offsets.acquire()
        await offsets.save(offset)
        loaded = await offsets.load()
        # Offsets compare by place alone; here, every field has to come back.
        assert loaded is not None
        assert loaded.to_json() == offset.to_json()
        await offsets.release()

    async def test_the_last_offset_saved_is_the_one(self, make_offsets: MakeOffsetStore) -> None:
        offsets = make_offsets("orders")
        await offsets.acquire()
        for index in range(50):
            await offsets.save(Offset(1, index))
        assert await offsets.load() == Offset(1, 49)
        await offsets.save(Offset(0))
        assert await offsets.load() == Offset(0), "going back is the operator's right"
        await offsets.release()

    async def test_a_cleared_offset_is_none(self, make_offsets: MakeOffsetStore) -> None:
        offsets = make_offsets("orders")
        await offsets.acquire()
        await offsets.clear()
        await offsets.save(Offset(3))
        await offsets.clear()
        assert await offsets.load() is None
        await offsets.save(Offset(4))
        assert await offsets.load() == Offset(4)
        await offsets.release()

    async def test_its_owner_may_acquire_again(self, make_offsets: MakeOffsetStore) -> None:
        offsets = make_offsets("orders")
        await offsets.acquire()
        await offsets.acquire()
        await offsets.save(Offset(1))
        await offsets.release()
        await offsets.release()
        await offsets.acquire()
        assert await offsets.load() is not None
        await offsets.release()


class PersistentOffsetStoreConformance(OffsetStoreConformance):
    """What holds in addition for stores whose offset outlives its process: their purpose."""

    async def test_another_process_finds_the_offset(self, make_offsets: MakeOffsetStore) -> None:
        for version in (1, 2, 3):
            offsets = make_offsets("orders")
            await offsets.acquire()
            found = await offsets.load()
            assert found == (Offset(version - 1, 9) if version > 1 else None)
            await offsets.save(Offset(version, 9))
            await offsets.release()
        assert await make_offsets("orders").load() == Offset(3, 9), "reading needs no ownership"

    async def test_orders_are_kept_beside_the_offset(self, make_offsets: MakeOffsetStore) -> None:
        first = make_offsets("orders")
        await first.acquire()
        assert await first.load_orders() == {}
        await first.save_orders(ORDERS)
        assert await first.load() is None, "a feed may be paused before it has an offset"
        await first.save(Offset(5))
        assert await first.load_orders() == ORDERS
        await first.release()
        assert await make_offsets("orders").load_orders() == ORDERS
        second = make_offsets("orders")
        await second.acquire()
        assert (await second.load(), await second.load_orders()) == (Offset(5), ORDERS)
        await second.save_orders({})
        assert (await second.load(), await second.load_orders()) == (Offset(5), {})
        await second.save_orders(ORDERS)
        await second.clear()
        assert (await second.load(), await second.load_orders()) == (None, {})
        await second.release()

    async def test_feeds_do_not_see_each_other(self, make_offsets: MakeOffsetStore) -> None:
        for version, name in enumerate(NAMES):
            offsets = make_offsets(name)
            await offsets.acquire()
            await offsets.save(Offset(version))
            await offsets.release()
        for version, name in enumerate(NAMES):
            assert await make_offsets(name).load() == Offset(version), name
        gone = make_offsets(NAMES[0])
        await gone.acquire()
        await gone.clear()
        await gone.release()
        assert await make_offsets(NAMES[0]).load() is None
        assert await make_offsets(NAMES[1]).load() == Offset(1)

    async def test_only_one_owner_at_a_time(self, make_offsets: MakeOffsetStore) -> None:
        first, second = make_offsets("orders"), make_offsets("orders")
        await first.acquire()
        with pytest.raises(OffsetError, match="orders"):
            await second.acquire()
        await first.save(Offset(5))
        await first.release()
        await second.acquire()
        assert await second.load() == Offset(5)
        with pytest.raises(OffsetError, match="orders"):
            await first.acquire()
        await second.release()

    async def test_owners_of_two_feeds_do_not_meet(self, make_offsets: MakeOffsetStore) -> None:
        first, second = make_offsets("orders"), make_offsets("orders.eu")
        await first.acquire()
        await second.acquire()
        await first.release()
        await second.release()
