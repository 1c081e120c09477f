"""The out-of-core engine behind the comparison of rows: DuckDB, and the few queries that it runs.

Rows come in as a stream of Arrow batches and are grouped by value. Memory stays below
``memory_bytes_max``; beyond that the engine spills into ``spill_folder``. NaN equals NaN, -0.0
equals 0.0, null equals null, maps have no order. Columns are named by number, so that no name of a
table ever enters a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.compare.stream import COMING, LEAVING, OTHER_FIELD, PLACED, RowStream
from tailer.decode.options import DiffOptions
from tailer.decode.vectors import bitmap_of
from tailer.errors import TableError, TailerError, UnsupportedTable, no_room, spilling
from tailer.files.spill import SpillFolder

__all__ = ["DiffOptions", "Engine", "Unmatched"]

#: Rows with up to this many columns are grouped by all their values, and are shown whole.
COLUMNS_GROUPED_MAX = 200

# The queries of Engine.unmatched. ``names`` are the columns that stand for a row's values
# (RowStream.fingerprint), h1 and h2 among them; ``source`` has these, "#side" and "#ref".

#: The groups of equal rows that don't balance.
_UNBALANCED = f"""
    CREATE TEMP TABLE unbalanced AS
    SELECT h1, h2, count(*) AS n, count(*) FILTER ("#side" = {COMING}) AS n_came,
        min("#ref") AS low {{hint}}
    FROM {{source}} GROUP BY {{names}} HAVING n <> 2 * n_came
"""
#: The rows that form a group alone.
_SINGLE = "SELECT low FROM unbalanced WHERE n = 1 AND n_came = {side}"
_COUNT_SEVERAL = "SELECT count(*) FROM unbalanced WHERE n > 1"
#: All references of the other groups, by side and in order.
_SEVERAL = f"""
    SELECT list("#ref" ORDER BY "#ref") FILTER ("#side" = {LEAVING}) AS l,
        list("#ref" ORDER BY "#ref") FILTER ("#side" = {COMING}) AS c
    FROM {{source}}
    SEMI JOIN (SELECT h1, h2 FROM unbalanced WHERE n > 1) USING (h1, h2)
    GROUP BY {{names}}
"""
#: With placed rows, all rows are written down once: the placed ones by ``p`` alone, a hash that
#: equal rows share; the others by ``p`` and all that stands for their values.
_HASHED = """
    CREATE TEMP TABLE hashed AS
    SELECT "#side", "#ref", "#other", p, {listed} FROM (SELECT *, {hint} AS p FROM rows)
"""
_NOT_PLACED = f'(SELECT * FROM hashed WHERE "#side" < {PLACED})'
#: The hashes of placed rows that rows without a partner have, too.
_DOUBTS = f"""
    CREATE TEMP TABLE doubts AS
    SELECT DISTINCT p FROM hashed WHERE "#side" = {PLACED} AND p IN (SELECT p FROM unbalanced)
"""
_DOUBTFUL = 'SELECT "{column}" FROM hashed WHERE p IN (SELECT p FROM doubts) AND "#side" = {side}'


@dataclass(slots=True)
class Unmatched:
    """References of rows without a partner, by side; and of doubtful rows, which must be compared
    again, all of them together: some rows without a partner may not be the first of their value."""

    leaving: BitMap64 = field(default_factory=BitMap64)
    coming: BitMap64 = field(default_factory=BitMap64)
    doubtful_leaving: BitMap64 = field(default_factory=BitMap64)
    doubtful_coming: BitMap64 = field(default_factory=BitMap64)


class Engine:
    """The queries of the comparison, on one private DuckDB instance."""

    def __init__(self, options: DiffOptions) -> None:
        import duckdb

        self._folder = options.spill_folder
        with spilling(self._folder):
            self._spill = SpillFolder("tailer-diff-", self._folder)
        self._connection: Any = duckdb.connect(
            config={
                "threads": options.threads,
                "memory_limit": f"{options.memory_bytes_max // 1_000_000}MB",
                "temp_directory": str(self._spill.folder),
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._spill.close()

    @contextmanager
    def _over(self, rows: RowStream) -> Iterator[None]:
        """Provide the stream as the table ``rows``; an error of the stream is raised unchanged."""
        self._connection.register("rows", rows.reader())
        try:
            with self._asked():
                yield
        except TailerError:
            if rows.error is not None:
                raise rows.error from None
            raise
        finally:
            self._connection.unregister("rows")

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Translate the engine's errors into our own, around each use of the engine."""
        import duckdb

        try:
            yield
        except duckdb.Error as e:
            reason = str(e).splitlines()[0]
            if isinstance(e, duckdb.IOException) or "offload" in reason:
                raise no_room(self._folder, reason) from e
            if isinstance(e, duckdb.OutOfMemoryException):
                raise TableError(
                    f"the rows can't be compared ({reason})",
                    hint="increase diff_memory_bytes_max",
                ) from e
            raise UnsupportedTable(
                f"the rows can't be compared (DuckDB {duckdb.__version__}: {reason})",
                hint="try another version of DuckDB and report this, or follow the table with its "
                "change data feed on",
            ) from e

    def _query(self, rows: RowStream, sql: str) -> pa.Table:
        with self._over(rows):
            return self._connection.sql(sql).to_arrow_table()

    def unmatched(self, rows: Callable[[], RowStream]) -> Unmatched:
        """Return the references of rows without a partner, those that leave and those that come.

        Rows of equal values are a group. A group in which as many rows leave as come changes
        nothing. The other groups are found in one pass, and the references of groups of several
        rows in a second pass:

        ===== ======== ====== ====================== ======================================
        value leave    come   n, n_came of the group result
        ===== ======== ====== ====================== ======================================
        a     1        7      2, 1: balanced         -
        b     2               1, 0                   2 leaves
        c              8      1, 1                   8 comes
        d     3, 4, 5  9      4, 1: several rows     the first of the surplus: 3 and 4 leave
        e     6        10     placed: in no group    -
        f     11       12     placed: in no group
        f     13              1, 0                   13 leaves; 11, 12 and 13 are doubtful
        ===== ======== ====== ====================== ======================================

        Placed rows (equal, at one place of two files) are partners already, so they are not in a
        group. If a row of the same value has no partner, like 13, it may not be the first of them;
        here, 11 is. Then all of these rows are doubtful, and are compared again without places.
        """
        stream = rows()
        columns = stream.fingerprint()
        names = ", ".join(columns)
        placed = OTHER_FIELD in stream.schema
        if placed:
            with self._over(stream):
                self._execute(_hashed(columns, stream.hint()))
            source, hint = _NOT_PLACED, ", any_value(p) AS p"
        else:
            source, hint = _selected(columns), ""
        with self._asked() if placed else self._over(stream):
            self._execute(_UNBALANCED.format(source=source, names=names, hint=hint))
        result = Unmatched()
        for side, refs in ((LEAVING, result.leaving), (COMING, result.coming)):
            self._collect(_SINGLE.format(side=side), refs)
        if self._execute(_COUNT_SEVERAL).fetchall()[0][0]:
            with self._asked() if placed else self._over(rows()):
                several = self._connection.sql(_SEVERAL.format(source=source, names=names))
                lists = several.to_arrow_table()
            result.leaving.update(bitmap_of(_first_of_surplus(lists["l"], lists["c"])))
            result.coming.update(bitmap_of(_first_of_surplus(lists["c"], lists["l"])))
        if placed:
            self._doubts(result)
            self._execute("DROP TABLE hashed")
        self._execute("DROP TABLE unbalanced")
        return result

    def _doubts(self, result: Unmatched) -> None:
        """Add the placed rows that may be equal to one without a partner, and the latter."""
        self._execute(_DOUBTS)
        for side, refs, column in (
            (LEAVING, result.doubtful_leaving, "#ref"),
            (COMING, result.doubtful_coming, "#other"),
        ):
            self._collect(_DOUBTFUL.format(column="#ref", side=side), refs)
            self._collect(_DOUBTFUL.format(column=column, side=PLACED), refs)
        self._execute("DROP TABLE doubts")

    def _execute(self, sql: str) -> Any:
        with self._asked():
            return self._connection.execute(sql)

    def _collect(self, sql: str, refs: BitMap64) -> None:
        """Add the references that the query finds, a batch at a time."""
        with self._asked():
            for batch in pa.RecordBatchReader.from_stream(self._connection.sql(sql)):
                refs.update(bitmap_of(batch.column(0)))

    def changed_ids(self, rows: Callable[[], RowStream]) -> pa.Table | None:
        """Return row id and both references (null: not on that side) of all rows that are not
        kept."""
        on = '{} FILTER ("#side" = {})'
        version = "min(row_commit_version)"
        columns = {
            "left": on.format('min("#ref")', LEAVING),
            "came": on.format('min("#ref")', COMING),
            "v_left": on.format(version, LEAVING),
            "v_came": on.format(version, COMING),
            "n_left": on.format("count(*)", LEAVING),
            "n_came": on.format("count(*)", COMING),
        }
        selected = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
        found = self._query(
            rows(),
            f"SELECT row_id, {selected} FROM rows GROUP BY row_id "
            "HAVING v_left IS DISTINCT FROM v_came OR n_left > 1 OR n_came > 1",
        )
        if any((pc.max(found[n]).as_py() or 0) > 1 for n in ("n_left", "n_came")):
            return None
        return found.select(["row_id", "left", "came"]).combine_chunks()

    def balances(self, rows: RowStream) -> bool | None:
        """Return whether the signs of equal rows (their side: -1 or 1) add up to zero; None, and
        nothing is read, if the rows have columns that hashes cannot represent.

        Each row has 128 bits of hash, and the sums of both halves must be zero. Hashes of a row
        are made from those of its values by operations that sums could undo, so they are mixed
        once more: otherwise two rows that swapped a value might add up to the same.
        """
        columns = rows.fingerprint(texts=True)
        if columns.keys() != {"h1", "h2"}:
            return None
        sums = ", ".join(f'sum(hash({name})::HUGEINT * "#side")' for name in columns)
        found = self._query(
            rows, f"SELECT count(*) FILTER (a <> 0 OR b <> 0) FROM (SELECT {sums} FROM "
            f"{_selected(columns)}) AS sums(a, b)"
        )  # fmt: skip
        return not found.column(0)[0].as_py()

    def unbalanced(self, rows: RowStream, limit: int) -> tuple[int, int, pa.Table]:
        """Find where the signs of equal rows (their side: -1 or 1) don't add up to zero.

        Returns how many rows there are too few and too many, and up to ``limit`` examples: the
        values, then ``surplus``. For a table with very many columns, an example shows only the
        first columns, and 128 bits of hash stand for the row's values: the engine reserves memory
        for each column of a group.
        """
        fields = rows.fields()
        names = [f.name for f in fields[:COLUMNS_GROUPED_MAX]]
        wide = len(fields) > COLUMNS_GROUPED_MAX
        key = ", ".join(rows.fingerprint().values()) if wide else rows.key()
        values = ", ".join(f"any_value({name}) AS {name}" for name in names)
        with self._over(rows):
            self._connection.execute(
                f'CREATE TEMP TABLE unbalanced AS SELECT {values}, sum("#side")::BIGINT AS surplus '
                f"FROM rows GROUP BY {key} HAVING surplus <> 0"
            )
        with self._asked():
            totals = self._connection.sql(
                "SELECT coalesce(sum(-surplus) FILTER (surplus < 0), 0)::BIGINT, "
                "coalesce(sum(surplus) FILTER (surplus > 0), 0)::BIGINT FROM unbalanced"
            ).fetchall()[0]
            examples = self._connection.sql(
                f"SELECT * FROM unbalanced ORDER BY ALL LIMIT {limit}"
            ).to_arrow_table()
        for i, shown in enumerate(fields[: len(names)]):
            examples = examples.set_column(
                i, shown.name, _legible(examples[shown.name], shown.type)
            )
        return totals[0], totals[1], examples

    def equal_images(self, rows: Callable[[], RowStream], updated: pa.Table) -> pa.Array:
        """Return the ids of the updated rows whose two images are equal."""
        pairs = pa.table(
            {
                "#side": pa.concat_arrays(
                    [
                        pa.repeat(pa.scalar(side, pa.int8()), updated.num_rows)
                        for side in (LEAVING, COMING)
                    ]
                ),
                "#ref": pa.chunked_array([*updated["left"].chunks, *updated["came"].chunks]),
                "row_id": pa.chunked_array([*updated["row_id"].chunks] * 2),
            }
        )
        images = rows()
        columns = images.fingerprint()
        self._connection.register("pairs", pairs)
        found = self._query(
            images,
            f'SELECT row_id FROM {_selected(columns)} JOIN pairs USING ("#side", "#ref") '
            f"GROUP BY row_id, {', '.join(columns)} HAVING count(*) = 2",
        )
        self._connection.unregister("pairs")
        return found["row_id"].combine_chunks()

    def find_partners(self, rows: RowStream) -> None:
        """Pair rows of equal values if there is exactly one on each side, for :meth:`partners` to
        list."""
        left, came = (f'min("#ref") FILTER ("#side" = {side})' for side in (LEAVING, COMING))
        with self._over(rows):
            self._connection.execute(
                f"CREATE TEMP TABLE partners AS SELECT {left} AS l, {came} AS c FROM rows "
                f"GROUP BY {rows.key()} HAVING count(*) = 2 AND l IS NOT NULL AND c IS NOT NULL"
            )

    def partners(self, order: Literal["l", "c"]) -> Iterator[pa.RecordBatch]:
        """Yield the references of partners: ``l`` of the one that leaves, ``c`` of the one that
        comes, sorted by one of them, in batches. Only one such iteration may be active at a
        time."""
        with self._asked():
            found = self._connection.sql(f"SELECT l, c FROM partners ORDER BY {order}")
            yield from pa.RecordBatchReader.from_stream(found)


def _legible(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    """Return a column in its own type; in the engine's type if it holds invalid UTF-8."""
    try:
        return column.cast(data_type)
    except pa.ArrowException:
        return column


def _selected(columns: dict[str, str], condition: str = "true") -> str:
    """Select these columns of the rows that meet the condition, evaluated once for each row."""
    listed = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    return f'(SELECT "#side", "#ref", {listed} FROM rows WHERE {condition})'


def _hashed(columns: dict[str, str], hint: str | None) -> str:
    whole = columns if hint else {**columns, "h1": "p"}
    listed = ", ".join(
        f'CASE WHEN "#side" < {PLACED} THEN {sql} END AS {name}' for name, sql in whole.items()
    )
    return _HASHED.format(listed=listed, hint=hint or columns["h1"])


def _first_of_surplus(mine: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.Array:
    """Return the first elements of each list, as many as it is longer than the other list."""
    mine, other = mine.combine_chunks(), other.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(mine), 0)
    surplus = pc.subtract(lengths, pc.fill_null(pc.list_value_length(other), 0))
    groups = pc.list_parent_indices(mine)
    flat = pc.list_flatten(mine)
    starts = pc.subtract(pc.cumulative_sum(lengths), lengths)
    rank = pc.subtract(pa.arange(0, len(flat)), starts.take(groups))
    return flat.filter(pc.less(rank, surplus.take(groups)))
