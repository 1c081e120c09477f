"""Conditions on partition columns whose type was widened, or that were renamed or replaced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.errors import SchemaChanged
from tailer.feed.orders import ResnapshotRequest
from tailer.feed.run import run_feed
from tailer.shape.expressions import parse_condition
from tailer.shape.selection import Selection
from tailer.testing.table import TableBuilder
from tests.support.rig import Rig

pytestmark = pytest.mark.anyio

FEATURES = ["typeWidening", "timestampNtz", "columnMapping"]
#: A version of the table: the name, the physical name and the type of its partition column, and the
#: value of the one file that it adds.
Version = tuple[str, str, str, str]


def field(name: str, kind: str, number: int, physical: str) -> dict[str, Any]:
    more = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
    return {"name": name, "type": kind, "nullable": True, "metadata": more}


def built(folder: Path, versions: Sequence[Version]) -> Rig:
    """A table with a file in each version, of one row, whose id is the version's number."""
    properties = {"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"}
    table = TableBuilder(folder / "t", pa.schema([("id", pa.int64())]), properties=properties)
    for number, (name, physical, kind, value) in enumerate(versions):
        fields = [field("id", "long", 1, "id"), field(name, kind, 2, physical)]
        schema = json.dumps({"type": "struct", "fields": fields})
        metadata = table.metadata(schemaString=schema, partitionColumns=[name])
        add = table.add([{"id": number}], partition={physical: value})
        protocol = table.protocol(3, 7, readerFeatures=FEATURES, writerFeatures=FEATURES)
        table.commit(*([] if number else [protocol]), metadata, add)
    return Rig(folder, table)


async def ids(rig: Rig, where: str, start: str = "0") -> list[int]:
    """The rows that a feed with this condition delivers."""
    await run_feed(rig.feed(start=start, selection=Selection(where=parse_condition(where))))
    return rig.ids


@pytest.mark.parametrize(
    ("old", "new", "values", "where", "right"),
    [
        ("integer", "long", ("5", "3000000000"), "p >= 3000000000", [1]),
        ("integer", "long", ("5", "3000000000"), "p in (5, 3000000000)", [0, 1]),
        ("byte", "short", ("5", "300"), "p <> 300", [0]),
        ("decimal(4,2)", "decimal(8,2)", ("1.50", "12345.00"), "p > 12000", [1]),
        ("integer", "double", ("5", "1.5"), "p = 1.5", [1]),
        ("integer", "double", ("5", "1.5"), "p > 4.5", [0]),
        ("float", "double", ("0.1", "0.1"), "p = 0.1", [0, 1]),
        ("date", "timestamp_ntz", ("2024-01-01", "2024-01-01 10:00:00"),
         "p = '2024-01-01 10:00:00'", [1]),
        ("date", "timestamp_ntz", ("2024-01-02", "2024-01-01 10:00:00"),
         "p > '2024-01-01 23:00:00'", [0]),
        ("date", "timestamp_ntz", ("2024-01-01", "2024-01-01 10:00:00"), "p = '2024-01-01'", [0]),
        # Replaced by another column of its name: as texts, and where that is no value of the newer
        # type, in the older one.
        ("integer", "string", ("10", "9"), "p < '9'", [0]),
        ("string", "integer", ("10", "7"), "p >= 9", [0]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("start", ["0", "1"])
async def test_values_are_compared_in_the_newest_type(
    tmp_path: Path, old: str, new: str, values: tuple[str, str], where: str, right: list[int],
    start: str,
) -> None:  # fmt: skip
    rig = built(tmp_path, [("p", "p", old, values[0]), ("p", "p", new, values[1])])
    assert await ids(rig, where, start) == [i for i in right if i >= int(start)]


@pytest.mark.parametrize("physical", ["year", "col-7"])
@pytest.mark.parametrize("where", ["year >= 2021", "JAHR >= 2021"])
async def test_both_names_of_a_renamed_column_hold(
    tmp_path: Path, physical: str, where: str
) -> None:
    names = ["year", "year", "jahr", "jahr"]
    values = ["2020", "2021", "2021", "2020"]
    rig = built(tmp_path, [(n, physical, "integer", v) for n, v in zip(names, values, strict=True)])
    assert await ids(rig, where) == [1, 2]


async def test_a_first_name_holds_also_for_who_begins_after_the_rename(tmp_path: Path) -> None:
    """Mapping that was enabled later leaves the first name in the files."""
    rig = built(tmp_path, [("year", "year", "integer", "2020"), ("jahr", "year", "integer", "7")])
    assert await ids(rig, "year = 7", start="1") == [1]


async def test_a_name_means_the_column_that_has_it_now(tmp_path: Path) -> None:
    """The names of a partition column and of another one were swapped."""
    rig = built(tmp_path, [("a", "a", "integer", "1"), ("b", "a", "integer", "1")])
    assert await ids(rig, "b = 1") == [0, 1]


async def test_a_snapshot_of_some_partitions_takes_the_same_names(tmp_path: Path) -> None:
    rig = built(tmp_path, [("p", "x", "integer", "5"), ("q", "x", "long", "3000000000")])
    rig.orders.resnapshots.append(ResnapshotRequest(parse_condition("q >= 5 and q < 3000000000")))
    await run_feed(rig.feed(start="1"))
    assert rig.ids == [0, 1], "the snapshot is that of the version before"


async def test_a_name_that_no_version_has_is_refused(tmp_path: Path) -> None:
    rig = built(tmp_path, [("p", "p", "integer", "5"), ("q", "p", "integer", "6")])
    with pytest.raises(SchemaChanged, match=r"version 0: .*no column 'other', .* there are id, p"):
        await ids(rig, "other = 5")
