"""The pieces in which a file is fetched: each wanted byte once, in the order of the reads."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.store.pieces import PIECE_BYTES_MAX, Piece, Range, plan_pieces

KIB, MIB = 1024, 1024 * 1024


def asked(groups: list[list[Range]], bytes_max: int = 16 * MIB) -> list[Range]:
    return [(piece.start, piece.end) for piece in plan_pieces(groups, bytes_max)]


def test_neighbouring_columns_are_one_request() -> None:
    columns = [(4, 100 * KIB), (100 * KIB, MIB), (2 * MIB, 3 * MIB)]
    assert asked([columns]) == [(4, 3 * MIB)], "with the gap of a MiB between them"


def test_a_gap_that_costs_more_than_a_request_is_left_out() -> None:
    assert asked([[(0, 10), (10 + MIB + 1, 20 + MIB + 1)]]) == [
        (0, 10),
        (10 + MIB + 1, 20 + MIB + 1),
    ]


def test_a_row_group_that_fits_comes_in_the_order_of_the_file() -> None:
    columns = [(0, 12 * MIB), (12 * MIB, 20 * MIB)]
    assert asked([columns], 32 * MIB) == [(0, 16 * MIB), (16 * MIB, 20 * MIB)]


def test_columns_of_a_large_row_group_come_side_by_side() -> None:
    found = asked([[(0, 10 * MIB), (10 * MIB, 30 * MIB)]], 8 * MIB)
    assert found[:4] == [
        (0, 3 * MIB), (10 * MIB, 15 * MIB), (15 * MIB, 20 * MIB), (3 * MIB, 6 * MIB)
    ], "5 MiB of the one are needed by the time when 2.5 MiB of the other are"  # fmt: skip


def test_very_many_columns_share_the_memory() -> None:
    columns = [(at * MIB, at * MIB + MIB) for at in range(64)]
    found = asked([columns], 16 * MIB)
    assert found[:64] == [(start, start + 256 * KIB) for start, _ in columns]


@pytest.mark.parametrize("columns", [[], [(5, 5)]])
def test_nothing_to_read_is_no_request(columns: list[Range]) -> None:
    assert asked([columns, [(7, 9)]]) == [(7, 9)]


@st.composite
def row_groups(draw: st.DrawFn) -> list[list[Range]]:
    """Row groups with columns that are not all wanted, one after the other in the file."""
    at, groups = 0, []
    size = st.one_of(st.integers(0, 100), st.integers(0, 3 * MIB), st.integers(0, 30 * MIB))
    for _ in range(draw(st.integers(1, 4))):
        columns = []
        for length in draw(st.lists(size, max_size=12)):
            if draw(st.booleans()):
                columns.append((at, at + length))
            at += length
        groups.append(columns)
    return groups


@given(row_groups(), st.sampled_from([1, 100 * KIB, MIB, 16 * MIB]))
def test_each_wanted_byte_is_in_one_piece_and_pieces_are_bounded(
    groups: list[list[Range]], bytes_max: int
) -> None:
    found = list(plan_pieces(groups, bytes_max))
    assert [p.group for p in found] == sorted(p.group for p in found), "group by group"
    for number, columns in enumerate(groups):
        mine = sorted((p for p in found if p.group == number), key=lambda p: p.start)
        assert all(before.end <= after.start for before, after in pairwise(mine)), "no byte twice"
        assert sum(held(piece, column) for piece in mine for column in columns) == sum(
            end - start for start, end in columns
        )
        assert sum(p.size for p in mine) <= sum(end - start for start, end in columns) + (
            MIB * len(columns)
        )
    assert all(0 < p.size <= max(256 * KIB, min(PIECE_BYTES_MAX, bytes_max)) for p in found)


def held(piece: Piece, column: Range) -> int:
    return max(0, min(piece.end, column[1]) - max(piece.start, column[0]))
