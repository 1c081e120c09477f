"""What every store must hold (:class:`tailer.store.Store`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import pytest

from tailer.store import FileStatus, Store
from tailer.store.fetched_files import FetchedFiles, NotFetched

__all__ = ["Put", "StoreConformance"]

#: Writes a file's bytes under a location, replacing what is there.
Put = Callable[[str, bytes], Awaitable[None]]

#: Locations are plain text: nothing in them is encoded, whatever it looks like.
AWKWARD = [
    "data/plain.parquet",
    "data/with space.parquet",
    "data/percent%20sign%.parquet",
    "data/plus+hash#question?.parquet",
    "data/größe-数.parquet",
    "country=d%3Ae/day=2026-01-31 10%3A00/part.parquet",
]


@pytest.mark.anyio
class StoreConformance:
    """Subclass it and provide the fixtures ``store`` and ``put``."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Return the event loop's name: asyncio."""
        return "asyncio"

    @pytest.fixture
    def store(self) -> Store:
        """Return the store under test, of a table without any file."""
        raise NotImplementedError

    @pytest.fixture
    def put(self) -> Put:
        """Return a function that writes a file into the table as a writer does, atomically."""
        raise NotImplementedError

    async def _list_names(self, store: Store, folder: str, start_after: str = "") -> list[str]:
        return sorted([status.name async for status in store.list(folder, start_after)])

    async def test_a_folder_that_is_not_there_lists_nothing(self, store: Store) -> None:
        assert await self._list_names(store, "_delta_log") == []

    async def test_a_listing_has_the_files_of_one_folder(self, store: Store, put: Put) -> None:
        await put("_delta_log/1.json", b"one")
        await put("_delta_log/2.json", b"two!")
        await put("_delta_log/_sidecars/3.parquet", b"three")
        await put("_delta_log_old/4.json", b"four")
        found = {s.name: s.size async for s in store.list("_delta_log")}
        assert {n: found[n] for n in sorted(found)} == {"1.json": 3, "2.json": 4}

    async def test_start_after_is_exclusive(self, store: Store, put: Put) -> None:
        for name in ("1.json", "2.json", "3.json"):
            await put(f"_delta_log/{name}", b"{}")
        assert await self._list_names(store, "_delta_log", "2.json") == ["3.json"]
        assert await self._list_names(store, "_delta_log", "2") == ["2.json", "3.json"]
        assert await self._list_names(store, "_delta_log", "4") == []

    async def test_a_listing_has_every_one_of_many_files(self, store: Store, put: Put) -> None:
        names = [f"{i:020d}.json" for i in range(1100)]
        for name in names:
            await put(f"_delta_log/{name}", b"")
        assert await self._list_names(store, "_delta_log") == names
        assert await self._list_names(store, "_delta_log", names[1050]) == names[1051:]

    async def test_list_stat_and_read_give_one_status(self, store: Store, put: Put) -> None:
        await put("_delta_log/1.json", b"some bytes")
        (listed,) = [status async for status in store.list("_delta_log")]
        _, read = await store.read("_delta_log/1.json")
        assert listed == await store.stat("_delta_log/1.json") == read
        assert listed.name == "1.json"
        assert listed.size == 10
        assert listed.mtime_ms > 1_577_836_800_000  # 2020: in milliseconds, and since 1970

    async def test_what_is_not_there_is_file_not_found(self, store: Store) -> None:
        with pytest.raises(FileNotFoundError):
            await store.stat("data/none.parquet")
        with pytest.raises(FileNotFoundError):
            await store.read("data/none.parquet")
        with pytest.raises(FileNotFoundError):
            await store.open("data/none.parquet", 10)

    async def test_a_whole_file_is_read(self, store: Store, put: Put) -> None:
        content = bytes(range(256)) * 20_000  # five megabytes: more than one chunk of anything
        await put("data/large.bin", content)
        data, status = await store.read("data/large.bin")
        assert data == content
        assert status.size == len(content)

    @pytest.mark.parametrize(
        ("offset", "length", "expected"),
        [
            (0, 3, b"012"),
            (3, 4, b"3456"),
            (8, None, b"89"),
            (8, 100, b"89"),
            (10, None, b""),
            (10, 5, b""),
            (50, 5, b""),
            (0, 0, b""),
        ],
    )
    async def test_a_range_is_cut_at_the_end_of_the_file(
        self, store: Store, put: Put, offset: int, length: int | None, expected: bytes
    ) -> None:
        await put("data/digits", b"0123456789")
        data, status = await store.read("data/digits", offset, length)
        assert data == expected
        assert status.size == 10, "the status is of the whole file, whatever part is read"

    async def test_many_files_are_brought_at_once(self, store: Store, put: Put) -> None:
        names = [f"data/{i}" for i in range(30)]
        for i, name in enumerate(names):
            await put(name, b"x" * i)
        wanted = [*names, "data/none"]
        found = await store.read_many([(name, 20) for name in wanted])
        fetched = FetchedFiles(store.root, dict(zip(wanted, found, strict=True)))
        for name in names:
            assert fetched.stat_here(name) == await store.stat(name)
            assert fetched.read_here(name, 3, 5) == await store.read(name, 3, 5)
            assert fetched.read_here(name, 0, 20) == await store.read(name, 0, 20)
        with fetched.open_here("data/20") as file:
            assert file.read() == b"x" * 20
        with pytest.raises(FileNotFoundError):
            fetched.open_here("data/none")
        for absent in ("data/21", "data/other"):
            with pytest.raises(NotFetched):
                fetched.open_here(absent)
        with pytest.raises(NotFetched):
            fetched.read_here("data/21", 0, 21)

    async def test_an_empty_file_is_a_file(self, store: Store, put: Put) -> None:
        await put("data/empty", b"")
        assert await store.read("data/empty") == (b"", await store.stat("data/empty"))
        assert (await store.stat("data/empty")).size == 0

    async def test_the_tag_changes_with_the_file_and_not_without(
        self, store: Store, put: Put
    ) -> None:
        async def status() -> FileStatus:
            return await store.stat("_delta_log/1.json")

        await put("_delta_log/1.json", b"old bytes")
        first = await status()
        assert await status() == first
        await put("_delta_log/1.json", b"new bytes")
        assert (await status()).tag != first.tag

    async def test_an_open_file_is_read_at_random_and_from_threads(
        self, store: Store, put: Put
    ) -> None:
        content = bytes(i % 251 for i in range(100_000))
        await put("data/part.parquet", content)
        file = await store.open("data/part.parquet", len(content))

        def read(at: int) -> bytes:
            file.seek(at)
            return bytes(file.read(1000))

        with file:
            assert file.size() == len(content)
            for at in (99_000, 0, 50_000):
                assert await anyio.to_thread.run_sync(read, at) == content[at : at + 1000]

    async def test_a_file_can_be_opened_without_its_size(self, store: Store, put: Put) -> None:
        await put("data/part.parquet", b"PAR1")
        with await store.open("data/part.parquet", None) as file:
            assert (file.size(), file.read()) == (4, b"PAR1")

    @pytest.mark.parametrize("location", AWKWARD)
    async def test_a_location_is_plain_text(self, store: Store, put: Put, location: str) -> None:
        await put(location, location.encode())
        data, status = await store.read(location)
        assert data == location.encode()
        folder, _, name = location.rpartition("/")
        assert status.name == name
        assert await self._list_names(store, folder) == [name]
        with await store.open(location, len(data)) as file:
            assert file.read() == data

    async def test_many_reads_at_once_do_not_mix(self, store: Store, put: Put) -> None:
        for i in range(20):
            await put(f"data/{i}", str(i).encode() * 1000)
        found: dict[int, bytes] = {}

        async def read(i: int) -> None:
            found[i] = (await store.read(f"data/{i}"))[0]

        async with anyio.create_task_group() as tasks:
            for i in range(20):
                tasks.start_soon(read, i)
        assert found == {i: str(i).encode() * 1000 for i in range(20)}

    async def test_a_watch_waits_no_longer_than_it_is_told(self, store: Store, put: Put) -> None:
        await put("_delta_log/1.json", b"{}")
        async with store.watch("_delta_log") as watch:
            await watch.wait(0.001)
            await watch.wait(0.001)

    async def test_a_folder_that_is_not_there_can_be_watched(self, store: Store) -> None:
        async with store.watch("_delta_log") as watch:
            await watch.wait(0.001)

    async def test_closing_twice_is_harmless(self, store: Store) -> None:
        await store.aclose()
        await store.aclose()
