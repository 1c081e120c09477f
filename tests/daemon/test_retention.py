"""How much is unread, and how long it will still be there."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tailer.changes import Offset
from tailer.daemon.retention import Outlook
from tailer.errors import TransientError
from tailer.feed.run import run_feed
from tailer.testing.table import TableBuilder
from tests.support.faulty import Script
from tests.support.rig import SCHEMA, Rig

pytestmark = pytest.mark.anyio
DAY = 86_400
#: The commits' times: version v at day v.
DAY_MS = DAY * 1000


class Scene:
    def __init__(self, folder: Path, **properties: str) -> None:
        named = {k.replace("__", "."): v for k, v in properties.items()}
        table = TableBuilder(folder / "orders", SCHEMA, cdf=True, properties=named)
        self.rig = Rig(folder, table)
        self.table = table
        table.create(timestamp_ms=0)
        self.progress = self.rig.progress
        self.outlook = Outlook(self.rig.feed(last=0).log, self.progress)

    async def look(self, version: int, *, snapshot: bool = False) -> tuple[float, float]:
        self.progress.note_start(Offset(version, snapshot=snapshot))
        await self.outlook.update_progress()
        return self.progress.seconds_to_loss("log"), self.progress.seconds_to_loss("data")

    def sample(self) -> float | None:
        """The lag in rows, as Prometheus has it."""
        return self.rig.registry.get_sample_value("tailer_lag_rows", {"feed": "orders"})


async def test_lag_in_bytes_is_the_sizes_of_unread_file_actions(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    adds = [scene.table.add([{"id": i}], size=100 * i) for i in (1, 2)]
    for add in adds:
        scene.table.commit(add)
    scene.table.commit(scene.table.remove(adds[0]), scene.table.cdc([], size=7))
    await scene.look(1)
    assert scene.rig.metric("tailer_lag_bytes") == 100 + 200 + 100 + 7
    await scene.look(2)
    assert scene.rig.metric("tailer_lag_bytes") == 200 + 100 + 7
    await scene.look(4)
    assert scene.rig.metric("tailer_lag_bytes") == 0
    assert scene.rig.metric("tailer_lag_versions") == 0


async def test_lag_in_rows_is_what_the_unread_versions_change(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    table = scene.table
    several = table.add([{"id": i} for i in range(5)])
    table.commit(several)  # 1: five inserts
    less, left = table.delete_rows(several, [0, 1])
    table.commit(less, left)  # 2: two more are deleted
    table.commit(table.remove(left))  # 3: what a remove without statistics deletes
    await scene.look(1)
    unread = scene.outlook.list_unread(9)
    assert [one["rows"] for one in unread] == [5, 2, None]
    assert scene.progress.lag_rows() is None
    assert scene.sample() is None, "what is unknown is not shown as 0"
    await scene.look(4)
    assert (scene.progress.lag_rows(), scene.sample()) == (0, 0.0)


async def test_rows_of_a_version_that_was_not_looked_at_are_unknown(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.table.insert([{"id": 1}, {"id": 2}, {"id": 3}])
    await scene.look(1)
    assert scene.sample() == 3
    scene.progress.note_start(Offset(1, 2))
    assert scene.sample() == 1, "two of them were delivered"
    scene.progress.note_newest(2)
    assert scene.sample() is None
    scene.progress.note_start(Offset(1, snapshot=True))
    assert scene.sample() is None


@pytest.mark.parametrize("many", [0, 100], ids=["small", "large"])
async def test_rows_are_counted_in_commits_of_any_size(tmp_path: Path, many: int) -> None:
    scene = Scene(tmp_path)
    rearranged = scene.table.add([{"id": 1}], dataChange=False)
    adds = [scene.table.add([{"id": i}, {"id": i}]) for i in range(2 + many)]
    scene.table.commit(rearranged, *adds)
    await scene.look(1)
    assert scene.sample() == 2 * (2 + many)


@pytest.mark.parametrize(
    ("metrics", "rows"),
    [
        ({"numUpdatedRows": "2", "numCopiedRows": "90"}, 4),
        ({"num_deleted_rows": 3}, 3),
        ({"numDeletedRows": "10", "numOutputRows": "120", "numCopiedRows": "20"}, 110),
        ({"numTargetRowsInserted": "1", "numTargetRowsUpdated": "1"}, 3),
        ({"numDeletedRows": "-1"}, None),
        ({"numDeletedRows": "9" * 30}, None),
        ("none", None),
    ],
)
async def test_writers_metrics_say_what_change_files_do_not(
    tmp_path: Path, metrics: object, rows: int | None
) -> None:
    scene = Scene(tmp_path)
    info = {"commitInfo": {"operation": "UPDATE", "operationMetrics": metrics}}
    scene.table.commit(info, scene.table.cdc([{"id": 1, "_change_type": "delete"}]))
    await scene.look(1)
    assert scene.progress.lag_rows() == rows


async def test_the_log_is_threatened_only_below_a_checkpoint(tmp_path: Path) -> None:
    scene = Scene(tmp_path, delta__logRetentionDuration="interval 10 days")
    for day in range(1, 5):
        scene.table.commit(scene.table.add([{"id": day}]), timestamp_ms=day * DAY_MS)
    assert await scene.look(2) == (math.inf, math.inf)
    scene.table.checkpoint(4)
    assert await scene.look(2) == (12 * DAY, math.inf)
    assert await scene.look(3) == (13 * DAY, math.inf)
    assert await scene.look(4) == (math.inf, math.inf), "the checkpoint's own commit is kept"
    assert await scene.look(5) == (math.inf, math.inf), "nothing is unread"


async def test_without_cleanup_the_log_stays(tmp_path: Path) -> None:
    scene = Scene(tmp_path, delta__enableExpiredLogCleanup="false")
    scene.table.commit(scene.table.add([{"id": 1}]), timestamp_ms=DAY_MS)
    scene.table.commit(scene.table.add([{"id": 2}]), timestamp_ms=DAY_MS)
    scene.table.checkpoint(2)
    assert (await scene.look(1))[0] == math.inf


async def test_data_is_threatened_by_removals_that_are_not_read_yet(tmp_path: Path) -> None:
    scene = Scene(tmp_path, delta__deletedFileRetentionDuration="interval 2 days")
    add = scene.table.add([{"id": 1}])
    scene.table.commit(add, timestamp_ms=DAY_MS)
    gone = scene.table.remove(add, deletionTimestamp=3 * DAY_MS)
    scene.table.commit(gone, timestamp_ms=4 * DAY_MS)
    assert (await scene.look(1))[1] == 5 * DAY
    assert (await scene.look(2))[1] == 5 * DAY
    assert (await scene.look(3))[1] == math.inf
    assert (await scene.look(1, snapshot=True))[1] == 5 * DAY, "the snapshot's files go too"


@pytest.mark.parametrize("text", ["interval 7 days", "interval 1 month", "soon"])
async def test_change_files_go_by_their_age(tmp_path: Path, text: str) -> None:
    scene = Scene(tmp_path, delta__deletedFileRetentionDuration=text)
    cdc = scene.table.cdc([{"id": 1, "_change_type": "delete"}])
    scene.table.commit(cdc, timestamp_ms=5 * DAY_MS)
    assert (await scene.look(1))[1] == (5 + 7) * DAY


async def test_the_metric_speaks_before_the_loss(tmp_path: Path) -> None:
    """As an alert would see it: the time left shrinks, then cleanup passes the offset."""
    scene = Scene(tmp_path, delta__logRetentionDuration="interval 1 days")
    now = 0.0
    scene.progress.clock = lambda: now
    for day in range(1, 4):
        scene.table.commit(scene.table.add([{"id": day}]), timestamp_ms=day * DAY_MS)
    scene.table.checkpoint(3)
    await scene.look(1)
    seen = []
    for days in (0.0, 1.0, 1.9, 2.1):
        now = days * DAY
        seen.append(scene.rig.metric("tailer_time_to_data_loss_seconds", cause="log") / DAY)
    assert [round(days, 1) for days in seen] == [2.0, 1.0, 0.1, -0.1]


async def test_bytes_are_unread_until_the_sink_has_them(tmp_path: Path) -> None:
    """Also while it is away, and however often its files are read again for it."""
    rig = Rig(tmp_path)
    rig.table.insert([{"id": i} for i in range(4)])
    rig.table.insert([{"id": 4}])
    seen: list[float] = []

    class Away(Script):
        def __call__(self, method: str, argument: object = "") -> None:
            super().__call__(method, argument)
            if method == "write":
                seen.append(rig.metric("tailer_lag_bytes"))
                if len(seen) < 4:
                    raise TransientError("the sink is away")

    await run_feed(rig.feed(script=Away({}), start="1", batch_rows_max=100))
    assert rig.ids == [0, 1, 2, 3, 4]
    sizes = [file.stat().st_size for file in rig.table.folder.glob("*.parquet")]
    assert seen[:4] == [sum(sizes)] * 4
    assert rig.metric("tailer_lag_bytes") == 0
