"""Whatever rows a deletion vector names, and however it is stored, the same rows come out."""

from __future__ import annotations

import struct
import tempfile
import uuid
import zlib
from pathlib import Path

import anyio
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tailer.decode.vectors import RowSelection, find_stored_range, parse_dv_file, parse_inline_dv
from tailer.delta.actions import DeletionVectorDescriptor
from tailer.delta.paths import find_dv_location
from tailer.store.local import LocalStore
from tailer.testing.table import z85_encode

MAGIC = struct.pack("<i", 1681511377)


@st.composite
def bitmaps(draw: st.DrawFn) -> BitMap64:
    """Bitmaps of all three kinds of container (a few rows, many without order, runs), in one
    bucket or in several, up to the largest key that is legal."""
    rows = BitMap64()
    base = st.sampled_from(
        [0, 1, 2**16, 2**31, 2**32 - 5, 2**32, 3 * 2**32 + 70_000, 2**63 - 2**17]
    )
    for start in draw(st.lists(base, max_size=4)):
        match draw(st.sampled_from(["array", "bitmap", "run"])):
            case "array":
                rows |= BitMap64(
                    start + i for i in draw(st.sets(st.integers(0, 70_000), max_size=9))
                )
            case "bitmap":
                step = draw(st.sampled_from([2, 3]))
                rows |= BitMap64(range(start, start + 30_000, step))
            case "run":
                rows |= BitMap64(range(start, start + draw(st.integers(1, 100_000))))
    if draw(st.booleans()):
        rows.run_optimize()
    return rows


def test_the_bitmaps_of_these_tests_have_containers_of_every_kind() -> None:
    # As many rows as 4096 in a container make it a bitmap; fewer are an array; runs are optimised.
    sizes = {
        "array": len(BitMap64([1, 5]).serialize()),
        "bitmap": len(BitMap64(range(0, 30_000, 2)).serialize()),
    }
    runs = BitMap64(range(100_000))
    runs.run_optimize()
    assert sizes["bitmap"] > 8192 > sizes["array"]
    assert len(runs.serialize()) < 100


def descriptor(
    storage: str, path: str, offset: int | None, data: bytes, rows: BitMap64
) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor(storage, path, len(data), len(rows), offset)


async def read(root: str, dv: DeletionVectorDescriptor) -> BitMap64:
    """As the feed reads a vector: where it lies, and how much of it."""
    where = find_dv_location(dv)
    if where is None:
        return parse_inline_dv(dv)
    offset, length = find_stored_range(dv)
    stored, _ = await LocalStore(root).read(where, offset, length)
    return parse_dv_file(stored, dv)


@given(st.lists(bitmaps(), min_size=1, max_size=4), st.sampled_from(["", "ab", "p=1/x"]))
def test_any_rows_survive_every_storage(vectors: list[BitMap64], prefix: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        name = uuid.uuid4()
        file = Path(root, prefix, f"deletion_vector_{name}.bin")
        file.parent.mkdir(parents=True, exist_ok=True)
        content, stored = b"\x01", []
        for rows in vectors:  # all in one file, each at its own offset
            data = MAGIC + rows.serialize()
            stored.append((len(content), data, rows))
            content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        file.write_bytes(content)
        for offset, data, rows in stored:
            for dv in (
                descriptor("u", prefix + z85_encode(name.bytes), offset, data, rows),
                descriptor("p", file.as_uri(), offset, data, rows),
                descriptor("i", z85_encode(data), None, data, rows),
            ):
                assert anyio.run(read, root, dv) == rows


rows_of_a_file = st.sets(st.integers(0, 99))
maybe_rows = st.none() | rows_of_a_file


def chosen(selection: RowSelection, edges: list[int]) -> list[int]:
    """The selected rows, asked for in the windows between these edges."""
    found = []
    for first, last in zip([0, *edges], [*edges, 100], strict=True):
        indices = selection.find_indices(first, last)
        window = range(last - first) if indices is None else indices.to_pylist()
        assert selection.count(first, last) == len(window)
        found += [first + i for i in window]
    return found


windows = st.lists(st.integers(0, 100), max_size=5).map(sorted)


def bitmap(rows: set[int] | None, base: int = 0) -> BitMap64 | None:
    return None if rows is None else BitMap64(base + i for i in rows)


@given(old=maybe_rows, new=maybe_rows, edges=windows)
def test_inserts_are_old_less_new_and_deletes_are_new_less_old(
    old: set[int] | None, new: set[int] | None, edges: list[int]
) -> None:
    deletes = RowSelection.from_sets(bitmap(new or set()), bitmap(old))
    inserts = RowSelection.from_sets(bitmap(old or set()), bitmap(new))
    assert chosen(deletes, edges) == sorted((new or set()) - (old or set()))
    assert chosen(inserts, edges) == sorted((old or set()) - (new or set()))


@given(only=maybe_rows, without=maybe_rows, edges=windows)
def test_a_selection_is_what_sets_say(
    only: set[int] | None, without: set[int] | None, edges: list[int]
) -> None:
    selection = RowSelection.from_sets(bitmap(only), bitmap(without))
    everything = set(range(100)) if only is None else only
    assert chosen(selection, edges) == sorted(everything - (without or set()))


@given(only=rows_of_a_file, base=st.sampled_from([2**32 - 50, 2**33, 2**62]))
def test_a_selection_beyond_32_bits_is_the_same_one_further_up(only: set[int], base: int) -> None:
    selection = RowSelection.from_sets(bitmap(only, base), None)
    indices = selection.find_indices(base, base + 100)
    found = list(range(100)) if indices is None else indices.to_pylist()
    assert found == sorted(only)
    assert selection.end() == (base + max(only) + 1 if only else 0)
