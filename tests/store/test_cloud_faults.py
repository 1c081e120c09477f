"""A feed over a server of S3's, Azure's or Google's storage that fails and lies: nothing wrong
leaves, and it goes on by itself."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from tailer.changes import Offset
from tailer.errors import CorruptLog, TableError
from tailer.storage import open_store
from tailer.store import Store
from tailer.store.objects import options as cloud_options
from tailer.testing.table import TableBuilder
from tests.clouds.servers import SERVERS, CloudServer, Container
from tests.s3.fixture import S3Server
from tests.s3.front import Fault, Front, run_front
from tests.s3.tables import Collected, deliver
from tests.support.waiting import eventually_async

pytestmark = [pytest.mark.anyio]

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
LAST = 4
# A data file that is read in several ranges, and whose footer comes with another than its rows.
LARGE_ROWS = 3000
LOG, DATA = r"_delta_log/0+3\.json$", r"\.parquet$"
LARGE = r"/large\.parquet$"

FAULTS = [
    # Refusals, and answers that never come or not whole.
    *(Fault(kind, "get", 5, LOG) for kind in ("500", "503", "skewed", "timeout", "html")),
    *(Fault(kind, "get", 5, LOG) for kind in ("hang", "reset", "truncated", "lost")),
    *(Fault(kind, "get", 5, DATA, after=2) for kind in ("500", "hang", "reset", "truncated")),
    Fault("429", "get", 2, LOG),
    # Answers to another question.
    *(Fault(kind, "get", 5, LOG) for kind in ("short and whole", "whole for range", "other range")),
    *(Fault(kind, "get", 5, DATA, after=2) for kind in ("short and whole", "whole for range")),
    Fault("other range", "get", 5, DATA, after=2),
    # Of an open file alone: nobody can tell that the first range of all is of another state.
    Fault("other etag", "get", 1, LARGE, after=1),
    # A log that is not what its listing says.
    Fault("not found", "get", 20, LOG),
    *(Fault(kind, "list", 5) for kind in ("500", "reset", "cut list", "html")),
    *(Fault(kind, "head", 5) for kind in ("500", "hang", "lost")),
    Fault("not found", "head", 2),
]


def make_table(folder: Path) -> TableBuilder:
    table = TableBuilder(folder, SCHEMA, properties={"delta.enableChangeDataFeed": "true"})
    table.create()
    letters = random.Random(7)
    text = ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=80)) for _ in range(LARGE_ROWS)]
    table.insert([{"id": 1, "text": "one"}, {"id": 2, "text": "two"}])
    large = [{"id": i, "text": t} for i, t in enumerate(text)]
    table.commit(table.add(large, path="large.parquet"))
    table.insert([{"id": -1, "text": "last but one"}])
    table.insert([{"id": -2, "text": "last"}])
    assert table.version == LAST
    return table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TableBuilder:
    return make_table(tmp_path_factory.mktemp("faults") / "orders")


@pytest.fixture(scope="module", params=SERVERS)
def uploaded(table: TableBuilder, request: pytest.FixtureRequest) -> Container:
    """The table on a server; read only."""
    server: CloudServer | S3Server = request.getfixturevalue(request.param)
    container = server.container()
    anyio.run(container.upload, table.folder, "orders")
    return container


@pytest.fixture(autouse=True)
def large_files_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest file is read in more than one range."""
    monkeypatch.setattr("tailer.store.objects.store.WHOLE_BYTES", 64 * 1024)


@pytest.fixture
def front(uploaded: Container) -> Iterator[Front]:
    with run_front(uploaded) as front:
        yield front


def store_at(container: Container) -> Store:
    return open_store(container.address("orders"), container.options)


@pytest.fixture(scope="module")
def truth(uploaded: Container) -> Collected:
    """What the feed delivers when nothing fails."""

    async def read() -> Collected:
        async with aclosing(store_at(uploaded)) as store:
            return await deliver(store, Offset(0), LAST)

    return anyio.run(read)


@pytest.fixture
async def shaken(
    front: Front, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Store]:
    """A store behind the front, which soon tries again, and soon loses patience where the server
    hangs. Elsewhere a slow machine's answer would be asked for twice, and the fault be met by
    another request than the one that it is for."""
    if "hang" in request.node.name:
        monkeypatch.setattr(cloud_options, "READ_TIMEOUT", timedelta(seconds=0.3))
    soon = {name: timedelta(milliseconds=10) for name in ("init_backoff", "max_backoff")}
    monkeypatch.setitem(cloud_options.RETRIES, "backoff", {**soon, "base": 2})
    async with aclosing(store_at(front.bucket)) as store:
        yield store


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.operation} {f.kind} {f.key}")
async def test_the_output_is_the_truth_whatever_the_server_says(
    front: Front, shaken: Store, truth: Collected, fault: Fault
) -> None:
    assert len(truth.events) == LARGE_ROWS + 4
    front.fail(Fault(fault.kind, fault.operation, fault.count, fault.key, fault.after))
    with anyio.fail_after(150):
        found = await deliver(shaken, Offset(0), LAST)
    assert found.events == truth.events
    assert list(found.events) == list(truth.events), "in the same order"
    assert front.met[fault.kind] > 0, "the fault was there"


async def test_a_small_file_that_comes_in_half_is_no_damage(
    front: Front, shaken: Store, truth: Collected
) -> None:
    """It is asked for by one request without a range, whose answer says no other length."""
    front.fail(Fault("short and whole", "get", 1, r"\.parquet$"))
    with anyio.fail_after(150):
        found = await deliver(shaken, Offset(0), LAST)
    assert found.events == truth.events
    assert front.met["short and whole"] == 1


async def test_a_storm_of_all_faults_is_weathered(
    front: Front, shaken: Store, truth: Collected
) -> None:
    """Many at once, at random; the seed is fixed, so that a failure can be looked at."""
    chance = random.Random(11)
    kinds = ("500", "503", "reset", "truncated", "lost", "short and whole", "other range", "html")
    front.fail(
        *(
            Fault(chance.choice(kinds), operation, 1, after=chance.randrange(3))
            for operation in ("get", "get", "get", "head", "list") * 6
        )
    )
    with anyio.fail_after(150):
        found = await deliver(shaken, Offset(0), LAST)
    assert found.events == truth.events
    assert sum(front.met.values()) > 10


async def test_a_listing_that_lags_behind_is_not_believed(front: Front, shaken: Store) -> None:
    """The feed starts at the newest version, which the listing does not have yet."""
    front.fail(Fault("empty list", "list", 8))
    with anyio.fail_after(150):
        found = await deliver(shaken, Offset(LAST), LAST)
    assert {row["id"] for row in found.events.values()} == {-2}
    assert front.met["empty list"] == 8


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("denied", r"access denied to get \(AccessDenied: m\); check the credentials"),
        ("expired", r"the credentials have expired; renew them"),
        ("no bucket", r"its (bucket|container) does not exist; check the \1's name"),
    ],
)
async def test_what_does_not_heal_stops_the_feed_by_name(
    front: Front, shaken: Store, truth: Collected, kind: str, sentence: str
) -> None:
    front.fail(Fault(kind, "get", 10_000, LOG))
    sink = Collected()
    with anyio.fail_after(150), pytest.raises(TableError, match=sentence):
        await deliver(shaken, Offset(0), LAST, sink=sink)
    assert sink.events.items() < truth.events.items()


async def test_a_table_is_not_gone_because_a_listing_says_so(
    container: Container, tmp_path: Path
) -> None:
    """While the feed waits for the next version, listings are empty."""
    table = TableBuilder(tmp_path / "orders", SCHEMA)
    table.create()
    await container.upload(table.folder, "orders")
    sink = Collected()
    with run_front(container) as front:

        async def commit_later() -> None:
            await eventually_async(lambda: front.requests["list"] >= 6, why="it lists")
            front.fail(Fault("empty list", "list", 10_000))
            await eventually_async(lambda: front.met["empty list"] >= 3, why="it lists")
            front.heal()
            table.insert([{"id": 99, "text": "later"}])
            await container.upload(table.folder, "orders")

        async with aclosing(store_at(front.bucket)) as store:
            store.check_s = 0.0  # it looks at each poll
            with anyio.fail_after(150):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(commit_later)
                    await deliver(store, Offset(1), 1, sink=sink)
    assert [row["id"] for row in sink.events.values()] == [99]


async def test_a_file_of_another_size_is_refused(container: Container, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
    table.create()
    table.insert([{"id": i} for i in range(40_000)])
    await container.upload(table.folder, "t")
    (file,) = table.folder.glob("part-*")
    data = await container.get(f"t/{file.name}")
    await container.put(f"t/{file.name}", data + data[-1000:])
    with run_front(container) as front:
        store = open_store(front.bucket.address("t"), front.bucket.options)
        sink = Collected()
        with pytest.raises(
            CorruptLog, match=f"the log says {len(data)}: it was truncated or replaced"
        ):
            await deliver(store, Offset(1), 1, sink=sink)
        await store.aclose()
        assert not sink.events
        asked = [kind for kind, path in front.asked if kind != "list" and "part-" in path]
        assert asked == ["get", "get"], "its end, by the size of the log and by its own"
