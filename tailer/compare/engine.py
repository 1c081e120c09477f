"""The out-of-core engine of the comparison of rows: DuckDB, and the few queries that it runs.

Rows come in as a stream of Arrow batches and are grouped by value. Memory stays below
``memory_bytes_max``; beyond that the engine spills into ``spill_folder``. NaN equals NaN, -0.0
equals 0.0, null equals null, maps have no order. Columns are named by number, so that no name of a
table ever enters a query.

For example, rows that leave (side 0) and come (side 1), with the version that last changed each::

    #side  #ref  row_id  row_commit_version
        0     0       7                   3
        1     4       7                   3     copied: not in the result
        0     1       8                   3
        1     5       8                   9     changed: the result has 8, with both references

What must never happen: an error of the rows' own reading is raised as one of the engine; a lack of
memory or disk, or a query that DuckDB can't do, is called damage of the table; the result depends
on the order in which its threads find groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from tailer.compare.databases import DATABASES
from tailer.compare.stream import COMING, LEAVING, RowStream
from tailer.decode.options import DiffOptions
from tailer.errors import TableError, TailerError, UnsupportedTable, no_room

__all__ = ["DiffOptions", "Engine", "Unbalanced"]

#: Rows with up to this many columns are grouped by all their values, and are shown whole.
COLUMNS_GROUPED_MAX = 200


#: How often the rows are read where the memory is short.
_SHARES = (1, 4, 16, 64)


class _MemoryShort(TableError):
    """The engine lacks memory."""


class Unbalanced(NamedTuple):
    """How many rows there are too few and too many, and examples: the values, then ``surplus``."""

    missing: int
    surplus: int
    examples: pa.Table | None


class Engine:
    """The queries of the comparison, on a DuckDB of its own."""

    def __init__(self, options: DiffOptions) -> None:
        import duckdb

        self._folder = options.spill_folder
        self._duckdb: Any = duckdb
        self._database = DATABASES.take_database(options)
        self._connection: Any = self._database.connection.cursor()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._connection.close()  # with its temporary tables
        if kind is None:
            DATABASES.give_back(self._database)
        else:  # whatever is wrong with it, the next attempt has another one
            self._database.close()

    @contextmanager
    def _register_rows(self, rows: RowStream) -> Iterator[None]:
        """Provide the stream as the table ``rows``; an error of the stream is raised unchanged."""
        self._connection.register("rows", rows.open_reader())
        try:
            with self._translate_errors():
                yield
        except TailerError:
            if rows.error is not None:
                raise rows.error from None
            raise
        finally:
            self._connection.unregister("rows")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate the engine's errors into our own, around each use of the engine."""
        try:
            yield
        except self._duckdb.Error as e:
            reason = str(e).splitlines()[0]
            if isinstance(e, self._duckdb.IOException) or "offload" in reason:
                raise no_room(self._folder, reason) from e
            if isinstance(e, self._duckdb.OutOfMemoryException):
                raise _MemoryShort(
                    f"the rows can't be compared ({reason})",
                    hint="increase diff_memory_bytes_max",
                ) from e
            raise UnsupportedTable(
                f"the rows can't be compared (DuckDB {self._duckdb.__version__}: {reason})",
                hint="try another version of DuckDB and report this, or follow the table with its "
                "change data feed on",
            ) from e

    def execute(self, sql: str, rows: RowStream | None = None) -> None:
        """Run a statement; ``rows`` is the stream that it reads as the table ``rows``."""
        with self._translate_errors() if rows is None else self._register_rows(rows):
            self._connection.execute(sql)

    def query_table(self, sql: str, rows: RowStream | None = None) -> pa.Table:
        """Return the result of a query, which fits into memory."""
        with self._translate_errors() if rows is None else self._register_rows(rows):
            return self._connection.sql(sql).to_arrow_table()

    def query_batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the result of a query. Only one such iteration may be active at a time."""
        with self._translate_errors():
            yield from pa.RecordBatchReader.from_stream(self._connection.sql(sql))

    @staticmethod
    def select_columns(columns: dict[str, str]) -> str:
        """Return a query of all rows with these columns, each evaluated once for a row."""
        listed = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
        return f'(SELECT "#side", "#ref", {listed} FROM rows)'

    def find_changed_ids(self, rows: Callable[[], RowStream]) -> pa.Table | None:
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
        found = self.query_table(
            f"SELECT row_id, {selected} FROM rows GROUP BY row_id "
            "HAVING v_left IS DISTINCT FROM v_came OR n_left > 1 OR n_came > 1",
            rows(),
        )
        if any((pc.max(found[n]).as_py() or 0) > 1 for n in ("n_left", "n_came")):
            return None
        return found.select(["row_id", "left", "came"]).combine_chunks()

    def is_balanced(self, rows: RowStream) -> bool | None:
        """Return whether the signs of equal rows (their side: -1 or 1) add up to zero; None, and
        nothing is read, if the rows have columns that hashes cannot represent.

        Each row has 128 bits of hash, and the sums of both halves must be zero. Hashes of a row
        are made from those of its values by operations that sums could undo, so they are mixed
        once more: otherwise two rows that swapped a value might add up to the same.
        """
        columns = rows.build_fingerprint(texts=True)
        if columns.keys() != {"h1", "h2"}:
            return None
        sums = ", ".join(f'sum(hash({name})::HUGEINT * "#side")' for name in columns)
        summed = f"(SELECT {sums} FROM {self.select_columns(columns)}) AS sums(a, b)"
        found = self.query_table(f"SELECT count(*) FILTER (a <> 0 OR b <> 0) FROM {summed}", rows)
        return not found.column(0)[0].as_py()

    def find_unbalanced(self, open_rows: Callable[[], RowStream], limit: int) -> Unbalanced:
        """Find where the signs of equal rows (their side: -1 or 1) don't add up to zero.

        At most ``limit`` examples are returned. For a table with very many columns, an example
        shows only the first columns, and 128 bits of hash stand for the row's values: the engine
        reserves memory for each column of a group. It spills groups, but of very many rows it
        needs more memory than it may take; then the rows are read several times, and each time a
        share of them is grouped.
        """
        for shares in _SHARES:
            try:
                fields = self._gather_unbalanced(open_rows, shares)
                break
            except _MemoryShort:
                if shares == _SHARES[-1]:
                    raise
        names = [f.name for f in fields[:COLUMNS_GROUPED_MAX]]
        totals = self.query_table(
            "SELECT coalesce(sum(-surplus) FILTER (surplus < 0), 0)::BIGINT AS few, "
            "coalesce(sum(surplus) FILTER (surplus > 0), 0)::BIGINT AS many FROM unbalanced"
        )
        examples = self.query_table(f"SELECT * FROM unbalanced ORDER BY ALL LIMIT {limit}")
        for i, shown in enumerate(fields[: len(names)]):
            examples = examples.set_column(
                i, shown.name, _make_legible(examples[shown.name], shown.type)
            )
        few, many = (totals[name][0].as_py() for name in ("few", "many"))
        return Unbalanced(few, many, examples if examples.num_rows else None)

    def _gather_unbalanced(self, open_rows: Callable[[], RowStream], shares: int) -> list[pa.Field]:
        """Make the table ``unbalanced``, a share of the rows at a time; return their columns."""
        self.execute("DROP TABLE IF EXISTS unbalanced")
        for share in range(shares):
            with closing(open_rows()) as rows:
                fields = rows.list_fields()
                wide = len(fields) > COLUMNS_GROUPED_MAX
                key = ", ".join(rows.build_fingerprint().values()) if wide else rows.build_key()
                values = ", ".join(
                    f"any_value({f.name}) AS {f.name}" for f in fields[:COLUMNS_GROUPED_MAX]
                )
                into = "INSERT INTO unbalanced" if share else "CREATE TEMP TABLE unbalanced AS"
                some = f"WHERE hash({key}) % {shares} = {share}" if shares > 1 else ""
                self.execute(
                    f'{into} SELECT {values}, sum("#side")::BIGINT AS surplus '
                    f"FROM rows {some} GROUP BY {key} HAVING surplus <> 0",
                    rows,
                )
        return fields

    def find_equal_images(self, rows: Callable[[], RowStream], updated: pa.Table) -> pa.Array:
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
        columns = images.build_fingerprint()
        self._connection.register("pairs", pairs)
        found = self.query_table(
            f'SELECT row_id FROM {self.select_columns(columns)} JOIN pairs USING ("#side", "#ref") '
            f"GROUP BY row_id, {', '.join(columns)} HAVING count(*) = 2",
            images,
        )
        self._connection.unregister("pairs")
        return found["row_id"].combine_chunks()

    def find_partners(self, rows: RowStream) -> None:
        """Pair rows of equal values if there is exactly one on each side; :meth:`list_partners`
        lists the pairs."""
        left, came = (f'min("#ref") FILTER ("#side" = {side})' for side in (LEAVING, COMING))
        self.execute(
            f"CREATE TEMP TABLE partners AS SELECT {left} AS l, {came} AS c FROM rows "
            f"GROUP BY {rows.build_key()} HAVING count(*) = 2 AND l IS NOT NULL AND c IS NOT NULL",
            rows,
        )

    def list_partners(self, order: Literal["l", "c"]) -> Iterator[pa.RecordBatch]:
        """Yield the references of partners: ``l`` of the one that leaves, ``c`` of the one that
        comes, sorted by one of them, in batches. Only one such iteration may be active at a
        time."""
        return self.query_batches(f"SELECT l, c FROM partners ORDER BY {order}")


def _make_legible(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    """Return a column in its own type; in the engine's type if it holds invalid UTF-8."""
    try:
        return column.cast(data_type)
    except pa.ArrowException:
        return column
