"""A feed over a server of Azure's or Google's storage that fails and lies: nothing wrong leaves,
and it goes on by itself."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from tailer.changes import Offset
from tailer.errors import TableError
from tailer.storage import open_store
from tailer.store import Store
from tailer.store.objects import options as cloud_options
from tailer.testing.table import TableBuilder
from tests.clouds.servers import SERVERS, CloudServer, Container
from tests.s3.front import Fault, Front, run_front
from tests.s3.tables import Collected, deliver
from tests.store.test_s3_faults import FAULTS, LARGE_ROWS, LAST, LOG, make_table

pytestmark = [pytest.mark.anyio]

#: Those of S3 that only S3 has: their answers have another meaning here.
OF_S3 = ("skewed", "timeout")
HERE = [
    # An answer of another state is not asked for again, the file is opened again.
    replace(fault, count=1) if fault.kind == "other etag" else fault
    for fault in FAULTS
    if fault.kind not in OF_S3
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TableBuilder:
    return make_table(tmp_path_factory.mktemp("faults") / "orders")


@pytest.fixture(scope="module", params=SERVERS)
def uploaded(table: TableBuilder, request: pytest.FixtureRequest) -> Container:
    """The table on a server; read only."""
    server: CloudServer = request.getfixturevalue(request.param)
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
async def shaken(front: Front, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A store behind the front, which soon loses patience with a server that hangs."""
    monkeypatch.setattr(cloud_options, "READ_TIMEOUT", timedelta(seconds=0.3))
    soon = {name: timedelta(milliseconds=10) for name in ("init_backoff", "max_backoff")}
    monkeypatch.setitem(cloud_options.RETRIES, "backoff", {**soon, "base": 2})
    async with aclosing(store_at(front.bucket)) as store:
        yield store


@pytest.mark.parametrize("fault", HERE, ids=lambda f: f"{f.operation} {f.kind} {f.key}")
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
        ("denied", r"access denied to get \(AccessDenied: m\); check the credentials.*firewall"),
        ("expired", r"the server refused get with 400 \(ExpiredToken: m\); check the address"),
        ("no bucket", r"its container does not exist; check the container's name"),
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
