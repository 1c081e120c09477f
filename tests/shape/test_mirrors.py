"""Copies of what a feed selects are the selection of the table's snapshot, whatever happens."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.feed.run import run_feed
from tailer.shape.expressions import parse_condition, parse_select
from tailer.shape.selection import Selection
from tailer.sink import make_sink
from tailer.testing.table import TableBuilder
from tailer.verify.mirror import MirrorVerdict, verify_mirror
from tests.support.extent import rest_slow
from tests.support.rig import Rig

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int32()), ("note", pa.string())])
SINKS = {
    "sqlite": {"path": "copy.db", "mode": "mirror"},
    "duckdb": {"path": "copy.duckdb", "mode": "mirror"},
    "delta": {"path": "copy", "mode": "mirror"},
}
Rows = dict[int, int]


def step(table: TableBuilder, before: Rows, after: Rows, file: Any) -> Any:
    """Commit a version that leads from some rows to others: one file, rewritten."""
    rows = [{"id": i, "v": v, "note": str(v)} for i, v in after.items()]
    add = table.add(rows)
    cdc = []
    if table.properties.get("delta.enableChangeDataFeed") == "true":
        changes = []
        for i in before.keys() | after.keys():
            old, new = before.get(i), after.get(i)
            if old == new:
                continue
            kinds = (
                [("delete", old)] if new is None else [("insert", new)] if old is None
                else [("update_preimage", old), ("update_postimage", new)]
            )  # fmt: skip
            changes += [
                {"id": i, "v": v, "note": str(v), "_change_type": kind} for kind, v in kinds
            ]
        cdc = [table.cdc(changes)] if changes else []
    table.commit(*([table.remove(file)] if file else []), add, *cdc)
    return add


COPIES = [(kind, cdf) for kind in sorted(SINKS) for cdf in (True, False)]


@pytest.mark.parametrize(
    "copy", rest_slow(COPIES, ("delta", True), ("duckdb", False), ("sqlite", True))
)
def test_a_copy_is_the_selection_of_the_snapshot(copy: tuple[str, bool]) -> None:
    kind, cdf = copy

    @settings(max_examples=4, deadline=None)
    @given(
        versions=st.lists(
            st.dictionaries(st.integers(0, 8), st.integers(0, 9), max_size=8),
            min_size=2,
            max_size=5,
        ),
        where=st.sampled_from(["v > 4", "v % 2 = 0 or id = 3", "note <> '7'", "v < 100"]),
        select=st.sampled_from(["id, v", "id, v // 2 as half", "* exclude (note)", ""]),
        unchanged=st.sampled_from(["keep", "drop"]),
    )
    def check(versions: list[Rows], where: str, select: str, unchanged: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            table = TableBuilder(Path(folder) / "t", SCHEMA, cdf=cdf)
            table.create()
            file: Any = None
            before: Rows = {}
            for after in versions:
                file = step(table, before, after, file)
                before = after
            rig = Rig(Path(folder), table)
            sink = make_sink(kind, {**SINKS[kind], "key": ["id"]}, Path(folder))
            selection = Selection(parse_select(select), parse_condition(where), unchanged=unchanged)
            feed = rig.feed(sink=sink, selection=selection, key=("id",), batch_rows_max=3)

            async def run() -> Any:
                await run_feed(feed)
                options = feed.options.for_sink(sink)
                return await verify_mirror(feed.log, sink, feed.name, options)

            verdict = anyio.run(run)
            assert verdict.exact, verdict

    check()


@pytest.mark.parametrize("kind", sorted(SINKS))
@pytest.mark.parametrize("there", ["no file", "a file", "a file that is not read"])
def test_a_copy_of_no_rows_is_there_too(kind: str, there: str, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", SCHEMA)
    table.create()
    if there != "no file":
        file = table.add([{"id": 1, "v": 1}, {"id": 2, "v": 2}])
        bounds = {"minValues": {"v": 1}, "maxValues": {"v": 2 if "not" in there else 9}}
        file["add"]["stats"] = json.dumps({"numRecords": 2, **bounds})
        table.commit(file)
    rig = Rig(tmp_path, table)
    sink = make_sink(kind, {**SINKS[kind], "key": ["id"]}, tmp_path)
    selection = Selection(where=parse_condition("v > 4"))
    feed = rig.feed(sink=sink, selection=selection, key=("id",), start="snapshot")

    async def run() -> MirrorVerdict:
        await run_feed(feed)
        return await verify_mirror(feed.log, sink, feed.name, feed.options.for_sink(sink))

    verdict = anyio.run(run)
    assert verdict.exact
    assert verdict.rows == 0
