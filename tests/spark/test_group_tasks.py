"""Groups that others decode: a feed with them is the feed without.

The tasks are sent and done as Spark does them; no Spark is started here.
"""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from msgspec import structs
from pyspark.errors import PySparkRuntimeError
from pyspark.serializers import CPickleSerializer
from pyspark.util import _load_from_socket

from tailer.changes import ChangeBatch, Offset
from tailer.config.feeds import FeedConfig, SinkConfig
from tailer.decode.options import DiffOptions
from tailer.decode.rows import DecodeOptions
from tailer.errors import ConfigError, FileGone, TailerError, TransientError
from tailer.feed.options import FeedOptions
from tailer.feed.orders import Orders, ResnapshotRequest
from tailer.feed.pipe import read_ahead
from tailer.feed.policy import LostFiles
from tailer.feed.progress import FeedProgress
from tailer.feed.read import read_in_process, send_items
from tailer.feed.read_context import Emit, FeedItem, ReadContext
from tailer.shape.expressions import parse_condition, parse_select
from tailer.shape.selection import Selection
from tailer.spark.pipeline import group_task
from tailer.spark.pipeline.cluster import ClusterOptions, SparkCluster, convert_error
from tailer.spark.pipeline.run import ClusterDecoder
from tailer.testing.table import TableBuilder
from tests.feed.test_pair import POST, PRE, cdf_table, image
from tests.feed.test_texts import SCHEMA as TEXTS
from tests.feed.test_texts import WRONG, committed
from tests.golden.test_golden import GoldenCase
from tests.spark.test_stream import SCHEMA, rows
from tests.support.components import free_port
from tests.support.extent import rest_slow
from tests.support.feeds import table_log

#: Batches of few rows, and no rows that finding the changes has decoded already.
PLAIN = FeedOptions(decode=DecodeOptions(batch_rows_max=2))


@pytest.fixture(
    params=["as much as a task may", pytest.param("a step", marks=pytest.mark.slow)], autouse=True
)
def sent_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much a task sends before it leaves the rest of its group to another one."""
    if request.param == "a step":
        monkeypatch.setattr(group_task, "SENT_BYTES_MAX", 1)


class Travelling:
    """A cluster whose tasks are done here, after they have travelled. ``tasks`` counts them."""

    def __init__(
        self,
        partition_bytes_max: int = 400,
        driver_bytes_max: int = 0,
        warm_up: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
    ) -> None:
        self.options = ClusterOptions(partition_bytes_max, driver_bytes_max=driver_bytes_max)
        self.tasks = 0
        self._wait = warm_up

    async def warm_up(self) -> int:
        """Return the number of cores, of which two are as good as more."""
        await self._wait()
        return 2

    async def run_task(self, _: str, work: Callable[[], Any]) -> list[bytes]:
        """Run a task."""
        self.tasks += 1
        travelled = pickle.loads(pickle.dumps(work))  # noqa: S301  # our own
        return await anyio.to_thread.run_sync(lambda: list(travelled()))


def read_feed(
    table: Path,
    start: Offset,
    feed: FeedOptions = PLAIN,
    lost: LostFiles | None = None,
    *,
    cluster: Travelling | None = None,
    found: list[FeedItem] | None = None,
    last: int | None = None,
    orders: Orders | None = None,
) -> list[FeedItem]:
    """What a feed reads from an offset on, to the newest version; by a cluster, if there is one.
    ``found`` has what came before an error."""
    found = [] if found is None else found

    async def read() -> None:
        log = table_log(table)
        until = await log.latest_version() if last is None else last
        progress = FeedProgress("feed", _now)
        context = ReadContext.from_options(log, feed, progress, orders, lost)
        if cluster is not None:
            config = FeedConfig("feed", str(table), None, feed, SinkConfig("jsonl", {}))
            decoder = ClusterDecoder(cast(SparkCluster, cluster), config)
            context = structs.replace(context, remote=decoder)

        async def send(emit: Emit) -> None:
            await send_items(context, start, until, emit, read_in_process)

        async with aclosing(read_ahead(send)) as items:
            async for item in items:
                found.append(item)

    anyio.run(read)
    return found


def _now() -> float:
    return 0.0


def events(batches: list[FeedItem]) -> list[str]:
    """All events with their ids, offsets and preimages, in order; as text, in which NaN equals
    NaN."""
    found: list[Any] = []
    for batch in batches:
        if isinstance(batch, ChangeBatch):
            before = [None] * batch.num_rows if batch.before is None else batch.before.to_pylist()
            rows, ids = batch.rows.to_pylist(), batch.event_ids().to_pylist()
            places = batch.row_indices().to_pylist()
            found += zip(rows, ids, before, places, strict=True)
    return [repr(event) for event in found]


def told(items: list[FeedItem]) -> list[Any]:
    """Events and notices, and where the last one leads."""
    notices = [item.to_json() for item in items if not isinstance(item, ChangeBatch)]
    return [*events(items), *notices, *(str(item.next_offset) for item in items[-1:])]


def many_files(folder: Path, files: int, **options: Any) -> TableBuilder:
    """A table whose version 1 has added several files of three rows."""
    table = TableBuilder(folder, SCHEMA, **options)
    table.create()
    adds = [table.add(rows(*range(3 * n, 3 * n + 3))) for n in range(files)]
    table.commit(*adds)
    return table


TABLES = ("cdf_dv", "plain_dv", "plain", "cdf_restore_dv", "rowtracking", "types", "variant")


@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("name", rest_slow(TABLES, "cdf_dv", "rowtracking"))
def test_events_notices_and_offsets_are_the_feeds(
    name: str,
    paired: bool,  # noqa: FBT001  # a parameter of the test
    spans: bool,  # noqa: FBT001  # a parameter of the test
    golden: GoldenCase,
) -> None:
    table = golden(name).table
    feed = FeedOptions(key=("id",), paired=paired, spans=spans)
    for start in (Offset(0), Offset(2, snapshot=True)):
        cluster = Travelling()
        assert told(read_feed(table, start, feed, cluster=cluster)) == told(
            read_feed(table, start, feed)
        )
        assert cluster.tasks


@pytest.mark.parametrize("kind", ["commit", "snapshot"])
@pytest.mark.parametrize("delivered", [0, 2], ids=["all", "after files of a query of Spark"])
def test_a_feed_goes_on_from_any_offset(kind: str, delivered: int, tmp_path: Path) -> None:
    table = many_files(tmp_path, 5).folder
    start = Offset(1, snapshot=kind == "snapshot", delivered_files=delivered)
    batches = [item for item in read_feed(table, start) if isinstance(item, ChangeBatch)]
    places = [index for index in (0, 2, 3, 5, 6, 8, 9, 11, 12, 14) if index < 15 - 3 * delivered]
    assert [batch.offset.index for batch in batches if batch.num_rows] == places
    for batch in batches:
        found = read_feed(table, batch.offset, cluster=Travelling())
        assert told(found) == told(read_feed(table, batch.offset))


@pytest.mark.parametrize("size", [120, 200, 310])
def test_large_files_are_decoded_in_parts(size: int, tmp_path: Path) -> None:
    table = many_files(tmp_path, 2).folder
    cluster, wanted = Travelling(size), read_feed(table, Offset(1))
    assert told(read_feed(table, Offset(1), cluster=cluster)) == told(wanted)
    assert cluster.tasks > 2, "of two files"


@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("most", [1, 100])
def test_what_is_too_much_for_a_task_is_left_to_the_next_one(
    most: int,
    spans: bool,  # noqa: FBT001  # a parameter of the test
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_task, "SENT_BYTES_MAX", most)
    table = cdf_table(tmp_path)

    def add(*ids: int, **how: Any) -> Any:
        return table.add([{"id": n, "v": f"v{n}"} for n in ids], **how)

    large = add(*range(20), row_group_size=13)
    table.commit(add(50, 51, 52), large, add(60), add(61))
    table.commit(*table.delete_rows(large, {0, 1, 5, 12, 13, 19}))
    table.commit({"commitInfo": {"operation": "nothing"}})
    images = [image(kind, n, "v") for n in range(5) for kind in (PRE, POST)]
    table.commit(table.cdc(images), add(*range(70, 75), dataChange=False))
    table.commit(add(80, 81))
    feed, cluster = structs.replace(PLAIN, spans=spans), Travelling(partition_bytes_max=1 << 20)
    wanted = read_feed(table.folder, Offset(0), feed)
    starts = [Offset(0), *(b.offset for b in wanted if isinstance(b, ChangeBatch) and b.num_rows)]
    for start in starts:
        found = read_feed(table.folder, start, feed, cluster=cluster)
        assert told(found) == told(read_feed(table.folder, start, feed))
    assert cluster.tasks > 3 * len(starts), "of one group each"


@pytest.mark.parametrize("ready", ["at once", "after some", "never"])
def test_the_driver_decodes_too_and_waits_for_no_cluster(ready: str, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, SCHEMA)
    table.create()
    table.commit(*(table.add([{"id": n, "name": "a"}]) for n in range(40)))
    found: list[FeedItem] = []

    async def warm_up() -> None:
        while ready == "never" or (ready == "after some" and len(found) < 6):  # noqa: ASYNC110
            await anyio.sleep(0.001)

    wanted, feed = read_feed(tmp_path, Offset(0)), PLAIN
    cluster = Travelling(driver_bytes_max=1, warm_up=warm_up)
    read_feed(tmp_path, Offset(0), feed, cluster=cluster, found=found)
    assert told(found) == told(wanted)
    assert cluster.tasks < 40
    assert bool(cluster.tasks) == (ready != "never")


def test_a_cluster_that_is_not_ready_for_good_says_why(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, SCHEMA)
    table.create()
    table.commit(*(table.add([{"id": n, "name": "a"}]) for n in range(40)))
    found: list[FeedItem] = []

    async def warm_up() -> None:
        while not found:  # noqa: ASYNC110  # a list tells nobody
            await anyio.sleep(0.001)
        raise ConfigError("Spark does not start")

    cluster = Travelling(driver_bytes_max=1, warm_up=warm_up)
    with pytest.raises(ConfigError, match="Spark does not start"):
        read_feed(tmp_path, Offset(0), cluster=cluster, found=found)
    wanted = read_feed(tmp_path, Offset(0))
    assert events(found) == events(wanted)[: len(events(found))]


@pytest.mark.parametrize("operations", [("delete",), ("insert", "update_postimage")])
def test_operations_are_chosen_after_all_are_counted(operations: Any, golden: GoldenCase) -> None:
    table = golden("cdf_dv").table
    wanted = structs.replace(PLAIN, selection=Selection(operations=operations))
    for version in range(1 + anyio.run(table_log(table).latest_version)):
        found = read_feed(table, Offset(version), wanted, cluster=Travelling())
        assert told(found) == told(read_feed(table, Offset(version), wanted)), version


def test_a_selection_sees_columns_that_are_not_selected(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, SCHEMA, partition_by=["name"])
    table.create()
    named = [(n, "ab"[n % 2]) for n in range(8)]
    adds = [table.add([{"id": n, "name": of}], partition={"name": of}) for n, of in named]
    table.commit(*adds)
    selection = Selection(
        where=parse_condition("name = 'b' and id > 2"), select=parse_select(["id"])
    )
    feed = FeedOptions(selection=selection)
    for start in (Offset(1), Offset(1, snapshot=True)):
        found = read_feed(tmp_path, start, feed, cluster=Travelling())
        assert told(found) == told(read_feed(tmp_path, start, feed))
        assert len(events(found)) == 3


def test_a_gone_file_leaves_what_came_before_it_and_is_passed_over_when_it_is_known(
    tmp_path: Path,
) -> None:
    table = many_files(tmp_path, 4)
    adds = [action["add"]["path"] for action in table.actions() if "add" in action]
    whole = events(read_feed(table.folder, Offset(1)))
    (table.folder / adds[2]).unlink()
    found: list[FeedItem] = []
    with pytest.raises(FileGone) as gone:
        read_feed(table.folder, Offset(1), cluster=Travelling(), found=found)
    assert events(found) == whole[:6], "of the two files before it"
    assert found[-1].next_offset.index == 6
    lost = LostFiles()
    lost.record_loss(1, gone.value)
    at = found[-1].next_offset
    rest = read_feed(table.folder, at, lost=lost, cluster=Travelling())
    assert told(rest) == told(read_feed(table.folder, at, lost=lost))
    assert events(rest) == whole[9:]


@pytest.mark.parametrize("keep", [0, 1 << 20], ids=["read again", "kept"])
def test_comparisons_find_the_same_in_the_same_order(keep: int, tmp_path: Path) -> None:
    diff = DiffOptions(keep_bytes_max=keep)
    feed = FeedOptions(change_source="derived", key=("id",), diff=diff)
    table = many_files(tmp_path, 3)
    old = [action for action in table.actions() if "add" in action]
    table.commit(*map(table.remove, old), *(table.add(rows(n, n + 20)) for n in range(3)))
    cluster = Travelling()
    found = read_feed(tmp_path, Offset(2), feed, cluster=cluster)
    assert told(found) == told(read_feed(tmp_path, Offset(2), feed))
    assert cluster.tasks > 1


def test_an_update_of_the_key_has_both_its_images(tmp_path: Path) -> None:
    table = cdf_table(tmp_path)
    table.commit(table.cdc([image(PRE, 1, "a"), image(POST, 2, "b")]))
    feed = FeedOptions(key=("id",), paired=True)
    both = (read_feed(table.folder, Offset(0), feed, cluster=c) for c in (None, Travelling()))
    partners = [
        [b.partner.to_pylist() for b in one if isinstance(b, ChangeBatch) and b.partner is not None]
        for one in both
    ]
    assert partners[0] == partners[1] == [[{"id": 2, "v": "b"}, {"id": 1, "v": "a"}]]


def list_errors(kind: type[TailerError] = TailerError) -> list[type[TailerError]]:
    return [kind, *(one for each in kind.__subclasses__() for one in list_errors(each))]


@pytest.mark.parametrize("kind", list_errors(), ids=lambda kind: kind.__name__)
def test_every_error_travels_whole(kind: type[TailerError]) -> None:
    error = kind.__new__(kind, "gone")  # as its own __init__ leaves it
    error.__dict__.update(version=3, hint="look", retry_after_s=2.5)
    travelled = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    assert (type(travelled), travelled.args, vars(travelled)) == (kind, ("gone",), vars(error))


def test_a_snapshot_again_sees_columns_that_are_not_selected(tmp_path: Path) -> None:
    table = many_files(tmp_path, 2).folder
    feed = FeedOptions(selection=Selection(select=parse_select(["id"])))
    found = []
    for cluster in (None, Travelling()):
        orders = Orders(resnapshots=[ResnapshotRequest(parse_condition("name = 'n3'"))])
        found.append(read_feed(table, Offset(2), feed, cluster=cluster, orders=orders))
    assert told(found[0]) == told(found[1])
    assert len(events(found[1])) == 1


def test_a_task_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    table = many_files(tmp_path, 3).folder
    cluster = Unread()
    read_feed(table, Offset(1), cluster=cluster)
    assert cluster.tasks


class Unread(Travelling):
    """A cluster whose consumer leaves after the first thing that a task sends, and comes again."""

    async def run_task(self, name: str, work: Callable[[], Any]) -> list[bytes]:
        sent = work()
        next(sent)
        await anyio.to_thread.run_sync(sent.close)
        return await super().run_task(name, work)


class CutOff(Travelling):
    """A cluster whose connection ends before the last thing that a task has sent; PySpark says
    nothing of that."""

    async def run_task(self, name: str, work: Callable[[], Any]) -> list[bytes]:
        return (await super().run_task(name, work))[:-1]


@pytest.mark.parametrize("lost", [False, True], ids=["rows", "an error"])
def test_results_that_were_cut_off_are_not_taken_for_all(
    tmp_path: Path,
    lost: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    table = many_files(tmp_path, 3)
    if lost:
        (path,) = [a["add"]["path"] for a in table.actions() if "add" in a][1:2]
        (table.folder / path).unlink()
    with pytest.raises(TransientError, match="was cut off"):
        read_feed(table.folder, Offset(1), cluster=CutOff(10_000))


def test_a_comparison_that_was_cut_off_is_not_taken_for_no_changes(tmp_path: Path) -> None:
    table = many_files(tmp_path, 2)
    old = [action for action in table.actions() if "add" in action]
    table.commit(*map(table.remove, old), *(table.add(rows(n, n + 20)) for n in range(2)))
    feed = FeedOptions(change_source="derived", key=("id",))
    with pytest.raises(TransientError, match="was cut off"):
        read_feed(tmp_path, Offset(2), feed, cluster=CutOff())


def test_java_that_does_not_take_a_connection_in_time_may_do_so_again() -> None:
    taken: Any = (free_port(), "a secret")
    with (
        pytest.raises((PySparkRuntimeError, UnboundLocalError)) as refused,
        _load_from_socket(taken, CPickleSerializer()),
    ):
        pass
    assert isinstance(convert_error(refused.value), TransientError)


def test_a_lack_of_memory_in_a_task_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = many_files(tmp_path, 1).folder

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(group_task, "_pack_step", fail)
    with pytest.raises(TransientError, match="a task can't go on"):
        read_feed(table, Offset(1), cluster=Travelling())


def count_read(table: Path, feed: FeedOptions, cluster: Travelling | None) -> dict[Any, float]:
    """What a feed counts that reads a table from version 1 on."""
    progress = FeedProgress("feed", _now)

    async def read() -> None:
        log = table_log(table)
        context = ReadContext.from_options(log, feed, progress)
        if cluster is not None:
            config = FeedConfig("feed", str(table), None, feed, SinkConfig("jsonl", {}))
            context = structs.replace(
                context, remote=ClusterDecoder(cast(SparkCluster, cluster), config)
            )

        async def drop(_: FeedItem) -> None: ...

        await send_items(context, Offset(1), await log.latest_version(), drop)

    anyio.run(read)
    return {name: total.value for name, total in progress.totals.items()}


def test_what_tasks_have_read_counts_as_the_feeds(tmp_path: Path) -> None:
    table = many_files(tmp_path, 3).folder
    counted = [count_read(table, PLAIN, cluster) for cluster in (None, Travelling(2000))]
    if group_task.SENT_BYTES_MAX == 1:  # the same bytes are read again for the rest
        assert counted[1].pop(("read_bytes",)) > counted[0].pop(("read_bytes",))
    assert counted[0] == counted[1]
    assert counted[0][("files",)] == 3


@pytest.mark.parametrize("spans", [False, True])
def test_texts_that_are_not_utf8_are_counted_once_and_logged_for_the_feed(
    spans: bool,  # noqa: FBT001  # a parameter of the test
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = TableBuilder(tmp_path, TEXTS)
    table.create()
    for version in range(2):
        committed(table, 10 * version, [*WRONG, b"fine"])
    feed = structs.replace(PLAIN, spans=spans)
    counted, logged = [], []
    for cluster in (None, Travelling(10_000)):
        caplog.clear()
        counted.append(count_read(tmp_path, feed, cluster)["replaced",])
        logged.append([record.getMessage() for record in caplog.records])
    assert counted[0] == counted[1] == 2 * len(WRONG)
    assert logged[0] == logged[1]
    assert [line[:16] for line in logged[0]] == ["feed feed: versi"] * 2
