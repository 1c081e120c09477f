"""Which rows leave or come without an equal row on the other side: the heart of cancelling out.

Rules of this file:

* Rows of equal values are a *group*. A group in which as many rows leave as come changes nothing.
  Of any other group, the first rows of the larger side are the change: as many as it has more.
  "First" is by reference, which is file, then position.
* A *placed* row is equal at one place of a file and of its rewrite (:mod:`~.side_by_side`). Its two
  rows are partners already and stay out of the groups, which makes these half as large.
* That must not change the result. If a row of a placed row's value has no partner, the first of
  that value may be the placed one. Then all rows of the value are *doubtful*: the caller compares
  them again without places, and takes that result.

===== ======== ====== ==================== ======================================
value leaves   comes  rows, rows that come result
===== ======== ====== ==================== ======================================
a     1        7      2, 1: balanced       nothing
b     2               1, 0                 2 leaves
c              8      1, 1                 8 comes
d     3, 4, 5  9      4, 1                 the first of the surplus: 3 and 4 leave
e     6        10     placed: in no group  nothing
f     11       12     placed: in no group
f     13              1, 0                 13 leaves; 11, 12 and 13 are doubtful
===== ======== ====== ==================== ======================================

Two queries read the rows: one finds the groups that don't balance, of which most are single rows.
Only if some have several rows, the second lists their references.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.compare.engine import Engine
from tailer.compare.stream import COMING, LEAVING, OTHER_FIELD, PLACED, RowStream
from tailer.decode.vectors import build_bitmap


@dataclass(slots=True)
class Unmatched:
    """References of rows without a partner, by side; and of doubtful rows, to be compared again."""

    leaving: BitMap64 = field(default_factory=BitMap64)
    coming: BitMap64 = field(default_factory=BitMap64)
    doubtful_leaving: BitMap64 = field(default_factory=BitMap64)
    doubtful_coming: BitMap64 = field(default_factory=BitMap64)


def find_unmatched(engine: Engine, rows: Callable[[], RowStream]) -> Unmatched:
    """Return the references of rows without a partner. ``rows`` opens the rows, once or twice."""
    stream = rows()
    columns = stream.build_fingerprint()
    names = ", ".join(columns)
    result = Unmatched()
    if OTHER_FIELD in stream.schema:
        engine.execute(_build_hash_sql(columns, stream.build_hint()), stream)
        not_placed = f'(SELECT * FROM hashed WHERE "#side" < {PLACED})'
        engine.execute(_build_unbalanced_sql(not_placed, names, "h1, h2, any_value(p) AS p"))
        if _add_single(engine, result):
            _add_surplus(engine.query_table(_build_groups_sql(not_placed, names)), result)
        _add_doubtful(engine, result)
    else:
        values = engine.select_columns(columns)
        engine.execute(_build_unbalanced_sql(values, names, "h1, h2"), stream)
        if _add_single(engine, result):
            _add_surplus(engine.query_table(_build_groups_sql(values, names), rows()), result)
    return result


def _build_hash_sql(columns: dict[str, str], hint: str | None) -> str:
    """Write down all rows once: placed rows by ``p`` alone, a hash that equal rows share, and the
    others by ``p`` and all that stands for their values."""
    whole = columns if hint else {**columns, "h1": "p"}
    values = ", ".join(
        f'CASE WHEN "#side" < {PLACED} THEN {sql} END AS {name}' for name, sql in whole.items()
    )
    rows = f"SELECT *, {hint or columns['h1']} AS p FROM rows"
    return f"""
        CREATE OR REPLACE TEMP TABLE hashed AS
        SELECT "#side", "#ref", "#other", p, {values} FROM ({rows})
    """


def _build_unbalanced_sql(source: str, names: str, hashes: str) -> str:
    """Find the groups that don't balance, with the first reference of each."""
    return f"""
        CREATE OR REPLACE TEMP TABLE unbalanced AS
        SELECT {hashes}, count(*) AS n, count(*) FILTER ("#side" = {COMING}) AS n_came,
            min("#ref") AS low
        FROM {source} GROUP BY {names} HAVING n <> 2 * n_came
    """


def _add_single(engine: Engine, result: Unmatched) -> bool:
    """Add the rows that are a group alone; return whether there are other groups."""
    several = False
    for batch in engine.query_batches(
        "SELECT n, n_came, low FROM unbalanced WHERE n = 1 UNION ALL "
        "(SELECT n, n_came, low FROM unbalanced WHERE n > 1 LIMIT 1)"
    ):
        count, came, low = batch.columns
        alone = pc.equal(count, 1)
        several = several or alone.false_count > 0
        for side, refs in ((LEAVING, result.leaving), (COMING, result.coming)):
            refs.update(build_bitmap(low.filter(pc.and_(alone, pc.equal(came, side)))))
    return several


def _build_groups_sql(source: str, names: str) -> str:
    """List all references of the unbalanced groups of several rows, by side and in order."""
    return f"""
        SELECT list("#ref" ORDER BY "#ref") FILTER ("#side" = {LEAVING}) AS leaving,
            list("#ref" ORDER BY "#ref") FILTER ("#side" = {COMING}) AS coming
        FROM {source}
        SEMI JOIN (SELECT h1, h2 FROM unbalanced WHERE n > 1) USING (h1, h2)
        GROUP BY {names}
    """


def _add_surplus(groups: pa.Table, result: Unmatched) -> None:
    """Add, of each group, the first rows of the larger side."""
    leaving, coming = groups["leaving"], groups["coming"]
    result.leaving.update(build_bitmap(_select_surplus(leaving, coming)))
    result.coming.update(build_bitmap(_select_surplus(coming, leaving)))


def _select_surplus(mine: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.Array:
    """Return the first elements of each list, as many as it is longer than the other list."""
    mine, other = mine.combine_chunks(), other.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(mine), 0)
    surplus = pc.subtract(lengths, pc.fill_null(pc.list_value_length(other), 0))
    groups = pc.list_parent_indices(mine)
    flat = pc.list_flatten(mine)
    starts = pc.subtract(pc.cumulative_sum(lengths), lengths)
    rank = pc.subtract(pa.arange(0, len(flat)), starts.take(groups))
    return flat.filter(pc.less(rank, surplus.take(groups)))


def _add_doubtful(engine: Engine, result: Unmatched) -> None:
    """Add the placed rows whose hash a row without a partner has, and all rows of these hashes."""
    of_placed = f"""SELECT p FROM hashed WHERE "#side" = {PLACED}"""
    doubts = f"{of_placed} AND p IN (SELECT p FROM unbalanced)"
    rows = f"""SELECT "#side", "#ref", "#other" FROM hashed WHERE p IN ({doubts})"""
    for batch in engine.query_batches(rows):
        side, ref, other = batch.columns
        placed = pc.equal(side, PLACED)
        for refs, number, own in (
            (result.doubtful_leaving, LEAVING, ref),
            (result.doubtful_coming, COMING, other),
        ):
            refs.update(build_bitmap(ref.filter(pc.equal(side, number))))
            refs.update(build_bitmap(own.filter(placed)))
