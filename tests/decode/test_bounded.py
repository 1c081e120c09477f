"""Batches are bounded by bytes, whatever rows a file has after the first ones."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.decode.options import DecodeOptions
from tailer.delta.bounded import BoundedColumns, halve_batch
from tailer.delta.parquet_columns import ParquetColumns
from tailer.delta.row_groups import RowGroups
from tests.decode.test_rows import decoded, order, parquet, values
from tests.support.components import require_crate
from tests.support.damaged_footers import I64, in_metadata, with_footer, zigzag
from tests.support.feeds import state

MIB = 1024 * 1024
BATCH_BYTES = DecodeOptions().batch_bytes_max
#: What a process may have at its peak, its libraries and the file included: some batches.
PEAK_BYTES = 500 * MIB


def coded(texts: list[str], codes: list[int]) -> pa.Array:
    """Texts by their numbers, which are few in memory."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), texts)


def files() -> Iterator[tuple[str, pa.Table, dict[str, Any]]]:
    """Small files with gigabytes of values."""
    dice = random.Random(1)
    long, bomb = "error: " + "x" * 20_000, "y" * 4 * MIB
    rows = 40_000
    grows = [0] * 300 + [1] * (rows - 300)
    noise = [dice.randrange(2**62) for _ in range(200_000)]
    yield "growing", pa.table({"id": range(rows), "s": coded(["ok", long], grows)}), {}
    grows = [0] * 300 + [1] * (len(noise) - 300)
    much = pa.table({"id": noise, "s": coded(["ok", long[:5000]], grows)})
    for codec in ("snappy", "gzip"):
        yield f"growing in a large file, {codec}", much, {"compression": codec}
    for count in (150, 300):
        one = coded([bomb], [0] * count)
        yield f"{count} of one", pa.table({"s": one}), {}
        yield f"{count} of one in structs", pa.table({"s": structs(one)}), {}
        yield f"{count} of one in lists", pa.table({"s": lists(one)}), {}
        yield f"{count} of one in maps", pa.table({"s": maps(one)}), {}
    late = pa.array([None] * 400 + [0] * 200, pa.int32())
    yield "late", pa.table({"s": pa.DictionaryArray.from_arrays(late, [bomb])}), {}
    yield "a dictionary of 200 MiB", pa.table({"s": coded(["z" * 200 * MIB], [0] * 300)}), {}


def structs(texts: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([texts, texts], ["a", "b"])


def lists(texts: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(texts) + 1), pa.int32()), texts)


def maps(texts: pa.Array) -> pa.Array:
    keys = pa.array(["k"] * len(texts))
    return pa.MapArray.from_arrays(pa.array(range(len(texts) + 1), pa.int32()), keys, texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The rows of each file, by its path."""
    made, found = tmp_path_factory.mktemp("files"), {}
    for name, table, options in files():
        path = made / f"{name}.parquet"
        pq.write_table(
            table, path, row_group_size=len(table), store_schema=False,
            **{"compression": "zstd", **options},
        )  # fmt: skip
        found[str(path)] = len(table)
    # Its footer says that nothing is large.
    data = (made / "300 of one.parquet").read_bytes()
    small = with_footer(data, in_metadata(6, I64, zigzag(100)))
    (made / "understated.parquet").write_bytes(small)
    found[str(made / "understated.parquet")] = 300
    return found


@pytest.mark.slow
def test_memory_is_bounded_by_bytes(folder: dict[str, int]) -> None:
    require_crate()
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.peaks", *folder],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    refusal = said.pop("a dictionary of 200 MiB")
    assert "bytes in the data file has 209715204 when it is unpacked" in refusal
    assert "batch_bytes_max" in refusal
    for path, rows in folder.items():
        name = Path(path).stem
        if name not in said:
            continue
        found, largest, peak = map(int, said[name].split())
        assert found == rows
        assert largest <= 1.02 * BATCH_BYTES, f"{name}: three small columns are added"
        assert peak < PEAK_BYTES, f"{name}: {peak // MIB} MiB"


@pytest.mark.parametrize("kind", ["text", "list", "struct", "map", "binary", "view"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_rows_come_once_and_in_order_whatever_their_sizes(kind: str, *, dictionary: bool) -> None:
    dice = random.Random(3)
    texts = [dice.choice(["", "a", "b" * 100, "c" * dice.choice([10, 5000])]) for _ in range(900)]
    made: Any = {
        "text": (pa.string(), lambda t: t), "binary": (pa.binary(), str.encode),
        "list": (pa.list_(pa.string()), lambda t: [t, None]),
        "struct": (pa.struct([("x", pa.string())]), lambda t: {"x": t}),
        "map": (pa.map_(pa.string(), pa.string()), lambda t: [("k", t)]),
        "view": (pa.string_view(), lambda t: t),
    }  # fmt: skip
    arrow, value = made[kind]
    schema = pa.schema([("id", pa.int64()), ("v", arrow)])
    rows = [{"id": i, "v": value(t) if i % 7 else None} for i, t in enumerate(texts)]
    data = parquet(rows, schema, use_dictionary=dictionary, row_group_size=400)
    table = state(schema if kind != "view" else pa.schema([("id", pa.int64()), ("v", pa.string())]))
    for bytes_max in (1000, 20_000, 10**6):
        found = decoded(data, order(table), batch_bytes_max=bytes_max)
        assert values(found) == list(range(900))
        assert values(found, "v") == [row["v"] for row in rows]
        for batch in found:
            own = batch.batch.select(["id", "v"])
            assert own.nbytes <= bytes_max or own.num_rows == 1


def spied_rows(file: ParquetColumns) -> list[int]:
    """How many rows are asked for, each time."""
    asked: list[int] = []
    rows = file.read_rows

    def spied(rows_max: int, *arguments: Any, **more: Any) -> Any:
        asked.append(rows_max)
        return rows(rows_max, *arguments, **more)

    file.read_rows = spied  # type: ignore[method-assign]
    return asked


def test_what_outgrows_its_steps_is_halved_and_read_on_in_smaller_ones() -> None:
    """Without a dictionary, nobody knows of the texts to come."""
    texts = ["x"] * 3000 + ["y" * 5000] * 3000
    data = parquet([{"s": t} for t in texts], pa.schema([("s", pa.string())]), use_dictionary=False,
                   row_group_size=6000)  # fmt: skip
    source = pa.BufferReader(data)
    file = ParquetColumns(source)
    asked = spied_rows(file)
    columns = BoundedColumns(file, RowGroups(file, source), 100_000)
    found = list(columns.read_batches(4000, 0, ["s"], varying=["s"], threads=False))
    assert [t for batch in found for t in batch.column("s").to_pylist()] == texts
    assert all(batch.nbytes <= 100_000 for batch in found)
    assert asked[-1] <= 40, "5000 bytes a row"
    assert len(asked) < 12


def test_lists_that_grow_are_decoded_in_smaller_steps_whatever_their_first_rows_say() -> None:
    """Of the first rows none has an item, of the later ones each has a hundred thousand."""
    short, long, items = 300, 300, 100_000
    ends = [0] * short + [items * i for i in range(long + 1)]
    lists = pa.ListArray.from_arrays(ends, pa.repeat(pa.scalar(7, pa.int8()), items * long))
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({"s": lists}), out)
    source = pa.BufferReader(out.getvalue())
    file = ParquetColumns(source)
    asked = spied_rows(file)
    columns = BoundedColumns(file, RowGroups(file, source), 2**31)
    found = list(columns.read_batches(4000, 0, ["s"], varying=["s"], threads=False))
    assert pa.concat_arrays([batch.column("s") for batch in found]).equals(lists)
    if file.skips_rows:
        assert asked[-1] < 168, "as many rows have 16 Mi values"


def test_halves_of_one_row_stay() -> None:
    batch = pa.record_batch({"s": ["x" * 100] * 5})
    assert [b.num_rows for b in halve_batch(batch, 50)] == [1] * 5
    assert [b.num_rows for b in halve_batch(batch, 10_000)] == [5]
    assert [b.num_rows for b in halve_batch(batch, 350)] == [2, 3]
