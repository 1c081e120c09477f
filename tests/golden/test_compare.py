"""The comparison library itself: what it must call equal, and what it must not."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from tests.golden.compare import (
    canonical,
    difference,
    is_variant,
    logical,
    replay,
    replayable,
    unchanged,
)

NAN = float("nan")


def one(values: list[object], kind: pa.DataType) -> pa.Table:
    """A table of one column `v`."""
    return pa.table({"v": pa.array(values, kind)})


def changes(*events: tuple[str, int | None, str | None]) -> pa.Table:
    """Change rows of (change type, k, s)."""
    kinds, keys, texts = zip(*events, strict=True) if events else ((), (), ())
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "s": pa.array(texts, pa.string()),
            "_change_type": pa.array(kinds, pa.string()),
        }
    )


def snapshot(*rows: tuple[int | None, str | None]) -> pa.Table:
    """A snapshot of rows (k, s)."""
    return changes(*(("insert", k, s) for k, s in rows)).select(["k", "s"])


EQUAL = {
    "NaN of any sign": (one([NAN, 1.0], pa.float64()), one([1.0, -NAN], pa.float64())),
    "both zeros": (one([-0.0], pa.float32()), one([0.0], pa.float32())),
    "zeros and NaN inside a list": (
        one([[-0.0, NAN]], pa.list_(pa.float64())),
        one([[0.0, NAN]], pa.list_(pa.float64())),
    ),
    "a map in another order": (
        one([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int32())),
        one([[("b", None), ("a", 1)]], pa.map_(pa.string(), pa.int32())),
    ),
    "row order": (one([1, 2, 2, None], pa.int32()), one([2, None, 2, 1], pa.int32())),
    "a timestamp in another unit": (
        one([1_500], pa.timestamp("ms", "UTC")),
        one([1_500_000_000], pa.timestamp("ns", "UTC")),
    ),
    "a timestamp in another zone": (
        one([1], pa.timestamp("us", "UTC")),
        one([1], pa.timestamp("us", "Europe/Berlin")),
    ),
    "timestamps beyond Python's calendar": (
        one([-(10**17)], pa.timestamp("us")),
        one([-(10**17)], pa.timestamp("us")),
    ),
    "a large and a small string type": (one(["x"], pa.string()), one(["x"], pa.large_string())),
    "a large and a small list type": (
        one([[1]], pa.list_(pa.int8())),
        one([[1]], pa.large_list(pa.int8())),
    ),
    "a dictionary and its values": (
        one(["x", None], pa.string()),
        one(["x", None], pa.dictionary(pa.int32(), pa.string())),
    ),
    "struct fields in another order": (
        one([{"a": 1, "b": 2}], pa.struct([("a", pa.int8()), ("b", pa.int8())])),
        one([{"b": 2, "a": 1}], pa.struct([("b", pa.int8()), ("a", pa.int8())])),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_values_are_equal_whatever_reader_made_them(name: str) -> None:
    """Each pair differs in form alone."""
    want, got = EQUAL[name]
    assert difference(want, got) == []


UNEQUAL = {
    "a value": (one([1], pa.int32()), one([2], pa.int32())),
    "null and zero": (one([None], pa.int32()), one([0], pa.int32())),
    "null and NaN": (one([None], pa.float64()), one([NAN], pa.float64())),
    "null and an empty list": (one([None], pa.list_(pa.int8())), one([[]], pa.list_(pa.int8()))),
    "null and a struct of nulls": (
        one([None], pa.struct([("a", pa.int8())])),
        one([{"a": None}], pa.struct([("a", pa.int8())])),
    ),
    "null and an empty string": (one([None], pa.string()), one([""], pa.string())),
    "how often a row stands": (one([1, 1, 2], pa.int32()), one([1, 2, 2], pa.int32())),
    "a row too few": (one([1, 1], pa.int32()), one([1], pa.int32())),
    "order inside a list": (one([[1, 2]], pa.list_(pa.int8())), one([[2, 1]], pa.list_(pa.int8()))),
    "a map's null and absent key": (
        one([[("a", None)]], pa.map_(pa.string(), pa.int8())),
        one([[]], pa.map_(pa.string(), pa.int8())),
    ),
    "a microsecond": (
        one([1_000_001], pa.timestamp("us", "UTC")),
        one([1_000_002], pa.timestamp("us", "UTC")),
    ),
    "with and without zone": (
        one([1], pa.timestamp("us", "UTC")),
        one([1], pa.timestamp("us")),
    ),
    "a decimal's scale": (
        one([Decimal("1.0")], pa.decimal128(4, 1)),
        one([Decimal("1.00")], pa.decimal128(4, 2)),
    ),
    "int and bigint": (one([1], pa.int32()), one([1], pa.int64())),
    "string and binary": (one(["x"], pa.string()), one([b"x"], pa.binary())),
    "a column's name": (one([1], pa.int8()), one([1], pa.int8()).rename_columns(["w"])),
    "a day": (
        one([dt.date(1, 1, 1)], pa.date32()),
        one([dt.date(1, 1, 2)], pa.date32()),
    ),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_a_true_difference_is_told(name: str) -> None:
    """Each pair differs, and the words say so in both directions."""
    want, got = UNEQUAL[name]
    assert difference(want, got)
    assert difference(got, want)


def test_a_difference_shows_the_rows() -> None:
    """The lines name the column and the value, and how many rows there are."""
    lines = difference(one([1, 1, 2], pa.int64()), one([2, 3], pa.int64()))
    assert lines == ["2 rows missing:", "  2 x v=1", "1 rows unexpected:", "  1 x v=3"]


def test_many_differences_are_cut() -> None:
    """A thousand missing rows are four lines and a count."""
    lines = difference(one(list(range(1000)), pa.int64()), one([], pa.int64()))
    assert lines[0] == "1000 rows missing:"
    assert lines[-1] == "  and 996 more"
    assert len(lines) == 6


def test_slices_of_nested_arrays_keep_their_own_values() -> None:
    """A slice's offsets point into its parent's values: lists, maps and structs alike."""
    lists = pa.array([[1], [2, 3], None, [4]], pa.list_(pa.int64()))
    maps = pa.array([[("a", 1)], [("b", 2)], None, []], pa.map_(pa.string(), pa.int64()))
    structs = pa.array([{"a": 1}, {"a": 2}, None, {"a": 4}], pa.struct([("a", pa.int64())]))
    assert canonical(lists.slice(1)) == [("list", 2, 3), None, ("list", 4)]
    assert canonical(maps.slice(1)) == canonical(maps)[1:]
    assert canonical(structs.slice(1)) == canonical(structs)[1:]
    assert canonical(structs.slice(1, 1)) == [(("a", 2),)]


def test_nested_times_have_no_calendar_limit() -> None:
    """Microseconds in the year -1200 stay whole inside a list of structs."""
    kind = pa.list_(pa.struct([("t", pa.timestamp("us"))]))
    assert canonical(pa.array([[{"t": -(10**17)}]], kind)) == [("list", (("t", -(10**17)),))]


def test_a_variant_is_known_by_its_layout_and_its_values_are_not_compared() -> None:
    """Variants have many encodings, so only the column's presence counts."""
    kind = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    assert is_variant(kind)
    assert not is_variant(pa.struct([("value", pa.binary())]))
    want = one([{"metadata": b"1", "value": b"2"}], kind)
    assert difference(want, one([{"metadata": b"9", "value": b"9"}], kind)) == []
    assert difference(want, one(['{"a": 1}'], pa.string())) == []
    assert difference(want, one([], kind)) == ["1 rows missing:", "  1 x "]


def test_commit_timestamps_count_in_milliseconds() -> None:
    """Delta keeps milliseconds; what stands below them is a reader's own."""

    def stamped(time_us: int) -> pa.Table:
        return one([1], pa.int8()).append_column(
            "_commit_timestamp", pa.array([time_us], pa.timestamp("us", "UTC"))
        )

    assert difference(stamped(1_000_999), stamped(1_000_000)) == []
    assert difference(stamped(1_001_000), stamped(1_000_999))


def test_logical_names_leave_out_what_readers_choose() -> None:
    """Widths, units and child names go; precision, scale and zone stay."""
    assert logical(pa.map_(pa.string(), pa.list_(pa.timestamp("ns")))) == (
        "map<string, list<timestamp_ntz>>"
    )
    assert logical(pa.decimal128(9, 2)) == "decimal(9, 2)"
    assert logical(pa.struct([("a", pa.large_binary())])) == "struct<a: binary>"


def test_changes_lead_from_one_snapshot_to_the_next() -> None:
    """Delete, update and insert in any order, duplicates and nulls among the rows."""
    before = snapshot((1, "a"), (1, "a"), (2, None), (3, "c"))
    after = snapshot((1, "a"), (2, "b"), (4, None), (3, "c"))
    events = changes(
        ("update_postimage", 2, "b"),
        ("insert", 4, None),
        ("update_preimage", 2, None),
        ("delete", 1, "a"),
    )
    assert replay(before, events, after) == []


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([], id="nothing told"),
        pytest.param([("delete", 1, "a"), ("delete", 1, "a")], id="deleted twice"),
        pytest.param([("delete", 1, "A")], id="another row deleted"),
        pytest.param([("delete", 1, "a"), ("insert", 9, "x")], id="a row too many"),
        pytest.param([("insert", 1, "a")], id="the wrong direction"),
    ],
)
def test_changes_that_do_not_fit_are_told(events: list[tuple[str, int, str]]) -> None:
    """The true change is one deletion of (1, a)."""
    before, after = snapshot((1, "a"), (2, "b")), snapshot((2, "b"))
    assert replay(before, changes(*events), after)


def test_a_row_that_was_never_there_cannot_leave() -> None:
    """The sum alone would not show it: there is no fewer than none of a row."""
    rows = snapshot((1, "a"))
    lines = replay(rows, changes(("delete", 7, "x")), rows)
    assert lines[0] == "1 rows leave that were never there:"


def test_a_column_missing_from_the_changes_is_told() -> None:
    """Replay needs every column of the snapshot."""
    rows = snapshot((1, "a"))
    assert replay(rows, changes().drop_columns(["s"]), rows) == [
        "columns ['s'] are not in the changes"
    ]


def test_snapshots_of_two_schemas_are_not_replayed() -> None:
    """A column more or of another type makes rows incomparable."""
    rows = snapshot((1, "a"))
    assert replayable(rows, snapshot())
    assert not replayable(rows, rows.append_column("more", pa.array([1])))
    assert not replayable(rows, rows.set_column(0, "k", pa.array([1], pa.int32())))


def test_a_rewritten_row_is_no_change() -> None:
    """A row that leaves and comes with equal values is told; a true update is not."""
    real = changes(("update_preimage", 1, "a"), ("update_postimage", 1, "b"))
    assert unchanged(real, ["k", "s"]) == []
    copied = changes(("delete", 1, "a"), ("insert", 1, "a"), ("insert", 2, "b"))
    assert unchanged(copied, ["k", "s"]) == [
        "1 unchanged rows both leave and come:",
        "  1 x k=1, s='a'",
    ]
